"""The options of an inspection. They need no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitkit.jobs.options import CheckpointOptions, JobOptions, StrPath
from vitkit.weights.published import is_address


@dataclass(frozen=True)
class InspectOptions(CheckpointOptions, JobOptions):
    """The options of an inspection; the texts below the fields are their help."""

    path: StrPath
    """a run folder, or any checkpoint that vitkit convert reads."""
    images: Sequence[StrPath] | None = None
    """image files or folders for the attention pictures; left out, test images of the run."""
    out: StrPath | None = None
    """folder to write the pictures to; left out, inspect/ in the run folder or beside the checkpoint."""

    @property
    def folder(self) -> Path:
        """Return the folder for the pictures; for a model given by address, in the working folder."""
        if self.out is not None:
            return Path(self.out)
        if is_address(self.path):
            return Path("inspect")
        path = Path(self.path)
        return (path if path.is_dir() else path.parent) / "inspect"

"""The options of an inspection. They need no torch."""

from dataclasses import dataclass
from pathlib import Path

from vitkit.weights.files.address import is_address


@dataclass(frozen=True)
class InspectOptions:
    """The options of an inspection; the texts below the fields are their help."""

    model: str
    """a run folder, or any checkpoint that vitkit convert reads."""
    images: tuple[str, ...] | None = None
    """image files or folders for the attention pictures; left out, test images of the run."""
    out: str | None = None
    """folder to write the pictures to; left out, inspect/ in the run folder or beside the checkpoint."""
    image_size: tuple[int, int] | None = None
    """height and width in pixels, or one number for both: 384, or 224 320; left out, the checkpoint's.
    Position embeddings are resized."""
    num_heads: int | None = None
    """number of attention heads, where the file does not record it."""

    @property
    def folder(self) -> Path:
        """Return the folder for the pictures; for a model given by address, in the working folder."""
        if self.out is not None:
            return Path(self.out)
        if is_address(self.model):
            return Path("inspect")
        path = Path(self.model)
        return (path if path.is_dir() else path.parent) / "inspect"

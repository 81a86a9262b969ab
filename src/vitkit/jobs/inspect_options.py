"""The options of an inspection. They need no torch."""

from dataclasses import dataclass
from pathlib import Path

from vitkit.weights.files.address import is_address


@dataclass(frozen=True)
class InspectOptions:
    """The options of an inspection; what is written below them is their help."""

    model: str
    """run folder, or any checkpoint that vitkit convert reads."""
    images: tuple[str, ...] | None = None
    """files or folders for the attention pictures; left out, test images of the run."""
    out: str | None = None
    """folder for the pictures; left out, inspect/ in the run folder or beside the checkpoint."""
    image_size: tuple[int, int] | None = None
    """height and width, or one number for both; left out, the checkpoint's. Position embeddings are
    resized."""
    num_heads: int | None = None
    """of the attention, where the file does not say it."""

    @property
    def folder(self) -> Path:
        """The folder for the pictures; of a model by address, in the working folder."""
        if self.out is not None:
            return Path(self.out)
        if is_address(self.model):
            return Path("inspect")
        path = Path(self.model)
        return (path if path.is_dir() else path.parent) / "inspect"

"""The options of a prediction. They need no torch."""

from dataclasses import dataclass

from vitkit.errors import VitkitError
from vitkit.models.precision_config import Precision


@dataclass(frozen=True)
class PredictOptions:
    """The options of a prediction; what is written below them is their help."""

    model: str
    """run folder, or any checkpoint that vitkit convert reads."""
    images: tuple[str, ...]
    """image files, folders, or - for a list of paths on standard input."""
    top: int = 5
    """how many classes for each image; of a model that finds several labels, all are told."""
    device: str = "auto"
    """auto, cpu, cuda."""
    precision: Precision = "auto"
    """of the arithmetic: float32 or bfloat16; auto: bfloat16 on a GPU that has it, else float32."""
    exact: bool = False
    """compute as the first version did, without the faster ways to the same result."""
    batch_size: int = 32
    """images at a time."""
    image_size: tuple[int, int] | None = None
    """height and width, or one number for both; left out, the checkpoint's. Position embeddings are
    resized."""
    num_heads: int | None = None
    """of the attention, where the file does not say it."""
    max_pixels: int | None = None
    """larger images are refused; left out, the limit that the model was saved with."""

    def __post_init__(self) -> None:
        if not self.images:
            raise VitkitError("Which images? Give files, folders, or - to read paths from standard input.")
        if self.top < 1 or self.batch_size < 1:
            raise VitkitError(f"top and batch_size are at least 1, found {self.top} and {self.batch_size}.")

"""The options of a cost estimate. They need no torch."""

from dataclasses import dataclass
from typing import Literal

from vitkit.errors import VitkitError


@dataclass(frozen=True)
class CostOptions:
    """Which models are costed, and for which training."""

    models: tuple[str, ...]
    """names (ViT-B/16, R50+ViT-L/16, BiT-R152x4, ViT-96x6x3/4), run folders or checkpoints."""
    image_size: tuple[int, int] | None = None
    """height and width, or one number for both."""
    batch_size: int = 128
    """images at a time."""
    num_classes: int | None = None
    """of the head; left out, 1000 or the checkpoint's."""
    num_heads: int | None = None
    """of a checkpoint's attention, where the file does not say it."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """adamw stores two numbers for each weight, sgd one."""
    average: bool = False
    """a running average of the weights is stored too."""
    epochs: float | None = None
    """of a training on so many --images."""
    images: int | None = None
    """in the training set."""
    utilization: float = 0.4
    """share of an H100's peak that training reaches: an assumption."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise VitkitError(f"batch_size is at least 1, found {self.batch_size}.")
        if (self.epochs is None) != (self.images is None):
            raise VitkitError("A training is costed by --epochs and --images together; one is missing.")
        if self.epochs is not None and self.images is not None and min(self.epochs, self.images) <= 0:
            raise VitkitError(f"epochs and images are above 0, found {self.epochs:g} and {self.images}.")
        if not 0 < self.utilization <= 1:
            raise VitkitError(f"utilization is a share above 0 and at most 1, found {self.utilization}.")

    @property
    def images_seen(self) -> float | None:
        """The images that the training sees, repetitions counted; None where no training is costed."""
        return None if self.epochs is None or self.images is None else self.epochs * self.images

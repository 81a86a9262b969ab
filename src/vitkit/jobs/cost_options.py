"""The options of a cost estimate. They need no torch."""

from dataclasses import dataclass
from typing import Literal

from vitkit.errors import VitkitError
from vitkit.jobs.options import CheckpointOptions


@dataclass(frozen=True)
class CostOptions(CheckpointOptions):
    """The options of a cost estimate; the texts below the fields are their help."""

    models: tuple[str, ...]
    """model names (ViT-B/16, R50+ViT-L/16, BiT-R152x4, ViT-96x6x3/4), run folders or checkpoints."""
    batch_size: int = 128
    """images of the batch whose memory is counted."""
    num_classes: int | None = None
    """number of classes of the head; left out, 1000 or the checkpoint's."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """optimiser: adamw stores two numbers for each weight, sgd one."""
    average: bool = False
    """count a running average of the weights too."""
    epochs: float | None = None
    """epochs of a training whose compute is estimated; give --images too."""
    images: int | None = None
    """images in the training set; give --epochs too."""
    utilization: float = 0.4
    """fraction of an H100's peak speed that training is assumed to reach."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise VitkitError(f"batch_size is at least 1, found {self.batch_size}.")
        if (self.epochs is None) != (self.images is None):
            raise VitkitError("A training is costed by --epochs and --images together; one is missing.")
        if self.epochs is not None and self.images is not None and min(self.epochs, self.images) <= 0:
            raise VitkitError(f"epochs and images are above 0, found {self.epochs:g} and {self.images}.")
        if not 0 < self.utilization <= 1:
            raise VitkitError(f"utilization is a fraction above 0 and at most 1, found {self.utilization}.")

    @property
    def images_seen(self) -> float | None:
        """Return the images that the training sees, repetitions counted; None where no training is
        estimated."""
        return None if self.epochs is None or self.images is None else self.epochs * self.images

"""The configuration of the objectives. It needs no torch."""

from dataclasses import dataclass
from typing import Literal

from vitkit.config import require_finite
from vitkit.errors import VitkitError


@dataclass(frozen=True)
class ClassificationConfig:
    """The loss, and the changes of images and labels that belong to it."""

    loss: Literal["softmax", "sigmoid"] = "softmax"
    """Loss function. softmax: cross entropy over classes that exclude each other. sigmoid: binary cross
    entropy of each class, summed over the classes, as big_vision pre-trains; multi-label always uses it."""
    label_smoothing: float = 0.0
    """Fraction of each target that is spread evenly over all classes, from 0 to below 1; in multi-label, over
    yes and no."""
    mixup: float = 0.0
    """Strength of mixup: alpha of the Beta distribution from which the weights of two images are drawn; 0 for
    no mixup."""

    def __post_init__(self) -> None:
        require_finite(self)
        if not 0 <= self.label_smoothing < 1 or self.mixup < 0:
            raise VitkitError(
                "Expected label_smoothing from 0 to below 1 and mixup of 0 or more, found "
                f"{self.label_smoothing} and {self.mixup}."
            )

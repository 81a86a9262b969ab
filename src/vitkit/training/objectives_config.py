"""The configurations of the objectives, and which of them a task has. It needs no torch."""

from collections.abc import Mapping
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
    cutmix: float = 0.0
    """Strength of CutMix: alpha of the Beta distribution of the fraction that an image keeps when a box of it
    is replaced by another image's; 0 for no CutMix (arXiv 1905.04899). With mixup too, each batch draws one
    of the two."""
    logit_adjustment: float = 0.0
    """Tau of the logit adjustment against imbalance: in training, tau times the logarithm of each class's
    fraction of the training images is added to its logit (arXiv 2007.07314: 1); 0 for none."""
    class_weights: Literal["none", "balanced"] = "none"
    """Weights of the classes in the loss. balanced: each class counts alike, an image of a class of n among N
    training images of K classes as N / (K n) (scikit-learn's rule)."""

    def __post_init__(self) -> None:
        require_finite(self)
        if self.logit_adjustment < 0:
            raise VitkitError(f"logit_adjustment is 0 or more, found {self.logit_adjustment}.")
        if self.logit_adjustment and self.loss != "softmax":
            raise VitkitError(
                "logit_adjustment shifts classes against each other, which the sigmoid loss does not "
                "compare: choose --loss softmax, or --class-weights balanced."
            )
        if self.logit_adjustment and self.class_weights != "none":
            raise VitkitError(
                "logit_adjustment and class_weights both even out the classes, and together do it twice: "
                "choose one of the two."
            )
        if not 0 <= self.label_smoothing < 1 or min(self.mixup, self.cutmix) < 0:
            raise VitkitError(
                "Expected label_smoothing from 0 to below 1, mixup and cutmix of 0 or more, found "
                f"{self.label_smoothing}, {self.mixup} and {self.cutmix}."
            )


ObjectiveConfig = ClassificationConfig
"""The configuration of any task's objective."""

OBJECTIVES: Mapping[str, type[ObjectiveConfig]] = {
    "classification": ClassificationConfig,
    "multi-label": ClassificationConfig,
}
"""The configuration that the objective of a task is made from, by the name of the task."""

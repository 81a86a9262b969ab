"""The configuration of the objectives. It needs no torch."""

from dataclasses import dataclass
from typing import Literal

from vitkit.config import require_finite
from vitkit.errors import VitkitError


@dataclass(frozen=True)
class ClassificationConfig:
    """How labels become a loss."""

    loss: Literal["softmax", "sigmoid"] = "softmax"
    """sigmoid: one yes or no per class, summed over classes, as big_vision pre-trains. It is what multi-label
    always learns by."""
    label_smoothing: float = 0.0
    """Share of each target spread evenly over all classes; in multi-label, over yes and no."""
    mixup: float = 0.0
    """Alpha of the Beta distribution that images are mixed by; 0: none (big_vision `utils.py:1146`)."""
    cutmix: float = 0.0
    """Alpha of the Beta distribution of the share that an image keeps when a box of it is replaced by another
    image's; 0: none (Yun et al. 2019, arXiv 1905.04899). With mixup too, every batch draws one of the two."""
    logit_adjustment: float = 0.0
    """Tau: in training, tau times the logarithm of each class's share of the training images is added to its
    logit, so that rare classes are answered as readily as common ones (Menon et al. 2020, arXiv 2007.07314:
    1); 0: nothing is."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: an image's loss weighs N / (K n) for a class of n among N training images of K classes, so
    that each class counts alike (scikit-learn's rule)."""

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

"""The configuration of the training loop. It needs no torch."""

import math
from dataclasses import dataclass
from typing import Literal

from vitkit.config import require_finite
from vitkit.errors import VitkitError
from vitkit.models.precision_config import Precision

MOST_STEPS = 10**12
"""A limit that no run comes near: beyond it an option was mistyped."""


@dataclass(frozen=True)
class TrainingConfig:
    """Length of the run, size of its batches, and when it logs, validates and saves."""

    epochs: float = 100.0
    steps: int | None = None
    """Updates; in place of epochs if given."""
    batch_size: int = 128
    """Images per update."""
    micro_batch_size: int | None = None
    """Images computed at a time; gradients are summed up to batch_size. It takes less memory for the same
    update, but for dropout and mixup, which are drawn for each micro-batch."""
    seed: int = 0
    """The seed of new weights, order, augmentation and dropout."""
    precision: Precision = "auto"
    """The type of matrix products: bfloat16 by autocast. auto: bfloat16 where the device has it and it pays,
    else float32."""
    exact: bool = False
    """Compute as the first version did, bit for bit, without the faster ways to the same result. Precision
    auto is bfloat16 on a GPU alone with it."""
    log_every: int = 10
    """Steps between lines of the metrics log."""
    evaluate_every: int | None = None
    """Steps between validations; left out, once an epoch, but not more than 50 times a run."""
    checkpoint_every: int | None = None
    """Steps between checkpoints; left out, at every validation."""
    checkpoint_minutes: float = 10.0
    """A checkpoint is also committed when the last one is older than this."""
    keep: int = 2
    """Last checkpoints kept, besides the best."""
    patience: int | None = None
    """Validations without a better accuracy after which training stops; none: never early."""
    select: Literal["best", "last"] = "best"
    """The weights that the run ends with: those of the best validation, or the last."""

    def __post_init__(self) -> None:
        require_finite(self)
        counts = ("batch_size", "micro_batch_size", "steps", "log_every", "evaluate_every")
        for name in (*counts, "checkpoint_every", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise VitkitError(f"{name} is at least 1, found {value}.")
        if self.steps is None and self.epochs <= 0:
            raise VitkitError(f"epochs is a number above 0, found {self.epochs}.")
        if not 0 <= self.seed < 2**63:
            raise VitkitError(f"seed is 0 or more, and below 2 to the 63, found {self.seed}.")
        if self.keep < 1:
            raise VitkitError(f"keep is at least 1 (the checkpoint to continue from), found {self.keep}.")

    def total_steps(self, num_samples: int) -> int:
        """Count the updates of the whole run over a training set of `num_samples` images.

        Raises:
            VitkitError: more than can be made.
        """
        steps = self.epochs * num_samples / self.batch_size if self.steps is None else self.steps
        if steps > MOST_STEPS:
            asked = f"{self.epochs:g} epochs are" if self.steps is None else "steps asks for"
            raise VitkitError(
                f"{asked} more than {MOST_STEPS:,} updates of {self.batch_size:,} images, which no run gets "
                "through. Give a smaller number of --epochs or --steps."
            )
        return max(1, math.ceil(steps))

    def evaluation_interval(self, num_samples: int) -> int:
        """Count the steps between validations: `evaluate_every`, or an epoch, but at most 50 a run."""
        if self.evaluate_every is not None:
            return self.evaluate_every
        epoch = math.ceil(num_samples / self.batch_size)
        return max(epoch, math.ceil(self.total_steps(num_samples) / 50))

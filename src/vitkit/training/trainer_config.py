"""The configuration of the training loop. It needs no torch."""

import math
from dataclasses import dataclass
from typing import Literal

from vitkit.config import require_finite
from vitkit.errors import VitkitError
from vitkit.models.compute_config import Precision

MOST_STEPS = 10**12
"""Largest number of steps; no run comes near it, so a larger one is a mistyped option."""

VALIDATION = "validation"
"""The evaluator that decides what is best, unless a monitor names another. Its lines in `metrics.jsonl` are
of the kind "validation"; those of others are of the kind "evaluation" and say which evaluator measured."""


@dataclass(frozen=True)
class TrainingConfig:
    """The length of training, its batches, and the intervals of logs, validations and checkpoints."""

    epochs: float = 100.0
    """Passes over the training images; may be a fraction, such as 0.5."""
    steps: int | None = None
    """Number of updates of the weights, in place of --epochs."""
    minutes: float | None = None
    """Minutes of training with its validations, in place of --epochs and --steps: the speed of the machine is
    measured before the first step, and decides the number of steps once and for all."""
    batch_size: int = 128
    """Images per update of the weights."""
    micro_batch_size: int | None = None
    """Images that are computed at a time; gradients are summed until a batch is complete, which takes less
    memory. The update is the same but for dropout and mixup, which are drawn for each micro-batch. A GPU
    whose memory is too small halves it by itself."""
    recompute: bool = False
    """Keep of each block its input alone and compute the rest once more in the backward pass: much less
    memory for about a third more time, and the same result. It may change when a run is continued."""
    seed: int = 0
    """Seed of the initial weights, the order of images, augmentation and dropout."""
    precision: Precision = "auto"
    """Number format of the computation: float32, bfloat16 (by autocast), or auto: bfloat16 where the device
    has it and it is faster, else float32."""
    exact: bool = False
    """Compute with the operations of the first version of vitkit, bit for bit, without the faster ways to the
    same result. Then precision auto chooses bfloat16 on a GPU only."""
    log_every: int = 10
    """Steps between lines of the metrics log."""
    evaluate_every: int | None = None
    """Steps between validations; left out, once per epoch, but at most 50 times in a run."""
    checkpoint_every: int | None = None
    """Steps between checkpoints; left out, a checkpoint is written at every validation."""
    checkpoint_minutes: float = 10.0
    """Minutes after which a checkpoint is written even between those steps."""
    keep: int = 2
    """Number of latest checkpoints that are kept, besides the best one."""
    patience: int | None = None
    """Validations in a row without a better accuracy after which training stops; left out, it never stops
    early."""
    select: Literal["best", "last"] = "best"
    """Weights that the run ends with: those of the best validation (best) or of the last step (last)."""
    evaluate_test: bool = True
    """Evaluate the finished run on the test images too. Without, they are left alone: for runs among which
    is chosen."""

    def __post_init__(self) -> None:
        require_finite(self)
        counts = ("batch_size", "micro_batch_size", "steps", "log_every", "evaluate_every")
        for name in (*counts, "checkpoint_every", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise VitkitError(f"{name} is at least 1, found {value}.")
        if self.minutes is not None and self.minutes <= 0:
            raise VitkitError(f"minutes is a number above 0, found {self.minutes:g}.")
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
        """Count the steps between two validations."""
        if self.evaluate_every is not None:
            return self.evaluate_every
        epoch = math.ceil(num_samples / self.batch_size)
        return max(epoch, math.ceil(self.total_steps(num_samples) / 50))

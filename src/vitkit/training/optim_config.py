"""The configuration of optimiser and schedule. It needs no torch."""

from dataclasses import dataclass
from typing import Literal

from vitkit.config import require_finite
from vitkit.errors import VitkitError


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimiser, learning-rate schedule, gradient clipping and weight averaging."""

    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    """adam is adamw without decay: the paper's Adam decays weights apart from the gradient (Table 3)."""
    learning_rate: float = 1e-3
    """The highest learning rate of the schedule."""
    weight_decay: float = 0.1
    """Decoupled: a step takes learning_rate * weight_decay off the kernels, never off biases and norms."""
    decay_all: bool = False
    """Decay every parameter, not the kernels alone."""
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    momentum: float = 0.9
    """Decay of SGD's momentum, from 0 to below 1; other optimisers ignore it."""
    momentum_dtype: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 is what the original keeps; its decay is then rounded too, to 0.8984375."""
    clip_norm: float | None = 1.0
    """Gradients are scaled down to this global norm; none: they are not."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_steps: int = 0
    """Linear warm-up from 0 over this many steps; it multiplies the decayed rate, as in the original."""
    linear_end: float = 1e-5
    """The learning rate at which the linear schedule ends."""
    polyak: float | None = None
    """Decay of the running average of the weights (paper, Table 2: 0.9999); none: no average."""

    def __post_init__(self) -> None:
        require_finite(self)
        if self.optimizer == "adam" and self.weight_decay:
            raise VitkitError(
                "Adam here has no weight decay; the paper's Adam with decay is 'adamw' (decay apart from the "
                "gradient). Choose adamw, or a weight decay of 0."
            )
        if self.learning_rate <= 0 or self.weight_decay < 0 or self.warmup_steps < 0:
            raise VitkitError(
                "Expected a learning rate above 0 and neither decay nor warm-up below 0, found "
                f"learning_rate {self.learning_rate}, weight_decay {self.weight_decay}, "
                f"warmup_steps {self.warmup_steps}."
            )
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and 0 <= self.momentum < 1 and self.eps > 0):
            raise VitkitError(
                "beta1, beta2 and momentum are from 0 to below 1 and eps is above 0, found "
                f"{self.beta1}, {self.beta2}, {self.momentum} and {self.eps}."
            )
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise VitkitError(f"clip_norm is above 0 or none, found {self.clip_norm}.")
        if self.polyak is not None and not 0 < self.polyak < 1:
            raise VitkitError(f"polyak is a decay between 0 and 1, or none, found {self.polyak}.")

"""How the weights move: the configuration of optimiser and schedule. It needs no torch."""

from dataclasses import dataclass
from typing import Literal

from vitkit.config import require_finite
from vitkit.errors import VitkitError


@dataclass(frozen=True)
class OptimizerConfig:
    """How the weights move."""

    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    """adam is adamw without decay: the paper's Adam decays weights apart from the gradient (Table 3)."""
    learning_rate: float = 1e-3
    """The highest one of the schedule."""
    weight_decay: float = 0.1
    """Decoupled: a step takes learning_rate * weight_decay off the kernels, never off biases and norms."""
    decay_all: bool = False
    """Decay every parameter, not the kernels alone."""
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    momentum: float = 0.9
    """Of SGD."""
    momentum_dtype: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 is what the original keeps; its decay is then rounded too, to 0.8984375."""
    clip_norm: float | None = 1.0
    """Gradients are scaled down to this global norm; none: not at all."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_steps: int = 0
    """Steps in which the rate rises from 0, times the decayed rate."""
    linear_end: float = 1e-5
    """Where the linear schedule ends."""
    polyak: float | None = None
    """Decay of the running average of the weights (paper, Table 2: 0.9999); none: no average."""
    freeze: Literal["nothing", "trunk"] = "nothing"
    """trunk: the head alone is trained, all else keeps its bits and gets no gradient; the three options below
    have nothing to act on then."""
    freeze_layers: int = 0
    """So many blocks (or residual units), and what is before them, keep their bits."""
    layer_decay: float = 1.0
    """Learning rate of a layer / that of the next one, as in BEiT and MAE (0.75 there); 1: the same."""
    head_first: int = 0
    """In so many steps the head is trained alone, then all (Kumar et al. 2022, arXiv 2202.10054)."""

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
        if not 0 < self.layer_decay <= 1:
            raise VitkitError(f"layer_decay is above 0 and at most 1, found {self.layer_decay}.")
        if min(self.freeze_layers, self.head_first) < 0:
            raise VitkitError(
                f"freeze_layers and head_first are 0 or more, found {self.freeze_layers} and "
                f"{self.head_first}."
            )

    @property
    def differs_by_layer(self) -> bool:
        """Whether the layers of a model learn at different rates or times."""
        return self.freezes or self.layer_decay != 1 or self.head_first > 0

    @property
    def freezes(self) -> bool:
        """Whether some weights are never trained."""
        return self.freeze == "trunk" or self.freeze_layers > 0

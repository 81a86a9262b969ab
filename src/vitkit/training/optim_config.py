"""The configuration of optimiser, learning-rate schedule, gradient clipping and averaging. It needs no
torch."""

from dataclasses import dataclass
from typing import Literal

from vitkit.config import require_finite
from vitkit.errors import VitkitError


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimiser, learning-rate schedule, gradient clipping and weight averaging."""

    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    """Optimiser. The paper's Adam (Table 3) decays weights apart from the gradient, which is adamw; adam is
    the same without weight decay."""
    learning_rate: float = 1e-3
    """Peak learning rate of the schedule."""
    weight_decay: float = 0.1
    """Decoupled weight decay: each step shrinks the kernels by the fraction learning_rate * weight_decay;
    biases and norms are not decayed."""
    decay_all: bool = False
    """Decay every parameter, biases and norms too."""
    beta1: float = 0.9
    """Decay of Adam's running mean of the gradients, from 0 to below 1."""
    beta2: float = 0.999
    """Decay of Adam's running mean of the squared gradients, from 0 to below 1."""
    eps: float = 1e-8
    """Small number that Adam adds to the denominator, so that it never divides by 0."""
    momentum: float = 0.9
    """Momentum of SGD, from 0 to below 1."""
    momentum_dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the first moment or momentum. The original code keeps bfloat16; the decay 0.9 is then
    rounded too, to 0.8984375."""
    clip_norm: float | None = 1.0
    """Largest global norm of the gradients; larger gradients are scaled down to it. None does not clip."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """Decay of the learning rate from its peak: by a cosine to 0, linearly to --linear-end, or not at all."""
    warmup_steps: int = 0
    """Steps of linear warm-up from 0; the warm-up multiplies the decayed learning rate, as in the original
    code."""
    linear_end: float = 1e-5
    """Learning rate at which the linear schedule ends."""
    polyak: float | None = None
    """Decay of the Polyak average of the weights, which is evaluated and saved in their place (the paper's
    Table 2: 0.9999); None keeps no average."""
    freeze: Literal["nothing", "trunk"] = "nothing"
    """Part of the model that is not trained. trunk: the head alone is trained, and freeze_layers, layer_decay
    and head_first have nothing to act on."""
    freeze_layers: int = 0
    """Number of first blocks (or residual units) that are not trained, with all that is before them."""
    layer_decay: float = 1.0
    """Layer-wise decay of the learning rate: that of a layer over that of the next one (BEiT and MAE: 0.75);
    1 for the same in all layers."""
    head_rate: float = 1.0
    """Factor of the head's learning rate: above 1 a new head, which has all to learn, learns faster than the
    layers below it, which have not."""
    head_first: int = 0
    """Number of first steps in which the head is trained alone (Kumar et al. 2022, arXiv 2202.10054)."""

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
        if self.head_rate <= 0:
            raise VitkitError(f"head_rate is a factor above 0, found {self.head_rate}.")
        if min(self.freeze_layers, self.head_first) < 0:
            raise VitkitError(
                f"freeze_layers and head_first are 0 or more, found {self.freeze_layers} and "
                f"{self.head_first}."
            )

    @property
    def state_bytes(self) -> int:
        """Return the bytes that are stored for each weight: two moments, of which SGD has the first."""
        first = 2 if self.momentum_dtype == "bfloat16" else 4
        return first if self.optimizer == "sgd" else first + 4

    @property
    def differs_by_layer(self) -> bool:
        """Whether the layers of a model learn at different rates or times."""
        return self.freezes or self.layer_decay != 1 or self.head_rate != 1 or self.head_first > 0

    @property
    def freezes(self) -> bool:
        """Whether some weights are never trained."""
        return self.freeze == "trunk" or self.freeze_layers > 0

"""The ways in which a model computes one result, as one value that a run writes down when it begins.

The plain way is that of `vit.py` and `parts.py`. Each of the others (`fast.py`) gives the same result up to
rounding and is faster somewhere. No torch is needed here.
"""

from dataclasses import dataclass
from typing import Literal

Precision = Literal["auto", "float32", "bfloat16"]
"""The precision of matrix products and convolutions, by autocast; weights stay float32. auto: the rule of
`runs/machine.py` chooses by device, width and phase. Weights in bfloat16, beside float32 ones that are
updated, would need as many casts; that was not measured."""
Phase = Literal["training", "evaluation", "prediction"]
"""Training computes gradients too; an evaluation is long, and a prediction may be of one image."""


@dataclass(frozen=True)
class Compute:
    """The ways in which a model computes its result. The defaults are the plain way."""

    precision: Literal["float32", "bfloat16"] = "float32"
    """The type of matrix products, by autocast."""
    attention: Literal["fused", "explicit"] = "fused"
    """PyTorch's fused kernel, or products and softmax one after the other."""
    last_block: Literal["every_token", "class_token"] = "every_token"
    """The tokens that the last block computes, where only the class token is read."""
    gelu: Literal["pytorch", "compiled"] = "pytorch"
    """The kernel that computes the tanh form: PyTorch's, or `kernels/gelu.c`, handed to the model. It kept
    its name when its results for numbers beyond 10^10 were mended: all others have the same bits, and a run
    that comes so far has diverged."""
    pixels: Literal["normalized", "folded"] = "normalized"
    """Whether uint8 images are normalised, or the patch embedding's weights are instead."""
    block: Literal["modules", "compiled"] = "modules"
    """Whether a block is computed operation by operation, or by `kernels/block.c` between its products."""
    graph: Literal["eager", "compiled"] = "eager"
    """Whether operations run one by one, or as the kernels that torch.compile makes of a model: on a GPU."""


PLAIN = Compute()

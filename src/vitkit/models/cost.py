"""The cost of one step of a model's forward pass: the record in which every part describes itself.

A part (an attention, a pooling, a residual unit) says in its own file what it multiplies and what autograd
keeps of it. `vit_cost` and `resnet_cost` line the parts of a family up in the order they are computed;
`vitkit.analysis` adds them up. Parameters are counted, never computed.

Counted are matrix products and convolutions as multiply-accumulates (MACs), and bytes of memory. `product` is
the number of bytes of what goes into matrix products: 4, or 2 under autocast. The residual stream and what
norms read is float32 in either.
"""

from dataclasses import dataclass

from torch import nn

FLOAT = 4
"""Bytes of a float32 number."""
MASK = 1
"""Bytes for each number that dropout may drop, on a GPU. (On a CPU it is four.)"""
INDEX = 8
"""Bytes of an index: max-pooling remembers where each maximum was."""


@dataclass(frozen=True)
class PartCost:
    """A step of the forward pass. MACs and bytes are those of one image, but for `once`."""

    macs: int = 0
    """Multiply-accumulates."""
    padding_macs: int = 0
    """Those that a convolution does with the zeros around a feature map, on top."""
    kept: int = 0
    """Bytes that autograd keeps: the inputs of products, norms and activation functions."""
    passing: int = 0
    """Bytes of the gradients of activations in its backward pass."""
    live: int = 0
    """Bytes alive while it is computed without gradients."""
    parameters: int = 0
    once: int = 0
    """Bytes kept once for the whole batch: weights that are standardised, or rounded by autocast."""
    kernel: int = 0
    """Bytes of the largest standardised kernel: it (or its gradient) is there twice, in two layouts."""

    def __add__(self, other: "PartCost") -> "PartCost":
        """Join two steps whose tensors are alive together."""
        return PartCost(
            self.macs + other.macs,
            self.padding_macs + other.padding_macs,
            self.kept + other.kept,
            self.passing + other.passing,
            self.live + other.live,
            self.parameters + other.parameters,
            self.once + other.once,
            max(self.kernel, other.kernel),
        )


def count_parameters(*modules: nn.Module | None) -> int:
    """Count the trainable numbers of modules; None, a part that is not there, has none."""
    return sum(parameter.numel() for module in modules if module for parameter in module.parameters())


def rounded(weights: int, product: int) -> int:
    """Give the bytes of the copies that autocast makes of so many weights."""
    return 0 if product == FLOAT else weights * product


def norm_cost(tokens: int, width: int) -> PartCost:
    """Give the cost of a layer norm, which keeps its input, and a mean and a deviation for each token."""
    numbers = tokens * width
    return PartCost(
        kept=FLOAT * (numbers + 2 * tokens),
        passing=FLOAT * numbers,
        live=2 * FLOAT * numbers,
        parameters=2 * width,
    )


def head_cost(
    head: nn.Linear | nn.Identity,
    hidden: nn.Linear | None,
    width: int,
    product: int,
    *,
    outputs: int = 1,
    kept: int = 0,
) -> PartCost:
    """Give the cost of the classifier and the loss: logits, their logarithms of softmax, and targets.

    Args:
        head: the classifier; an identity where there is none.
        hidden: the layer with tanh before it, if there is one.
        width: of the features that the head reads.
        product: bytes of what goes into matrix products.
        outputs: rows of logits for each image.
        kept: bytes that are kept of the features of a row.
    """
    classes = head.out_features if isinstance(head, nn.Linear) else 0
    size = hidden.out_features if hidden else 0
    kept += size * (FLOAT + product)
    return PartCost(
        macs=outputs * (width * size + (size or width) * classes),
        kept=outputs * (kept + classes * (product + 2 * FLOAT)),
        passing=outputs * classes * FLOAT,
        live=outputs * (kept + classes * product),
        parameters=count_parameters(hidden, head),
        once=rounded(width * classes, product),
    )

"""A model as a list of parts in the order they are computed, with the memory of each: see `memory`.

Counted in the words of `vitkit.models`: a part keeps what its products, norms and activation functions read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from vitkit.analysis.cost import (
    Bottleneck,
    Convolution,
    attention_parameters,
    bottlenecks,
    head_parameters,
    map_parameters,
    mlp_parameters,
    position_parameters,
    root_convolution,
    unit_parameters,
)
from vitkit.models.resnet_config import ResNetConfig
from vitkit.models.vit_config import ViTConfig
from vitkit.models.zoo import ModelConfig

Precision = Literal["float32", "bfloat16"]

FLOAT = 4
MASK = 1
"""Bytes for each number that dropout may drop, on a GPU. (On a CPU it is four.)"""
INDEX = 8
"""Bytes of an index: max-pooling remembers where each maximum was."""


@dataclass(frozen=True)
class Part:
    """A step of the forward pass. Bytes for each image, but for `once`."""

    kept: int
    """What autograd keeps: the inputs of products, norms and activation functions."""
    passing: int
    """Gradients of activations in its backward pass."""
    live: int
    """What is alive while it is computed without gradients."""
    parameters: int
    once: int = 0
    """Kept once for the whole batch: weights that are standardised, or rounded by autocast."""
    kernel: int = 0
    """Of the largest standardised kernel: it (or its gradient) is there twice, in two layouts."""


def pixels(config: ModelConfig) -> int:
    """Numbers of one image."""
    return config.in_channels * config.image_size[0] * config.image_size[1]


def model_parts(config: ModelConfig, precision: Precision) -> Iterator[Part]:
    """The whole model in order, with the loss at its end."""
    product = 2 if precision == "bfloat16" else FLOAT  # bytes of what goes into matrix products
    if isinstance(config, ResNetConfig):
        yield from _resnet(config, product)
    else:
        yield from _vit(config, product)


def _vit(config: ViTConfig, product: int) -> Iterator[Part]:
    """Stem, blocks, pooling, head. The residual stream and what norms read is float32."""
    width, tokens = config.width, config.num_tokens
    rows, columns = config.grid
    cells, mask = rows * columns, MASK if config.dropout else 0
    embedding = position_parameters(config) + config.prefix_tokens * width
    if config.backbone:
        yield from _hybrid_stem(config, product)
        inputs, patches = config.backbone.out_channels, 0
    else:
        inputs = config.in_channels
        patches = cells * inputs * config.patch_size[0] * config.patch_size[1]
    projection = inputs * config.patch_size[0] * config.patch_size[1] * width
    image = 0 if config.backbone else FLOAT * pixels(config)
    yield Part(
        kept=patches * product + mask * tokens * width,
        passing=2 * FLOAT * tokens * width,
        live=image
        + max(patches * (product + FLOAT), FLOAT * (patches + cells * width), 3 * FLOAT * tokens * width),
        parameters=projection + width + embedding,
        once=_rounded(projection, product) if config.backbone else 0,
    )
    around = (columns, rows) if config.attention == "axial" else (tokens,)
    for _ in range(config.depth):
        for _ in around:
            yield _attention(config, product, mask)
            yield _mlp(config, tokens, product, mask, _held(config))
    yield from _pooled(config, product)


def _attention(config: ViTConfig, product: int, mask: int) -> Part:
    """Norm, qkv, attention that keeps its sums and no weights, output projection."""
    width, tokens, heads = config.width, config.num_tokens, config.num_heads
    numbers = tokens * width
    kept = numbers * (FLOAT + 5 * product + mask) + tokens * FLOAT * (2 + heads)
    passing = numbers * (FLOAT + 4 * product)
    live = numbers * (2 * FLOAT + 5 * product)
    once = _rounded(4 * width**2, product)
    live += numbers * _held(config)
    if config.position == "relative":
        # Queries by offset, the bias made of them, the attention weights, and copies of q, k and v.
        offsets, pairs = heads * tokens * (2 * tokens - 1), heads * tokens**2
        kept += product * (numbers + offsets + pairs) - FLOAT * heads * tokens
        passing += product * 2 * pairs
        live += product * (offsets + pairs + 2 * numbers)
        once += INDEX * tokens**2
    return Part(kept, passing, live, attention_parameters(config), once)


def _mlp(config: ViTConfig, tokens: int, product: int, mask: int = 0, held: int = 0) -> Part:
    """Norm, two dense layers, GELU between them."""
    width, hidden = config.width, config.mlp_dim
    return Part(
        kept=tokens * (width * (FLOAT + product + mask) + hidden * (2 * product + mask) + 2 * FLOAT),
        passing=tokens * (width * FLOAT + hidden * product),
        live=tokens * (width * (2 * FLOAT + 2 * product + held) + 2 * hidden * product),
        parameters=mlp_parameters(config),
        once=_rounded(2 * width * hidden, product),
    )


def _pooled(config: ViTConfig, product: int) -> Iterator[Part]:
    """Final norm, pooling, head, loss."""
    width, tokens = config.width, config.num_tokens
    numbers = tokens * width
    kept = numbers * FLOAT + tokens * 2 * FLOAT
    if config.pool == "token":  # what is kept of the first token keeps them all, unless it is rounded
        kept += numbers * FLOAT if product == FLOAT else width * product
    elif config.pool == "mean":
        kept += width * product
    else:
        kept += numbers * product
    yield Part(kept, FLOAT * numbers, 2 * FLOAT * numbers, 2 * width)
    if config.pool == "map":
        single = _mlp(config, 1, product)
        yield Part(
            kept=numbers * 2 * product + single.kept + width * 3 * product + FLOAT * config.num_heads,
            passing=numbers * 3 * product,
            live=numbers * (FLOAT + 3 * product),
            parameters=map_parameters(config),
            once=_rounded(4 * width**2, product) + single.once,
        )
    outputs = tokens if config.pool == "none" else 1
    hidden = config.representation_size or 0
    yield _head(config, outputs, hidden * (FLOAT + product), product)


def _head(config: ModelConfig, outputs: int, kept: int, product: int) -> Part:
    """The classifier and the loss: logits, their logarithms of softmax, and targets."""
    logits = config.num_classes * (product + 2 * FLOAT)
    return Part(
        kept=outputs * (kept + logits),
        passing=outputs * config.num_classes * FLOAT,
        live=outputs * (kept + config.num_classes * product),
        parameters=head_parameters(config),
        once=_rounded(config.width * config.num_classes, product),
    )


def _hybrid_stem(config: ViTConfig, product: int) -> Iterator[Part]:
    """The post-activation ResNet: every kernel is kept centred and standardised."""
    root = root_convolution(config)
    assert root is not None
    kernels = FLOAT + product
    found = root.outputs
    halved, pooling = _area(root.size_out), Convolution(found, found, root.size_out, 3, 2, symmetric=False)
    pooled = _area(pooling.size_out)
    units = list(bottlenecks(config))
    readers = 1 if product == FLOAT or not units else 1 + (units[0].projection is not None)
    padded = found * _padded(pooling)
    yield Part(
        kept=config.in_channels * _padded(root) * product
        + 2 * found * halved * FLOAT
        + padded * FLOAT
        + found * pooled * (INDEX + product * readers),
        passing=FLOAT * padded,
        live=FLOAT
        * max(pixels(config) + config.in_channels * _padded(root) + found * halved, 3 * found * halved),
        parameters=root.weights + 2 * found,
        once=root.weights * kernels,
        kernel=root.weights * FLOAT,
    )
    for number, unit in enumerate(units):
        inputs, outputs = (
            unit.reduce.inputs * _area(unit.reduce.size),
            unit.expand.outputs * _area(unit.expand.size),
        )
        wide, narrow = unit.mix.inputs * _area(unit.mix.size), unit.mix.outputs * _area(unit.mix.size_out)
        kept = 2 * FLOAT * (wide + narrow + outputs)
        if unit.mix.stride > 1:  # a padded copy; at stride 1 the convolution pads by itself
            kept += product * unit.mix.inputs * _padded(unit.mix)
        elif product != FLOAT:
            kept += product * wide
        kept += FLOAT * outputs if unit.projection else 0
        if product != FLOAT:  # rounded copies of what 1x1 convolutions read; the first unit's are the root's
            kept += product * (narrow + (inputs * (2 if unit.projection else 1) if number else 0))
            kept += product * outputs if number == len(units) - 1 else 0
        weights = sum(convolution.weights for convolution in (*unit.one_by_one, unit.mix))
        yield Part(
            kept=kept,
            passing=FLOAT * max(3 * outputs, 2 * outputs + wide, outputs + 2 * inputs),
            live=FLOAT * max(2 * inputs + outputs, inputs + 4 * outputs, inputs + outputs + 3 * wide),
            parameters=unit_parameters(config, unit),
            once=weights * kernels,
            kernel=FLOAT * max(convolution.weights for convolution in (*unit.one_by_one, unit.mix)),
        )


def _resnet(config: ResNetConfig, product: int) -> Iterator[Part]:
    """BiT: norm and activation before each convolution."""
    root = root_convolution(config)
    assert root is not None
    height, width = root.size_out
    border = 2 if config.max_pool_padding == "zeros" else 0
    mapped, pooled_size = (
        root.outputs * (height + border) * (width + border),
        (-(-height // 2), -(-width // 2)),
    )
    yield Part(
        kept=pixels(config) * product + mapped * product + root.outputs * _area(pooled_size) * INDEX,
        passing=2 * FLOAT * mapped,
        live=FLOAT * (pixels(config) + (2 if border else 1) * mapped)
        + root.outputs * _area(pooled_size) * INDEX,
        parameters=root.weights,
        once=root.weights * product,
        kernel=root.weights * FLOAT,
    )
    outputs = 0
    for unit in bottlenecks(config):
        yield from _preactivation_unit(config, unit, product)
        outputs = unit.expand.outputs * _area(unit.expand.size)
    yield Part(2 * FLOAT * outputs, 3 * FLOAT * outputs, 3 * FLOAT * outputs, 2 * config.width)
    yield _head(config, 1, config.width * product, product)


def _preactivation_unit(config: ResNetConfig, unit: Bottleneck, product: int) -> Iterator[Part]:
    """Each convolution keeps what its norm reads and what it reads itself, rounded once more in bfloat16."""
    inputs, outputs = (
        unit.reduce.inputs * _area(unit.reduce.size),
        unit.expand.outputs * _area(unit.expand.size),
    )
    wide, narrow = unit.mix.inputs * _area(unit.mix.size), unit.mix.inputs * _area(unit.mix.size_out)
    copied = 0 if product == FLOAT else product
    first = unit.reduce.weights + (unit.projection.weights if unit.projection else 0)
    residual = outputs if unit.projection else 0
    reduce = first + 2 * unit.reduce.inputs
    expand = unit.expand.weights + 2 * unit.expand.inputs
    yield Part(
        kept=inputs * (2 * FLOAT + copied * (2 if unit.projection else 1)),
        passing=FLOAT * max(outputs + 2 * inputs, 3 * inputs),
        live=FLOAT * (3 * inputs + residual),
        parameters=reduce,
        once=first * product,
        kernel=FLOAT * (unit.projection or unit.reduce).weights,
    )
    mixing = Part(0, FLOAT * (wide + narrow), FLOAT * (3 * wide), 0)
    weights = unit.mix.weights
    if config.mixing == "axial":
        mixing, weights = _axial_mixing(config, unit, product), 0
    yield Part(
        kept=wide * (2 * FLOAT + copied) + mixing.kept,
        passing=FLOAT * outputs + mixing.passing,
        live=FLOAT * (inputs + residual) + mixing.live,
        parameters=unit_parameters(config, unit) - reduce - expand,
        once=weights * product,
        kernel=FLOAT * weights,
    )
    yield Part(
        kept=narrow * (2 * FLOAT + copied),
        passing=FLOAT * (outputs + 2 * narrow),
        live=FLOAT * (inputs + 3 * outputs),
        parameters=expand,
        once=unit.expand.weights * product,
        kernel=FLOAT * unit.expand.weights,
    )


def _axial_mixing(config: ResNetConfig, unit: Bottleneck, product: int) -> Part:
    """Attention along rows, then along columns, whose weights are all kept."""
    channels, heads = unit.mix.inputs, config.num_heads
    height, width = unit.mix.size
    numbers, pairs = channels * height * width, heads * height * width * (height + width)
    # Each attention: qkv and the output's two terms as norms read them; q, k twice, and v as products do.
    each = numbers * (4 * FLOAT + 3 * product)
    # Similarities in three terms, and weights; between the two attentions, and before averaging, a map.
    kept = 2 * each + pairs * 4 * FLOAT + numbers * product + (numbers * FLOAT if unit.mix.stride > 1 else 0)
    longest = heads * height * width * max(height, width)
    return Part(kept, FLOAT * (3 * longest + 2 * numbers), FLOAT * (7 * longest + 8 * numbers), 0)


def _held(config: ViTConfig) -> int:
    """Bytes of a number of the tokens as they were before they got positions, or another order."""
    return FLOAT if config.position_at != "stem" or config.attention == "axial" else 0


def _rounded(weights: int, product: int) -> int:
    """Bytes of the copies that autocast makes of weights."""
    return 0 if product == FLOAT else weights * product


def _area(size: tuple[int, int]) -> int:
    return size[0] * size[1]


def _padded(convolution: Convolution) -> int:
    """Positions of an input with the padding that the kernel needs."""
    height, width = (
        max(size, (places - 1) * convolution.stride + convolution.kernel)
        for size, places in zip(convolution.size, convolution.size_out, strict=True)
    )
    return height * width

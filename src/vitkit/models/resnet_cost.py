"""The costs of the ResNets, step by step: of BiT's, and the one before a hybrid's Transformer.

The number of each unit in a stage does not matter to its cost, but that the first changes the channels: a
model of two units a stage stands for all.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from vitkit.models.axial_mixing import AxialMixing
from vitkit.models.build import build_empty
from vitkit.models.cost import FLOAT, INDEX, PartCost, count_parameters, head_cost
from vitkit.models.resnet import PostActivationUnit, PreActivationUnit, ResNet, ResNetStem, StdConv2d
from vitkit.models.resnet_config import ResNetConfig, halve

Size = tuple[int, int]
"""`(rows, columns)` of a feature map."""

UNITS_BUILT = 2
"""Units of a stage that are built: the first, and one like all others."""


def resnet_costs(config: ResNetConfig, product: int) -> Iterator[PartCost]:
    """Give the costs of root, units, and head with loss, which is the last.

    Args:
        config: of the model.
        product: bytes of what goes into matrix products.
    """
    model = build_empty(lambda: ResNet(replace(config, layers=few_units(config.layers))))
    pixels, root = config.in_channels * _area(config.image_size), model.root
    halved = halve(config.image_size)
    border = 2 if config.max_pool_padding == "zeros" else 0
    mapped = config.root_channels * (halved[0] + border) * (halved[1] + border)
    indices = config.root_channels * _area(halve(halved)) * INDEX
    yield replace(
        convolution_cost(root, config.image_size),
        kept=(pixels + mapped) * product + indices,
        passing=2 * FLOAT * mapped,
        live=FLOAT * (pixels + (2 if border else 1) * mapped) + indices,
        once=root.weight.numel() * product,
        kernel=root.weight.numel() * FLOAT,
    )
    size = halve(halved)
    for unit, before, after in _units(model.stages, config.layers, size):
        yield from _preactivation_costs(unit, before, after, product)
        size = after
    outputs = FLOAT * config.width * _area(size)
    yield PartCost(
        kept=2 * outputs, passing=3 * outputs, live=3 * outputs, parameters=count_parameters(model.norm)
    )
    yield head_cost(model.head, None, config.width, product, kept=config.width * product)


def few_units(layers: tuple[int, ...]) -> tuple[int, ...]:
    """Give the units of each stage that have to be built for the costs of all."""
    return tuple(min(units, UNITS_BUILT) for units in layers)


def stem_costs(
    stem: ResNetStem, layers: tuple[int, ...], image_size: Size, product: int
) -> Iterator[PartCost]:
    """Give the costs of a hybrid's stem, whose kernels are all kept centred and standardised.

    Args:
        stem: with at least `few_units` in each stage.
        layers: units in each stage.
        image_size: `(height, width)` in pixels.
        product: bytes of what goes into matrix products.

    Yields:
        The root, each unit, and last the projection of the feature map's patches.
    """
    root, channels = stem.root, len(stem.root.weight)
    weights = root.weight.numel()
    halved = halve(image_size)
    map_numbers, padded = channels * _area(halved), channels * _padded(halved, 3, 2)
    units = list(_units(stem.stages, layers, halve(halved)))
    readers = 1 if product == FLOAT or not units else 1 + (units[0][0].proj is not None)
    inputs = root.weight.shape[1]
    yield replace(
        convolution_cost(root, image_size),
        kept=inputs * _padded(image_size, root.kernel, root.stride) * product
        + 2 * map_numbers * FLOAT
        + padded * FLOAT
        + channels * _area(halve(halved)) * (INDEX + product * readers),
        passing=FLOAT * padded,
        live=FLOAT
        * max(
            inputs * (_area(image_size) + _padded(image_size, root.kernel, root.stride)) + map_numbers,
            3 * map_numbers,
        ),
        parameters=count_parameters(root, stem.root_norm),
        once=weights * (FLOAT + product),
        kernel=weights * FLOAT,
    )
    size = halve(halved)
    for number, (unit, before, size) in enumerate(units):
        first, last = number == 0, number == len(units) - 1
        yield _postactivation_cost(unit, before, size, product, first=first, last=last)
    projection = stem.projection
    patches = (size[0] // projection.kernel_size[0]) * (size[1] // projection.kernel_size[1])
    yield PartCost(
        macs=patches * projection.weight.numel(),
        parameters=count_parameters(projection),
        once=0 if product == FLOAT else projection.weight.numel() * product,
    )


def _units(stages: nn.ModuleList, layers: tuple[int, ...], size: Size) -> Iterator[tuple[Any, Size, Size]]:
    """List the units of all stages, each with the sizes of its input and of its output."""
    for units, stage in zip(layers, stages, strict=True):
        for number in range(units):
            unit = stage[min(number, UNITS_BUILT - 1)]  # type: ignore[index]
            after = _strided(size, unit.conv2.stride)
            yield unit, size, after
            size = after


def _postactivation_cost(
    unit: PostActivationUnit, before: Size, after: Size, product: int, *, first: bool, last: bool
) -> PartCost:
    """Give the cost of a hybrid's unit: what a norm reads and what relu made of it, of every convolution."""
    convolutions = [unit.conv1, unit.conv2, unit.conv3, *([unit.proj] if unit.proj else [])]
    channels = len(unit.conv1.weight)
    inputs = unit.conv1.weight.shape[1] * _area(before)
    wide, narrow = channels * _area(before), channels * _area(after)
    outputs = len(unit.conv3.weight) * _area(after)
    kept = 2 * FLOAT * (wide + narrow + outputs)
    if unit.conv2.stride > 1:  # a padded copy; at stride 1 the convolution pads by itself
        kept += product * channels * _padded(before, unit.conv2.kernel, unit.conv2.stride)
    elif product != FLOAT:
        kept += product * wide
    kept += FLOAT * outputs if unit.proj else 0
    if product != FLOAT:  # rounded copies of what 1x1 convolutions read; the first unit's are the root's
        kept += product * (narrow + (0 if first else inputs * (2 if unit.proj else 1)))
        kept += product * outputs if last else 0
    weights = [convolution.weight.numel() for convolution in convolutions]
    return replace(
        _convolution_costs(unit, before, after) + convolution_cost(unit.conv2, before),
        kept=kept,
        passing=FLOAT * max(3 * outputs, 2 * outputs + wide, outputs + 2 * inputs),
        live=FLOAT * max(2 * inputs + outputs, inputs + 4 * outputs, inputs + outputs + 3 * wide),
        parameters=count_parameters(unit),
        once=sum(weights) * (FLOAT + product),
        kernel=FLOAT * max(weights),
    )


def _preactivation_costs(
    unit: PreActivationUnit, before: Size, after: Size, product: int
) -> Iterator[PartCost]:
    """Give the costs of BiT's unit: each convolution keeps what its norm reads and what it reads itself.

    In bfloat16 it keeps the latter rounded once more.
    """
    channels, width = unit.conv1.weight.shape[:2]
    inputs, outputs = width * _area(before), len(unit.conv3.weight) * _area(after)
    wide, narrow = channels * _area(before), channels * _area(after)
    copied = 0 if product == FLOAT else product
    first = unit.conv1.weight.numel() + (unit.proj.weight.numel() if unit.proj else 0)
    residual = outputs if unit.proj else 0
    yield PartCost(
        kept=inputs * (2 * FLOAT + copied * (2 if unit.proj else 1)),
        passing=FLOAT * max(outputs + 2 * inputs, 3 * inputs),
        live=FLOAT * (3 * inputs + residual),
        parameters=count_parameters(unit.norm1, unit.conv1, unit.proj),
        once=first * product,
        kernel=FLOAT * (unit.proj or unit.conv1).weight.numel(),
    )
    if isinstance(unit.conv2, AxialMixing):
        mixing = unit.conv2.cost(before, product)
    else:
        weights = unit.conv2.weight.numel()
        mixing = replace(
            convolution_cost(unit.conv2, before),
            passing=FLOAT * (wide + narrow),
            live=FLOAT * 3 * wide,
            once=weights * product,
            kernel=FLOAT * weights,
        )
    yield mixing + PartCost(
        kept=wide * (2 * FLOAT + copied),
        passing=FLOAT * outputs,
        live=FLOAT * (inputs + residual),
        parameters=count_parameters(unit.norm2),
    )
    expand = unit.conv3.weight.numel()
    yield replace(
        _convolution_costs(unit, before, after),
        kept=narrow * (2 * FLOAT + copied),
        passing=FLOAT * (outputs + 2 * narrow),
        live=FLOAT * (inputs + 3 * outputs),
        parameters=count_parameters(unit.norm3, unit.conv3),
        once=expand * product,
        kernel=FLOAT * expand,
    )


def _convolution_costs(unit: PostActivationUnit | PreActivationUnit, before: Size, after: Size) -> PartCost:
    """Add up the 1x1 convolutions of a unit."""
    cost = convolution_cost(unit.conv1, before) + convolution_cost(unit.conv3, after)
    return cost + convolution_cost(unit.proj, before) if unit.proj else cost


def convolution_cost(convolution: StdConv2d, size: Size) -> PartCost:
    """Count the multiply-accumulates of a convolution on an input of a size, and its parameters."""
    outputs, inputs = convolution.weight.shape[:2]
    meeting = outputs * inputs * _taps(convolution, size[0]) * _taps(convolution, size[1])
    everywhere = convolution.weight.numel() * _area(_strided(size, convolution.stride))
    return PartCost(macs=meeting, padding_macs=everywhere - meeting, parameters=count_parameters(convolution))


def _taps(convolution: StdConv2d, size: int) -> int:
    """Count pairs of an output and a tap that meets the input, along one axis: the two are independent."""
    kernel, stride = convolution.kernel, convolution.stride
    outputs = -(-size // stride)
    total = max((outputs - 1) * stride + kernel - size, 0)
    before = kernel // 2 if convolution.padding == "symmetric" else total // 2
    starts = (output * stride - before for output in range(outputs))
    return sum(min(start + kernel, size) - max(start, 0) for start in starts)


def _strided(size: Size, stride: int) -> Size:
    """Give the size of a feature map after a stride: rounded up."""
    return -(-size[0] // stride), -(-size[1] // stride)


def _padded(size: Size, kernel: int, stride: int) -> int:
    """Count the positions of an input with the padding that the kernel needs."""
    height, width = (
        max(before, (after - 1) * stride + kernel)
        for before, after in zip(size, _strided(size, stride), strict=True)
    )
    return height * width


def _area(size: Size) -> int:
    return size[0] * size[1]

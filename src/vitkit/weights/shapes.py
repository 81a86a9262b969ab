"""Sizes that the names and shapes of arrays tell, and checks that an array can be what its name says."""

import re

from vitkit.errors import VitkitError
from vitkit.weights.files.source import Source


def count_units(source: Source, prefix: str) -> tuple[int, ...]:
    """Count the units in each stage of a ResNet by the names of its arrays.

    Raises:
        VitkitError: a stage between others has none.
    """
    matches = [re.match(prefix + r"block(\d{1,3})/unit(\d{1,3})/", key) for key in source.shapes]
    found = {(int(match[1]), int(match[2])) for match in matches if match}
    stages = range(1, max((stage for stage, _ in found), default=0) + 1)
    counts = tuple(sum(stage == number for stage, _ in found) for number in stages)
    if 0 in counts:
        raise VitkitError(
            f"{source.path}: the arrays of {prefix}block{counts.index(0) + 1} are missing, "
            f"those of {prefix}block{len(counts)} are there: the file is not whole."
        )
    return counts


def count_outputs(source: Source, layer: str) -> int | None:
    """Count the outputs of a dense layer; None where there is none."""
    keys = (f"{layer}/kernel", f"{layer}/bias")
    return next((source.shapes[key][-1] for key in keys if source.shapes.get(key)), None)


def check_axes(source: Source, key: str, axes: int) -> None:
    """Refuse an array that cannot be what its name says.

    Raises:
        VitkitError: it has another number of axes, or nothing along one of them.
    """
    if key not in source:
        raise VitkitError(f"{source.path}: {key}: missing.")
    shape = tuple(source.shapes[key])
    if len(shape) != axes or 0 in shape:
        empty = ", none of them empty" if len(shape) == axes else ""
        raise VitkitError(f"{source.path}: {key}: expected an array of {axes} axes{empty}, found {shape}.")


def check_pointwise(source: Source, key: str, axes: tuple[int, int]) -> None:
    """Refuse a kernel that cannot be a dense layer's.

    Raises:
        VitkitError: it has not four axes, or not 1 along both of those that are rows and columns.
    """
    check_axes(source, key, 4)
    shape = tuple(source.shapes[key])
    if [shape[axis] for axis in axes] != [1, 1]:
        raise VitkitError(f"{source.path}: {key}: expected a convolution of 1x1 pixels, found {shape}.")

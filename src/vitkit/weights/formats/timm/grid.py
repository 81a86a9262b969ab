"""The image size that a timm file's position embeddings are for, and whether the first tokens have one."""

import math
from typing import Literal

from vitkit.models.resnet_config import BackboneConfig
from vitkit.weights.files.source import Source
from vitkit.weights.formats.timm.settings import Settings
from vitkit.weights.table import Hints, NotRecordedError


def find_image_size(
    source: Source,
    settings: Settings,
    hints: Hints,
    prefix: int,
    patch: tuple[int, int],
    backbone: BackboneConfig | None,
) -> tuple[tuple[int, int], bool]:
    """Find the image size of the position embeddings, and whether the `prefix` tokens have rows as well."""
    given = [size for size in (settings.image_size, hints.image_size) if size]
    if "pos_embed" not in source:
        if given:
            return given[0], True
        raise NotRecordedError(
            f"{source.path}: no position embeddings tell its image size: give image_size. The usual: 224."
        )
    count = source.shapes["pos_embed"][1]
    if settings.image_size and (reading := _reading(settings.image_size, count, prefix, patch, backbone)):
        return settings.image_size, reading == "inside"
    usual, other = _square_side(count - prefix), _square_side(count) if prefix else None
    if hints.image_size and (reading := _reading(hints.image_size, count, prefix, patch, backbone)):
        rows, columns = _grid(hints.image_size, patch, backbone)
        # A rectangle that was only asked for may have as many places as the square that the weights know.
        if rows == columns or usual is None:
            return hints.image_size, reading == "inside"
    stride = backbone.stride if backbone else 1
    if usual is not None and other is None:
        return (usual * patch[0] * stride, usual * patch[1] * stride), True
    raise NotRecordedError(
        f"{source.path}: its {count} position embeddings are {_readings(count, prefix, usual, other)}, and "
        "nothing says which: give the image size they were made for, image_size=(height, width) "
        "(--image-size HEIGHT WIDTH)."
    )


def _grid(size: tuple[int, int], patch: tuple[int, int], backbone: BackboneConfig | None) -> tuple[int, int]:
    """Rows and columns of tokens of an image."""
    height, width = backbone.feature_map(size) if backbone else size
    return height // patch[0], width // patch[1]


def _reading(
    size: tuple[int, int],
    count: int,
    prefix: int,
    patch: tuple[int, int],
    backbone: BackboneConfig | None,
) -> Literal["inside", "outside"] | None:
    """Match `count` position embeddings to an image size, with or without rows for the prefix tokens."""
    rows, columns = _grid(size, patch, backbone)
    if rows * columns == count - prefix:
        return "inside"
    return "outside" if rows * columns == count else None


def _square_side(places: int) -> int | None:
    """Return the side of the square grid with so many patches; None where no square has that many."""
    side = math.isqrt(max(places, 0))
    return side if side and side * side == places else None


def _readings(count: int, prefix: int, usual: int | None, other: int | None) -> str:
    """List in words the grids that so many position embeddings may belong to."""
    tokens = f"{prefix} token{'s' if prefix > 1 else ''} before the patches"

    def shape(side: int | None) -> str:
        return "a grid that is no square" if side is None else f"a grid of {side}x{side}"

    if not prefix:
        return shape(usual)
    return f"{shape(usual)} and {tokens}, or {shape(other)} without a position for the {tokens}"

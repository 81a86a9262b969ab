"""The checks of fields that the configurations of all model families share.

This file imports no torch, because help texts must not wait for it.
"""

from typing import Annotated, Any, TypeAlias, overload

from vitkit.config import FLOAT32_MOST, Range
from vitkit.errors import VitkitError

LARGEST = 2**20
"""Pixels of a side, or channels, or the width of a layer: far more than any image or model has."""

FLOAT32_LEAST = 2.0**-126
"""The smallest number above 0 that float32 holds in full, for pixels are divided by deviations."""

MOST_CLASSES = 2**24
"""A thousand times as many as the largest labelled set has."""


Size: TypeAlias = int | tuple[int, int]
"""Height and width of images in pixels, or one number for both."""


Length = Annotated[int, Range(f"from 1 to {LARGEST:,}", 1, LARGEST)]
Classes = Annotated[int, Range(f"0 (no head) to {MOST_CLASSES:,}", 0, MOST_CLASSES)]
Deviation = Annotated[float, Range("a number above 0", FLOAT32_LEAST, FLOAT32_MOST)]


def check_images(config: Any) -> None:
    """Refuse pixel statistics of another number of channels than a model's.

    Raises:
        VitkitError: they are.
    """
    if len(config.image_mean) != config.in_channels or len(config.image_std) != config.in_channels:
        raise VitkitError(
            f"image_mean and image_std need one value per channel ({config.in_channels}), "
            f"found {config.image_mean} and {config.image_std}."
        )


@overload
def height_and_width(size: Size) -> tuple[int, int]: ...
@overload
def height_and_width(size: Size | None) -> tuple[int, int] | None: ...
def height_and_width(size: Size | None) -> tuple[int, int] | None:
    """Return a size as `(height, width)`: one number, alone or in a sequence, is both of them.

    Raises:
        VitkitError: they are no numbers, or more than two.
    """
    if size is None:
        return None
    sizes = (size,) if isinstance(size, int) else tuple(size)
    if not 1 <= len(sizes) <= 2:
        raise VitkitError(f"image_size must be (height, width), found {size}.")
    return sizes[0], sizes[-1]

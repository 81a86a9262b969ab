"""The checks of fields that the configurations of all model families share.

This file imports no torch, because help texts must not wait for it.
"""

import math
from typing import Any, TypeAlias, overload

from vitkit.errors import VitkitError
from vitkit.text import format_size

LARGEST = 2**20
"""Pixels of a side, or channels, or the width of a layer: far more than any image or model has."""

FLOAT32_LEAST = 2.0**-126
"""The smallest number above 0 that float32 holds in full, for pixels are divided by deviations."""

MOST_CLASSES = 2**24
"""A thousand times as many as the largest labelled set has."""


Size: TypeAlias = int | tuple[int, int]
"""Height and width of images in pixels, or one number for both."""


def check_images(config: Any) -> None:
    """Refuse image sizes, channels and pixel statistics that no model of any family can have.

    Raises:
        VitkitError: sizes below one or beyond `LARGEST`, pixel statistics of another number of channels, not
            finite, or with a deviation that is not above zero.
    """
    if config.in_channels < 1:
        raise VitkitError(f"A model needs in_channels of at least 1, found {config.in_channels}.")
    for name, number in (("in_channels", config.in_channels), ("image_size", max(config.image_size))):
        if number > LARGEST:
            raise VitkitError(f"{name} is at most {LARGEST}, found {number}.")
    if config.num_classes < 0:
        raise VitkitError(f"num_classes is 0 (no head) or more, found {config.num_classes}.")
    if config.num_classes > MOST_CLASSES:
        raise VitkitError(f"num_classes is at most {MOST_CLASSES:,}, found {config.num_classes:,}.")
    if min(config.image_size) < 1:
        raise VitkitError(f"Images have at least one pixel a side, found {format_size(config.image_size)}.")
    if len(config.image_mean) != config.in_channels or len(config.image_std) != config.in_channels:
        raise VitkitError(
            f"image_mean and image_std need one value per channel ({config.in_channels}), "
            f"found {config.image_mean} and {config.image_std}."
        )
    finite = all(map(math.isfinite, (*config.image_mean, *config.image_std)))
    if not finite or min(config.image_std) < FLOAT32_LEAST:
        raise VitkitError(
            "image_mean holds finite numbers and image_std finite numbers above 0, "
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

"""Images of other than three channels: grey (1), red, green, blue and alpha (4), or any number of bands.

A colour image becomes grey by Pillow's luma, by which equal red, green and blue stay as they are. A grey
image is repeated for three channels. An image without alpha is opaque. Any other number of channels comes
from arrays and stacks alone (`arrays.py`, `stacks.py`), whose channels are not converted.

Shapes: H x W pixels of C channels.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitkit.errors import VitkitError

Pixels = NDArray[np.uint8]  # (H, W, C)

Colour = tuple[int, int, int]
"""Red, green and blue in 0..255."""


def from_rgb(pixels: Pixels, channels: int) -> Pixels:
    """Convert an RGB image (H, W, 3) to one channel (its luma, ITU-R 601-2), three, or four (opaque)."""
    if channels == 1:
        return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).convert("L"))[:, :, None]
    if channels == 4:
        return np.concatenate([pixels, np.full_like(pixels[:, :, :1], 255)], axis=2)
    return pixels


def from_units(pixels: NDArray[Any]) -> Pixels:
    """Round floats from 0 to 1 to levels from 0 to 255.

    Raises:
        VitkitError: they are no floats, or out of that range.
    """
    if pixels.dtype.kind != "f" or not (pixels.min() >= 0 and pixels.max() <= 1):  # NaN is neither
        raise VitkitError(
            f"With unit_range pixels are floats from 0 to 1, found {pixels.dtype} from {pixels.min()} to "
            f"{pixels.max()}: leave unit_range out for uint8, and undo a normalisation."
        )
    levels: Pixels = np.rint(pixels * 255).astype(np.uint8)
    return levels


def to_rgb(pixels: Pixels) -> Pixels:
    """Make a picture to look at, (H, W, 3), of an image of any number of channels.

    Of one or two channels the first is repeated; of more, the first three are shown.
    """
    return np.repeat(pixels[:, :, :1], 3, axis=2) if pixels.shape[2] < 3 else pixels[:, :, :3]


def border_of(colour: Colour, channels: int) -> NDArray[np.uint8]:
    """Give the values (C,) of a border's colour in an image of C channels.

    Three channels have the colour itself, four the transparent colour, any other number its luma.
    """
    rgb = np.array([[colour]], np.uint8)
    if channels == 3:
        return np.asarray(colour, np.uint8)
    if channels == 4:
        return np.append(rgb[0, 0], np.uint8(0))
    return np.repeat(from_rgb(rgb, 1)[0, 0], channels)


def by_threes(image: Pixels, change: Callable[[Pixels], Pixels], out: Pixels | None = None) -> Pixels:
    """Change an image of any number of channels by a function for three, each channel by itself.

    So every channel has the bits that it would have as a colour of an RGB image. As RGBA, Pillow would
    multiply by alpha, which is wrong where the fourth channel is not alpha.

    Args:
        image: (H, W, C).
        change: from (H, W, 3) to (H', W', 3), the same change of each channel.
        out: where the result (H', W', C) is written, if given.
    """
    channels = image.shape[2]
    for start in range(0, channels, 3):
        # The last channel is repeated where fewer than three are left.
        three = np.minimum(np.arange(start, start + 3), channels - 1)
        part = change(np.ascontiguousarray(image[:, :, three]))
        if out is None:
            out = np.empty((*part.shape[:2], channels), np.uint8)
        out[:, :, start : start + 3] = part[:, :, : channels - start]
    assert out is not None  # an image has a channel
    return out

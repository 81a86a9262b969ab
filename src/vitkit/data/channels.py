"""Images of other than three channels: grey (1), red, green, blue and alpha (4), or any number of bands.

A colour image becomes grey by Pillow's luma, by which equal red, green and blue stay as they are. A grey
image is repeated for three channels. An image without alpha is opaque. Any other number of channels comes
from arrays and stacks alone (`decode/image.py`), whose channels are not converted.

Shapes: H x W pixels of C channels.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitkit.data.config import DecodeRule
from vitkit.errors import DecodeError, VitkitError

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


_TURNS: dict[int, Callable[[Pixels], Pixels]] = {
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: pixels[::-1, ::-1].swapaxes(0, 1),
    8: np.rot90,
}


def upright(pixels: Pixels, orientation: int) -> Pixels:
    """Turn an image upright that is stored in one of the eight EXIF orientations."""
    return _TURNS[orientation](pixels) if orientation in _TURNS else pixels


STRIP_PIXELS = 1 << 18
"""Pixels are converted in strips of about so many, so that intermediate images stay small."""


def strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Yield the image from top to bottom in full-width strips, each with the number of its first row."""
    width, height = image.size
    rows = max(1, STRIP_PIXELS // width)
    for top in range(0, height, rows):
        yield top, image.crop((0, top, width, min(top + rows, height)))


def make_converter(image: Image.Image, rule: DecodeRule) -> Callable[[Image.Image], NDArray[np.uint8]]:
    """Choose the function that makes pixels, (height, width, channels), from a loaded image or a part."""
    convert = _rgb_converter(image, rule)
    if rule.channels == 3:
        return convert
    if rule.channels == 4 and not image.mode.startswith(("I", "F")) and _is_transparent(image):
        return lambda part: np.asarray(_with_alpha(part))

    def convert_on(part: Image.Image) -> NDArray[np.uint8]:
        pixels = from_rgb(convert(part), rule.channels)
        if rule.channels == 4 and isinstance(image.info.get("transparency"), int):  # of wide grey
            pixels[np.asarray(part) == image.info["transparency"], 3] = 0
        return pixels

    return convert_on


def _rgb_converter(image: Image.Image, rule: DecodeRule) -> Callable[[Image.Image], NDArray[np.uint8]]:
    """Choose the function that makes RGB pixels, (height, width, 3), from a loaded image or a part of it."""
    if image.mode.startswith(("I", "F")):
        return _wide_grey_converter(image, rule)
    if _is_transparent(image):
        under = (*rule.background, 255)
        return lambda part: np.asarray(
            Image.alpha_composite(Image.new("RGBA", part.size, under), _with_alpha(part)).convert("RGB")
        )
    return lambda part: np.asarray(part.convert("RGB"))


def _is_transparent(image: Image.Image) -> bool:
    return image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info


def _with_alpha(image: Image.Image) -> Image.Image:
    if image.mode == "La":  # the only mode that Pillow cannot convert straight to RGBA
        image = image.convert("LA")
    return image.convert("RGBA")


def _wide_grey_converter(image: Image.Image, rule: DecodeRule) -> Callable[[Image.Image], NDArray[np.uint8]]:
    """Make the function that turns 16-bit, 32-bit and floating-point grey into RGB.

    Pillow's own conversion clips such pixels at 255.
    """
    extremes = [(part.min(), part.max()) for part in (_wide_values(strip) for _, strip in strips(image))]
    low, high = min(low for low, _ in extremes), max(high for _, high in extremes)
    if not all(np.isfinite(extremes).ravel()):
        raise DecodeError("floating-point pixels with NaN or infinity")
    transparent = image.info.get("transparency")

    def convert(part: Image.Image) -> NDArray[np.uint8]:
        values = _wide_values(part)
        if image.mode.startswith("I") and low >= 0 and high <= 65535:
            scaled = values * (255 / 65535)
        elif image.mode == "F" and low >= 0 and high <= 255:
            scaled = values * 255 if high <= 1 else values
        else:
            scaled = (values - low) * (255 / ((high - low) or 1))
        pixels = np.repeat(np.floor(scaled + 0.5).astype(np.uint8)[:, :, None], 3, axis=2)
        if isinstance(transparent, int):
            pixels[values == transparent] = rule.background
        return pixels

    return convert


def _wide_values(image: Image.Image) -> NDArray[np.float32]:
    return np.asarray(image).astype(np.float32)  # exact to 24 bits, and half the memory

"""Convert images that Pillow has loaded, of any colour mode, to the pixels of a decoding rule."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitkit.data.channels import from_rgb
from vitkit.data.config import DecodeRule
from vitkit.errors import DecodeError

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
    if rule.channels not in (1, 3, 4):
        raise DecodeError(
            f"expected {rule.channels} channels, found an image of colour mode {image.mode}: give .npy files "
            f"of (height, width, {rule.channels}), or TIFF files of {rule.channels} grey pages"
        )
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

"""Read TIFF files of other channels than colours: one grey page for each, or several samples a pixel.

Pillow decodes the pages. Files of several samples that are no colours it refuses, or drops the samples it
does not know, so those are read here, where they are stored in strips, as they are or by deflate (TIFF 6.0,
sections 3, 8 and 14, and Adobe's supplement of 2002).

Shapes: H x W pixels of C channels.
"""

import io
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, TiffImagePlugin

from vitkit.data.arrays import ArrayFile, to_levels
from vitkit.data.decode_config import DecodeRule
from vitkit.data.decode_error import DecodeError

_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _COLOURS, _OFFSETS = 256, 257, 258, 259, 262, 273
_ORIENTATION, _SAMPLES, _ROWS, _COUNTS, _PLANES, _PREDICTOR = 274, 277, 278, 279, 284, 317
_EXTRA, _FORMAT, _TILE = 338, 339, 322
_DEFLATE = (8, 32946)


def has_samples(tags: Any, channels: int) -> bool:
    """Whether a TIFF file has so many samples a pixel, which are to be taken as they are.

    Of four, red, green and blue with an alpha, and CMYK, are Pillow's.
    """
    if tags.get(_SAMPLES, 1) != channels or channels in (1, 3):
        return False
    colours, extra = tags.get(_COLOURS), tags.get(_EXTRA, ())
    return channels != 4 or colours in (0, 1) or (colours == 2 and extra == (0,))


def read_samples(data: bytes, rule: DecodeRule) -> ArrayFile | None:
    """Read a TIFF file of as many samples a pixel as the rule has channels; None for any other.

    Raises:
        DecodeError: it is stored in a way that is not read here, too large or damaged.
    """
    # A BigTIFF has a longer head, and says so at byte 2 or 3.
    tags: Any = TiffImagePlugin.ImageFileDirectory_v2(data[: 16 if 43 in data[2:4] else 8])
    stream = io.BytesIO(data)
    stream.seek(tags.next)
    tags.load(stream)
    if not has_samples(tags, rule.channels):
        return None
    width, height, channels = tags[_WIDTH], tags[_HEIGHT], rule.channels
    kind = _type(tags, data)
    if tags.get(_ORIENTATION, 1) != 1 or _TILE in tags or tags.get(_COMPRESSION, 1) not in (1, *_DEFLATE):
        raise DecodeError(
            f"a TIFF of {channels} samples in tiles, turned, or of a compression other than deflate: save it "
            "in strips without compression, as one grey page for each channel, or as .npy"
        )
    needed = width * height * channels * kind.itemsize
    if width * height > rule.max_pixels or needed > rule.max_bytes:
        raise DecodeError(
            f"{width} x {height} pixels of {channels} channels, {needed:,} bytes, more than max_pixels = "
            f"{rule.max_pixels:,} allows"
        )
    planes = channels if tags.get(_PLANES, 1) == 2 else 1
    together = channels // planes
    values = np.empty((planes, height, width, together), kind)
    rows = min(tags.get(_ROWS, height), height)
    strips = zip(tags[_OFFSETS], tags[_COUNTS], strict=True)
    for plane in range(planes):
        for top in range(0, height, rows):
            shape = (min(rows, height - top), width, together)
            offset, count = next(strips)
            values[plane, top : top + rows] = _strip(data[offset : offset + count], tags, kind, shape)
    return ArrayFile(values[0] if planes == 1 else np.moveaxis(values[..., 0], 0, 2), "TIFF")


def _type(tags: Any, data: bytes) -> np.dtype[Any]:
    """Return the type of the samples: unsigned of 8 or 16 bits, or floats of 32."""
    bits, formats = set(tags.get(_BITS, (1,))), set(tags.get(_FORMAT, (1,)))
    letter = {(8, 1): "u1", (16, 1): "u2", (32, 3): "f4"}.get((max(bits), max(formats)))
    if letter is None or len(bits) > 1 or len(formats) > 1:
        raise DecodeError(f"samples of {max(bits)} bits: save them as uint8, uint16, or float32 from 0 to 1")
    return np.dtype((">" if data[:2] == b"MM" else "<") + letter)


def _strip(data: bytes, tags: Any, kind: np.dtype[Any], shape: tuple[int, int, int]) -> NDArray[Any]:
    """Decode a strip (rows, W, C); deflate is stopped at its length, whatever the data would become."""
    length = int(np.prod(shape)) * kind.itemsize
    if tags.get(_COMPRESSION, 1) in _DEFLATE:
        data = zlib.decompressobj().decompress(data, length)
    if len(data) < length:
        raise DecodeError(f"a strip of {len(data):,} bytes, expected {length:,}: the file is cut short")
    values = np.frombuffer(data, kind, count=length // kind.itemsize).reshape(shape)
    predictor = tags.get(_PREDICTOR, 1)
    if predictor == 2 and kind.kind == "u":  # differences to the pixel at the left, which wrap
        return np.cumsum(values, axis=1, dtype=kind)
    if predictor != 1:
        raise DecodeError("a predictor of floats: save the TIFF without one")
    return values


def read_pages(image: Image.Image, channels: int) -> NDArray[np.uint8] | None:
    """Read a TIFF file of so many grey pages, (H, W, C), each turned as it says; None for any other.

    Raises:
        DecodeError: a page is no grey image, or of another size than the first.
    """
    pages = getattr(image, "n_frames", 1)
    if channels in (1, 3) or pages != channels:
        return None
    stack, size = None, image.size
    for number in range(pages):
        image.seek(number)
        if image.mode not in ("L", "F") and not image.mode.startswith("I;16"):
            raise DecodeError(
                f"page {number + 1} of {pages} has the colour mode {image.mode}, expected grey of 8 or 16 "
                "bits, or floats from 0 to 1"
            )
        if image.size != size:
            raise DecodeError(f"page {number + 1} has {image.size} pixels, the first {size} (width, height)")
        levels = to_levels(np.asarray(image))
        if stack is None:
            stack = np.empty((*levels.shape, channels), np.uint8)
        if levels.shape != stack.shape[:2]:
            raise DecodeError(f"page {number + 1} is turned otherwise than the first")
        stack[:, :, number] = levels
    return stack

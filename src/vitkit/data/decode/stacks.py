"""Read TIFF files whose channels are no colours: one grey page for each channel, or several samples a pixel.

Pillow decodes the pages. It refuses files of several samples that are no colours, or drops samples, so they
are read here if they are stored in strips, uncompressed or by deflate (TIFF 6.0, sections 3, 8 and 14, and
Adobe's supplement of 2002).

Shapes: H x W pixels of C channels.
"""

import io
import math
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, TiffImagePlugin

from vitkit.data.config import DecodeRule
from vitkit.data.decode.arrays import STRIP_BYTES, ArrayFile, fill_levels
from vitkit.data.decode.converting import strips
from vitkit.errors import DecodeError

# Numbers of TIFF's tags.
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _COLOURS, _OFFSETS = 256, 257, 258, 259, 262, 273
_ORIENTATION, _SAMPLES, _ROWS, _COUNTS, _PLANES, _PREDICTOR = 274, 277, 278, 279, 284, 317
_EXTRA, _FORMAT, _TILE = 338, 339, 322
_DEFLATE = (8, 32946)  # the numbers of deflate as a compression: Adobe's, and an older one


def read_samples(data: bytes, rule: DecodeRule) -> ArrayFile | None:
    """Read the tags of a TIFF file of as many samples a pixel as the rule has channels; None for any other.

    Four samples that are red, green and blue with an alpha, or CMYK, are left to Pillow.

    Raises:
        DecodeError: it is stored in a way that is not read here, or damaged.
    """
    # A BigTIFF has the version 43, at byte 2 or 3 by its byte order, and a longer head.
    tags: Any = TiffImagePlugin.ImageFileDirectory_v2(data[: 16 if 43 in data[2:4] else 8])
    stream = io.BytesIO(data)
    stream.seek(tags.next)
    tags.load(stream)
    channels, colours = rule.channels, tags.get(_COLOURS)
    no_colours = colours in (0, 1) or (colours == 2 and tags.get(_EXTRA, ()) == (0,))
    if tags.get(_SAMPLES, 1) != channels or (channels == 4 and not no_colours):
        return None
    bits, formats = set(tags.get(_BITS, (1,))), set(tags.get(_FORMAT, (1,)))
    letter = {(8, 1): "u1", (16, 1): "u2", (32, 3): "f4"}.get((max(bits), max(formats)))
    if letter is None or len(bits) > 1 or len(formats) > 1:
        raise DecodeError(f"samples of {max(bits)} bits: save them as uint8, uint16, or float32 from 0 to 1")
    kind = np.dtype((">" if data[:2] == b"MM" else "<") + letter)
    if tags.get(_ORIENTATION, 1) != 1 or _TILE in tags or tags.get(_COMPRESSION, 1) not in (1, *_DEFLATE):
        raise DecodeError(
            f"a TIFF of {channels} samples in tiles, turned, or of a compression other than deflate: save it "
            "in strips without compression, as one grey page for each channel, or as .npy"
        )
    width, height = tags[_WIDTH], tags[_HEIGHT]
    rows = tags.get(_ROWS, height)
    if not all(isinstance(side, int) and side >= 1 for side in (width, height, rows)):
        raise DecodeError(f"a TIFF of {width} x {height} pixels in strips of {rows} rows: expected 1 or more")
    rows = min(rows, height)  # the last strip may have fewer
    planes = channels if tags.get(_PLANES, 1) == 2 else 1  # one after the other
    count, expected = len(tags[_OFFSETS]), planes * -(-height // rows)
    if not count == len(tags[_COUNTS]) == expected:
        raise DecodeError(f"{count:,} strips, expected {expected:,}: the file is damaged")
    together = channels // planes

    def read_strips() -> Iterator[tuple[int, int, NDArray[Any]]]:
        stored = zip(tags[_OFFSETS], tags[_COUNTS], strict=True)
        for first in range(0, channels, together):
            for top in range(0, height, rows):
                offset, length = next(stored)
                shape = (min(rows, height - top), width, together)
                yield top, first, _strip(data[offset : offset + length], tags, kind, shape)

    # zlib joins the pieces of a strip into a copy, and undoing the predictor takes another.
    strip_bytes = 3 * rows * width * together * kind.itemsize
    needed = height * width * channels + strip_bytes + STRIP_BYTES
    return ArrayFile("TIFF", (height, width, channels), kind, read_strips, needed)


def _strip(data: bytes, tags: Any, kind: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Decode a strip (rows, W, C); inflating stops at its length, so that a bomb is not unpacked."""
    length = math.prod(shape) * kind.itemsize
    deflated = tags.get(_COMPRESSION, 1) in _DEFLATE
    if deflated:
        data = zlib.decompressobj().decompress(data, length)
    if len(data) < length:
        raise DecodeError(f"a strip of {len(data):,} bytes, expected {length:,}: the file is cut short")
    values = np.frombuffer(data, kind, count=length // kind.itemsize).reshape(shape)
    # libtiff and Pillow ignore the tag for uncompressed strips, so that writers may leave any number there.
    predictor = tags.get(_PREDICTOR, 1) if deflated else 1
    if predictor == 2 and kind.kind == "u":  # differences to the pixel at the left, which wrap
        return np.cumsum(values, axis=1, dtype=kind)
    if predictor != 1:
        raise DecodeError("a predictor of floats: save the TIFF without one")
    return values


def read_pages(image: Image.Image, channels: int) -> NDArray[np.uint8] | None:
    """Read a TIFF file of `channels` grey pages as (H, W, C), each turned by its tag; None for any other.

    Raises:
        DecodeError: a page is no grey image, or of another size than the first.
    """
    # Colour images are not searched for pages: a damaged page behind the first would make them unreadable.
    if channels in (1, 3) or (channels == 4 and not _is_grey(image.mode)) or not _has_pages(image, channels):
        return None
    stack, size = None, image.size
    for number in range(channels):
        image.seek(number)
        if not _is_grey(image.mode):
            raise DecodeError(
                f"page {number + 1} of {channels} has the colour mode {image.mode}, expected grey of 8 or 16 "
                "bits, or floats from 0 to 1"
            )
        if image.size != size:
            raise DecodeError(f"page {number + 1} has {image.size} pixels, the first {size} (width, height)")
        image.load()  # this turns the page
        if stack is None:
            stack = np.empty((image.height, image.width, channels), np.uint8)
        if (image.height, image.width) != stack.shape[:2]:
            raise DecodeError(f"page {number + 1} is turned otherwise than the first")
        for top, part in strips(image):
            fill_levels(stack[top : top + part.height, :, number : number + 1], np.asarray(part)[:, :, None])
    return stack


def _is_grey(mode: str) -> bool:
    """Whether a page of a colour mode is a channel: grey of 8 or 16 bits, or floats."""
    return mode in ("L", "F") or mode.startswith("I;16")


def _has_pages(image: Image.Image, pages: int) -> bool:
    """Whether a file has exactly so many pages. It is not searched beyond them: some have thousands."""
    page = image.tell()
    try:
        image.seek(pages - 1)
        try:
            image.seek(pages)
        except EOFError:
            return True
        return False
    except EOFError:
        return False
    finally:
        image.seek(page)

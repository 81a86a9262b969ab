"""Read images that are arrays: `.npy` files of (height, width, channels), of any number of channels; and TIFF
files whose channels are no colours, with one grey page for each channel or several samples a pixel.

Of `.npy` files only the three types of `to_levels` are read; nothing is unpickled. The header is matched by a
pattern, as numpy and other writers make it (numpy/lib/_format_impl.py), and the length it states must be the
file's. Of TIFF files Pillow decodes the pages. It refuses files of several samples that are no colours, or
drops samples, so they are read here if they are stored in strips, uncompressed or by deflate (TIFF 6.0,
sections 3, 8 and 14, and Adobe's supplement of 2002).

Shapes: H x W pixels of C channels.
"""

import io
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, TiffImagePlugin

from vitkit.data.channels import strips
from vitkit.data.config import DecodeRule
from vitkit.errors import DecodeError

MAGIC = b"\x93NUMPY"
_HEADER = re.compile(
    r"\{'descr': (?P<type>'[^']*'|\[.*\]), 'fortran_order': (?P<columns_first>True|False), "
    r"'shape': \((?P<shape>(?:\d{1,10}, ?)*(?:\d{1,10})?)\),? ?\}\s*",
    re.DOTALL,
)
_LONGEST_HEADER = 1000  # characters; an image's has about 70
_TYPES = {"'|u1'", "'<u2'", "'>u2'", "'<f4'", "'>f4'"}
_STRIP = 1 << 18  # values that are converted at a time, so that their floats take little memory
STRIP_BYTES = 16 * _STRIP
"""Bytes of memory that converting takes beside values and levels: four floats for each value of a strip."""


def to_levels(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Turn values into levels from 0 to 255: uint8 as they are, uint16 times 255/65535, floats times 255.

    Raises:
        DecodeError: floats that are not in [0, 1], or values of another type.
    """
    if values.dtype == np.uint8:
        return values.astype(np.uint8, copy=False)
    if values.dtype.kind == "u" and values.dtype.itemsize == 2:
        scaled = values.astype(np.float32) * np.float32(255 / 65535)
    elif values.dtype.kind == "f":
        if not values.size or not (values.min() >= 0 and values.max() <= 1):  # NaN is neither
            extent = "NaN" if np.isnan(values).any() else f"{values.min():g} to {values.max():g}"
            raise DecodeError(f"expected floats from 0 to 1, found {extent}: scale all images alike")
        scaled = values.astype(np.float32) * np.float32(255)
    else:
        raise DecodeError(f"expected values of uint8, uint16 or float32, found {values.dtype}")
    levels: NDArray[np.uint8] = np.floor(scaled + np.float32(0.5)).astype(np.uint8)
    return levels


def fill_levels(levels: NDArray[np.uint8], values: NDArray[np.generic]) -> None:
    """Write the levels of values (H, W, C) to `levels`, part by part, so that the floats take little memory.

    Raises:
        DecodeError: as `to_levels`.
    """
    height, width, channels = values.shape
    rows, columns = max(1, _STRIP // (width * channels)), max(1, _STRIP // channels)
    for top in range(0, height, rows):
        for left in range(0, width, columns):
            part = np.s_[top : top + rows, left : left + columns]
            levels[part] = to_levels(values[part])


@dataclass(frozen=True)
class ArrayFile:
    """An image file that holds an array, whose header was read and agrees with the file's length."""

    format: str
    shape: tuple[int, int, int]
    """(H, W, C)"""
    kind: np.dtype[Any]
    parts: Callable[[], Iterable[tuple[int, int, NDArray[Any]]]]
    """A function that reads the array in parts: first row, first channel and values (rows, W, channels)."""
    decoding_bytes: int
    """Bytes of memory that decoding takes beside the file."""

    @property
    def size(self) -> tuple[int, int]:
        """(width, height), in Pillow's order."""
        return self.shape[1], self.shape[0]

    @property
    def mode(self) -> str:
        return f"{self.kind.name} x {self.shape[2]}"

    def pixels(self, rule: DecodeRule) -> NDArray[np.uint8]:
        """Decode to (H, W, channels); grey, a single channel, is repeated where the rule has 3 or 4.

        Raises:
            DecodeError: another number of channels, values out of range, or a damaged part.
        """
        channels = self.shape[2]
        if channels != rule.channels and not (channels == 1 and rule.channels in (3, 4)):
            if self.shape[0] == rule.channels:
                raise DecodeError(
                    f"expected (height, width, {rule.channels}), found {self.shape}, channels first: save "
                    "numpy.moveaxis(array, 0, -1) instead"
                )
            raise DecodeError(
                f"expected {rule.channels} channels, found an array of {channels}, {self.shape}: give "
                f"--channels {channels}"
            )
        levels = np.empty((*self.shape[:2], rule.channels), np.uint8)
        for top, first, values in self.parts():
            fill_levels(levels[top : top + len(values), :, first : first + values.shape[2]], values)
        if channels != rule.channels:  # of grey, which is opaque
            levels[:, :, 1:3], levels[:, :, 3:] = levels[:, :, :1], 255
        return levels


def read_array(data: bytes) -> ArrayFile:
    """Read the header of an `.npy` file.

    Raises:
        DecodeError: it is no image, or the file is not as long as the header says.
    """
    if (start := {b"\1": 10, b"\2": 12, b"\3": 12}.get(data[6:7])) is None:
        raise DecodeError(f"a .npy file of version {data[6:7].hex()}; 1, 2 and 3 can be read")
    length = int.from_bytes(data[8:start], "little")
    header = _HEADER.fullmatch(data[start : start + min(length, _LONGEST_HEADER)].decode("latin-1"))
    if header is None:
        raise DecodeError("the header of this .npy file cannot be read: save the array with numpy.save")
    if header["type"] not in _TYPES:
        python = " (Python objects are never loaded)" if "O" in header["type"] else ""
        raise DecodeError(
            f"an array of type {header['type'][:40]}{python}: save it as uint8, uint16, or float32 from 0 "
            "to 1"
        )
    shape = tuple(int(side) for side in header["shape"].replace(",", " ").split())
    if len(shape) not in (2, 3) or 0 in shape:
        raise DecodeError(f"an array of shape {shape}: expected (height, width) or (height, width, channels)")
    kind = np.dtype(header["type"].strip("'"))
    promised = kind.itemsize * int(np.prod(shape, dtype=object))  # of Python's integers, which never wrap
    held = len(data) - start - length
    if promised != held:
        raise DecodeError(
            f"the header promises {promised:,} bytes of pixels, {shape} of {kind.name}, the file has "
            f"{max(held, 0):,}"
        )
    flat = np.frombuffer(data, kind, offset=start + length)
    values = flat.reshape(shape, order="F" if header["columns_first"] == "True" else "C")
    values = values if values.ndim == 3 else values[:, :, None]
    height, width, channels = values.shape
    # Levels, which are repeated for grey, and a strip of floats.
    needed = (4 if channels == 1 else channels) * height * width + STRIP_BYTES
    return ArrayFile("NPY", (height, width, channels), kind, lambda: [(0, 0, values)], needed)


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
    page, last = image.tell(), -1
    with suppress(EOFError):
        for number in (pages - 1, pages):
            image.seek(number)
            last = number
    image.seek(page)
    return last == pages - 1

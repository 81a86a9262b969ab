"""Read images that are arrays: `.npy` files of (height, width, channels), of any number of channels; and TIFF
files whose channels are no colours, with one grey page for each channel or several samples a pixel.

Of `.npy` files only the three types of `to_levels` are read; nothing is unpickled. The header is matched by a
pattern, as numpy and other writers make it (numpy/lib/_format_impl.py), and the length it states must be the
file's. TIFF files are read by tifffile, one strip or tile after the other, each unpacked to no more than its
pixels.

Shapes: H x W pixels of C channels.
"""

import io
import logging
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray
from PIL import TiffImagePlugin

from vitkit.data.channels import upright
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
    parts: Callable[[], Iterable[tuple[tuple[slice, slice, slice], NDArray[Any]]]]
    """A function that reads the array in parts: their rows, columns and channels, and values (H, W, C)."""
    decoding_bytes: int
    """Bytes of memory that decoding takes beside the file."""
    orientation: int = 1
    """The turn of the stored array, from 1 to 8 as in EXIF."""

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
        for part, values in self.parts():
            fill_levels(levels[part], values)
        if channels != rule.channels:  # of grey, which is opaque
            levels[:, :, 1:3], levels[:, :, 3:] = levels[:, :, :1], 255
        return np.ascontiguousarray(upright(levels, self.orientation if rule.apply_exif else 1))


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
    place = np.s_[:, :, :channels]
    return ArrayFile("NPY", (height, width, channels), kind, lambda: [(place, values)], needed)


# Numbers of TIFF's tags.
_COLOURS, _ORIENTATION, _SAMPLES, _EXTRA = 262, 274, 277, 338
_DEFLATE = (8, 32946)  # the numbers of deflate as a compression: Adobe's, and an older one
_COMPRESSIONS = (1, 5, *_DEFLATE, 32773, 50000)
"""None, LZW, deflate, PackBits, Zstandard: no more is unpacked than asked for. A JPEG inside has any size."""

# It logs what is odd, and raises what is wrong.
logging.getLogger("tifffile").addHandler(logging.NullHandler())


def read_tiff(data: bytes, channels: int) -> ArrayFile | None:
    """Read the tags of a TIFF file whose samples or grey pages are channels; None for one that Pillow reads.

    Pillow reads four channels that are colours with an alpha or CMYK, and a single grey page.

    Raises:
        DecodeError: it is stored in a way that is not read here, or damaged.
    """
    if channels == 4:
        # A BigTIFF has the version 43, at byte 2 or 3 by its byte order, and a longer head.
        tags: Any = TiffImagePlugin.ImageFileDirectory_v2(data[: 16 if 43 in data[2:4] else 8])
        stream = io.BytesIO(data)
        stream.seek(tags.next)
        tags.load(stream)
        samples, grey = tags.get(_SAMPLES, 1), tags.get(_COLOURS) in (0, 1)
        unknown = samples == 4 and (grey or tags.get(_EXTRA) == (0,))
        if not unknown and not (samples == 1 and grey and tags.next):  # the last: there is a second page
            return None
    try:
        import imagecodecs  # noqa: F401 (tifffile unpacks by it)
        from tifffile import TiffFile
    except ImportError:
        message = "a TIFF of channels, which the extra tiff reads: pip install 'vitkit[tiff]', or save .npy"
        raise DecodeError(message) from None
    tiff: Any = TiffFile(io.BytesIO(data))
    first = tiff.pages[0]
    if tiff.is_ome:
        _check_ome(first.description, channels)
    pages = [first]
    if first.samplesperpixel == 1:
        # Further pages are not searched: some files have thousands. Those of an OME-TIFF are other images.
        pages = list(islice(tiff.pages, channels + (not tiff.is_ome)))
        if len(pages) != channels:
            return None
    orientation = first.tags.valueof(_ORIENTATION, 1)
    for number, page in enumerate(pages, 1):
        if page.photometric not in (0, 1) and len(pages) > 1:
            raise DecodeError(f"page {number} of {channels} has colours, expected grey")
        if page.shaped != first.shaped or page.tags.valueof(_ORIENTATION, 1) != orientation:
            size = page.imagewidth, page.imagelength
            raise DecodeError(f"page {number} has {size} pixels (width, height), or a turn, unlike the first")
        if page.dtype not in (np.uint8, np.uint16, np.float32) or page.bitspersample < 8:
            bits = page.bitspersample
            raise DecodeError(f"samples of {bits} bits: save them as uint8, uint16, or float32 from 0 to 1")
        if page.compression not in _COMPRESSIONS:
            raise DecodeError(f"{page.compression!r}: save it with LZW or deflate, or as .npy")
        count, expected = len(page.dataoffsets), math.prod(page.chunked)
        if not count == len(page.databytecounts) == expected or page.imagedepth != 1:
            raise DecodeError(f"{count:,} strips, expected {expected:,}: the file is damaged")
    planes, _, height, width, together = first.shaped
    deflated = [page.compression in _DEFLATE for page in pages]
    segment_bytes = max(math.prod(page.chunks) * page.dtype.itemsize for page in pages)

    def read_segments() -> Iterator[tuple[tuple[slice, slice, slice], NDArray[Any]]]:
        for number, page in enumerate(pages):
            if deflated[number]:
                page.compression = 1  # it is unpacked here, for libdeflate refuses a strip that is too long
            elif page.compression == 1:
                page.predictor = 1  # libtiff and Pillow ignore it here, so that writers may leave any there
            for index, (start, length) in enumerate(zip(page.dataoffsets, page.databytecounts, strict=True)):
                stored = data[start : start + length]
                if deflated[number]:
                    stored = zlib.decompressobj().decompress(stored, segment_bytes)
                segment, (sample, _, top, left, _), _ = page.decode(stored, index)
                values = segment[0, : height - top, : width - left]  # a tile may reach beyond the image
                if page.photometric == 0 and len(pages) > 1 and values.dtype == np.uint8:
                    values = ~values  # white is 0, as Pillow reads it
                bottom, right, channel = top + len(values), left + values.shape[1], number + sample
                yield np.s_[top:bottom, left:right, channel : channel + values.shape[2]], values

    shape = (height, width, planes * together * len(pages))
    # Levels, and others that are turned; zlib joins pieces into a copy, undoing the predictor takes another.
    needed = math.prod(shape) * (1 if orientation == 1 else 2) + 3 * segment_bytes + STRIP_BYTES
    return ArrayFile("TIFF", shape, first.dtype, read_segments, needed, orientation)


def _check_ome(description: str, channels: int) -> None:
    """Refuse an OME-TIFF whose first image is not one plane of so many channels, page after page."""
    pixels = ElementTree.fromstring(description).findall("{*}Image/{*}Pixels")[0]
    held, planes, times = (int(pixels.get(f"Size{axis}", 1)) for axis in "CZT")
    if (held, planes, times) != (channels, 1, 1):
        raise DecodeError(
            f"an OME-TIFF of {held} channels, {planes} planes (Z) and {times} times (T), expected {channels} "
            "channels of one plane: give --channels; save each plane, or their maximum, as a file of its own"
        )
    for stored in pixels.iterfind("{*}TiffData"):
        if stored.get("IFD", "0") != stored.get("FirstC", "0"):
            raise DecodeError("an OME-TIFF whose channels are in other files or another order: save it anew")

"""Read images that are arrays: `.npy` files of (height, width, channels), of any number of channels.

Only the three types of `to_levels` are read; nothing is unpickled. The header is matched by a pattern, as
numpy and other writers make it (numpy/lib/_format_impl.py), and the length it states must be the file's.

Shapes: H x W pixels of C channels.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    start = {b"\1": 10, b"\2": 12, b"\3": 12}.get(data[6:7])
    if start is None:
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

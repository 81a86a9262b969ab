"""Pillow's resize and rotation to the same bits, four to five times as fast, by a C compiler and AVX2.

The kernel (resample.c) is compiled when a loader begins, if it has not been yet (`compile.py`). It is used if
it makes the same pixels as the installed Pillow. Without it Pillow does the work, and nothing but the speed
differs. torch's antialiased resize of bytes is not used: it is off by up to 19 levels (bilinear, narrow
results) and 28 (bicubic).
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image

from vitkit.kernels.compile import Source, load

Pixels = NDArray[np.uint8]  # (height, width, 3)

# The numbers of the filters in resample.c. "nearest" is not among them: Pillow makes it in another way.
_FILTERS = {"box": 0, "bilinear": 1, "hamming": 2, "bicubic": 3, "lanczos": 4}
PILLOW_FILTERS = {name: Image.Resampling[name.upper()] for name in ("nearest", *_FILTERS)}
PILLOW_VERSION = tuple(map(int, PIL.__version__.split(".")[:2]))


def resample(
    image: Pixels,
    box: tuple[float, float, float, float],
    size: tuple[int, int],
    interpolation: str,
    cut: tuple[int, int, int, int] | None = None,
    out: Pixels | None = None,
    library: ctypes.CDLL | None = None,
) -> Pixels | None:
    """Resize as Pillow does, to the same bits; None where Pillow has to do it.

    Args:
        image: (H, W, 3).
        box: top, left, bottom, right of the part that is resized, in pixels of the image.
        size: (height, width) to which the box is resized.
        interpolation: one of Pillow's filters by its lower-case name.
        cut: top, left, bottom, right of the part of the result that is computed; None: all of it.
        out: the array that it is written to, of any strides; None: a new one.
        library: the kernel; None: the one that has been compiled, if there is one.
    """
    library = library or (_library() if interpolation in _FILTERS else None)
    if library is None:
        return None
    height, width = image.shape[:2]
    top, left, bottom, right = box
    y0, x0, y1, x1 = cut or (0, 0, *size)
    mirrored = image.strides[1] == -3
    pixels = image[:, ::-1] if mirrored else image
    if pixels.strides[1:] != (3, 1):
        pixels = np.ascontiguousarray(pixels)
    if out is None:
        out = np.empty((y1 - y0, x1 - x0, 3), np.uint8)
    rows, columns = size
    rows_first = _begins_with_rows(height, width, rows, columns)
    done = library.resample(
        *(_pointer(pixels), ctypes.c_ssize_t(pixels.strides[0]), height, width, mirrored),
        *((ctypes.c_float * 4)(left, top, right, bottom), _FILTERS[interpolation], rows_first, rows, columns),
        *(y0, y1, x0, x1, _pointer(out), *map(ctypes.c_ssize_t, out.strides)),
    )
    if not done:
        raise MemoryError("not enough memory to resize an image")
    return out


def _begins_with_rows(height: int, width: int, rows: int, columns: int) -> bool:
    """Whether Pillow resizes an image of this height and width by its rows first.

    It rounds between its two passes, so that their order shows. It begins with the rows from 13.0 where that
    leaves less to do, in 12.2 and 12.3 for very tall images, and never before.
    """
    if PILLOW_VERSION >= (13, 0):
        return height - rows > max(0, 2 * (width - columns))
    return PILLOW_VERSION >= (12, 2) and height > 100 * width and height > rows


Matrix = tuple[float, float, float, float, float, float]
View = tuple[Pixels, bool, int, int, Matrix | None]
"""A part of an image (H, W, 3) whose columns are next to each other, whether it is mirrored, pixels down and
to the right, and the matrix as for `turn`; None: it is not turned."""
Neighbours = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]
"""Along one axis: index before, index after, and weight of the one after."""


def sample(image: Pixels, down: Neighbours, across: Neighbours, out: Pixels | None = None) -> Pixels | None:
    """Sample bilinearly without averaging, in float32; None where there is no kernel.

    Args:
        image: (H, W, 3).
        down: for each row of the result, among the image's rows.
        across: for each column.
        out: the array that it is written to, of any strides; None: a new one.
    """
    if (library := _library()) is None:
        return None
    before, after, weight = across
    width = image.shape[1]
    if image.strides[1] == -3:  # mirrored: the same pixels, counted from the other end
        image, before, after = image[:, ::-1], width - 1 - before, width - 1 - after
    if image.strides[1:] != (3, 1):
        image = np.ascontiguousarray(image)
    out = np.empty((len(down[0]), len(before), 3), np.uint8) if out is None else out
    rows = [np.ascontiguousarray(part) for part in down]
    columns = [np.ascontiguousarray(part) for part in (before, after, weight)]
    done = library.sample(
        *(_pointer(image), ctypes.c_ssize_t(image.strides[0]), width),
        *(*map(_pointer, rows), len(rows[0])),
        *(*map(_pointer, columns), len(before)),
        *(_pointer(out), *map(ctypes.c_ssize_t, out.strides)),
    )
    if not done:
        raise MemoryError("not enough memory to resize an image")
    return out


def turn(
    image: Pixels, shift: tuple[int, int], pad: int, matrix: Matrix, library: ctypes.CDLL | None = None
) -> Pixels | None:
    """Shift an image and turn it as Pillow does, to the same bits; None where there is no kernel.

    Args:
        image: (H, W, C), of any strides.
        shift: pixels down and to the right; edge pixels are repeated.
        pad: rows and columns of edge pixels around the shifted image; the matrix leads to none beyond.
        matrix: of Pillow's affine transform: from a place of the result to one of the padded image.
        library: as for `resample`.
    """
    if (library := library or _library()) is None:
        return None
    out = np.empty(image.shape, np.uint8)
    strides = map(ctypes.c_ssize_t, image.strides)
    library.turn(
        _pointer(image), *strides, *image.shape, *shift, pad, (ctypes.c_double * 6)(*matrix), _pointer(out)
    )
    return out


def make_views(views: Sequence[View], interpolation: str, pad: int, out: NDArray[np.uint8]) -> None:
    """Resize, mirror and move parts of images as `resample` and `turn` do, where `has_kernel`.

    Args:
        views: of the images of the batch.
        interpolation: as for `resample`.
        pad: as for `turn`.
        out: the batch `(B, 3, rows, columns)`.
    """
    library = _library()
    assert library is not None, "expected that there is a kernel"
    rows, columns = out.shape[2:]
    numbers, still = [], (1.0, 0.0, float(pad), 0.0, 1.0, float(pad))
    for part, mirrored, down, right, matrix in views:
        height, width = part.shape[:2]
        rows_first = _begins_with_rows(height, width, rows, columns)
        moves = bool(down or right or matrix)
        numbers.append(
            (part.ctypes.data, part.strides[0], height, width, mirrored, rows_first, moves, down, right)
        )
    whole = np.array(numbers, np.int64)
    matrices = np.array([matrix or still for *_, matrix in views])
    done = library.views(
        *(_pointer(whole), _pointer(matrices), len(views), _FILTERS[interpolation], pad),
        *(_pointer(out), rows, columns),
    )
    if not done:
        raise MemoryError("not enough memory to resize an image")


def _pointer(array: NDArray[Any]) -> ctypes.c_void_p:
    """Give the address of an array, which the caller holds; `array.ctypes` takes five times as long."""
    return ctypes.c_void_p(array.ctypes.data)


def prepare_resampling() -> bool:
    """Compile the kernel if this machine can and has not yet, and tell whether there is one.

    It takes half a second once, which pays for jobs of many images.
    """
    if _library() is None and load(SOURCE, compile_it=True).library is not None:
        _library.cache_clear()
    return _library() is not None


def has_kernel(interpolation: str) -> bool:
    """Whether the kernel has been compiled and knows a filter."""
    return interpolation in _FILTERS and _library() is not None


@cache
def _library() -> ctypes.CDLL | None:
    """Return the kernel, if it has been compiled."""
    return load(SOURCE, compile_it=False).library


def _makes_pillows_pixels(library: ctypes.CDLL) -> bool:
    """Whether a few small images come out as the installed Pillow makes them."""
    noise = np.random.default_rng(0).integers(0, 2, (61, 47, 3), dtype=np.uint8) * np.uint8(255)
    for interpolation in _FILTERS:
        for height, width in ((17, 13), (17, 46), (90, 100)):  # the second one is tall
            kind = PILLOW_FILTERS[interpolation]
            expected = np.asarray(Image.fromarray(noise).resize((width, height), kind))
            size = (height, width)
            resized = resample(noise, (0, 0, 61, 47), size, interpolation, library=library)
            assert resized is not None
            if not np.array_equal(resized, expected):
                return False
    matrix = (0.9, -0.3, 24.0, 0.3, 0.9, 2.5)
    padded = Image.fromarray(np.pad(noise, ((20, 20), (20, 20), (0, 0)), "edge"))
    turned = padded.transform((47, 61), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
    return np.array_equal(turn(noise, (0, 0), 20, matrix, library), np.asarray(turned))  # type: ignore[arg-type]


# Without contraction: a fused multiply-add would change the last bits of the weights, and then pixels.
SOURCE = Source(
    Path(__file__).with_name("resample.c"),
    ("-O3", "-mavx2", "-ffp-contract=off", *(f"-D{name.upper()}={i}" for name, i in _FILTERS.items())),
    f"Pillow {PIL.__version__}",
    _makes_pillows_pixels,
    frozenset({"avx2"}),
)

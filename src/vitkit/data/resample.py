"""Pillow's resize to the same bits, five times as fast, where the machine has a C compiler and AVX2.

The kernel (resample.c) is compiled once, when a loader begins, and kept in the user's cache. Whoever resizes
uses it if it is there and made the same pixels as the installed Pillow. Without it Pillow does the work, and
nothing but the speed differs.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]  # (height, width, 3)

_SOURCE = Path(__file__).with_name("resample.c")
# Without contraction: a fused multiply-add would change the last bits of the weights, and then pixels.
_FLAGS = ("-O3", "-mavx2", "-ffp-contract=off", "-fPIC", "-shared")
_COMPILE_SECONDS = 60
# The numbers of the filters in resample.c. "nearest" is not among them: Pillow makes it in another way.
_FILTERS = {"box": 0, "bilinear": 1, "hamming": 2, "bicubic": 3, "lanczos": 4}
PILLOW_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "hamming": Image.Resampling.HAMMING,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


@dataclass(frozen=True)
class Kernel:
    """The compiled kernel, and the order of passes that the installed Pillow has."""

    function: Callable[..., int]
    sample: Callable[..., int]
    rows_first_if_tall: bool
    """Pillow 13 begins with the rows if that leaves less to do, Pillow 12 never does."""

    def resize(
        self,
        image: Pixels,
        box: tuple[float, float, float, float],
        size: tuple[int, int],
        interpolation: str,
        cut: tuple[int, int, int, int],
        out: Pixels | None = None,
    ) -> Pixels:
        """Resize the box to `size` and return the part `cut` of it; see `resample`."""
        height, width = image.shape[:2]
        top, left, bottom, right = box
        y0, x0, y1, x1 = cut
        mirrored = image.strides[1] == -3
        pixels = image[:, ::-1] if mirrored else image
        if pixels.strides[1:] != (3, 1):
            pixels = np.ascontiguousarray(pixels)
        if out is None:
            out = np.empty((y1 - y0, x1 - x0, 3), np.uint8)
        rows_first = self.rows_first_if_tall and height - size[0] > max(0, 2 * (width - size[1]))
        done = self.function(
            *(pixels.ctypes.data, pixels.strides[0], height, width, mirrored),
            *((ctypes.c_float * 4)(left, top, right, bottom), _FILTERS[interpolation], rows_first, *size),
            *(y0, y1, x0, x1, out.ctypes.data, *out.strides),
        )
        if not done:
            raise MemoryError("not enough memory to resize an image")
        return out


def resample(
    image: Pixels,
    box: tuple[float, float, float, float],
    size: tuple[int, int],
    interpolation: str,
    cut: tuple[int, int, int, int] | None = None,
    out: Pixels | None = None,
) -> Pixels | None:
    """Resize as Pillow does, to the same bits; None where Pillow has to do it.

    Args:
        image: (H, W, 3).
        box: top, left, bottom, right of what is resized, in pixels of the image.
        size: (height, width) of the box resized.
        interpolation: one of Pillow's filters by its lower-case name.
        cut: top, left, bottom, right of the part of the result that is wanted; None: all of it.
        out: where it is written, of any strides; None: a new array.
    """
    kernel = _kernel() if interpolation in _FILTERS else None
    if kernel is None:
        return None
    return kernel.resize(image, box, size, interpolation, cut or (0, 0, *size), out)


Neighbours = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]
"""Along one axis: index before, index after, and weight of the one after."""


def sample(image: Pixels, down: Neighbours, across: Neighbours, out: Pixels | None = None) -> Pixels | None:
    """Sample bilinearly without averaging, in float32; None where there is no kernel.

    Args:
        image: (H, W, 3).
        down: for each row of the result, among the image's rows.
        across: for each column.
        out: where it is written, of any strides; None: a new array.
    """
    kernel = _kernel()
    if kernel is None:
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
    done = kernel.sample(
        *(image.ctypes.data, image.strides[0], width, *(part.ctypes.data for part in rows), len(rows[0])),
        *(*(part.ctypes.data for part in columns), len(before), out.ctypes.data, *out.strides),
    )
    if not done:
        raise MemoryError("not enough memory to resize an image")
    return out


def prepare_resampling() -> bool:
    """Compile the kernel if this machine can and has not yet, and tell whether there is one.

    It takes half a second once, so that it is for jobs of many images to ask for it.
    """
    if _kernel() is None and _compile():
        _kernel.cache_clear()
    return _kernel() is not None


@cache
def _kernel() -> Kernel | None:
    """Return the kernel, if it has been compiled and makes the same pixels as Pillow."""
    path = _library()
    if path is None or not _is_own(path.parent) or not _is_own(path):
        return None
    try:
        library = ctypes.CDLL(str(path))
        function, sampler = library.resample, library.sample
    except (OSError, AttributeError):  # cut short, or of another system
        return None
    whole, step = ctypes.c_int, ctypes.c_ssize_t
    pointer = ctypes.c_void_p
    function.argtypes = [
        *(pointer, step, whole, whole, whole, ctypes.POINTER(ctypes.c_float)),
        *([whole] * 8),
        *(pointer, step, step, step),
    ]
    sampler.argtypes = [
        *(pointer, step, whole, pointer, pointer, pointer, whole),
        *(pointer, pointer, pointer, whole, pointer, step, step, step),
    ]
    function.restype = sampler.restype = whole
    kernels = (Kernel(function, sampler, True), Kernel(function, sampler, False))
    return next((kernel for kernel in kernels if _makes_pillows_pixels(kernel)), None)


def _makes_pillows_pixels(kernel: Kernel) -> bool:
    """Whether a few small images come out as the installed Pillow makes them."""
    noise = np.random.default_rng(0).integers(0, 2, (61, 47, 3), dtype=np.uint8) * np.uint8(255)
    for interpolation in _FILTERS:
        for height, width in ((17, 13), (17, 46), (90, 100)):  # the second one is tall
            kind = PILLOW_FILTERS[interpolation]
            expected = np.asarray(Image.fromarray(noise).resize((width, height), kind))
            found = kernel.resize(
                noise, (0, 0, 61, 47), (height, width), interpolation, (0, 0, height, width)
            )
            if not np.array_equal(found, expected):
                return False
    return True


def _library() -> Path | None:
    """Return the path of the compiled kernel, made or not; None where there can be none."""
    try:
        if platform.system() != "Linux" or platform.machine() != "x86_64":
            return None
        if b"avx2" not in Path("/proc/cpuinfo").read_bytes():
            return None
        content = _SOURCE.read_bytes() + " ".join(_FLAGS).encode()
    except OSError:
        return None
    chosen = os.environ.get("VITKIT_CACHE")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "vitkit"
    # A folder for each user: what lies there is run as code.
    folder = f"compiled-{os.getuid()}"
    return base.expanduser() / folder / f"resample-{hashlib.sha256(content).hexdigest()[:16]}.so"


def _compile() -> bool:
    """Whether the kernel has been compiled. A reader sees the whole file or none."""
    path = _library()
    compiler = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    if path is None or compiler is None:
        return False
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_own(path.parent):
            return False
        descriptor, name = tempfile.mkstemp(suffix=".so", dir=path.parent)
        os.close(descriptor)
    except OSError:  # no such place, or no right to write there
        return False
    try:
        command = [compiler, *_FLAGS, str(_SOURCE), "-o", name, "-lm"]
        subprocess.run(command, capture_output=True, timeout=_COMPILE_SECONDS, check=True)
        Path(name).chmod(0o700)
        Path(name).replace(path)
    except (OSError, subprocess.SubprocessError):
        return False
    finally:
        with suppress(OSError):
            Path(name).unlink(missing_ok=True)
    return True


def _is_own(path: Path) -> bool:
    """Whether nobody but this user can write to a file or folder; what others can write is not run."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)

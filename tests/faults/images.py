"""Damaged images of every format: pixels, or one clean refusal; never a crash, a hang or a machine full."""

import ctypes
import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from tests.faults.entry import Refusal
from tests.faults.harness import Kind, Outcome, forget_peak
from tests.faults.mutate import mutant, with_right_crcs
from vitkit.data.decode import image as decoding

SEEDS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    *(("PNG", mode, "png", {}) for mode in ("1", "L", "LA", "I;16", "P", "RGB", "RGBA")),
    ("PNG", "RGB", "interlaced.png", {"optimize": True, "exif": b"Exif\0\0II*\0\x08\0\0\0\0\0"}),
    ("JPEG", "L", "jpg", {}),
    ("JPEG", "RGB", "jpg", {}),
    ("JPEG", "RGB", "progressive.jpg", {"progressive": True}),
    ("JPEG", "CMYK", "jpg", {}),
    ("GIF", "P", "gif", {}),
    ("GIF", "L", "gif", {}),
    *(("BMP", mode, "bmp", {}) for mode in ("1", "L", "P", "RGB", "RGBA")),
    *(("TIFF", mode, "tif", {}) for mode in ("1", "L", "P", "RGB", "RGBA", "CMYK", "F", "I;16", "I")),
    *(("TIFF", "RGB", f"{c}.tif", {"compression": c}) for c in ("tiff_lzw", "tiff_adobe_deflate", "jpeg")),
    ("WEBP", "RGB", "webp", {}),
    ("WEBP", "RGBA", "lossless.webp", {"lossless": True}),
    ("AVIF", "RGB", "avif", {}),
    ("AVIF", "RGBA", "avif", {}),
    *(("PPM", mode, "ppm", {}) for mode in ("1", "L", "RGB")),
    ("QOI", "RGB", "qoi", {}),
    ("QOI", "RGBA", "qoi", {}),
    ("SGI", "L", "sgi", {}),
    ("SGI", "RGB", "sgi", {}),
    ("ICO", "RGBA", "ico", {}),
    ("JPEG2000", "RGB", "jp2", {}),
    ("JPEG2000", "L", "jp2", {}),
)
"""Format, mode, ending and options of the images that are damaged."""


def seeds(folder: Path) -> None:
    """Write one small image of every format and mode."""
    noise = np.random.default_rng(0).integers(0, 256, (24, 32, 4), np.uint8)
    for number, (name, mode, ending, options) in enumerate(SEEDS):
        image = Image.fromarray(noise)
        if mode == "I;16":
            image = Image.fromarray(noise[..., 0].astype(np.uint16) * 257)
        elif mode == "P":
            image = image.convert("RGB").quantize(16)
        elif mode in ("F", "I"):
            image = image.convert("L").convert(mode)
        else:
            image = image.convert("RGB").convert(mode) if mode not in ("RGBA", "LA") else image.convert(mode)
        image.save(folder / f"{number:02d}.{ending}", name, **options)


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _png(width: int, height: int, *extra: bytes) -> bytes:
    """A PNG whose header promises a size, with next to nothing in it."""
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    pixels = _chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(extra) + pixels + _chunk(b"IEND", b"")


def _scans(count: int) -> bytes:
    """A progressive JPEG of 1500 x 1500 pixels with its last scan many times over."""
    buffer = io.BytesIO()
    Image.new("L", (1500, 1500), 90).save(buffer, "JPEG", progressive=True, quality=5)
    data = buffer.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * count + data[-2:]


def _saved(mode: str, size: tuple[int, int], name: str) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, name)
    return buffer.getvalue()


BYTES: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "zeros": lambda: bytes(100_000),
    "web page": lambda: b"<!DOCTYPE html><html></html>",
    "PNG of 60,000 x 60,000": lambda: _png(60_000, 60_000),
    "PNG of 2^31 x 2^31": lambda: _png(2**31 - 1, 2**31 - 1),
    "PPM of 60,000 x 60,000": lambda: b"P6 60000 60000 255\n",
    "QOI of 60,000 x 60,000": lambda: b"qoif" + struct.pack(">IIBB", 60_000, 60_000, 3, 0),
    "BMP of 60,000 x 60,000": lambda: b"BM" + bytes(12)
    + struct.pack("<IiiHH", 40, 60_000, 60_000, 1, 24) + bytes(24),
    "SGI of 60,000 x 60,000": lambda: struct.pack(">hBBHHHH", 474, 0, 1, 3, 60_000, 60_000, 3) + bytes(500),
    "GIF with a screen of 8,000 x 8,000": lambda: b"GIF89a" + struct.pack("<HH", 8000, 8000) + b"\0\0\0,"
    + struct.pack("<HHHH", 0, 0, 1, 1) + b"\0\x02\x02L\x01\0;",
    "PNG with a text of 1 GiB": lambda: _png(
        8, 8, _chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 30), 1))
    ),
    "progressive JPEG of 200 scans": lambda: _scans(200),
    "progressive JPEG of 40,000 scans": lambda: _scans(40_000),
    "64 megapixels of RGB, PNG": lambda: _saved("RGB", (8000, 8000), "PNG"),
    "64 megapixels of RGBA, PNG": lambda: _saved("RGBA", (8000, 8000), "PNG"),
    "64 megapixels of 16 bits, PNG": lambda: _saved("I;16", (8000, 8000), "PNG"),
}  # fmt: skip


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 40 << 30)


FILES: dict[str, Callable[[Path], None]] = {
    "a pipe": _fifo,
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to /dev/tty": lambda path: path.symlink_to("/dev/tty"),
    "a link to /dev/full": lambda path: path.symlink_to("/dev/full"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a folder": lambda path: path.mkdir(),
    "40 GB of nothing": _sparse,
}

ODD = (*FILES, *BYTES)
"""The first cases; the costly ones last."""


class Images(Kind):
    """Mutants of small images of every format, and the odd files above."""

    name, count, limit = "images", 40_000, 20.0
    sample = (*range(16), *range(100, 140))  # the odd files that are quick to make, and some mutants
    # An image of 64 million pixels, the largest that is let in, has 192 MiB as RGB, and Pillow needs 256 MiB
    # more while it decodes; 512 MiB in all is what the project allows one image.
    most_memory = 512 << 20
    per_process = 1000

    def prepare(self, folder: Path) -> None:
        seeds(folder)

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        if number < len(ODD):
            name = ODD[number]
            path = folder / "odd.png"
            if name in BYTES:
                path.write_bytes(BYTES[name]())
                _forget()
            else:
                FILES[name](path)
            outcome = tried(path)
            if name == "40 GB of nothing":
                path.unlink()
            return Outcome(outcome.verdict, f"{name}: {outcome.detail}")
        seed = draw.choice(sorted(path for path in shared.iterdir() if path.name[0] != "."))
        data = mutant(seed.read_bytes(), draw)
        path = folder / seed.name
        path.write_bytes(with_right_crcs(data) if seed.suffix == ".png" else data)
        return tried(path)


def _forget() -> None:
    """Return freed memory to the system, so that making a bomb does not count as decoding it."""
    ctypes.CDLL(None).malloc_trim(0)
    forget_peak()


def tried(path: Path) -> Outcome:
    """Header and pixels of one file: they agree, or the file is refused."""
    try:
        promised: tuple[int, int] | None = decoding.header(path).size
    except Refusal:
        promised = None
    try:
        decoded = decoding.decode(path)
    except Refusal as refusal:
        return Outcome("words", str(refusal))
    if promised is None:
        return Outcome("wrong", "the header is refused and the pixels are not")
    if decoded.shape != (*promised, 3) or decoded.dtype != np.uint8:
        return Outcome("wrong", f"{decoded.dtype} of shape {decoded.shape} where the header says {promised}")
    return Outcome("right")

"""Damaged images of every format: pixels, or one clean refusal; never a crash, a hang or a machine full."""

import ctypes
import os
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
from tests.helpers.image_zoo import BAD, GOOD, chunk, encoded, noise, png
from vitkit.data.decode import image as decoding


def seeds() -> list[bytes]:
    """Make small images of every format and mode, and of noise, which leaves much to damage."""
    options: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in ("PNG", "JPEG", "WEBP", "GIF")]
    options += [("JPEG", {"progressive": True})]
    options += [("TIFF", {"compression": name}) for name in ("raw", "tiff_lzw", "tiff_adobe_deflate", "jpeg")]
    return [make() for make, _ in GOOD.values()] + [encoded(noise(), name, **more) for name, more in options]


def _scans(count: int) -> bytes:
    """A progressive JPEG of 1500 x 1500 pixels with its last scan many times over."""
    data = encoded(Image.new("L", (1500, 1500), 90), "JPEG", progressive=True, quality=5)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * count + data[-2:]


BYTES: dict[str, Callable[[], bytes]] = {
    **{name: make for name, (make, _) in BAD.items()},
    "zeros": lambda: bytes(100_000),
    "PNG with a text of 1 GiB": lambda: png(
        8, 8, 8, 2, bytes(1000), chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 30), 1))
    ),
    "progressive JPEG of 200 scans": lambda: _scans(200),
    "progressive JPEG of 40,000 scans": lambda: _scans(40_000),
    "64 megapixels of RGB, PNG": lambda: encoded(Image.new("RGB", (8000, 8000)), "PNG"),
    "64 megapixels of RGBA, PNG": lambda: encoded(Image.new("RGBA", (8000, 8000)), "PNG"),
    "64 megapixels of 16 bits, PNG": lambda: encoded(Image.new("I;16", (8000, 8000)), "PNG"),
}


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 40 << 30)


FILES: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to /dev/tty": lambda path: path.symlink_to("/dev/tty"),
    "a link to /dev/full": lambda path: path.symlink_to("/dev/full"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a folder": Path.mkdir,
    "40 GB of nothing": _sparse,
}
ODD = (*FILES, *BYTES)
"""The first cases; the costly ones last."""


class Images(Kind):
    """Mutants of small images of every format, and the odd files above."""

    name, count, limit = "images", 40_000, 20.0
    sample = (
        *range(len(ODD) - 7),
        *range(100, 140),
    )  # the odd files that are quick to make, and some mutants
    # An image of 64 million pixels, the largest that is let in, has 192 MiB as RGB, and Pillow needs 256 MiB
    # more while it decodes; 512 MiB in all is what the project allows one image.
    most_memory = 512 << 20
    per_process = 1000

    def prepare(self, folder: Path) -> None:
        for number, data in enumerate(seeds()):
            (folder / f"{number:03d}").write_bytes(data)

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        path = folder / "odd"
        if number >= len(ODD):
            data = mutant(draw.choice(sorted(shared.glob("[0-9]*"))).read_bytes(), draw)
            path.write_bytes(with_right_crcs(data) if data[1:4] == b"PNG" else data)
            return tried(path)
        name = ODD[number]
        if name in FILES:
            FILES[name](path)
        else:
            path.write_bytes(BYTES[name]())
            # Freed memory goes back to the system: making a bomb does not count as decoding it.
            ctypes.CDLL(None).malloc_trim(0)
            forget_peak()
        outcome = tried(path)
        if name == "40 GB of nothing":
            path.unlink()
        return Outcome(outcome.verdict, f"{name}: {outcome.detail}")


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

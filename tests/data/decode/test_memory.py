"""What decoding takes: the memory that headers promise, measured; and the scans of JPEGs, counted."""

import json
import os
import random
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.faults.mutate import mutant, with_right_crcs
from tests.helpers.image_zoo import GOOD, encoded, noise
from tests.helpers.refusals import undecodable
from vitkit.data.config import DecodeRule
from vitkit.data.decode.image import MAX_JPEG_SCANS, decode, header, jpeg_scans
from vitkit.errors import DecodeError

from .test_arrays import npy, pages, tiff

# Reports for each file in a folder: growth of the resident set at its peak, and what the header promised.
MEASURE = """
import gc, json, re, sys
from pathlib import Path
from vitkit.data.decode.image import decode, header
from vitkit.data.config import DecodeRule

rule = DecodeRule(channels=int(sys.argv[2]))

def resident(name):
    return 1024 * int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

found = {}
for path in sorted(Path(sys.argv[1]).iterdir()):
    promised = header(path, rule).decoding_bytes
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    decode(path, rule)
    found[path.name] = (resident("VmHWM") - before, promised)
print(json.dumps(found))
"""


def growth(folder: Path, channels: int = 3) -> dict[str, tuple[int, int]]:
    if sys.platform != "linux":
        pytest.skip("the peak of a process can be measured anew on Linux only")
    # Large blocks go back to the system at once, so that every file starts from the same level.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, "-c", MEASURE, str(folder), str(channels)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    growths: dict[str, tuple[int, int]] = json.loads(done.stdout)
    return growths


def gif_of_small_frame(side: int) -> bytes:
    """A few bytes that promise a large screen."""
    screen = b"GIF89a" + struct.pack("<HHBBB", side, side, 0x80, 0, 0) + bytes(6)
    frame = b"!\xf9\4\1\0\0\0\0" + b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0)
    return screen + frame + b"\x02\x02\x44\x01\0;"


LARGE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "jpeg": ("RGB", "JPEG", {}),
    "jpeg cmyk": ("CMYK", "JPEG", {}),
    "jpeg progressive": ("RGB", "JPEG", {"progressive": True}),
    "jpeg progressive 444": ("RGB", "JPEG", {"progressive": True, "subsampling": 0}),
    "png": ("RGB", "PNG", {}),
    "png rgba": ("RGBA", "PNG", {}),
    "png grey with alpha": ("LA", "PNG", {}),
    "png palette": ("P", "PNG", {"transparency": bytes(range(256))}),
    "png colour": ("RGB", "PNG", {"transparency": (1, 2, 3)}),
    "png 16": ("I;16", "PNG", {}),
    "webp": ("RGBA", "WEBP", {"method": 0}),
    "avif": ("RGB", "AVIF", {"speed": 10}),
    "jpeg 2000": ("RGB", "JPEG2000", {}),
    "tiff": ("RGB", "TIFF", {}),
    "tiff turned": ("RGB", "TIFF", {"tiffinfo": {0x0112: 6}}),
    "tiff in one strip": ("RGB", "TIFF", {"compression": "tiff_lzw", "strip_size": 1 << 30}),
    "tiff 16": ("I;16", "TIFF", {}),
    "gif": ("P", "GIF", {"transparency": 3}),
    "bmp": ("RGB", "BMP", {}),
    "ppm": ("RGB", "PPM", {}),
    "sgi": ("RGB", "SGI", {}),
}
"""Every format and mode that takes memory in a way of its own."""


def large_file(name: str, side: int) -> bytes:
    mode, kind, options = LARGE[name]
    grey = Image.linear_gradient("L").resize((side, side))
    if mode == "I;16":
        return encoded(Image.fromarray(np.asarray(grey).astype(np.uint16) * 257), kind, **options)
    return encoded(
        grey.convert("P") if mode == "P" else Image.merge(mode, [grey] * len(mode)), kind, **options
    )


def test_decoding_takes_what_the_header_promises(tmp_path: Path) -> None:
    """Arrays in a row, a strip, and page by page, too: nothing of a whole image is as wide as its values."""
    stack = np.full((1300, 1500, 5), 0.5, np.float32)
    wide = np.full(stack.shape, 257, np.uint16)
    files = {
        3: {name: large_file(name, 1600) for name in LARGE}
        | {"large file": large_file("tiff", 3000)}  # 27 MB, free before the array is made
        | {"gif screen": gif_of_small_frame(1600), "huge screen": gif_of_small_frame(5000)}
        | {"row": npy(np.full((1, 3_000_000, 3), 0.5, np.float32)), "grey": npy(stack[:, :, 0])},
        5: {"rows": npy(stack), "pages": pages(stack)}
        | {
            f"strips of {rows}": tiff(wide, rowsperstrip=rows, compression="adobe_deflate", predictor=2)
            for rows in (64, len(wide))
        },
    }
    for channels, made in files.items():
        (tmp_path / str(channels)).mkdir()
        for name, content in made.items():
            (tmp_path / str(channels) / name).write_bytes(content)
        for name, (grown, promised) in growth(tmp_path / str(channels), channels).items():
            assert grown <= promised + 8_000_000, name  # strips, tables and the libraries themselves
            assert name != "huge screen" or grown < 130_000_000


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["jpeg", "jpeg cmyk", "png rgba", "png 16", "tiff", "gif"])
def test_images_at_the_limit_of_pixels(name: str, tmp_path: Path) -> None:
    """64 million pixels of the common kinds are decoded within half a gibibyte, the file included."""
    (tmp_path / name).write_bytes(large_file(name, 8000))
    ((grown, promised),) = growth(tmp_path).values()
    assert grown < 512 << 20 and promised < 512 << 20


def test_an_image_that_takes_too_much_is_refused_with_what_to_do() -> None:
    data = encoded(Image.new("RGB", (3100, 3100)), "WEBP", method=0)
    rule = DecodeRule(max_pixels=16_000_000)
    for look in (decode, header):
        said = undecodable(r"WEBP file of 3100 x 3100 pixels would take 155 MB", look, data, rule)
    enough = re.search(r"It fits with max_pixels = ([\d,]+),", said)
    assert enough is not None
    needed = int(enough[1].replace(",", ""))
    assert header(data, DecodeRule(max_pixels=needed)).size == (3100, 3100)
    undecodable("of memory", header, data, DecodeRule(max_pixels=needed - 2))


def test_what_else_is_in_a_file_counts(tmp_path: Path) -> None:
    """Comments, profiles and further frames are held while the image is read."""
    data = encoded(Image.new("RGB", (10, 10)), "PNG") + bytes(60_000_000)
    (tmp_path / "x.png").write_bytes(data)
    rule = DecodeRule(max_pixels=100)
    undecodable("180 MB of memory, more than the 144 MB", decode, tmp_path / "x.png", rule)
    assert decode(tmp_path / "x.png").shape == (10, 10, 3)
    # An icon is looked at before it is decoded, which the reader does as soon as it is opened.
    inside = encoded(Image.new("1", (9000, 9000)), "PNG")
    entry = struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 32, len(inside), 22)
    icon = struct.pack("<HHH", 0, 1, 1) + entry + inside
    for look in (decode, header):
        undecodable("promises 16 x 16 pixels, the image has 9000 x 9000", look, icon)


# --- Scans ----------------------------------------------------------------------------------------


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


def jpeg_of(scans: int) -> bytes:
    """A progressive JPEG with its last scan repeated until there are so many."""
    data = encoded(noise(), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * (scans - jpeg_scans(data)[0] + 1) + b"\xff\xd9"


def test_scans_are_counted() -> None:
    assert jpeg_scans(encoded(noise(), "JPEG")) == (1, False)
    scans, buffered = jpeg_scans(encoded(noise(), "JPEG", progressive=True))
    assert 5 < scans < 15 and buffered
    assert jpeg_scans(jpeg_of(MAX_JPEG_SCANS)) == (MAX_JPEG_SCANS, True)
    # One more is enough to refuse the file: the others are not looked for.
    many = jpeg_of(3 * MAX_JPEG_SCANS)
    assert jpeg_scans(many) == (MAX_JPEG_SCANS + 1, True)
    assert jpeg_scans(many.replace(b"\xff\xda", b"\xff\xff\xff\xda"))[0] > MAX_JPEG_SCANS  # behind filling
    assert jpeg_scans(b"\xff\xd8" + b"\xff" * 2_000_000 + b"\0" * 10) == (0, False)  # in no time
    for end in range(0, 4000, 9):
        jpeg_scans(many[:end])


def test_too_many_scans_are_refused_before_any_is_decoded() -> None:
    decode(jpeg_of(MAX_JPEG_SCANS))
    for count in (MAX_JPEG_SCANS + 1, 20_000):  # the second would take minutes
        for look in (decode, header):
            undecodable("more than 100 scans", look, jpeg_of(count))


def test_what_is_no_scan_is_not_counted() -> None:
    many = b"\xff\xda\0\x08\1\1\0\0\x3f\0" * 500
    thumbnail = segment(0xE1, b"Exif\0\0" + many) + segment(0xFE, many)
    for progressive in (False, True):
        data = encoded(noise(), "JPEG", progressive=progressive)
        inside = data[:2] + thumbnail + data[2:]
        assert jpeg_scans(inside) == jpeg_scans(data)
        np.testing.assert_array_equal(decode(inside), decode(data))
        assert jpeg_scans(data + many) == jpeg_scans(data)  # behind the end of the image
        assert jpeg_scans(data[:2] + b"\xff\x01" + data[2:]) == jpeg_scans(data)  # a marker without a segment
    stuffed = jpeg_of(20).replace(b"\xff\xd9", b"\xff\0\xda" * 500 + b"\xff\xd0\xff\xd7" * 500 + b"\xff\xd9")
    assert jpeg_scans(stuffed) == (20, True)


def test_a_sequential_jpeg_may_have_several_scans_too() -> None:
    """One for each component: the decoder then keeps all coefficients, and reads on to the end."""
    frame = segment(0xC0, b"\x08" + struct.pack(">HHB", 8, 8, 3) + b"\1\x11\0\2\x11\0\3\x11\0")
    scan = segment(0xDA, b"\1\1\0\0\x3f\0") + b"\x12\x34"
    assert jpeg_scans(b"\xff\xd8" + frame + scan * 3 + b"\xff\xd9") == (3, True)
    assert jpeg_scans(b"\xff\xd8" + frame + scan * 300)[0] > MAX_JPEG_SCANS
    every = segment(0xDA, b"\3\1\0\2\0\3\0\0\x3f\0") + b"\x12\x34"
    assert jpeg_scans(b"\xff\xd8" + frame + every * 300) == (1, False)


# --- Damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [400, pytest.param(20_000, marks=pytest.mark.slow)])
def test_mutants_of_every_format(count: int) -> None:
    """Only DecodeError escapes; what the header says is what decoding gives, or decoding fails."""
    seeds = [make() for make, _ in GOOD.values()]
    rule, outcomes = DecodeRule(max_pixels=1_000_000), {"pixels": 0, "error": 0}
    for number in range(count):
        draw = random.Random(number)
        damaged = mutant(seeds[number % len(seeds)], draw)
        damaged = with_right_crcs(damaged) if damaged[1:4] == b"PNG" else damaged
        try:
            pixels = decode(damaged, rule)
        except DecodeError:
            outcomes["error"] += 1
        else:
            assert header(damaged, rule).size == pixels.shape[:2]
            assert pixels.dtype == np.uint8 and pixels.shape[2] == 3
            outcomes["pixels"] += 1
    assert min(outcomes.values()) > 30

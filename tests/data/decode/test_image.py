"""Every rule of decoding on a zoo of small files, each with its pixel or its error; then random damage."""

import errno
import io
import os
import socket
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps

from tests.helpers.image_zoo import BAD, GOOD, RED, chunk, encoded, exif, huge_png, plain, png
from tests.helpers.refusals import refused, undecodable
from vitkit.data.config import DecodeRule
from vitkit.data.decode.image import decode, decode_image, header
from vitkit.data.files import UnreadableFileError, read_unchanged_file, regular_file
from vitkit.errors import DecodeError, VitkitError


@pytest.mark.parametrize("name", GOOD)
def test_good_files(name: str, tmp_path: Path) -> None:
    make, colour = GOOD[name]
    data = make()
    pixels = decode(data)
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3 and pixels.shape[2] == 3
    assert np.abs(pixels[0, 0].astype(int) - colour).max() <= 2
    assert header(data).size == pixels.shape[:2]
    path = tmp_path / "without suffix"
    path.write_bytes(data)
    np.testing.assert_array_equal(decode(path), pixels)
    with warnings.catch_warnings():  # of Pillow's own opener, which `decode` does without
        warnings.simplefilter("ignore")
        image = Image.open(io.BytesIO(data))
    with image:
        np.testing.assert_array_equal(decode_image(image), pixels)


@pytest.mark.parametrize("name", BAD)
def test_bad_files(name: str) -> None:
    make, reason = BAD[name]
    undecodable(reason, decode, make())


def test_silent_and_alike_when_warnings_are_only_shown() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        for name, (make, _) in (*GOOD.items(), *BAD.items()):
            for look in (decode, header):
                try:
                    look(make())
                except DecodeError:
                    assert name in BAD
    assert shown == []


def test_limits_are_read_from_the_header() -> None:
    assert header(huge_png(8000, 8000)).size == (8000, 8000)
    description = header(encoded(plain("CMYK", 0), "JPEG"))
    assert (description.format, description.mode, description.size) == ("JPEG", "CMYK", (4, 6))
    undecodable("limit of 23", decode, encoded(plain("RGB", RED), "PNG"), DecodeRule(max_pixels=23))
    undecodable("limit of 23", decode_image, plain("RGB", RED), DecodeRule(max_pixels=23))


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(orientation: int, format: str, order: str) -> None:
    """Every orientation of a stored image against Pillow's own table of turns, and left alone when asked."""
    stored = Image.fromarray(np.repeat(np.arange(0, 240, 10, dtype=np.uint8).reshape(4, 6, 1), 3, axis=2))
    turned = stored.copy()
    turned.getexif()[0x0112] = orientation
    upright = ImageOps.exif_transpose(turned)
    options: dict[str, Any] = {"exif": exif(orientation, order), "lossless": True, "quality": 100}
    data = encoded(
        stored, format, **options | {"tiffinfo": {0x0112: orientation}} if format == "TIFF" else options
    )
    left_alone = DecodeRule(apply_exif=False)
    for rule, expected in ((DecodeRule(), upright), (left_alone, stored)):
        pixels = decode(data, rule)
        assert pixels.shape == (expected.height, expected.width, 3)
        assert np.abs(pixels.astype(int) - np.asarray(expected).astype(int)).max() <= 2
        assert header(data, rule).size == pixels.shape[:2]


def test_background_is_the_rule_and_16_bits_keep_all_levels() -> None:
    ramp = np.arange(256, dtype=np.uint16).reshape(1, -1) * 257
    np.testing.assert_array_equal(decode(encoded(Image.fromarray(ramp), "PNG"))[0, :, 0], np.arange(256))
    data = encoded(plain("RGBA", (*RED, 0)), "PNG")
    assert tuple(decode(data, DecodeRule(background=(1, 2, 3)))[0, 0]) == (1, 2, 3)
    value = png(1, 1, 16, 0, b"\0\x01\x02", chunk(b"tRNS", b"\x01\x02"))
    assert tuple(decode(value, DecodeRule(background=(1, 2, 3)))[0, 0]) == (1, 2, 3)


def test_every_mode_is_read_and_rules_that_make_no_sense_are_refused() -> None:
    for mode in ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr", "HSV"):
        assert decode_image(Image.new(mode, (3, 2))).shape == (2, 3, 3)
    refused("background", DecodeRule, background=(0, 0, 256))
    refused("max_pixels", DecodeRule, max_pixels=0)


def test_threads_may_decode_at_once() -> None:
    files = [make() for make, _ in GOOD.values()]
    expected = [decode(data) for data in files]
    filters = list(warnings.filters)
    with ThreadPoolExecutor(4) as pool:
        for pixels in pool.map(lambda _: [decode(data) for data in files], range(4)):
            assert all(map(np.array_equal, pixels, expected))
    assert warnings.filters == filters


# HEIC, through an extra

BOX = b"\0\0\0\x18ftyp%s\0\0\0\0mif1%s"
"""The first box of a HEIF file: its major brand, and two compatible ones."""


def test_an_heic_image_without_its_reader_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.setitem(sys.modules, "pillow_heif.as_plugin", None)
    for brands in ((b"heic", b"heic"), (b"mif1", b"heic"), (b"hevc", b"mif1")):
        said = r"an HEIC image, .* pip install 'vitkit\[heif\]'; or convert"
        undecodable(said, decode, BOX % brands + b"\0" * 40)


def test_an_heic_image_is_read_within_the_limits_of_all_images(tmp_path: Path) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    rows = np.linspace(0, 255, 32, dtype=np.uint8)
    image, path = Image.fromarray(np.stack([np.tile(rows, (16, 1))] * 3, axis=2)), tmp_path / "photo.heic"
    for turned, shape in ((1, (16, 32)), (6, (32, 16))):
        pillow_heif.from_pillow(image).save(path, quality=95, exif=exif(turned))
        pixels = decode(path)
        assert header(path).format == "HEIF" and pixels.shape == (*shape, 3) == (*header(path).size, 3)
        upright = np.asarray(image) if turned == 1 else np.rot90(np.asarray(image), -1)
        assert np.abs(pixels.astype(int) - upright.astype(int)).mean() < 4  # of the codec's own loss
    undecodable("16 x 32 = 512 pixels, more than the limit of 500", decode, path, DecodeRule(max_pixels=500))
    path.write_bytes(path.read_bytes()[:200])
    undecodable("damaged HEIF file", decode, path)
    if "AVIF" not in Image.OPEN:
        pytest.skip("this Pillow reads no AVIF")
    png_inside = BOX % (b"mif1", b"avif") + encoded(plain("RGB", RED), "PNG")
    undecodable("damaged AVIF file", decode, png_inside)


# Files that are none, or too large, or change: a reason at once, never a hang


def a_socket(path: Path) -> None:
    if len(str(path)) > 100:
        pytest.skip("the temporary folder has too long a name for a socket")
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(path))


ODD: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (os.mkfifo, "a pipe, a socket or a device, not a regular file"),
    "link to endless zeros": (lambda path: path.symlink_to("/dev/zero"), "a device, not a regular file"),
    "socket": (a_socket, "cannot be read|a socket"),
    "folder": (lambda path: path.mkdir(), "a folder, not a regular file"),
    "link to itself": (lambda path: path.symlink_to(path), "cannot be read: .*symbolic links"),
    "missing": (lambda path: None, "no such file"),
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_no_regular_file_is_a_bad_image(name: str, tmp_path: Path) -> None:
    make, reason = ODD[name]
    make(tmp_path / "x.png")
    for look in (decode, header):
        undecodable(reason, look, tmp_path / "x.png")
    undecodable("cannot be read", decode, Path("null\0byte"))
    (tmp_path / "link").symlink_to("x.png")
    with pytest.raises(UnreadableFileError, match=reason), regular_file(tmp_path / "link"):
        pass


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("x")
    assert read_unchanged_file(tmp_path / "link", 5) == b"12345"
    with regular_file(tmp_path / "x") as stream:
        assert stream.read() == b"12345"
    (tmp_path / "empty").touch()
    assert read_unchanged_file(tmp_path / "empty", 5) == b""


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "x.png").open("wb") as stream:
        stream.truncate(40 << 30)  # without a single block on the disk
    undecodable(r"42,949,672,960 bytes, more than the 528,000,000 allowed", decode, tmp_path / "x.png")
    with pytest.raises(UnreadableFileError, match="more than the 4 allowed"):
        read_unchanged_file(tmp_path / "x.png", 4)
    assert DecodeRule(max_pixels=1).max_bytes == 144_000_000


@pytest.mark.parametrize("change", [b"longer than before", b"cut", b"same!"])
def test_a_file_that_changes_while_it_is_read(
    change: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(b"12345")
    os.utime(path, (1, 1))
    read = os.read

    def read_and_change(descriptor: int, count: int) -> bytes:
        path.write_bytes(change)
        return read(descriptor, count)

    monkeypatch.setattr(os, "read", read_and_change)
    undecodable("changed while it was read: 5 bytes at first", decode, path)
    path.write_bytes(b"12345")
    monkeypatch.setattr(os, "read", Mock(side_effect=MemoryError))
    undecodable("not enough memory to read its 5 bytes", decode, path)
    monkeypatch.undo()
    Image.new("RGB", (2, 2)).save(path)
    monkeypatch.setattr(ImageFile.ImageFile, "load", Mock(side_effect=MemoryError))
    undecodable("not enough memory to decode this PNG file", decode, path)


@pytest.mark.skipif(sys.platform != "linux", reason="open files are listed on Linux only")
def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    folder = Path("/proc/self/fd")
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "words.png").write_bytes(b"words")
    before = len(list(folder.iterdir()))
    for name in ("pipe.png", "words.png", "gone.png"):
        undecodable(".", decode, tmp_path / name)
    assert len(list(folder.iterdir())) == before


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_lack_of_descriptors_is_not_the_fault_of_an_image(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted as a bad file, a good image would silently be left out of training."""
    path = tmp_path / "a.png"
    Image.new("RGB", (2, 2)).save(path)

    monkeypatch.setattr(os, "open", Mock(side_effect=OSError(number, os.strerror(number))))
    with pytest.raises(VitkitError, match="ulimit") as raised:
        decode(path)
    assert not isinstance(raised.value, DecodeError)

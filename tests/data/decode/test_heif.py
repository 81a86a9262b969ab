"""HEIC images are read by pillow-heif where it is installed, and named where it is not."""

import io
import sys
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from tests.helpers.image_zoo import encoded
from vitkit.data.config import DecodeRule
from vitkit.data.decode.image import decode, header
from vitkit.errors import DecodeError

BOX = b"\0\0\0\x18ftyp%s\0\0\0\0mif1%s"
"""The first box of a HEIF file: its major brand, and two compatible ones."""


def png() -> bytes:
    return encoded(Image.new("RGB", (6, 4), (200, 10, 30)), "PNG")


@pytest.fixture
def stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader in the place of pillow-heif's, which finds a PNG behind the first box."""

    class HeifImageFile(PngImagePlugin.PngImageFile):
        format = "HEIF"

        def __init__(self, stream: IO[bytes], name: Any) -> None:
            super().__init__(io.BytesIO(stream.read()[24:]), name)

    plugin = ModuleType("pillow_heif.as_plugin")
    plugin.HeifImageFile = HeifImageFile  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pillow_heif", ModuleType("pillow_heif"))
    monkeypatch.setitem(sys.modules, "pillow_heif.as_plugin", plugin)


def test_an_heic_image_without_its_reader_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.setitem(sys.modules, "pillow_heif.as_plugin", None)
    for brands in ((b"heic", b"heic"), (b"mif1", b"heic"), (b"hevc", b"mif1")):
        with pytest.raises(DecodeError, match=r"an HEIC image, .* pip install 'vitkit\[heif\]'; or convert"):
            decode(BOX % brands + b"\0" * 40)


@pytest.mark.usefixtures("stands_in")
def test_an_heic_image_is_read_within_the_limits_of_all_images(tmp_path: Path) -> None:
    file = tmp_path / "photo.heic"
    file.write_bytes(BOX % (b"heic", b"heic") + png())
    assert decode(file).shape == (4, 6, 3) and (decode(file) == (200, 10, 30)).all()
    assert header(file).format == "HEIF" and header(file).size == (4, 6)
    with pytest.raises(DecodeError, match="6 x 4 = 24 pixels, more than the limit of 20"):
        decode(file, DecodeRule(max_pixels=20))
    file.write_bytes(BOX % (b"heic", b"heic") + b"no image")
    with pytest.raises(DecodeError, match="damaged HEIF file"):
        decode(file)
    if "AVIF" not in Image.OPEN:
        pytest.skip("this Pillow reads no AVIF")
    with pytest.raises(DecodeError, match="damaged AVIF file"):  # and not read as the PNG that is in it
        decode(BOX % (b"mif1", b"avif") + png())


def test_pillow_heif_itself_reads_one(tmp_path: Path) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    rows = np.linspace(0, 255, 32, dtype=np.uint8)
    image = Image.fromarray(np.stack([np.tile(rows, (16, 1))] * 3, axis=2))
    for turned, shape in ((1, (16, 32)), (6, (32, 16))):
        exif = Image.Exif()
        exif[0x0112] = turned
        pillow_heif.from_pillow(image).save(tmp_path / "one.heic", quality=95, exif=exif.tobytes())
        pixels = decode(tmp_path / "one.heic")
        assert pixels.shape == (*shape, 3) == (*header(tmp_path / "one.heic").size, 3)
        upright = np.asarray(image) if turned == 1 else np.rot90(np.asarray(image), -1)
        assert np.abs(pixels.astype(int) - upright.astype(int)).mean() < 4  # of the codec's own loss

"""Every rule of decoding on a zoo of small files, each with its pixel or its error; then random damage."""

import io
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.helpers.image_zoo import BAD, GOOD, RED, chunk, encoded, exif, huge_png, plain, png
from vitkit.data.config import DecodeRule
from vitkit.data.decode.image import decode, decode_image, header
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
    with pytest.raises(DecodeError, match=reason):
        decode(make())


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
    for data in (huge_png(8001, 8000), huge_png(60000, 60000)):
        with pytest.raises(DecodeError, match="limit"):
            header(data)
    assert header(huge_png(8000, 8000)).size == (8000, 8000)
    description = header(encoded(plain("CMYK", 0), "JPEG"))
    assert (description.format, description.mode, description.size) == ("JPEG", "CMYK", (4, 6))
    with pytest.raises(DecodeError, match="limit of 23"):
        decode(encoded(plain("RGB", RED), "PNG"), DecodeRule(max_pixels=23))
    with pytest.raises(DecodeError, match="limit of 23"):
        decode_image(plain("RGB", RED), DecodeRule(max_pixels=23))


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match="no such file"):
        decode(tmp_path / "gone.png")
    with pytest.raises(DecodeError, match="folder"):
        decode(tmp_path)
    with pytest.raises(DecodeError, match="cannot be read"):
        decode(Path("null\0byte"))


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
    with pytest.raises(VitkitError, match="background"):
        DecodeRule(background=(0, 0, 256))
    with pytest.raises(VitkitError, match="max_pixels"):
        DecodeRule(max_pixels=0)


def test_threads_may_decode_at_once() -> None:
    files = [make() for make, _ in GOOD.values()]
    expected = [decode(data) for data in files]
    failures: list[str] = []

    def work() -> None:
        for data, pixels in zip(files, expected, strict=True):
            if not np.array_equal(decode(data), pixels):
                failures.append("differs")

    filters = list(warnings.filters)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert warnings.filters == filters

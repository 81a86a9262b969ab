"""Every rule of decoding on a zoo of small files, each with its pixel or its error; then random damage."""

import io
import random
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.helpers.image_zoo import BAD, GOOD, RED, chunk, encoded, exif, huge_png, noise, plain, png
from vitkit.data.config import DecodeRule
from vitkit.data.decode.image import decode, decode_image, header
from vitkit.errors import DecodeError, VitkitError


def test_the_zoo_is_large_enough() -> None:
    assert len(GOOD) + len(BAD) >= 60


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


@pytest.mark.parametrize("name", [*GOOD, *BAD])
def test_silent_and_alike_when_warnings_are_only_shown(name: str) -> None:
    data = (GOOD | BAD)[name][0]()
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        for look in (decode, header):
            try:
                look(data)
            except DecodeError:
                assert name in BAD
    assert shown == []


def test_limits_are_read_from_the_header() -> None:
    for data in (huge_png(8001, 8000), huge_png(60000, 60000)):
        with pytest.raises(DecodeError, match="limit"):
            header(data)
    assert header(huge_png(8000, 8000)).size == (8000, 8000)
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
    turn = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }
    upright = stored.transpose(turn[orientation]) if orientation in turn else stored
    if format == "TIFF":
        data = encoded(stored, format, tiffinfo={0x0112: orientation})
    elif format == "WEBP":
        data = encoded(stored, format, exif=exif(orientation, order), lossless=True)
    elif format == "JPEG":
        data = encoded(stored, format, exif=exif(orientation, order), quality=100)
    else:
        data = encoded(stored, format, exif=exif(orientation, order))
    left_alone = DecodeRule(apply_exif=False)
    for rule, expected in ((DecodeRule(), upright), (left_alone, stored)):
        pixels = decode(data, rule)
        assert pixels.shape == (expected.height, expected.width, 3)
        assert np.abs(pixels.astype(int) - np.asarray(expected).astype(int)).max() <= 2
        assert header(data, rule).size == pixels.shape[:2]


def test_16_bit_ramp_keeps_all_levels() -> None:
    ramp = np.arange(256, dtype=np.uint16).reshape(1, -1) * 257
    data = encoded(Image.fromarray(ramp), "PNG")
    np.testing.assert_array_equal(decode(data)[0, :, 0], np.arange(256))


def test_background_is_the_rule() -> None:
    data = encoded(plain("RGBA", (*RED, 0)), "PNG")
    assert tuple(decode(data, DecodeRule(background=(1, 2, 3)))[0, 0]) == (1, 2, 3)
    value = png(1, 1, 16, 0, b"\0\x01\x02", chunk(b"tRNS", b"\x01\x02"))
    assert tuple(decode(value, DecodeRule(background=(1, 2, 3)))[0, 0]) == (1, 2, 3)


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr", "HSV"]
)
def test_modes_of_open_images(mode: str) -> None:
    assert decode_image(Image.new(mode, (3, 2))).shape == (2, 3, 3)


def test_header_says_format_and_mode() -> None:
    description = header(encoded(plain("CMYK", 0), "JPEG"))
    assert (description.format, description.mode, description.size) == ("JPEG", "CMYK", (4, 6))


def test_rules_that_make_no_sense() -> None:
    with pytest.raises(VitkitError, match="background"):
        DecodeRule(background=(0, 0, 256))
    with pytest.raises(VitkitError, match="max_pixels"):
        DecodeRule(max_pixels=0)


def test_nothing_but_decode_error_escapes_from_mutants() -> None:
    """Seeded damage to six formats: flipped bytes, holes, cuts and swaps."""
    picture = noise()
    seeds = [
        encoded(picture, "JPEG", exif=exif(6)),
        encoded(picture, "PNG"),
        encoded(picture, "GIF"),
        encoded(picture, "WEBP"),
        encoded(picture, "TIFF", compression="tiff_lzw"),
        encoded(picture, "BMP"),
    ]
    rng = random.Random(7)
    rule = DecodeRule(max_pixels=1_000_000)
    outcomes = {"pixels": 0, "error": 0}
    for number in range(600):
        data = bytearray(seeds[number % len(seeds)])
        reach = len(data) if number % 2 else 64  # every other time only the header is hit
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(min(reach, len(data)))] = rng.randrange(256)
        if rng.random() < 0.3:
            start = rng.randrange(len(data))
            del data[start : start + rng.randint(1, 50)]
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        try:
            pixels = decode(bytes(data), rule)
        except DecodeError as error:
            assert str(error)
            outcomes["error"] += 1
        else:
            assert pixels.dtype == np.uint8 and pixels.shape[2] == 3
            outcomes["pixels"] += 1
    assert min(outcomes.values()) > 50


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

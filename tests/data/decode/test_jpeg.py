"""JPEGs decoded by the optional decoder have Pillow's pixels, and damaged ones Pillow's fate."""

import io
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.pixel_cases import image
from vitkit.data.config import DecodeRule
from vitkit.data.decode.image import _same_decoder, decode, decoded_quickly
from vitkit.errors import DecodeError


def encoded(shape: tuple[int, int] = (67, 93), mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image(shape)).convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


def with_orientation(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(exif=exif)


def outcome(data: bytes, rule: DecodeRule) -> tuple[str, Any]:
    try:
        pixels = decode(data, rule)
    except DecodeError as error:
        return str(error), None
    return "", (pixels.shape, pixels.tobytes(), pixels.flags.c_contiguous)


@pytest.fixture
def pillows_outcome(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes, DecodeRule], Any]:
    def without(data: bytes, rule: DecodeRule) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr("vitkit.data.decode.image.decoded_quickly", lambda *_: None)
            return outcome(data, rule)

    return without


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each image that the optional decoder was asked for, whether it gave pixels."""
    pytest.importorskip("simplejpeg", reason="there is no wheel of simplejpeg for this machine")
    given: list[bool] = []

    def counted(*arguments: Any) -> Any:
        pixels = decoded_quickly(*arguments)
        given.append(pixels is not None)
        return pixels

    monkeypatch.setattr("vitkit.data.decode.image.decoded_quickly", counted)
    return given


FILES = {
    **{f"4:{n}": encoded(subsampling=n, quality=90) for n in range(3)},
    **{f"progressive 4:{n}": encoded(subsampling=n, progressive=True) for n in range(3)},
    **{f"{h}x{w}": encoded((h, w)) for h, w in ((1, 1), (1, 17), (16, 16), (7, 9), (33, 8), (375, 500))},
    "large": encoded((700, 811)),
    "grey": encoded(mode="L"),
    "grey, progressive": encoded(mode="L", progressive=True),
    "restarts": encoded(restart_marker_blocks=3),
    "kept RGB": encoded(keep_rgb=True),
    "quality 1": encoded(quality=1),
    "quality 100": encoded(quality=100, subsampling=0),
    "optimised": encoded(optimize=True),
    **{f"orientation {n}": with_orientation(n) for n in range(1, 9)},
}


@pytest.mark.parametrize("apply_exif", [True, False])
@pytest.mark.parametrize("name", FILES)
def test_pixels_are_pillows(
    name: str, apply_exif: bool, decoder: list[bool], pillows_outcome: Callable[[bytes, DecodeRule], Any]
) -> None:
    rule = DecodeRule(apply_exif=apply_exif)
    assert outcome(FILES[name], rule) == pillows_outcome(FILES[name], rule)
    assert decoder == [True]


def test_files_that_are_damaged_somewhere_meet_the_same_fate(
    decoder: list[bool], pillows_outcome: Callable[[bytes, DecodeRule], Any]
) -> None:
    rng = np.random.default_rng(0)
    rule = DecodeRule(max_pixels=1_000_000)
    for name in ("4:2", "progressive 4:2", "grey", "restarts", "orientation 6"):
        for _ in range(40):
            data = bytearray(FILES[name])
            for at in rng.integers(2, len(data), rng.integers(1, 4)):
                data[at] = rng.integers(256)
            if rng.random() < 0.3:
                del data[rng.integers(2, len(data)) :]
            assert outcome(bytes(data), rule) == pillows_outcome(bytes(data), rule)
    assert 0 < sum(decoder) < len(decoder)


def test_a_decoder_that_is_not_there_or_disagrees_with_pillow_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Brighter:
        @staticmethod
        def decode_jpeg(data: bytes, *_: Any, **__: Any) -> Any:
            with Image.open(io.BytesIO(data)) as file:
                return np.maximum(np.asarray(file.convert("RGB")), 1)

    for module in (None, Brighter):
        monkeypatch.setitem(sys.modules, "simplejpeg", module)
        _same_decoder.cache_clear()
        try:
            assert decoded_quickly(FILES["4:2"], "RGB", (67, 93)) is None
            assert decode(FILES["4:2"]).shape == (67, 93, 3)
        finally:
            _same_decoder.cache_clear()

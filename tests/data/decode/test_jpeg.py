"""JPEGs decoded by the optional decoder have Pillow's pixels, and damaged ones Pillow's fate."""

import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
from PIL import Image

from tests.helpers.augmenting import augment
from tests.helpers.image_zoo import encoded, exif
from tests.helpers.refusals import undecodable
from tests.pixel_cases import image
from vitkit.data.config import DEFAULT_RULE, Augmentation, DecodeRule, Preprocessing, Splits
from vitkit.data.decode.image import _same_decoder, decode, decoded_quickly, header
from vitkit.data.sources import Samples, keep_in_memory, open_data
from vitkit.data.stream.loader import TrainLoader, sample_rng
from vitkit.data.transforms import RandomView
from vitkit.errors import DecodeError


def jpeg_of(shape: tuple[int, int] = (67, 93), mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image(shape)).convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


def outcome(data: bytes, rule: DecodeRule) -> tuple[str, Any]:
    try:
        pixels = decode(data, rule)
    except DecodeError as error:
        return str(error), None
    return "", (pixels.shape, pixels.tobytes(), pixels.flags.c_contiguous)


def pillows_outcome(data: bytes, rule: DecodeRule) -> tuple[str, Any]:
    with patch("vitkit.data.decode.image.decoded_quickly", lambda *_: None):
        return outcome(data, rule)


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
    **{f"4:{n}": jpeg_of(subsampling=n, quality=90) for n in range(3)},
    **{f"progressive 4:{n}": jpeg_of(subsampling=n, progressive=True) for n in range(3)},
    **{f"{h}x{w}": jpeg_of((h, w)) for h, w in ((1, 1), (1, 17), (16, 16), (7, 9), (33, 8), (375, 500))},
    "large": jpeg_of((700, 811)),
    "grey": jpeg_of(mode="L"),
    "grey, progressive": jpeg_of(mode="L", progressive=True),
    "restarts": jpeg_of(restart_marker_blocks=3),
    "kept RGB": jpeg_of(keep_rgb=True),
    "quality 1": jpeg_of(quality=1),
    "quality 100": jpeg_of(quality=100, subsampling=0),
    "optimised": jpeg_of(optimize=True),
    **{f"orientation {n}": jpeg_of(exif=exif(n)) for n in range(1, 9)},
}


@pytest.mark.parametrize("apply_exif", [True, False])
@pytest.mark.parametrize("name", FILES)
def test_pixels_are_pillows(name: str, apply_exif: bool, decoder: list[bool]) -> None:
    rule = DecodeRule(apply_exif=apply_exif)
    assert outcome(FILES[name], rule) == pillows_outcome(FILES[name], rule)
    assert decoder == [True]


def test_files_that_are_damaged_somewhere_meet_the_same_fate(decoder: list[bool]) -> None:
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


# Large photos are decoded smaller, in the decoder's own steps

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

RULE = Preprocessing((32, 32))
PLAIN = Augmentation()
SCALING = Augmentation(jpeg_scaling=True)
SIDE = DecodeRule(jpeg_side=64)


def photo(height: int, width: int, seed: int = 0) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 7, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(8):
        path = tmp_path / "ab"[number % 2] / f"{number}.{'png' if number == 3 else 'jpg'}"
        path.parent.mkdir(exist_ok=True)
        side = (300 + 61 * number, 410) if number < 6 else (40, 50)
        path.write_bytes(encoded(photo(*side, seed=number), "PNG" if number == 3 else "JPEG"))
    return tmp_path


def samples(folder: Path, rule: DecodeRule = DEFAULT_RULE) -> Samples:
    return open_data(str(folder), Splits(0.0, 0.0), rule).splits["train"]


def batches(source: Samples, augmentation: Augmentation, workers: int = 0) -> torch.Tensor:
    rule = replace(RULE, decode=source.rule)
    loader = TrainLoader(source, rule, augmentation, batch_size=8, seed=3, workers=workers)
    return torch.cat([batch.images for batch in loader.batches(0, 4)])


@pytest.mark.parametrize(
    ("rule", "augmentation", "levels"),
    [
        (DEFAULT_RULE, SCALING, 2),  # a smooth picture, moved by less than a pixel
        (SIDE, PLAIN, 10),  # random crops of other sizes begin at other pixels
        (SIDE, SCALING, 10),
    ],
)
def test_a_large_photo_is_decoded_smaller_and_looks_the_same(
    rule: DecodeRule, augmentation: Augmentation, levels: int, folder: Path
) -> None:
    source = samples(folder, rule)
    scaled = batches(source, augmentation)
    difference = (batches(samples(folder), PLAIN).int() - scaled.int()).abs().float()
    assert 0 < difference.mean() < levels
    assert torch.equal(batches(keep_in_memory(source, 10**9), augmentation), scaled)
    assert torch.equal(batches(source, augmentation, workers=2), scaled)


def test_crops_that_are_not_twice_the_target_keep_their_pixels() -> None:
    data = encoded(photo(90, 120), "JPEG")
    rule = Preprocessing((60, 60))
    for seed in range(20):
        view = RandomView(rule, SCALING, sample_rng(seed, 0, 0))
        crop = view.pixels(decode(data, shrinking=view.draw))
        expected = augment(decode(data), rule, PLAIN, sample_rng(seed, 0, 0))
        np.testing.assert_array_equal(crop, expected)


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize(("times", "shape"), [(1, (303, 405)), (2, (152, 203)), (8, (38, 51))])
def test_the_image_has_the_size_asked_for(times: int, shape: tuple[int, int], orientation: int) -> None:
    shrinking = Mock(return_value=times)
    pixels = decode(encoded(photo(303, 405), "JPEG", exif=exif(orientation)), shrinking=shrinking)
    turned = orientation == 6
    shrinking.assert_called_once_with(*((405, 303) if turned else (303, 405)))  # upright
    assert pixels.shape == ((shape[1], shape[0], 3) if turned else (*shape, 3))


def test_other_formats_are_decoded_whole_and_refused_as_before() -> None:
    data = encoded(photo(303, 405), "PNG")
    np.testing.assert_array_equal(decode(data, shrinking=lambda *_: 8), decode(data))
    large = encoded(photo(303, 405), "JPEG", quality=95)
    # The limits are those of the whole image.
    undecodable("max_pixels", decode, large, DecodeRule(max_pixels=100_000), lambda *_: 8)
    undecodable("truncated", decode, large[: len(large) // 2], shrinking=lambda *_: 2)


@pytest.mark.parametrize(
    ("side", "shape"),
    [(None, (303, 405)), (152, (303, 405)), (151, (152, 203)), (64, (76, 102)), (1, (38, 51))],
)
def test_a_rule_keeps_so_many_pixels_of_the_shorter_side(side: int | None, shape: tuple[int, int]) -> None:
    rule = DecodeRule(jpeg_side=side)
    assert decode(encoded(photo(303, 405), "JPEG"), rule).shape == (*shape, 3)
    assert header(encoded(photo(303, 405), "JPEG"), rule).size == shape
    assert decode(encoded(photo(405, 303), "JPEG"), rule).shape == (*shape[::-1], 3)
    assert decode(encoded(photo(303, 405), "PNG"), rule).shape == (303, 405, 3)
    shrinking = Mock(return_value=8)  # the decoder has no smaller scale
    assert decode(encoded(photo(303, 405), "JPEG"), rule, shrinking).shape == (38, 51, 3)
    shrinking.assert_called_once_with(*shape)

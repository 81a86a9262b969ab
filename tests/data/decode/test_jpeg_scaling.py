"""Training may decode a JPEG smaller where its crop allows it, if the run says so, and then always alike."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.helpers.augmenting import augment
from tests.helpers.image_zoo import encoded
from vitkit.data.config import Augmentation, DecodeRule, Preprocessing, Splits
from vitkit.data.decode.image import decode
from vitkit.data.sources import Samples, keep_in_memory, open_data
from vitkit.data.stream.loader import TrainLoader, sample_rng
from vitkit.data.transforms import RandomView
from vitkit.errors import DecodeError

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]

RULE = Preprocessing((32, 32))
PLAIN = Augmentation()
SCALING = Augmentation(jpeg_scaling=True)


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


def samples(folder: Path) -> Samples:
    return open_data(str(folder), Splits(0.0, 0.0)).splits["train"]


def batches(source: Samples, augmentation: Augmentation, workers: int = 0) -> torch.Tensor:
    loader = TrainLoader(source, RULE, augmentation, batch_size=8, seed=3, workers=workers)
    return torch.cat([batch.images for batch in loader.batches(0, 4)])


def test_a_large_photo_is_decoded_smaller_and_looks_the_same(folder: Path) -> None:
    source = samples(folder)
    plain, scaled = batches(source, PLAIN), batches(source, SCALING)
    difference = (plain.int() - scaled.int()).abs().float()
    assert difference.max() > 0  # it was used
    assert difference.mean() < 2  # levels: a smooth picture, moved by less than a pixel
    assert torch.equal(batches(keep_in_memory(source, 10**9), SCALING), scaled)
    assert torch.equal(batches(source, SCALING, workers=2), scaled)


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
    exif = Image.Exif()
    exif[0x0112] = orientation
    seen: list[tuple[int, int]] = []

    def shrinking(height: int, width: int) -> int:
        seen.append((height, width))
        return times

    pixels = decode(encoded(photo(303, 405), "JPEG", exif=exif), shrinking=shrinking)
    turned = orientation == 6
    assert seen == [(405, 303) if turned else (303, 405)]  # upright
    assert pixels.shape == ((shape[1], shape[0], 3) if turned else (*shape, 3))


def test_other_formats_are_decoded_whole_and_refused_as_before() -> None:
    data = encoded(photo(303, 405), "PNG")
    np.testing.assert_array_equal(decode(data, shrinking=lambda *_: 8), decode(data))
    large = encoded(photo(303, 405), "JPEG", quality=95)
    with pytest.raises(DecodeError, match="max_pixels"):  # the limits are those of the whole image
        decode(large, DecodeRule(max_pixels=100_000), lambda *_: 8)
    with pytest.raises(DecodeError, match="truncated"):
        decode(large[: len(large) // 2], shrinking=lambda *_: 2)

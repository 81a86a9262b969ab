"""Random crops against the rules they are drawn by; turns, shifts, RandAugment's operations and erasing."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torch.nn import functional as F

from tests.helpers.augmenting import augment
from vitkit.data import transforms
from vitkit.data.config import Augmentation, Preprocessing, Splits
from vitkit.data.sources import open_data
from vitkit.data.stream.loader import TrainLoader, sample_rng
from vitkit.data.transforms import OPERATIONS, Pixels, _move, _random_crop, distort, erase
from vitkit.errors import VitkitError

SIDES = st.integers(1, 60)
DISTORTED = Augmentation(crop_area=None, rand_augment=2, random_erasing=0.5)


def noise(height: int = 20, width: int = 33, low: int = 60, high: int = 200) -> np.ndarray:
    return np.random.default_rng(0).integers(low, high, (height, width, 3), np.uint8)


def ramp(height: int, width: int) -> NDArray[np.uint8]:
    """Red is the row, green the column, blue 200."""
    out = np.full((height, width, 3), 200, dtype=np.uint8)
    out[:, :, 0] = np.arange(height)[:, None]
    out[:, :, 1] = np.arange(width)
    return out


@given(SIDES, SIDES, SIDES, SIDES, st.booleans(), st.integers(0, 1000))
@settings(deadline=None)
def test_augmentation_takes_any_shape(
    height: int, width: int, rows: int, columns: int, antialias: bool, sample: int
) -> None:
    preprocessing = Preprocessing((rows, columns), antialias=antialias)
    augmentation = Augmentation(shift=2, rotate=15)
    image = noise(height, width, 0, 256)
    first = augment(image, preprocessing, augmentation, sample_rng(1, 2, sample))
    again = augment(image, preprocessing, augmentation, sample_rng(1, 2, sample))
    assert first.shape == (rows, columns, 3) and first.dtype == np.uint8
    np.testing.assert_array_equal(first, again)


def crops(height: int, width: int, augmentation: Augmentation, count: int) -> NDArray[np.float64]:
    """(count, 4): top, left, height, width of random crops, read off where a ramp's corners went."""
    boxes = []
    image = ramp(height, width)
    for sample in range(count):
        # Enlarged four times, the corner pixels of the crop show undiluted at the corners.
        out = augment(image, Preprocessing((4 * height, 4 * width)), augmentation, sample_rng(5, 0, sample))
        (top, left), (bottom, right) = out[0, 0, :2].tolist(), out[-1, -1, :2].tolist()
        boxes.append((top, left, bottom - top + 1, right - left + 1))
    return np.array(boxes, dtype=np.float64)


def test_random_crops_keep_their_ranges() -> None:
    augmentation = Augmentation(crop_area=(0.2, 0.8), crop_aspect=(0.5, 2.0), flip=False)
    boxes = crops(40, 60, augmentation, 2000)
    top, left, height, width = boxes.T
    area = height * width / (40 * 60)
    assert area.min() >= 0.2 and area.max() <= 0.8
    # A crop is as wide as its rounded aspect x height: half a pixel of slack.
    assert ((width + 0.5) / height).min() >= 0.5 and ((width - 0.5) / height).max() <= 2.0
    assert top.min() == 0 and left.min() == 0
    assert (top + height).max() == 40 and (left + width).max() == 60


def test_an_image_without_a_crop_of_the_right_area_is_taken_whole() -> None:
    """Squares of 14 pixels have 196, those of 15 have 225, and none has 200 to 202."""
    augmentation = Augmentation(crop_area=(0.5, 0.505), crop_aspect=(1.0, 1.0), flip=False)
    assert _random_crop(20, 20, augmentation, sample_rng(0, 0, 0)) == (0, 0, 20, 20)
    image = noise(4, 60)
    augmentation = Augmentation(crop_area=(0.9, 1.0), crop_aspect=(1.0, 1.0), flip=False)
    out = augment(image, Preprocessing((4, 60)), augmentation, sample_rng(0, 0, 0))
    np.testing.assert_array_equal(out, image)


def test_random_crops_spread_as_tensorflows() -> None:
    """With one aspect of 1 the height is uniform between the roots of the areas: 7..20 pixels of 20 x 20."""
    boxes = crops(20, 20, Augmentation(crop_area=(0.1225, 1.0), crop_aspect=(1.0, 1.0), flip=False), 5600)
    counts = np.bincount(boxes[:, 2].astype(int), minlength=21)
    assert counts[:7].sum() == 0
    assert ((counts[7:] - 400) ** 2 / 400).sum() < 35  # chi-square with 13 degrees of freedom: p < 0.001
    offsets = np.bincount(boxes[boxes[:, 2] == 17][:, 0].astype(int), minlength=4)
    assert ((offsets - offsets.mean()) ** 2 / offsets.mean()).sum() < 16.3


@pytest.mark.parametrize("antialias", [True, False])
def test_a_crop_does_not_look_beyond_its_border(antialias: bool) -> None:
    """Black inside, white all around: not a grey pixel may appear while the crop is inside."""
    image = np.full((30, 30, 3), 255, dtype=np.uint8)
    augmentation = Augmentation(crop_area=(0.1, 0.1), crop_aspect=(1.0, 1.0), flip=False)
    for sample in range(20):
        top, left, height, width = _random_crop(30, 30, augmentation, sample_rng(0, 0, sample))
        inside = image.copy()
        inside[top : top + height, left : left + width] = 0
        for size in ((64, 64), (5, 5), (64, 5)):
            rule = Preprocessing(size, antialias=antialias)
            assert augment(inside, rule, augmentation, sample_rng(0, 0, sample)).max() == 0


def test_crops_without_aspects_have_the_proportions_of_the_image() -> None:
    """A square of 480 pixels out of an image that was stretched to 512 is the same part of each side."""
    same = Augmentation(crop_area=((480 / 512) ** 2,) * 2, crop_aspect=None, flip=False)
    boxes = crops(32, 64, same, 400)
    assert {tuple(box) for box in boxes[:, 2:]} == {(30, 60)}
    assert {*boxes[:, 0]} == {0, 1, 2} and {*boxes[:, 1]} == {0, 1, 2, 3, 4}
    any_size = crops(40, 20, Augmentation(crop_area=(0.25, 1.0), crop_aspect=None, flip=False), 300)
    assert any_size[:, 2].min() == 20 and any_size[:, 2].max() == 40
    assert np.abs(any_size[:, 2] - 2 * any_size[:, 3]).max() <= 1


def test_flips_are_even() -> None:
    image = ramp(8, 8)
    flipped = 0
    for sample in range(1000):
        out = augment(image, Preprocessing((8, 8)), Augmentation(crop_area=None), sample_rng(0, 0, sample))
        flipped += (turned := out[0, 0, 1] == 7)
        np.testing.assert_array_equal(out, image[:, ::-1] if turned else image)
    assert 430 < flipped < 570


def test_a_shift_is_an_index_that_stops_at_the_edge() -> None:
    image = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)[:, ::-1]
    for down, right in itertools.product((-9, -5, -2, 0, 1, 4, 5, 9), (-9, -7, -3, 0, 2, 6, 7, 9)):
        rows, columns = np.clip(np.arange(5) - down, 0, 4), np.clip(np.arange(7) - right, 0, 6)
        np.testing.assert_array_equal(_move(image, down, right, 0), image[rows[:, None], columns])
    image, seen = ramp(10, 10), set()
    for sample in range(300):
        augmentation = Augmentation(crop_area=None, flip=False, shift=2)
        out = augment(image, Preprocessing((10, 10)), augmentation, sample_rng(0, 0, sample))
        seen.add((down := 5 - int(out[5, 5, 0]), right := 5 - int(out[5, 5, 1])))
        np.testing.assert_array_equal(out, _move(image, down, right, 0))
    assert seen == {*itertools.product(range(-2, 3), repeat=2)}


def test_rotation_turns_about_the_centre() -> None:
    image = ramp(21, 21)
    augmentation = Augmentation(crop_area=None, flip=False, rotate=90)
    angles = []
    for sample in range(200):
        out = augment(image, Preprocessing((21, 21)), augmentation, sample_rng(0, 0, sample))
        assert np.abs(out[10, 10].astype(int) - [10, 10, 200]).max() <= 1
        assert (out[:, :, 2] >= 199).all()  # no corner is filled with another colour
        down, right = (out[10, 15, :2].astype(int) - 10).tolist()  # from where the pixel to the right came
        angles.append(np.degrees(np.arctan2(down, right)))
    assert min(angles) < -70 and max(angles) > 70
    assert abs(np.mean(angles)) < 15


@pytest.mark.parametrize("degrees", [-30.0, 3.0, 90.0])
def test_turning_is_bilinear_with_edges_repeated(degrees: float) -> None:
    """Against torch's sampling of a rotated grid, which repeats edges as well."""
    image = noise(12, 17, 0, 256)
    angle = math.radians(degrees)
    y, x = torch.meshgrid(torch.arange(12) - 5.5, torch.arange(17) - 8.0, indexing="ij")
    across, down = math.cos(angle) * x - math.sin(angle) * y, math.sin(angle) * x + math.cos(angle) * y
    grid = torch.stack([across / 8.5, down / 6.0], -1)[None].float()
    tensor = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float()
    expected = F.grid_sample(tensor, grid, padding_mode="border", align_corners=False)
    turned = _move(image, 0, 0, degrees).transpose(2, 0, 1).astype(np.float32)
    assert np.abs(turned - expected[0].numpy()).max() <= 1.01
    plain = np.full((9, 14, 3), 77, dtype=np.uint8)  # what is uncovered repeats the edge
    np.testing.assert_array_equal(_move(plain, 3, -2, degrees), plain)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_keeps_shape_type_and_at_no_strength_the_pixels(name: str) -> None:
    for size, strength in itertools.product([(20, 33), (1, 1), (3, 200)], (-1.0, -0.4, 0.0, 0.4, 1.0)):
        image = noise(*size)
        changed = np.asarray(OPERATIONS[name](Image.fromarray(image), strength))
        assert changed.shape == image.shape and changed.dtype == np.uint8
        if strength == 0 and name not in ("auto_contrast", "equalize"):
            assert np.array_equal(changed, image)
        if abs(strength) == 1 and size == (20, 33) and name != "identity":
            assert not np.array_equal(changed, image)
    if name in ("rotate", "shear_x", "shear_y", "translate_x", "translate_y"):
        plain = np.full((16, 16, 3), (50, 100, 150), np.uint8)  # what is uncovered has the mean colour
        assert np.array_equal(np.asarray(OPERATIONS[name](Image.fromarray(plain), 1.0)), plain)
    if name == "translate_x":  # by the fraction of the side that its strength says
        moved = np.asarray(OPERATIONS[name](Image.fromarray(noise(10, 331)), 0.1))
        assert np.array_equal(moved[:, :300], noise(10, 331)[:, 15:315])


def test_distortions_follow_from_the_generator_alone_and_differ() -> None:
    image = noise()
    images, again = (
        [distort(image, DISTORTED, np.random.default_rng(seed)) for seed in range(40)] for _ in range(2)
    )
    np.testing.assert_array_equal(images, again)
    assert len({drawn.tobytes() for drawn in images}) > 30
    assert all(drawn.shape == image.shape and drawn.dtype == np.uint8 for drawn in images)


def test_distortions_come_after_everything_else_that_is_drawn() -> None:
    preprocessing = Preprocessing(image_size=(16, 16))
    plain = augment(noise(), preprocessing, Augmentation(shift=2, rotate=5), np.random.default_rng(3))
    still = Augmentation(shift=2, rotate=5, random_erasing=1e-9)
    assert np.array_equal(augment(noise(), preprocessing, still, np.random.default_rng(3)), plain)
    image, rng = noise(), np.random.default_rng(5)
    assert distort(image, Augmentation(), rng) is image  # without distortions nothing is drawn
    assert rng.random() == np.random.default_rng(5).random()


def test_erasing_fills_one_box_with_noise() -> None:
    image = np.zeros((40, 60, 3), np.uint8)
    for seed in range(30):
        changed = erase(image, np.random.default_rng(seed)).max(2) > 0
        rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
        box = changed[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        assert box.mean() > 0.99  # noise is seldom black
        assert 0.015 < box.size / changed.size < 0.36
    assert not image.any()  # the image itself, which may be kept in memory, is as it was
    tiny = noise(1, 1)  # too small for a box
    assert np.array_equal(erase(tiny, np.random.default_rng(0)), tiny)


def test_erasing_is_as_frequent_as_asked() -> None:
    image, rng = noise(), np.random.default_rng(0)
    config = Augmentation(random_erasing=0.25)
    erased = sum(not np.array_equal(distort(image, config, rng), image) for _ in range(2000))
    assert 430 < erased < 570


def test_an_augmentation_that_no_list_knows_is_in_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever `distort` returns is trained on, without an option that says that it changes anything."""

    def negative(image: Pixels, augmentation: Augmentation, rng: np.random.Generator) -> Pixels:
        return 255 - image

    def first() -> torch.Tensor:
        samples = open_data("digits", Splits()).splits["train"]
        augmentation = Augmentation(crop_area=None, flip=False)
        loader = TrainLoader(samples, Preprocessing(image_size=(16, 16)), augmentation, batch_size=8, seed=0)
        return next(iter(loader.batches(0, 1))).images

    plain = first()
    monkeypatch.setattr(transforms, "distort", negative)
    assert torch.equal(first(), 255 - plain)


def test_impossible_options_are_explained() -> None:
    wrong: list[dict[str, Any]] = [
        *({"rand_augment": -1}, {"rand_augment": 15}, {"rand_augment_magnitude": 11.0}),
        *({"random_erasing": 2.0}, {"crop_area": (0.0, 1.0)}, {"crop_area": (0.5, 0.1)}),
        *({"crop_aspect": (2.0, 1.0)}, {"shift": -1}, {"rotate": 181.0}),
    ]
    for options in wrong:
        with pytest.raises(VitkitError, match=next(iter(options))):
            Augmentation(**options)

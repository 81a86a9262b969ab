"""Resizing against torch's, random crops against the rules they are drawn by."""

import math
from typing import Any, Literal, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torch.nn import functional as F

from vitkit.data.config import Augmentation, Interpolation, Preprocessing, Resize
from vitkit.data.stream.order import sample_rng
from vitkit.data.transforms import _move, _random_crop, augment, preprocess
from vitkit.errors import VitkitError

SIDES = st.integers(1, 60)
NOTHING = Augmentation(crop_area=None, flip=False)


def noise(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def ramp(height: int, width: int) -> NDArray[np.uint8]:
    """Red is the row, green the column, blue 200."""
    out = np.full((height, width, 3), 200, dtype=np.uint8)
    out[:, :, 0] = np.arange(height)[:, None]
    out[:, :, 1] = np.arange(width)
    return out


def by_torch(image: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.float32]:
    tensor = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float()
    out = F.interpolate(tensor, size, mode="bilinear", align_corners=False, antialias=False)
    return np.asarray(out[0].permute(1, 2, 0).numpy(), dtype=np.float32)


@given(SIDES, SIDES, SIDES, SIDES)
@settings(deadline=None)
def test_plain_bilinear_is_torchs(height: int, width: int, rows: int, columns: int) -> None:
    image = noise(height, width)
    out = preprocess(image, Preprocessing((rows, columns), antialias=False))
    assert out.shape == (rows, columns, 3) and out.dtype == np.uint8
    assert np.abs(out - by_torch(image, (rows, columns))).max() <= 1.001  # float32 noise


def test_plain_bilinear_rounds_to_nearest() -> None:
    image = noise(50, 40)
    out = preprocess(image, Preprocessing((20, 20), antialias=False))
    assert np.abs(out - by_torch(image, (20, 20))).max() <= 0.5001


def test_antialias_is_pillows() -> None:
    image = noise(50, 40)
    expected = Image.fromarray(image).resize((20, 10), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(preprocess(image, Preprocessing((10, 20))), np.asarray(expected))


@given(SIDES, SIDES, st.booleans())
@settings(deadline=None)
def test_nothing_to_do_changes_nothing(height: int, width: int, antialias: bool) -> None:
    image = noise(height, width)
    preprocessing = Preprocessing((height, width), antialias=antialias)
    np.testing.assert_array_equal(preprocess(image, preprocessing), image)
    np.testing.assert_array_equal(augment(image, preprocessing, NOTHING, sample_rng(0, 0, 0)), image)


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("shape", [(300, 400), (400, 300), (260, 260), (100, 90), (7, 300)])
def test_central_crop_is_the_crop_of_the_resized_image(shape: tuple[int, int], antialias: bool) -> None:
    image = noise(*shape)
    size = (112, 112)
    scale = 128 / min(shape)
    resized = (round(shape[0] * scale), round(shape[1] * scale))
    whole = preprocess(image, Preprocessing(resized, antialias=antialias))
    top, left = (resized[0] - 112) // 2, (resized[1] - 112) // 2
    out = preprocess(image, Preprocessing(size, resize="crop", antialias=antialias))
    difference = np.abs(out.astype(int) - whole[top : top + 112, left : left + 112])
    assert difference.max() <= 1


@given(SIDES, st.integers(1, 2000), SIDES, SIDES, st.sampled_from([0.5, 0.875, 1.0]), st.booleans())
@settings(deadline=None)
def test_central_crop_takes_any_shape(
    height: int, width: int, rows: int, columns: int, fraction: float, antialias: bool
) -> None:
    preprocessing = Preprocessing((rows, columns), "crop", fraction, antialias)
    assert preprocess(noise(height, width), preprocessing).shape == (rows, columns, 3)


@pytest.mark.parametrize("resize", get_args(Resize))
@pytest.mark.parametrize("shape", [(1, 20_000), (20_000, 1)])
def test_a_strip_does_not_become_an_enormous_image(resize: Resize, shape: tuple[int, int]) -> None:
    out = preprocess(noise(*shape), Preprocessing((224, 224), resize))
    assert out.shape == (224, 224, 3)
    assert out.any()


def test_a_strip_too_long_to_resize_whole_has_the_same_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    image = noise(30, 700) // 2 + 64
    ways: tuple[Resize, ...] = ("shortest", "longest", "squash")
    for resize in ways:
        for fraction in (0.9, 1.3):
            preprocessing = Preprocessing((65, 48), resize, fraction, border=(9, 9, 9))
            whole = preprocess(image, preprocessing).astype(int)
            with monkeypatch.context() as patch:
                patch.setattr("vitkit.data.transforms.WHOLE_PIXELS", 0)
                assert np.abs(preprocess(image, preprocessing) - whole).max() <= 1


@given(
    SIDES,
    st.integers(1, 2000),
    SIDES,
    SIDES,
    st.floats(0.05, 20),
    st.sampled_from(("shortest", "longest", "squash", "none")),
    st.sampled_from(get_args(Interpolation)),
    st.sampled_from(("even", "down")),
)
@settings(deadline=None)
def test_other_libraries_ways_take_any_shape(
    height: int,
    width: int,
    rows: int,
    columns: int,
    fraction: float,
    resize: Resize,
    interpolation: Interpolation,
    offset: Literal["even", "down"],
) -> None:
    preprocessing = Preprocessing(
        (rows, columns), resize, fraction, interpolation=interpolation, crop_offset=offset
    )
    out = preprocess(noise(height, width), preprocessing)
    assert out.shape == (rows, columns, 3) and out.flags.c_contiguous


@given(SIDES, SIDES, SIDES, SIDES, st.booleans(), st.integers(0, 1000))
@settings(deadline=None)
def test_augmentation_takes_any_shape(
    height: int, width: int, rows: int, columns: int, antialias: bool, sample: int
) -> None:
    preprocessing = Preprocessing((rows, columns), antialias=antialias)
    augmentation = Augmentation(shift=2, rotate=15)
    image = noise(height, width)
    first = augment(image, preprocessing, augmentation, sample_rng(1, 2, sample))
    again = augment(image, preprocessing, augmentation, sample_rng(1, 2, sample))
    assert first.shape == (rows, columns, 3) and first.dtype == np.uint8
    np.testing.assert_array_equal(first, again)


def crops(height: int, width: int, augmentation: Augmentation, count: int) -> NDArray[np.float64]:
    """(count, 4): top, left, height, width of random crops, read off where a ramp's corners went."""
    found = []
    image = ramp(height, width)
    for sample in range(count):
        # Enlarged four times, the corner pixels of the crop show undiluted at the corners.
        out = augment(image, Preprocessing((4 * height, 4 * width)), augmentation, sample_rng(5, 0, sample))
        (top, left), (bottom, right) = out[0, 0, :2].tolist(), out[-1, -1, :2].tolist()
        found.append((top, left, bottom - top + 1, right - left + 1))
    return np.array(found, dtype=np.float64)


def test_random_crops_keep_their_ranges() -> None:
    augmentation = Augmentation(crop_area=(0.2, 0.8), crop_aspect=(0.5, 2.0), flip=False)
    found = crops(40, 60, augmentation, 2000)
    top, left, height, width = found.T
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


def test_random_crops_spread_as_tensorflows() -> None:
    """With one aspect of 1 the height is uniform between the roots of the areas: 7..20 pixels of 20 x 20."""
    found = crops(20, 20, Augmentation(crop_area=(0.1225, 1.0), crop_aspect=(1.0, 1.0), flip=False), 5600)
    counts = np.bincount(found[:, 2].astype(int), minlength=21)
    assert counts[:7].sum() == 0
    assert ((counts[7:] - 400) ** 2 / 400).sum() < 35  # chi-square with 13 degrees of freedom: p < 0.001
    offsets = np.bincount(found[found[:, 2] == 17][:, 0].astype(int), minlength=4)
    assert ((offsets - offsets.mean()) ** 2 / offsets.mean()).sum() < 16.3


def test_an_impossible_crop_is_the_whole_image() -> None:
    image = noise(4, 60)
    augmentation = Augmentation(crop_area=(0.9, 1.0), crop_aspect=(1.0, 1.0), flip=False)
    out = augment(image, Preprocessing((4, 60)), augmentation, sample_rng(0, 0, 0))
    np.testing.assert_array_equal(out, image)


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
            out = augment(
                inside, Preprocessing(size, antialias=antialias), augmentation, sample_rng(0, 0, sample)
            )
            assert out.max() == 0


def test_crops_without_aspects_have_the_proportions_of_the_image() -> None:
    """A square of 480 pixels out of an image that was stretched to 512 is the same part of each side."""
    same = Augmentation(crop_area=((480 / 512) ** 2,) * 2, crop_aspect=None, flip=False)
    found = crops(32, 64, same, 400)
    assert {tuple(box) for box in found[:, 2:]} == {(30, 60)}
    assert {*found[:, 0]} == {0, 1, 2} and {*found[:, 1]} == {0, 1, 2, 3, 4}
    any_size = crops(40, 20, Augmentation(crop_area=(0.25, 1.0), crop_aspect=None, flip=False), 300)
    assert any_size[:, 2].min() == 20 and any_size[:, 2].max() == 40
    assert np.abs(any_size[:, 2] - 2 * any_size[:, 3]).max() <= 1


def test_flips_are_even() -> None:
    image = ramp(8, 8)
    augmentation = Augmentation(crop_area=None)
    flipped = 0
    for sample in range(1000):
        out = augment(image, Preprocessing((8, 8)), augmentation, sample_rng(0, 0, sample))
        if out[0, 0, 1] == 7:
            np.testing.assert_array_equal(out, image[:, ::-1])
            flipped += 1
        else:
            np.testing.assert_array_equal(out, image)
    assert 430 < flipped < 570


@pytest.mark.parametrize("down", [-9, -5, -2, 0, 1, 4, 5, 9])
@pytest.mark.parametrize("right", [-9, -7, -3, 0, 2, 6, 7, 9])
def test_a_shift_is_an_index_that_stops_at_the_edge(down: int, right: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)[:, ::-1]
    rows, columns = np.clip(np.arange(5) - down, 0, 4), np.clip(np.arange(7) - right, 0, 6)
    np.testing.assert_array_equal(_move(image, down, right, 0), image[rows[:, None], columns])


def test_shifts_repeat_the_edge() -> None:
    image = ramp(10, 10)
    augmentation = Augmentation(crop_area=None, flip=False, shift=2)
    seen = set()
    for sample in range(300):
        out = augment(image, Preprocessing((10, 10)), augmentation, sample_rng(0, 0, sample))
        down, right = 5 - int(out[5, 5, 0]), 5 - int(out[5, 5, 1])
        expected = np.pad(image, ((2, 2), (2, 2), (0, 0)), mode="edge")[
            2 - down : 12 - down, 2 - right : 12 - right
        ]
        np.testing.assert_array_equal(out, expected)
        seen.add((down, right))
    assert len(seen) == 25


def test_rotation_turns_about_the_centre() -> None:
    image = ramp(21, 21)
    augmentation = Augmentation(crop_area=None, flip=False, rotate=90)
    angles = []
    for sample in range(200):
        out = augment(image, Preprocessing((21, 21)), augmentation, sample_rng(0, 0, sample))
        assert np.abs(out[10, 10].astype(int) - [10, 10, 200]).max() <= 1
        assert (out[:, :, 2] >= 199).all()  # no corner is filled with another colour
        down, right = (
            out[10, 15, :2].astype(int) - 10
        ).tolist()  # where the pixel right of the centre came from
        angles.append(np.degrees(np.arctan2(down, right)))
    assert min(angles) < -70 and max(angles) > 70
    assert abs(np.mean(angles)) < 15


def test_a_right_angle_is_exact_but_for_rounding() -> None:
    image = noise(9, 9)
    turned, expected = _move(image, 0, 0, 90).astype(int), np.rot90(image).astype(int)
    assert np.abs(turned - expected).max() <= 1
    np.testing.assert_array_equal(_move(image, 0, 0, 0), image)


@pytest.mark.parametrize("degrees", [-30.0, -7.5, 3.0, 45.0])
def test_turning_is_bilinear_with_edges_repeated(degrees: float) -> None:
    """Against torch's sampling of a rotated grid, which repeats edges as well."""
    image = noise(12, 17)
    angle = math.radians(degrees)
    y, x = torch.meshgrid(torch.arange(12) - 5.5, torch.arange(17) - 8.0, indexing="ij")
    across, down = math.cos(angle) * x - math.sin(angle) * y, math.sin(angle) * x + math.cos(angle) * y
    grid = torch.stack([across / 8.5, down / 6.0], -1)[None].float()
    tensor = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float()
    expected = F.grid_sample(tensor, grid, padding_mode="border", align_corners=False)
    turned = _move(image, 0, 0, degrees).transpose(2, 0, 1).astype(np.float32)
    assert np.abs(turned - expected[0].numpy()).max() <= 1.01


def test_what_is_uncovered_repeats_the_edge() -> None:
    image = np.full((9, 14, 3), 77, dtype=np.uint8)
    for degrees in (0.0, 10.0, 60.0, 180.0):
        np.testing.assert_array_equal(_move(image, 3, -2, degrees), image)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Preprocessing((0, 4)), "image_size"),
        (lambda: Preprocessing((4, 4), resize="fit"), "resize"),  # type: ignore[arg-type]
        (lambda: Preprocessing((4, 4), crop_fraction=0.0), "crop_fraction"),
        (lambda: Preprocessing((4, 4), "crop", crop_fraction=1.1), "crop_fraction"),
        (lambda: Preprocessing((4, 4), "shortest", crop_fraction=1e-320), "crop_fraction"),
        (lambda: Preprocessing((4, 4), "shortest", crop_fraction=float("nan")), "crop_fraction"),
        (lambda: Preprocessing((4, 4), interpolation="cubic"), "interpolation"),  # type: ignore[arg-type]
        (lambda: Preprocessing((4, 4), antialias=False, interpolation="bicubic"), "bilinear"),
        (lambda: Preprocessing((4, 4), crop_offset="up"), "crop_offset"),  # type: ignore[arg-type]
        (lambda: Preprocessing((4, 4), border=(0, 0, 256)), "border"),
        (lambda: Augmentation(crop_area=(0.0, 1.0)), "crop_area"),
        (lambda: Augmentation(crop_area=(0.5, 0.1)), "crop_area"),
        (lambda: Augmentation(crop_aspect=(2.0, 1.0)), "crop_aspect"),
        (lambda: Augmentation(shift=-1), "shift"),
        (lambda: Augmentation(rotate=181.0), "rotate"),
    ],
)
def test_values_that_make_no_sense(make: Any, words: str) -> None:
    with pytest.raises(VitkitError, match=words):
        make()

"""Random crops against the rules they are drawn by; turns, shifts, RandAugment's operations and erasing."""

import itertools
import math
from dataclasses import fields, replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torch.nn import functional as F

from tests.helpers.augmenting import augment
from tests.helpers.image_zoo import encoded, exif
from tests.helpers.refusals import refused, undecodable
from vitkit.data.channels import by_threes, to_rgb
from vitkit.data.config import (
    Augmentation,
    DecodeRule,
    Interpolation,
    Preprocessing,
    Resize,
)
from vitkit.data.decode.image import decode, decode_image, header
from vitkit.data.stream.loader import sample_rng
from vitkit.data.transforms import OPERATIONS, RandomView, _move, _random_crop, distort, erase, preprocess

SIDES = st.integers(1, 60)
DISTORTED = Augmentation(crop_area=None, rand_augment=2, random_erasing=0.5)


def noise(height: int = 20, width: int = 33) -> NDArray[np.uint8]:
    """Colours that are neither dark nor bright."""
    return np.random.default_rng(0).integers(60, 200, (height, width, 3), np.uint8)


def noise_of(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


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
    image = noise_of(height, width, 3)
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
    image = noise_of(12, 17, 3)
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


CHANGED = Augmentation((0.1, 0.2), (1.0, 1.1), True, 3, 20.0, True, 2, 2.0, 1.0)


@pytest.mark.parametrize("name", [field.name for field in fields(Augmentation)])
def test_a_field_changes_the_view(name: str) -> None:
    """A field that nothing reads would be recorded, and do nothing."""
    usual = Augmentation(flip=False, rand_augment=1)

    def views(augmentation: Augmentation) -> list[tuple[int, bytes]]:
        drawn = []
        for seed in range(8):
            view = RandomView(Preprocessing((16, 16)), augmentation, np.random.default_rng(seed))
            drawn.append((view.draw(64, 80), view.pixels(noise_of(64, 80, 3)).tobytes()))
        return drawn

    assert views(usual) == views(usual) != views(replace(usual, **{name: getattr(CHANGED, name)}))


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


def test_impossible_options_are_explained() -> None:
    wrong: list[dict[str, Any]] = [
        *({"rand_augment": -1}, {"rand_augment": 15}, {"rand_augment_magnitude": 11.0}),
        *({"random_erasing": 2.0}, {"crop_area": (0.0, 1.0)}, {"crop_area": (0.5, 0.1)}),
        *({"crop_aspect": (2.0, 1.0)}, {"shift": -1}, {"rotate": 181.0}),
    ]
    for options in wrong:
        refused(next(iter(options)), Augmentation, **options)


# Resizing and cropping as evaluation does, against torch's and Pillow's

NOTHING = Augmentation(crop_area=None, flip=False)


def by_torch(image: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.float32]:
    tensor = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float()
    out = F.interpolate(tensor, size, mode="bilinear", align_corners=False, antialias=False)
    return np.asarray(out[0].permute(1, 2, 0).numpy(), dtype=np.float32)


@given(SIDES, SIDES, SIDES, SIDES)
@settings(deadline=None)
def test_plain_bilinear_is_torchs(height: int, width: int, rows: int, columns: int) -> None:
    image = noise_of(height, width, 3)
    out = preprocess(image, Preprocessing((rows, columns), antialias=False))
    assert out.shape == (rows, columns, 3) and out.dtype == np.uint8
    assert np.abs(out - by_torch(image, (rows, columns))).max() <= 1.001  # float32 noise


def test_plain_bilinear_rounds_to_nearest_and_antialias_is_pillows() -> None:
    image = noise_of(50, 40, 3)
    out = preprocess(image, Preprocessing((20, 20), antialias=False))
    assert np.abs(out - by_torch(image, (20, 20))).max() <= 0.5001
    expected = Image.fromarray(image).resize((20, 10), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(preprocess(image, Preprocessing((10, 20))), np.asarray(expected))


@given(SIDES, SIDES, st.booleans())
@settings(deadline=None)
def test_nothing_to_do_changes_nothing(height: int, width: int, antialias: bool) -> None:
    image = noise_of(height, width, 3)
    preprocessing = Preprocessing((height, width), antialias=antialias)
    np.testing.assert_array_equal(preprocess(image, preprocessing), image)
    np.testing.assert_array_equal(augment(image, preprocessing, NOTHING, sample_rng(0, 0, 0)), image)


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("shape", [(300, 400), (260, 260), (100, 90), (7, 300)])
def test_central_crop_is_the_crop_of_the_resized_image(shape: tuple[int, int], antialias: bool) -> None:
    image = noise_of(*shape, 3)
    size = (112, 112)
    scale = 128 / min(shape)
    resized = (round(shape[0] * scale), round(shape[1] * scale))
    whole = preprocess(image, Preprocessing(resized, antialias=antialias))
    top, left = (resized[0] - 112) // 2, (resized[1] - 112) // 2
    out = preprocess(image, Preprocessing(size, resize="crop", antialias=antialias))
    difference = np.abs(out.astype(int) - whole[top : top + 112, left : left + 112])
    assert difference.max() <= 1


@pytest.mark.parametrize("resize", get_args(Resize))
def test_a_strip_does_not_become_an_enormous_image(resize: Resize) -> None:
    for shape in ((1, 20_000), (20_000, 1)):
        out = preprocess(noise_of(*shape, 3), Preprocessing((224, 224), resize))
        assert out.shape == (224, 224, 3) and out.any()


def test_a_strip_too_long_to_resize_whole_has_the_same_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    image = noise_of(30, 700, 3) // 2 + 64
    ways: tuple[Resize, ...] = ("shortest", "longest", "squash")
    for resize in ways:
        for fraction in (0.9, 1.3):
            preprocessing = Preprocessing((65, 48), resize, fraction, border=(9, 9, 9))
            whole = preprocess(image, preprocessing).astype(int)
            with monkeypatch.context() as patch:
                patch.setattr("vitkit.data.transforms.WHOLE_PIXELS", 0)
                assert np.abs(preprocess(image, preprocessing) - whole).max() <= 1


SIZES = st.tuples(SIDES, SIDES)
CROPS = st.builds(Preprocessing, SIZES, st.just("crop"), st.sampled_from([0.5, 0.875, 1.0]), st.booleans())
OTHERS = st.builds(
    Preprocessing,
    SIZES,
    st.sampled_from(("shortest", "longest", "squash", "none")),
    st.floats(0.05, 20),
    interpolation=st.sampled_from(get_args(Interpolation)),
    crop_offset=st.sampled_from(("even", "down")),
)


@given(SIDES, st.integers(1, 2000), CROPS | OTHERS)
@settings(deadline=None)
def test_every_way_takes_any_shape(height: int, width: int, preprocessing: Preprocessing) -> None:
    out = preprocess(noise_of(height, width, 3), preprocessing)
    assert out.shape == (*preprocessing.image_size, 3) and out.flags.c_contiguous


def test_values_that_make_no_sense() -> None:
    wrong: list[dict[str, Any]] = [
        *({"image_size": (0, 4)}, {"resize": "fit"}, {"crop_fraction": 0.0}, {"interpolation": "cubic"}),
        *({"crop_fraction": wrong, "resize": "shortest"} for wrong in (1e-320, float("nan"))),
        *({"crop_fraction": 1.1, "resize": "crop"}, {"crop_offset": "up"}, {"border": (0, 0, 256)}),
    ]
    for options in wrong:
        refused(next(iter(options)), Preprocessing, **{"image_size": (4, 4), **options})
    refused("bilinear", Preprocessing, (4, 4), antialias=False, interpolation="bicubic")


# Images decoded, resized and augmented with one, four and more channels

GREY, RGBA = DecodeRule(channels=1), DecodeRule(channels=4)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_colours_become_their_luma_and_grey_is_its_own_values(kind: str) -> None:
    file = encoded(Image.fromarray(noise_of(30, 20, 3)), kind)
    red, green, blue = np.moveaxis(decode(file).astype(np.int64), 2, 0)
    expected = (red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16  # ITU-R 601-2 in 16 bits
    assert np.array_equal(decode(file, GREY)[:, :, 0], expected)
    grey = noise_of(30, 20)
    assert np.array_equal(decode(encoded(Image.fromarray(grey)), GREY), grey[:, :, None])
    image = "found an array of 3" if kind == "TIFF" else r"found .* RGB.*\.npy"
    undecodable(f"expected 5 channels, {image}", decode, file, DecodeRule(channels=5))


def test_alpha_is_kept_by_four_channels_and_composited_by_three() -> None:
    pixels = noise_of(700, 500, 4)  # as large as is converted in strips
    file = encoded(Image.fromarray(pixels))
    assert np.array_equal(decode(file, RGBA), pixels)
    assert decode(file).shape == (700, 500, 3)
    assert not np.array_equal(decode(file), pixels[:, :, :3])
    assert np.array_equal(decode(file, GREY)[:10], decode_image(Image.fromarray(pixels[:10]), GREY))
    turned = encoded(Image.fromarray(pixels), exif=exif(6))
    assert np.array_equal(decode(turned, RGBA), np.rot90(pixels, -1))
    assert header(turned, RGBA).size == (500, 700)
    assert np.array_equal(decode(turned, GREY), np.rot90(decode(file, GREY), -1))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK", "1"])
def test_an_image_without_alpha_is_opaque(mode: str) -> None:
    image = Image.fromarray(noise_of(30, 20, 3)).convert(mode)
    pixels = decode(encoded(image, "TIFF"), RGBA)
    assert np.array_equal(pixels[:, :, :3], decode(encoded(image, "TIFF")))
    assert (pixels[:, :, 3] == 255).all()


def test_transparent_colours_and_palettes_are_alpha() -> None:
    palette = Image.fromarray(noise_of(30, 20) // 64, "L").convert("P")
    pixels = decode(encoded(palette, transparency=2), RGBA)
    assert set(np.unique(pixels[:, :, 3])) == {0, 255}
    assert np.array_equal(pixels[:, :, 3] == 0, np.asarray(palette) == 2)
    wide = np.array([[0, 300, 65535]], np.uint16)
    pixels = decode(encoded(Image.fromarray(wide), transparency=300), RGBA)
    assert pixels[0, :, 3].tolist() == [255, 0, 255]


@pytest.mark.parametrize("channels", [1, 2, 4, 7])
@pytest.mark.parametrize("resize", ["stretch", "crop", "longest"])
@pytest.mark.parametrize("antialias", [True, False])
def test_every_channel_is_resized_as_a_colour_is(channels: int, resize: Resize, antialias: bool) -> None:
    image = noise_of(50, 31, channels)
    rule = Preprocessing((16, 24), resize=resize, antialias=antialias, crop_fraction=0.9)
    resized = preprocess(image, rule)
    assert resized.shape == (16, 24, channels)
    for channel in range(channels):
        alone = np.repeat(image[:, :, channel : channel + 1], 3, axis=2)
        assert np.array_equal(resized[:, :, channel], preprocess(alone, rule)[:, :, 0])
    out = np.zeros((channels, 16, 24), np.uint8)  # as a batch keeps it
    preprocess(image, rule, out.transpose(1, 2, 0))
    assert np.array_equal(out.transpose(1, 2, 0), resized)


def test_a_grey_image_is_augmented_as_one_of_equal_colours() -> None:
    grey, rule = noise_of(50, 31, 1), Preprocessing((24, 24))
    for augmentation in (
        Augmentation(shift=3, rotate=20.0),
        Augmentation(crop_area=None, rand_augment=2),
        Augmentation(crop_area=(0.2, 1.0), rand_augment=3),
    ):
        for seed in range(20):
            augmented = augment(grey, rule, augmentation, np.random.default_rng(seed))
            expected = augment(to_rgb(grey), rule, augmentation, np.random.default_rng(seed))
            assert augmented.shape == (24, 24, 1)
            assert np.array_equal(np.repeat(augmented, 3, axis=2), expected)


def test_any_number_of_channels_is_moved_and_erased_but_not_coloured() -> None:
    image, rule = noise_of(50, 31, 5), Preprocessing((24, 24))
    changes = Augmentation(shift=3, rotate=20.0, random_erasing=1.0)
    augmented = augment(image, rule, changes, np.random.default_rng(0))
    assert augmented.shape == (24, 24, 5)
    still = augment(image, rule, replace(changes, random_erasing=0.0), np.random.default_rng(0))
    erased = (augmented != still).any(axis=2)
    assert 0.01 < erased.mean() < 0.5  # one box, of noise in all five channels
    assert (augmented != still)[erased].mean() > 0.9
    wide = noise_of(6, 4, 8)
    assert np.array_equal(by_threes(wide, lambda part: part[::-1]), wide[::-1])
    for wrong in (0, -1, 5000):
        refused("channels is from 1 to", DecodeRule, channels=wrong)


def test_a_border_is_transparent_or_grey() -> None:
    rule = Preprocessing((20, 20), resize="longest", crop_fraction=1.0, border=(200, 100, 0))
    tall = np.full((20, 10, 4), 255, np.uint8)
    assert preprocess(tall, rule)[0, 0].tolist() == [200, 100, 0, 0]
    # 0.299 * 200 + 0.587 * 100, a little less in 16 bits.
    assert preprocess(tall[:, :, :1], rule)[0, 0].tolist() == [118]

"""Images decoded, resized and augmented with one, four and more channels."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.helpers.augmenting import augment
from tests.helpers.image_zoo import encoded
from vitkit.data.channels import by_threes, to_rgb
from vitkit.data.config import Augmentation, DecodeRule, Preprocessing, Resize, refuse_augmentation
from vitkit.data.decode.image import decode, decode_image, header
from vitkit.data.transforms import preprocess
from vitkit.errors import DecodeError, VitkitError

GREY, RGBA = DecodeRule(channels=1), DecodeRule(channels=4)


def png(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    return encoded(image, kind, **options)


def noise(*shape: int, seed: int = 0) -> NDArray[Any]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_colours_become_their_luma_and_grey_is_its_own_values(kind: str) -> None:
    file = png(Image.fromarray(noise(30, 20, 3)), kind)
    red, green, blue = np.moveaxis(decode(file).astype(np.int64), 2, 0)
    expected = (red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16  # ITU-R 601-2 in 16 bits
    assert np.array_equal(decode(file, GREY)[:, :, 0], expected)
    grey = noise(30, 20)
    assert np.array_equal(decode(png(Image.fromarray(grey)), GREY), grey[:, :, None])
    image = "found an array of 3" if kind == "TIFF" else r"found .* RGB.*\.npy"
    with pytest.raises(DecodeError, match=f"expected 5 channels, {image}"):
        decode(file, DecodeRule(channels=5))


def test_alpha_is_kept_by_four_channels_and_composited_by_three() -> None:
    pixels = noise(700, 500, 4)  # as large as is converted in strips
    file = png(Image.fromarray(pixels))
    assert np.array_equal(decode(file, RGBA), pixels)
    assert decode(file).shape == (700, 500, 3)
    assert not np.array_equal(decode(file), pixels[:, :, :3])
    assert np.array_equal(decode(file, GREY)[:10], decode_image(Image.fromarray(pixels[:10]), GREY))
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = png(Image.fromarray(pixels), exif=exif)
    assert np.array_equal(decode(turned, RGBA), np.rot90(pixels, -1))
    assert header(turned, RGBA).size == (500, 700)
    assert np.array_equal(decode(turned, GREY), np.rot90(decode(file, GREY), -1))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK", "1"])
def test_an_image_without_alpha_is_opaque(mode: str) -> None:
    image = Image.fromarray(noise(30, 20, 3)).convert(mode)
    pixels = decode(png(image, "TIFF"), RGBA)
    assert np.array_equal(pixels[:, :, :3], decode(png(image, "TIFF")))
    assert (pixels[:, :, 3] == 255).all()


def test_transparent_colours_and_palettes_are_alpha() -> None:
    palette = Image.fromarray(noise(30, 20) // 64, "L").convert("P")
    pixels = decode(png(palette, transparency=2), RGBA)
    assert set(np.unique(pixels[:, :, 3])) == {0, 255}
    assert np.array_equal(pixels[:, :, 3] == 0, np.asarray(palette) == 2)
    wide = np.array([[0, 300, 65535]], np.uint16)
    pixels = decode(png(Image.fromarray(wide), transparency=300), RGBA)
    assert pixels[0, :, 3].tolist() == [255, 0, 255]


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_and_never_clipped(kind: str) -> None:
    wide = np.array([[0, 128, 257, 1000, 32768, 65535]], np.uint16)
    pixels = decode(png(Image.fromarray(wide), kind), GREY)
    assert pixels[0, :, 0].tolist() == [0, 0, 1, 4, 128, 255]


@pytest.mark.parametrize("channels", [1, 2, 4, 7])
@pytest.mark.parametrize("resize", ["stretch", "crop", "longest"])
@pytest.mark.parametrize("antialias", [True, False])
def test_every_channel_is_resized_as_a_colour_is(channels: int, resize: Resize, antialias: bool) -> None:
    image = noise(50, 31, channels)
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
    grey, rule = noise(50, 31, 1), Preprocessing((24, 24))
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
    image, rule = noise(50, 31, 5), Preprocessing((24, 24))
    changes = Augmentation(shift=3, rotate=20.0, random_erasing=1.0)
    augmented = augment(image, rule, changes, np.random.default_rng(0))
    assert augmented.shape == (24, 24, 5)
    still = augment(image, rule, replace(changes, random_erasing=0.0), np.random.default_rng(0))
    erased = (augmented != still).any(axis=2)
    assert 0.01 < erased.mean() < 0.5  # one box, of noise in all five channels
    assert (augmented != still)[erased].mean() > 0.9
    wide = noise(6, 4, 8)
    assert np.array_equal(by_threes(wide, lambda part: part[::-1]), wide[::-1])
    for wrong in (0, -1, 5000):
        with pytest.raises(VitkitError, match="channels is from 1 to"):
            DecodeRule(channels=wrong)
    refuse_augmentation(Augmentation(rand_augment=2), 1)
    refuse_augmentation(Augmentation(), 5)
    with pytest.raises(VitkitError, match=r"rand_augment.* 4 channels.*rand_augment 0"):
        refuse_augmentation(Augmentation(rand_augment=2), 4)


def test_a_border_is_transparent_or_grey() -> None:
    rule = Preprocessing((20, 20), resize="longest", crop_fraction=1.0, border=(200, 100, 0))
    tall = np.full((20, 10, 4), 255, np.uint8)
    assert preprocess(tall, rule)[0, 0].tolist() == [200, 100, 0, 0]
    # 0.299 * 200 + 0.587 * 100, a little less in 16 bits.
    assert preprocess(tall[:, :, :1], rule)[0, 0].tolist() == [118]

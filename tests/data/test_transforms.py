"""Resizing and cropping as evaluation does, against torch's and Pillow's."""

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
from vitkit.data.config import Augmentation, Interpolation, Preprocessing, Resize
from vitkit.data.stream.loader import sample_rng
from vitkit.data.transforms import preprocess
from vitkit.errors import VitkitError

SIDES = st.integers(1, 60)
NOTHING = Augmentation(crop_area=None, flip=False)


def noise(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


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


def test_plain_bilinear_rounds_to_nearest_and_antialias_is_pillows() -> None:
    image = noise(50, 40)
    out = preprocess(image, Preprocessing((20, 20), antialias=False))
    assert np.abs(out - by_torch(image, (20, 20))).max() <= 0.5001
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
@pytest.mark.parametrize("shape", [(300, 400), (260, 260), (100, 90), (7, 300)])
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


@pytest.mark.parametrize("resize", get_args(Resize))
def test_a_strip_does_not_become_an_enormous_image(resize: Resize) -> None:
    for shape in ((1, 20_000), (20_000, 1)):
        out = preprocess(noise(*shape), Preprocessing((224, 224), resize))
        assert out.shape == (224, 224, 3) and out.any()


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
    out = preprocess(noise(height, width), preprocessing)
    assert out.shape == (*preprocessing.image_size, 3) and out.flags.c_contiguous


def test_values_that_make_no_sense() -> None:
    wrong: list[dict[str, Any]] = [
        *({"image_size": (0, 4)}, {"resize": "fit"}, {"crop_fraction": 0.0}, {"interpolation": "cubic"}),
        *({"crop_fraction": wrong, "resize": "shortest"} for wrong in (1e-320, float("nan"))),
        *({"crop_fraction": 1.1, "resize": "crop"}, {"crop_offset": "up"}, {"border": (0, 0, 256)}),
        {"antialias": False, "interpolation": "bicubic"},
    ]
    for options in wrong:
        with pytest.raises(VitkitError, match="bilinear" if "antialias" in options else next(iter(options))):
            Preprocessing(**{"image_size": (4, 4), **options})

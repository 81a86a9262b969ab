"""The compiled resize makes Pillow's pixels, and where it cannot be had, Pillow makes them."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from tests.helpers.augmenting import augment
from tests.pixel_cases import CASES, image, preprocessing_of_case
from vitkit.data import transforms
from vitkit.data.config import Augmentation, Preprocessing, Resize
from vitkit.data.transforms import preprocess
from vitkit.kernels import compile as compiling
from vitkit.kernels import resample as module
from vitkit.kernels.resample import prepare_resampling, resample

SIDES = st.integers(1, 400)
FILTERS = {"box": 4, "bilinear": 2, "hamming": 5, "bicubic": 3, "lanczos": 1}


@pytest.fixture(scope="module")
def kernel() -> None:
    if not prepare_resampling():
        pytest.skip("this machine has no C compiler or no AVX2")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a process that has not looked for the kernel yet."""
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path))
    module._library.cache_clear()
    yield tmp_path
    module._library.cache_clear()


def without_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitkit.data.transforms.resample", lambda *_: None)
    monkeypatch.setattr("vitkit.data.transforms.sample", lambda *_: None)


def pixels(height: int, width: int, binary: bool) -> NDArray[np.uint8]:
    rng = np.random.default_rng(height * 1000 + width)
    top = 2 if binary else 256
    return rng.integers(0, top, (height, width, 3), dtype=np.uint8) * np.uint8(255 if binary else 1)


@pytest.mark.usefixtures("kernel")
@given(SIDES, SIDES, SIDES, SIDES, st.sampled_from(list(FILTERS)), st.booleans(), st.booleans(), st.data())
@settings(deadline=None, max_examples=120)
def test_every_size_and_box_has_pillows_bits(
    height: int,
    width: int,
    rows: int,
    columns: int,
    interpolation: str,
    mirrored: bool,
    binary: bool,
    data: st.DataObject,
) -> None:
    source = pixels(height, width, binary)
    if mirrored:
        source = source[:, ::-1]
    top, left = data.draw(st.floats(0, height / 2)), data.draw(st.floats(0, width / 2))
    box = data.draw(st.sampled_from([(0.0, 0.0, float(height), float(width)), (top, left, height, width)]))
    first, before = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    last, after = data.draw(st.integers(first + 1, rows)), data.draw(st.integers(before + 1, columns))
    around = np.zeros((3, last - first + 2, after - before + 2), np.uint8)
    out = around[:, 1:-1, 1:-1].transpose(1, 2, 0)

    resized = resample(source, box, (rows, columns), interpolation, (first, before, last, after), out)

    whole = Image.fromarray(np.ascontiguousarray(source))
    kind = Image.Resampling(FILTERS[interpolation])
    theirs = np.asarray(whole.resize((columns, rows), kind, (box[1], box[0], box[3], box[2])))
    assert resized is out
    np.testing.assert_array_equal(out, theirs[first:last, before:after])
    around[:, 1:-1, 1:-1] = 0
    assert not around.any()  # nothing is written beside its place


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_declared_rules_give_the_same_pixels_with_and_without(
    case: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = preprocessing_of_case(case)
    shapes = ((375, 500), (90, 700), (40, 30), (700, 31))
    ours = [preprocess(image(shape), rule) for shape in shapes]
    planes = [np.empty((3, *rule.image_size), np.uint8) for _ in shapes]
    for shape, plane in zip(shapes, planes, strict=True):
        preprocess(image(shape), rule, plane.transpose(1, 2, 0))
    without_kernel(monkeypatch)
    for shape, with_kernel, plane in zip(shapes, ours, planes, strict=True):
        np.testing.assert_array_equal(with_kernel, preprocess(image(shape), rule))
        np.testing.assert_array_equal(with_kernel, plane.transpose(1, 2, 0))


@pytest.mark.usefixtures("kernel")
@given(SIDES, SIDES, SIDES, SIDES, st.booleans(), st.sampled_from(["stretch", "crop", "squash"]))
@settings(deadline=None, max_examples=80)
def test_samples_without_averaging_are_those_of_the_arrays(
    height: int, width: int, rows: int, columns: int, mirrored: bool, resize: Resize
) -> None:
    source = pixels(height, width, binary=False)
    source = source[:, ::-1] if mirrored else source
    rule = Preprocessing((rows, columns), resize, 0.9, antialias=False)
    around = np.zeros((3, rows + 2, columns + 2), np.uint8)
    out = around[:, 1:-1, 1:-1].transpose(1, 2, 0)
    assert preprocess(source, rule, out) is out
    with pytest.MonkeyPatch.context() as patch:
        without_kernel(patch)
        np.testing.assert_array_equal(out, preprocess(source, rule))
    around[:, 1:-1, 1:-1] = 0
    assert not around.any()  # nothing is written beside its place


@given(
    st.tuples(st.integers(1, 60), st.integers(1, 60), st.integers(1, 5)),
    st.tuples(st.integers(-9, 9), st.integers(-9, 9)),
    st.floats(-180, 180).filter(bool),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_a_turned_image_has_pillows_bits(
    kernel: None, shape: tuple[int, int, int], shift: tuple[int, int], degrees: float, planes: bool
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape[::-1] if planes else shape, np.uint8)
    pixels = pixels.T if planes else pixels
    turned = transforms._move(pixels, *shift, degrees)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transforms, "turn", lambda *_: None)
        np.testing.assert_array_equal(turned, transforms._move(pixels, *shift, degrees))


def test_training_draws_the_same_pixels_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_resampling()
    source, out = image((150, 201)), np.empty((8, 3, 64, 48), np.uint8)
    augmentations = (Augmentation(), Augmentation(crop_area=None, shift=3), Augmentation(rotate=20.0))
    for augmentation, antialias in itertools.product(augmentations, (True, False)):
        rule = Preprocessing((64, 48), "crop", antialias=antialias)
        for seed, plane in enumerate(out.transpose(0, 2, 3, 1)):
            rng = np.random.default_rng(seed)
            assert augment(source, rule, augmentation, rng, plane).base is not None
        with monkeypatch.context() as patch:
            without_kernel(patch)
            for seed, plane in enumerate(out.transpose(0, 2, 3, 1)):
                expected = augment(source, rule, augmentation, np.random.default_rng(seed))
                np.testing.assert_array_equal(plane, expected)


def test_without_a_compiler_pillow_resizes(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert not prepare_resampling()
    assert resample(image((20, 20)), (0, 0, 20, 20), (10, 10), "bilinear") is None
    assert preprocess(image((20, 20)), Preprocessing((10, 10))).shape == (10, 10, 3)


@pytest.mark.usefixtures("kernel")
def test_it_is_compiled_when_asked_for_and_not_by_looking(own_cache: Path) -> None:
    assert resample(image((20, 20)), (0, 0, 20, 20), (10, 10), "bilinear") is None
    assert not list(own_cache.iterdir())
    assert prepare_resampling()
    assert resample(image((20, 20)), (0, 0, 20, 20), (10, 10), "bilinear") is not None
    assert resample(image((20, 20)), (0, 0, 20, 20), (10, 10), "nearest") is None  # left to Pillow


@pytest.mark.usefixtures("kernel")
def test_a_kernel_that_makes_other_pixels_is_not_used(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = tmp_path / "other.c"
    text = module.SOURCE.path.read_text()
    changed = text.replace("#define HALF (1 << (PRECISION_BITS - 1))", "#define HALF 0")
    assert changed != text
    source.write_text(changed)
    monkeypatch.setattr(module, "SOURCE", replace(module.SOURCE, path=source))
    assert not prepare_resampling()
    assert "other values than Pillow" in compiling.load(module.SOURCE, compile_it=True).reason
    assert resample(image((20, 20)), (0, 0, 20, 20), (10, 10), "bilinear") is None

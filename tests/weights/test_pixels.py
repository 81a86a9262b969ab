"""Pixels as timm, transformers and torchvision make them of the same description, within one level."""

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.fixture_files import FOLDER
from tests.pixel_cases import ALLOWED, CASES, SHAPES, PixelCase, image, preprocessing_of_case, sample
from vitkit.data.config import Preprocessing
from vitkit.data.transforms import preprocess
from vitkit.errors import VitkitError
from vitkit.weights.create import create_model
from vitkit.weights.model_card import (
    ModelCard,
    changed_pixels,
    describe,
    fraction_of,
    read_description,
)


@cache
def fixture() -> dict[str, NDArray[np.uint8]]:
    with np.load(FOLDER / "o_pixels.npz") as arrays:
        return dict(arrays)


@cache
def cached_image(shape: tuple[int, int]) -> NDArray[np.uint8]:
    return image(shape)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pixels_are_those_of_the_library(case: PixelCase) -> None:
    preprocessing = preprocessing_of_case(case)
    for shape in SHAPES:
        expected = fixture()[f"{case.name}: {shape[0]}x{shape[1]}"].astype(int)
        pixels = sample(preprocess(cached_image(shape), preprocessing))
        assert np.abs(pixels - expected).max() <= ALLOWED, shape


def test_preprocessing_survives_the_card() -> None:
    for case in CASES:
        model = create_model("ViT-8x1x1/2", 2, case.size)
        model.card = ModelCard(preprocessing=preprocessing_of_case(case))
        described = json.loads(json.dumps(describe(model)))
        assert read_description(described, Path("model.json"))[1] == model.card, case.name


def test_a_fraction_gives_its_side_back() -> None:
    for side in (1, 7, 224, 242, 256, 384, 518):
        for resized in range(1, 1500):
            assert math.floor(side / fraction_of(side, resized)) == resized


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resize": "squish"}, "preprocessing: resize: expected one of 'stretch', .* found 'squish'"),
        ({"crop_fraction": "0.9"}, "preprocessing: crop_fraction: expected float, found '0.9'"),
        ({"interpolation": 3}, "preprocessing: interpolation: expected one of 'nearest', .* found 3"),
        ({"crop_pct": 0.9}, "preprocessing: unknown key 'crop_pct'"),
        ({"border": [0, 0]}, "preprocessing: border: expected"),
        ({"crop_fraction": 0.0}, "preprocessing: crop_fraction must be"),  # of the right type
    ],
)
def test_what_a_card_cannot_mean_is_named_with_its_file(changes: dict[str, Any], message: str) -> None:
    described = describe(create_model("ViT-8x1x1/2", 2, 8))
    described |= {"preprocessing": {"image_size": [8, 8], **changes}}
    with pytest.raises(VitkitError, match=rf"^x/model\.json: {message}"):
        read_description(described, Path("x/model.json"))


def test_fields_that_a_way_of_resizing_does_not_look_at_make_no_difference() -> None:
    rule = Preprocessing((8, 8))
    assert not changed_pixels(rule, replace(rule, crop_fraction=0.5, crop_offset="down", border=(1, 2, 3)))
    shortest = replace(rule, resize="shortest")
    nine = replace(shortest, crop_fraction=8 / 9.5, border=(1, 2, 3))  # 9 pixels, too
    assert not changed_pixels(shortest, nine)
    assert changed_pixels(shortest, replace(shortest, crop_offset="down", interpolation="bicubic")) == [
        "preprocessing's interpolation: 'bilinear' becomes 'bicubic'",
        "preprocessing's crop_offset: 'even' becomes 'down'",
    ]
    assert changed_pixels(
        replace(shortest, crop_fraction=2.0), replace(shortest, crop_fraction=2.0, border=(9, 9, 9))
    )

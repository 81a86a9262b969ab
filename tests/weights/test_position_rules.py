"""Positions of other sizes are resized by the rule of the library that the weights come from."""

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.fixture_files import FOLDER
from tests.helpers.random_models import random_model
from tests.helpers.timm_files import config_json, folder_of, state
from tests.pixel_cases import ALLOWED, CASES, SHAPES, PixelCase, image, preprocessing_of_case, sample
from vitkit import load_model
from vitkit.data.config import Preprocessing
from vitkit.data.transforms import preprocess
from vitkit.jobs.convert import convert
from vitkit.models.config import INTERPOLATIONS, Interpolation, ViTConfig
from vitkit.models.position import resize_position_embedding
from vitkit.models.vit import ViT
from vitkit.weights.format_names import Format, LoadOptions
from vitkit.weights.loading import load, save_model
from vitkit.weights.model_card import ModelCard, changed_pixels, fraction_of, preprocessing_of

PLAIN = ViTConfig((16, 16), (4, 4), width=128, depth=1, num_heads=2, mlp_dim=44, num_classes=5, gelu="erf")
RULES: dict[Format, Interpolation] = {
    "official": "original",
    "big_vision": "original",
    "timm": "timm",
    "huggingface": "huggingface",
    "torchvision": "torchvision",
}
PATCHES = "positions.0.embedding"


def written(folder: Path, to: Format, config: ViTConfig = PLAIN) -> Path:
    return save_model(random_model(config), folder / "model", to)


@pytest.mark.parametrize("format", RULES)
def test_each_format_is_resized_by_its_librarys_rule(format: Format, tmp_path: Path) -> None:
    rule, path = RULES[format], written(tmp_path, format)
    native = load(path, LoadOptions(num_heads=2, image_size=16)).model
    loaded = load(path, LoadOptions(num_heads=2, image_size=(24, 12)))
    prefix = native.config.prefix_positions
    expected = resize_position_embedding(
        native.state_dict()[PATCHES], (6, 3), prefix_tokens=prefix, old_grid=(4, 4), interpolation=rule
    )
    assert torch.equal(loaded.model.state_dict()[PATCHES], expected)
    assert loaded.model.card.position_interpolation == native.card.position_interpolation == rule
    said = [note for note in loaded.notes if "positions" in note or "position embeddings" in note]
    assert [f"a grid of 4x4 to 6x3 by {INTERPOLATIONS[rule]}" in note for note in said] == [True]


def test_flexivits_positions_have_a_rule_of_their_own(tmp_path: Path) -> None:
    """The numbers of the families, at other sizes, say the rule of the others in timm's layout."""
    path = folder_of(tmp_path, state(), config_json("flexivit_small"))
    assert load(path).identity.card.position_interpolation == "flexivit"


def test_another_rule_is_given_by_name_and_travels_with_the_weights(tmp_path: Path) -> None:
    path = written(tmp_path, "timm")
    model = load_model(path, image_size=24, position_interpolation="dinov2")
    native = load_model(path)
    expected = resize_position_embedding(
        native.state_dict()[PATCHES], (6, 6), prefix_tokens=1, old_grid=(4, 4), interpolation="dinov2"
    )
    assert torch.equal(model.state_dict()[PATCHES], expected)
    save_model(model, tmp_path / "ours")
    recorded = json.loads((tmp_path / "ours" / "model.json").read_text())
    assert recorded["position_interpolation"] == "dinov2"
    again = load(tmp_path / "ours", LoadOptions(image_size=16))
    assert again.model.card.position_interpolation == "dinov2"
    assert any(f"by {INTERPOLATIONS['dinov2']}" in note for note in again.notes)


def test_images_of_any_size_are_placed_by_the_rule_of_the_weights() -> None:
    model, images = random_model(PLAIN), torch.randn(2, 3, 20, 28)
    assert isinstance(model, ViT)
    rules: tuple[Interpolation, ...] = ("original", "timm")
    features = []
    for rule in rules:
        model.card = ModelCard(position_interpolation=rule)
        with torch.no_grad():
            features.append(model.features(images, any_size=True))
        resized = resize_position_embedding(
            model.state_dict()[PATCHES], (5, 7), prefix_tokens=1, old_grid=PLAIN.grid, interpolation=rule
        )
        other = random_model(replace(PLAIN, image_size=(20, 28)))
        other.load_state_dict({**model.state_dict(), PATCHES: resized})
        with torch.no_grad():
            torch.testing.assert_close(features[-1], other.features(images))
    assert (features[0] - features[1]).abs().max() > 1e-3


def test_a_conversion_says_that_another_library_resizes_by_another_rule(tmp_path: Path) -> None:
    def lost(source: Path, name: str, to: Format, **options: Any) -> list[str]:
        converted = convert(source, tmp_path / name, to=to, **options)
        return [phrase for phrase in converted.lost if "resizing positions" in phrase]

    timms = written(tmp_path, "timm")
    assert lost(timms, "ours", "vitkit") == [] == lost(tmp_path / "ours", "theirs", "timm")
    ours, theirs = INTERPOLATIONS["timm"], INTERPOLATIONS["huggingface"]
    assert lost(tmp_path / "ours", "hf", "huggingface") == [
        f"{ours} of resizing positions (read back: {theirs})"
    ]
    fixed = written(tmp_path / "fixed", "big_vision", replace(PLAIN, position="sincos_2d", pool="mean"))
    assert lost(fixed, "fixed_ours", "vitkit", image_size=16, num_heads=2) == []
    model = load_model(tmp_path / "fixed_ours")
    model.card = replace(model.card, position_interpolation="timm")
    assert lost(save_model(model, tmp_path / "named"), "big", "big_vision") == []  # nothing is resized


# Pixels as timm, transformers and torchvision make them, within one level


@cache
def fixture() -> dict[str, NDArray[np.uint8]]:
    with np.load(FOLDER / "o_pixels.npz") as arrays:
        return dict(arrays)


cached_image = cache(image)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pixels_are_those_of_the_library(case: PixelCase) -> None:
    preprocessing = preprocessing_of_case(case)
    for shape in SHAPES:
        expected = fixture()[f"{case.name}: {shape[0]}x{shape[1]}"].astype(int)
        pixels = sample(preprocess(cached_image(shape), preprocessing))
        assert np.abs(pixels - expected).max() <= ALLOWED, shape


DOWN = Preprocessing((35, 35), crop_offset="down")


def there_and_back(format: Format, rule: Preprocessing, folder: Path) -> Preprocessing:
    """Write a rule in a format, and read it again."""
    side = rule.image_size[0]
    model = random_model(replace(PLAIN, image_size=rule.image_size, patch_size=(side // 7, side // 7)))
    model.card = ModelCard(preprocessing=rule)
    return preprocessing_of(load_model(save_model(model, folder / "theirs", format)))


@pytest.mark.parametrize(
    ("format", "rule"),
    [
        ("huggingface", Preprocessing((35, 35))),
        ("huggingface", Preprocessing((35, 35), interpolation="bicubic")),
        ("huggingface", replace(DOWN, resize="shortest", crop_fraction=0.875)),
        ("huggingface", replace(DOWN, resize="shortest", crop_fraction=35 / 33, interpolation="lanczos")),
        ("huggingface", replace(DOWN, resize="squash", crop_fraction=35 / 38, interpolation="nearest")),
        ("huggingface", replace(DOWN, resize="none")),
        ("timm", Preprocessing((224, 224), interpolation="bicubic")),
        ("timm", Preprocessing((224, 224), "shortest", 0.8777, interpolation="lanczos")),
        ("timm", Preprocessing((224, 224), "shortest", 1.2)),
        ("timm", Preprocessing((224, 224), "squash", 0.95, interpolation="nearest")),
        ("timm", Preprocessing((224, 224), "longest", 0.9, interpolation="bicubic", border=(128, 128, 128))),
    ],
)
def test_preprocessing_survives_the_way_there_and_back(
    format: Format, rule: Preprocessing, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    again = there_and_back(format, rule, tmp_path)
    assert not changed_pixels(rule, again) and not caplog.text


@pytest.mark.parametrize(
    ("format", "rule"),
    [
        ("huggingface", Preprocessing((35, 35), "crop", antialias=False)),
        ("huggingface", Preprocessing((35, 35), "shortest")),
        ("huggingface", Preprocessing((35, 35), "longest", 1.0, border=(9, 9, 9))),
        *(("timm", Preprocessing((224, 224), "crop", size, antialias=False)) for size in (0.875, 1.0, 0.77)),
    ],
)
def test_preprocessing_that_a_format_cannot_say_is_said_to_be_lost(
    format: Format, rule: Preprocessing, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    again = there_and_back(format, rule, tmp_path)
    lost = changed_pixels(rule, again)
    assert lost and all(change in caplog.text for change in lost)
    if format == "timm":  # its nearest
        assert (again.resize, again.resized(0)) == ("shortest", round(224 / rule.crop_fraction))


def test_a_fraction_gives_its_side_back() -> None:
    for side in (1, 7, 224, 242, 256, 384, 518):
        for resized in range(1, 1500):
            assert math.floor(side / fraction_of(side, resized)) == resized


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

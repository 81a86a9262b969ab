"""The image processors of Hugging Face: the same pixels, or a note that says what differs."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.huggingface_files import PROCESSOR, bit, vit_folder
from tests.helpers.tiny_models import TINY
from tests.pixel_cases import source
from vitkit import load_model
from vitkit.data.config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.models.zoo import ModelConfig
from vitkit.weights.formats.huggingface.settings import read_pixels, read_rule
from vitkit.weights.model_card import card_of, preprocessing_of


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}, "standard"),
        ({"rescale_factor": 1 / 127.5, "image_mean": [1, 1, 1], "image_std": [1, 1, 1]}, "other factor"),
        ({"do_normalize": False}, "no normalisation"),
        ({"do_rescale": False, "image_mean": [100, 110, 120], "image_std": [50, 60, 70]}, "no rescaling"),
    ],
)
def test_bytes_become_the_numbers_their_processor_makes(
    changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    processor = PROCESSOR | changes
    model = load_model(vit_folder(tmp_path / "theirs", processor=processor))
    pixels = torch.randint(256, (2, 3, 8, 12), dtype=torch.uint8)
    numbers = pixels.double()
    if processor.get("do_rescale", True):
        numbers *= processor.get("rescale_factor", 1 / 255)
    if processor["do_normalize"]:
        mean, std = (torch.tensor(processor[key]).view(-1, 1, 1) for key in ("image_mean", "image_std"))
        numbers = (numbers - mean) / std
    torch.testing.assert_close(model.normalize(pixels).double(), numbers, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_mean": [0.1, 0.2]}, "images of 3 channels"),
        ({"resample": -1}, r"resample: expected one of 0 \(nearest\).*found"),
        ({"resample": 6}, r"resample: expected one of 0 \(nearest\).*found"),
        ({"rescale_factor": 0}, "preprocessor_config.json: rescale_factor is above 0"),
        ({"rescale_factor": -1}, "preprocessor_config.json: rescale_factor is above 0"),
        ({"rescale_factor": "x"}, "preprocessor_config.json: rescale_factor"),
        ({"image_std": [0.5, 0, 0.5]}, "image_std is a number above 0"),
        ({"image_std": -0.5}, "image_std is a number above 0"),
        ({"image_mean": float("nan")}, "preprocessor_config.json: image_mean"),
        ({"rescale_factor": 1e-320}, "image_mean: expected a finite number"),
        ({"size": 0}, "preprocessor_config.json: size: a side"),
        ({"size": {"shortest_edge": 0}}, "preprocessor_config.json: size: a side"),
        ({"size": {"height": "8", "width": 12}}, "preprocessor_config.json: size: a side"),
        ({"size": {"height": [8], "width": 12}}, "preprocessor_config.json: size: a side"),
        ({"size": {"shortest_edge": True}}, "preprocessor_config.json: size: a side"),
        ({"size": {"shortest_edge": 10**30}}, "preprocessor_config.json: size: a side"),
        ({"crop_size": -8, "do_center_crop": True}, "preprocessor_config.json: crop_size: a side"),
        ({"crop_size": {"height": 8, "width": "x"}, "do_center_crop": True}, "crop_size: a side"),
    ],
)
def test_pixels_that_no_image_has_are_refused_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(VitkitError, match=message):
        load_model(vit_folder(tmp_path / "theirs", processor=PROCESSOR | changes))


@pytest.mark.parametrize("config", [TINY, bit()], ids=["vit", "resnet"])
def test_no_configuration_has_them(config: ModelConfig) -> None:
    changes: list[dict[str, Any]] = [
        {"image_std": (0.5, 0.0, 0.5)},
        {"image_std": (0.5, float("inf"), 0.5)},
        {"image_mean": (0.5, float("nan"), 0.5)},
        {"image_size": (2**20 + 32, 32)},
        {"in_channels": 2**21},
    ]
    for change in changes:
        with pytest.raises(VitkitError, match=next(iter(change))):
            dataclasses.replace(config, **change)


CROP = {"do_center_crop": True, "crop_size": {"height": 8, "width": 8}}


STRETCHED = Preprocessing((8, 12))
SIZED = {"height": 10, "width": 11}
CUT = Preprocessing((8, 8), "shortest", 0.8, crop_offset="down")
SQUASHED = dataclasses.replace(CUT, resize="squash")


@pytest.mark.parametrize(
    ("changes", "rule", "warning"),
    [
        ({}, STRETCHED, ""),
        ({"size": [8, 12]}, None, "size"),
        ({"size": 8}, STRETCHED, "images of 8x8 (here: 8x12)"),
        ({"resample": 3}, dataclasses.replace(STRETCHED, interpolation="bicubic"), ""),
        ({"size": {"shortest_edge": 8}}, STRETCHED, "proportions"),
        ({"size": {"shortest_edge": 10}, **CROP}, CUT, ""),
        ({"size": 10, "do_center_crop": True, "crop_size": 8}, SQUASHED, ""),
        ({"size": 10, "image_processor_type": "BitImageProcessorFast", **CROP}, CUT, ""),
        ({"size": {"height": 10, "width": 10}, **CROP}, SQUASHED, ""),
        ({"size": SIZED, **CROP}, SQUASHED, "resized to 10x11"),
        ({"size": {"shortest_edge": 6}, **CROP}, dataclasses.replace(CUT, crop_fraction=8 / 6), ""),
        ({"do_resize": False, **CROP}, dataclasses.replace(CUT, resize="none", crop_fraction=0.875), ""),
        ({"image_processor_type": "BeitImageProcessor"}, STRETCHED, "the processor of Beit"),
    ],
)
def test_preparation_is_put_in_our_words_and_differences_are_said(
    changes: dict[str, Any], rule: Preprocessing | None, warning: str
) -> None:
    files = source({"preprocessor_config.json": PROCESSOR | changes})
    if rule is None:
        with pytest.raises(VitkitError, match=warning):
            read_pixels(files, 3)
        return
    assert read_rule(files, read_pixels(files, 3)[0], rule.image_size) == rule
    assert (warning in files.notes[0]) if warning else not files.notes


def test_without_a_processor_the_usual_pixels_are_taken_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = load_model(vit_folder(tmp_path / "theirs", processor=None))
    assert model.config.image_mean == model.config.image_std == (0.5, 0.5, 0.5)
    assert preprocessing_of(model) == STRETCHED
    assert [assumption.what for assumption in card_of(model).assumed] == ["pixel statistics", "resizing"]
    assert "assumed: pixel mean 0.5 and std 0.5" in caplog.text and "assumed: images stretched" in caplog.text
    caplog.clear()
    processor = {key: value for key, value in PROCESSOR.items() if key != "image_mean"}
    model = load_model(vit_folder(tmp_path / "without", processor=processor))
    assert [assumption.what for assumption in card_of(model).assumed] == ["pixel statistics"]
    assert "assumed: pixel mean 0.5" in caplog.text

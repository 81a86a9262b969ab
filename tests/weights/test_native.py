"""The card in `model.json`: what earlier versions wrote means what it meant."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.tiny_models import TINY, model_with_random_head
from vitkit import load_model
from vitkit.config import to_json
from vitkit.data.config import Augmentation, DecodeRule, Preprocessing, Splits
from vitkit.errors import VitkitError
from vitkit.weights import save_model
from vitkit.weights.assumptions import Assumption
from vitkit.weights.description import describe, read_description
from vitkit.weights.files.safetensors import safetensors_chunks
from vitkit.weights.model_card import ModelCard, Task, TrainingData, card_of, preprocessing_of

VERSION_1 = """{
  "name": "ViT-64x4x4/4",
  "class_names": ["a", "b", "c", "d", "e"],
  "preprocessing": {
    "image_size": [12, 16], "resize": "shortest", "crop_fraction": 0.9, "antialias": true,
    "decode": {"apply_exif": false, "background": [0, 1, 2], "max_pixels": 64000000},
    "interpolation": "bicubic", "crop_offset": "down", "border": [0, 0, 0]
  },
  "augmentation": {
    "crop_area": [0.8, 1.0], "crop_aspect": [0.8, 1.25], "flip": false, "shift": 0, "rotate": 12.0
  },
  "origin": {
    "recipe": "digits",
    "loss": "sigmoid",
    "data": {
      "spec": "digits", "name": "digits",
      "splits": {"val_fraction": 0.05, "test_fraction": 0.2, "seed": 0},
      "fingerprint": "aac9e6f6"
    },
    "weights": "Polyak average of the last step, 20", "vitkit": "0.1.0", "torch": "2.13.0+cpu"
  },
  "assumed": [{"what": "resizing", "taken": "stretched, as most do"}]
}"""
"""What version 1 of the format wrote beside the architecture, for a model that was trained."""

CARD = ModelCard(
    "ViT-64x4x4/4",
    ("a", "b", "c", "d", "e"),
    Task("classification", "sigmoid"),
    Preprocessing(
        (12, 16),
        "shortest",
        0.9,
        decode=DecodeRule(apply_exif=False, background=(0, 1, 2)),
        interpolation="bicubic",
        crop_offset="down",
    ),
    Augmentation((0.8, 1.0), (0.8, 1.25), flip=False, rotate=12.0),
    TrainingData("digits", "digits", Splits(0.05, 0.2, 0), "aac9e6f6"),
    {
        "recipe": "digits",
        "weights": "Polyak average of the last step, 20",
        "vitkit": "0.1.0",
        "torch": "2.13.0+cpu",
    },
    (Assumption("resizing", "stretched, as most do"),),
)


def version_1(**changes: Any) -> dict[str, Any]:
    """A whole `model.json` of version 1."""
    model = model_with_random_head(TINY)
    head = {"format": "vitkit-model", "format_version": 1, "vitkit_version": "0.1.0", "family": "ViT"}
    return {**head, "architecture": to_json(model.config), **json.loads(VERSION_1), **changes}


def card_in(described: dict[str, Any]) -> ModelCard:
    return read_description(described, Path("x/model.json"))[1]


def test_a_card_of_version_1_is_read_and_kept_in_version_2(tmp_path: Path) -> None:
    assert card_in(version_1()) == CARD
    model = model_with_random_head(TINY)
    save_model(model, tmp_path)
    (tmp_path / "model.json").write_text(json.dumps(version_1()))
    loaded = load_model(tmp_path)
    assert card_of(loaded) == CARD
    described = describe(loaded)
    assert described["format_version"] == 2 and card_in(json.loads(json.dumps(described))) == CARD


def test_a_history_is_what_version_1_called_the_origin() -> None:
    assert json.dumps(CARD.history()) == json.dumps(json.loads(VERSION_1)["origin"])


@pytest.mark.parametrize("origin", [{}, {"run": "r"}, {"run": "r", "data": {}}, {"run": "r", "data": None}])
def test_what_version_1_did_not_record_is_absent(origin: dict[str, Any], tmp_path: Path) -> None:
    card = card_in(version_1(preprocessing={}, augmentation={}, origin=origin, assumed=[]))
    assert (card.preprocessing, card.augmentation, card.task, card.data) == (None, None, None, None)
    assert card.loss == "softmax" and card.origin == ({"run": "r"} if origin else {})
    model = model_with_random_head(TINY)
    model.card = card
    assert preprocessing_of(model) == Preprocessing((12, 16), antialias=False)


def test_version_1_left_out_what_was_usual() -> None:
    """Converted models kept the fields that were not usual, hand-made ones sometimes not even the size."""
    few: dict[str, Any] = {"resize": "crop"}
    assert card_in(version_1(preprocessing=few)).preprocessing == Preprocessing((12, 16), "crop")
    few = {"image_size": [6, 8], "resize": "stretch", "antialias": False}
    assert card_in(version_1(preprocessing=few)).preprocessing == Preprocessing((6, 8), antialias=False)


def test_a_data_record_of_version_1_may_hold_more() -> None:
    origin = json.loads(VERSION_1)["origin"]
    origin["data"] |= {"new": 3}
    del origin["data"]["name"]
    assert card_in(version_1(origin=origin)).data == TrainingData(
        "digits", "", Splits(0.05, 0.2, 0), "aac9e6f6"
    )


@pytest.mark.parametrize("wrong", ["hinge", None, ["sigmoid"], {}])
def test_a_loss_that_version_1_did_not_know_is_refused(wrong: object) -> None:
    with pytest.raises(VitkitError, match=r"^x/model\.json: origin: loss: expected 'softmax' or 'sigmoid'"):
        card_in(version_1(origin={"loss": wrong}))


@pytest.mark.parametrize("wrong", ["hinge", None, ["sigmoid"], {}])
def test_a_loss_that_is_not_known_is_refused(wrong: object) -> None:
    described = describe(model_with_random_head(TINY)) | {"task": {"name": "classification", "loss": wrong}}
    with pytest.raises(VitkitError, match=r"^x/model\.json: task: loss: expected one of 'softmax'"):
        card_in(described)


def test_a_model_without_a_card_is_described(tmp_path: Path) -> None:
    model = model_with_random_head(TINY)
    assert card_of(model) == ModelCard() == card_of(load_model(save_model(model, tmp_path)))


def test_parameters_of_the_first_files_are_read_by_the_names_of_today(tmp_path: Path) -> None:
    """They have `attention_pool.*` for `pooling.*`, and no checksum."""
    model = model_with_random_head(replace(TINY, pool="map"))
    folder = save_model(model, tmp_path)
    described = json.loads((folder / "model.json").read_text())
    del described["weights"]
    (folder / "model.json").write_text(json.dumps(described))
    tensors = {key.replace("pooling.", "attention_pool."): value for key, value in model.state_dict().items()}
    assert tensors.keys() != model.state_dict().keys()
    (folder / "model.safetensors").write_bytes(b"".join(safetensors_chunks(tensors)))
    loaded = load_model(folder).state_dict()
    assert all(torch.equal(loaded[key], value) for key, value in model.state_dict().items())

"""The card in `model.json`: it is read as it was written, or refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.tiny_models import TINY, model_with_random_head
from vitkit import load_model
from vitkit.data.config import Augmentation, DecodeRule, Preprocessing, Splits
from vitkit.errors import VitkitError
from vitkit.weights.loading import save_model
from vitkit.weights.model_card import (
    Assumption,
    ModelCard,
    Task,
    TrainingData,
    card_of,
    describe,
    read_description,
)

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


def card_in(described: dict[str, Any]) -> ModelCard:
    return read_description(described, Path("x/model.json"))[1]


def test_a_card_is_read_as_it_was_written(tmp_path: Path) -> None:
    model = model_with_random_head(TINY)
    model.card = CARD
    assert card_in(json.loads(json.dumps(describe(model)))) == CARD
    assert card_of(load_model(save_model(model, tmp_path))) == CARD


def test_a_history_is_the_origin_with_the_loss_and_the_data() -> None:
    splits = {"val_fraction": 0.05, "test_fraction": 0.2, "seed": 0}
    data = {"spec": "digits", "name": "digits", "splits": splits, "fingerprint": "aac9e6f6"}
    assert CARD.history() == {"loss": "sigmoid", "data": data, **CARD.origin}


@pytest.mark.parametrize("key", ["family", "architecture", "format_version"])
def test_a_description_without_a_part_is_refused(key: str) -> None:
    described = {name: value for name, value in describe(model_with_random_head(TINY)).items() if name != key}
    with pytest.raises(VitkitError, match=r"^x/model\.json"):
        card_in(described)


@pytest.mark.parametrize("wrong", ["hinge", None, ["sigmoid"], {}])
def test_a_loss_that_is_not_known_is_refused(wrong: object) -> None:
    described = describe(model_with_random_head(TINY)) | {"task": {"name": "classification", "loss": wrong}}
    with pytest.raises(VitkitError, match=r"^x/model\.json: task: loss: expected one of 'softmax'"):
        card_in(described)


def test_a_model_without_a_card_is_described(tmp_path: Path) -> None:
    model = model_with_random_head(TINY)
    assert card_of(model) == ModelCard() == card_of(load_model(save_model(model, tmp_path)))

"""The number of images of a model's pre-training, by its card or the table of published checkpoints."""

from pathlib import Path

import pytest

from vitkit.weights.model_card import ModelCard
from vitkit.weights.pretraining import SETS, pretraining_images
from vitkit.weights.published import starts


@pytest.mark.parametrize(
    ("origin", "images"),
    [
        ({}, None),
        ({"recipe": "digits"}, None),  # a card of an early version
        ({"training_images": 1437}, 1437),
        ({"start": {"from": "/somewhere", "training_images": 1437}}, 1437),
        ({"start": {"from": "/one", "start": {"from": "/two", "training_images": 50}}}, 50),
        ({"start": {"from": "vit-b16-in21k"}}, 14_000_000),
        ({"start": {"from": "/somewhere"}}, None),
        ({"start": "damaged", "training_images": "many"}, None),
    ],
)
def test_a_card_leads_back_to_the_first_training(origin: dict[str, object], images: int | None) -> None:
    assert pretraining_images("run", ModelCard(origin=origin)) == images


def test_published_checkpoints_are_known_by_name_and_by_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for start in starts():
        expected = SETS.get(start.data.split(",")[0])
        assert pretraining_images(start.name, ModelCard()) == expected
        assert all(pretraining_images(address, ModelCard()) == expected for address in start.addresses)
    assert {SETS.get(start.data.split(",")[0]) for start in starts()} == {1_281_167, 14_000_000, None}

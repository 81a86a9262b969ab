"""Images that are in training and test: counted, and the accuracy given with and without them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitkit
from tests.jobs.hearing import Hearing


def draw(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Hearing]:
    """A run on data whose test split holds six training images among 16."""
    root, heard = tmp_path_factory.mktemp("repeats"), Hearing()
    for number, label in enumerate("ab"):
        for i in range(20):
            draw(root / "data" / "train" / label / f"{i}.png", i + 1000 * number)
        for i in range(8):
            draw(root / "data" / "test" / label / f"{i}.png", (i if i < 3 else 500 + i) + 1000 * number)
    options: dict[str, Any] = {"model": "ViT-8x1x2/4", "image_size": 8, "steps": 2, "batch_size": 8}
    return vitkit.train(root / "data", root / "run", **options, listener=heard), heard


def test_accuracy_is_given_with_and_without_them(trained: tuple[Path, Hearing]) -> None:
    folder, heard = trained
    recorded = json.loads((folder / "evaluation" / "test.json").read_text())
    again = vitkit.evaluate(folder)
    repeated = np.isin(again.predictions.ids, [0, 1, 2, 8, 9, 10])
    right = again.predictions.predicted == again.predictions.labels
    assert recorded["repeated"]["count"] == 6 == again.result.repeated.count
    assert recorded["repeated"]["accuracy_without"] == right[~repeated].mean()
    assert again.result == replace(again.result, accuracy=right.mean())
    sentence = "6 images of test are in train too, pixel for pixel"
    assert any(sentence in warning for warning in heard.warnings)
    assert "6 images are training images too: without them" in str(heard.rows)
    assert "6 of these images are training images too" in (folder / "report.html").read_text()
    assert json.loads((folder / "evaluation" / "val.json").read_text())["repeated"]["count"] == 0
    (line,) = dict(heard.rows)["weights"]  # the screen says once that weights are weights
    assert line.startswith("of ") and line.endswith(str(folder / "model.safetensors"))


def test_training_images_are_found_among_other_data(trained: tuple[Path, Hearing], tmp_path: Path) -> None:
    folder, _ = trained
    for label in "ab":
        for i in range(5):  # of each class two were trained on
            draw(tmp_path / "train" / label / f"{i}.png", (i if i < 2 else 700 + i) + 1000 * (label == "b"))
    heard = Hearing()
    evaluation = vitkit.evaluate(folder, data=str(tmp_path / "train"), listener=heard)
    assert evaluation.result.count == 10 and evaluation.result.repeated.count == 4
    sentence = "4 images of train are in the training images of data too, pixel for pixel"
    assert any(sentence in warning for warning in heard.warnings)
    for label in "ab":
        (tmp_path / "train" / label / ("1.png" if label == "a" else "0.png")).unlink()
        (tmp_path / "train" / label / "0.png").unlink(missing_ok=label == "b")
    evaluation = vitkit.evaluate(folder, data=str(tmp_path / "train"))
    assert "; 1 image is a training image too: without it " in evaluation.result.sentence("images")


def test_it_is_said_where_the_training_images_are_gone(trained: tuple[Path, Hearing], tmp_path: Path) -> None:
    folder, _ = trained
    for label in "ab":
        draw(tmp_path / "other" / label / "0.png", 2000 + (label == "b"))
    moved, heard = folder.parent / "data", Hearing()
    moved.rename(folder.parent / "elsewhere")
    try:
        evaluation = vitkit.evaluate(folder, data=str(tmp_path / "other"), listener=heard)
    finally:
        (folder.parent / "elsewhere").rename(moved)
    assert evaluation.result.repeated is None
    assert any("training images are not where they were" in note for note in heard.notes)

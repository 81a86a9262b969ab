"""The examples run as they stand; that of the Trainer runs in the environment of `scripts/test-peers`."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import vitkit
from tests.helpers.photos import picture
from tests.helpers.refusals import refused, undecodable
from tests.peers import trainer
from vitkit.data.config import Splits
from vitkit.data.sources import open_data

EXAMPLES = Path(__file__).parents[1] / "examples"
ELSEWHERE = {"huggingface_trainer.py", "ray_serve.py", "triton_repository.py"}
"""Examples that need libraries which are no part of an installation for development, or a bundle:
`tests/jobs/serving/test_elsewhere.py` runs the last two."""
HERE = {"own_loop.py": "accuracy", "feature_maps.py": "logits (2, 5, 64, 64)"}


def printed(name: str, *arguments: str) -> str:
    """Run an example, and return what it prints."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("name", HERE)
def test_an_example_runs(name: str) -> None:
    text = printed(name)
    assert HERE[name] in text
    accuracy = re.search(r"accuracy ([0-9.]+)", text)
    assert accuracy is None or float(accuracy[1]) > 0.5  # a tenth would be chance


def test_a_loop_of_ones_own_takes_any_classes_and_sizes(tmp_path: Path) -> None:
    for name, colour in (("red fruit", (200, 60, 60)), ("sea", (60, 90, 220)), ("wood", (90, 160, 60))):
        (tmp_path / name).mkdir()
        for number in range(12):
            picture(colour, number).save(tmp_path / name / f"{number}.png")
    text = printed("own_loop.py", str(tmp_path), "4", "16")
    assert re.search(r"accuracy [01]\.\d+ on \d images\n", text)
    assert any(f"name='{name}'" in text for name in ("red fruit", "sea", "wood"))


def test_every_example_is_run_somewhere() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == ELSEWHERE | {*HERE}
    peers = (EXAMPLES.parent / "scripts" / "test-peers").read_text()
    assert "-m tests.peers.trainer" in peers and trainer.EXAMPLE == EXAMPLES / "huggingface_trainer.py"


def test_a_data_set_holds_what_vitkit_trains_on() -> None:
    expected = open_data("digits").splits["test"]
    dataset = vitkit.ImageDataset("digits", "test", size=8)
    assert len(dataset) == len(expected) and dataset.class_names == tuple("0123456789")
    image, label = dataset[3]
    assert image.dtype == torch.uint8 and image.shape == (3, 8, 8)
    assert np.array_equal(image.permute(1, 2, 0).numpy(), expected.decode(3))
    assert int(label) == expected.labels[3] and torch.equal(dataset[-1][0], dataset[len(dataset) - 1][0])
    with pytest.raises(IndexError):
        dataset[len(dataset)]


def test_a_data_set_asks_the_model_for_size_and_channels() -> None:
    model = vitkit.create_model("ViT-16x1x2/4", num_classes=10, image_size=(12, 8), in_chans=1)
    dataset = vitkit.ImageDataset("digits", model=model, transform=lambda image: image.float().mean())
    assert dataset.preprocessing.image_size == (12, 8) and dataset[0][0].ndim == 0
    dataset.transform = None
    assert dataset[0][0].shape == (1, 12, 8)


def test_what_a_data_set_cannot_give_is_said(tmp_path: Path) -> None:
    said, none = r"digits has no split 'val', only train, test", Splits(val_fraction=0.0)
    refused(said, vitkit.ImageDataset, "digits", "val", splits=none)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(4):
            (tmp_path / name / f"{number}.png").write_bytes(b"no image")
    dataset = vitkit.ImageDataset(str(tmp_path), splits=Splits(val_fraction=0.0, test_fraction=0.0))
    undecodable(r"a/0\.png: ", dataset.__getitem__, 0)

"""`vitkit finetune` and `vitkit train --start`, as people call them."""

import json
from pathlib import Path

import pytest

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.photos import image_folder
from vitkit.cli.main import run
from vitkit.runs.config import StartConfig
from vitkit.runs.folder import kind_of
from vitkit.weights.model_card import card_of

SMALL = ["--batch-size", "16", "--steps", "20", "--evaluate-every", "10", "--threads", "1"]


pytestmark = pytest.mark.usefixtures("without_report")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, without_report: None) -> Path:
    """A run on the digits, whose images are 8x8 and cut out of the middle."""
    folder = tmp_path_factory.mktemp("cli") / "start"
    options = ["--data", "digits", "--model", "ViT-16x2x2/2", "--image-size", "8", "--resize", "crop"]
    assert run(["train", *options, "--warmup-steps", "0", "--out", str(folder), *SMALL]) == 0
    return folder


def test_what_is_left_out_suits_the_start_and_the_data(tmp_path: Path, start: Path, cli: Cli) -> None:
    out, photos = tmp_path / "run", image_folder(tmp_path / "photos", 40)
    line = ["finetune", str(start), "--data", str(photos), "--out", str(out), "--threads", "1"]
    assert run(line) == 0
    made = kind_of(out).run()
    assert made.model == "ViT-16x2x2/2" and made.optimizer.warmup_steps == 10
    # 8x8 and cut out of the middle, as the start
    assert made.preprocessing == kind_of(start).run().preprocessing
    shorter = vitkit.finetune_run(str(start), str(photos), steps=30, batch_size=8)  # with its own warm-up
    assert (shorter.training.steps, shorter.optimizer.warmup_steps) == (30, 1)
    assert (made.optimizer.learning_rate, made.optimizer.head_rate) == (5e-4, 6)
    assert card_of(vitkit.load_model(out)).class_names == ("dark", "light")
    # The same command again finds that all is done; from Python the same run is made.
    assert "This run has finished" in cli(line).out
    assert vitkit.finetune(str(start), str(photos), out, threads=1) == out
    digest = json.loads((start / "model.json").read_text())["weights"]["sha256"]
    said = "".join(cli(["card", str(out)]).out.split())  # its lines break where the terminal ends
    assert digest in said and "startfrom" in said and "weightsofthelaststep" in said


def test_a_finished_run_is_trained_for_longer_as_a_new_one(tmp_path: Path, start: Path, cli: Cli) -> None:
    """With its own data, options and head."""
    out = tmp_path / "longer"
    line = ["train", "--start", str(start), "--steps", "5", "--out", str(out), "--threads", "1"]
    assert "head: kept" in cli(line).out
    made, before = kind_of(out).run(), kind_of(start).run()
    assert made.start == StartConfig(str(start), head="keep") and made.training.steps == 5
    assert (made.data, made.augmentation) == (before.data, before.augmentation)
    assert made.optimizer == before.optimizer


def test_with_a_recipe_a_finished_run_is_fine_tuned(tmp_path: Path, start: Path) -> None:
    out = tmp_path / "tuned"
    line = f"train --start {start} --recipe paper --data digits --image-size 16 --steps 2 --batch-size 8"
    assert run([*line.split(), "--out", str(out), "--threads", "1"]) == 0
    made = kind_of(out).run()
    assert (made.start, made.recipe) == (StartConfig(str(start)), "paper")


def test_mistakes_end_in_one_sentence(tmp_path: Path, start: Path, cli: Cli) -> None:
    (tmp_path / "notes").mkdir()
    photos = image_folder(tmp_path / "photos", 40)
    tune = f"finetune {start} --data {photos} --out {tmp_path / 'run'}"
    neither = "Expected images to train on or weights to begin from"
    for line, *parts in (
        ("finetune", "Which images?"),
        (f"finetune {tmp_path / 'notes'} --epochs 3", neither, "found neither at"),
        (f"finetune {tmp_path / 'nowhere'} --epochs 3", neither, "found no such path at"),
        ("finetune vit-b16-in22k --epochs 3", neither, "vit-b16-in21k"),
        (f"finetune {photos} --data {photos}", "No weights in"),
        (f"{tune} --freeze-layers 9", "--freeze-layers is from 0 to 2, found 9"),
        (f"{tune} --recipe digits", "The recipe digits trains a ViT-64x4x4x128/4"),
        (f"train --recipe finetune-cifar10 --data {photos}", "give them with --start"),
        (f"finetune {start}/model.safetensors --data {photos} --start-from best", "is no run folder"),
    ):
        said = cli(line.split(), 1).text
        assert all(part in said for part in parts), line
    assert not (tmp_path / "run").exists()

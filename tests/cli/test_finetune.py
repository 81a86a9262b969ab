"""`vitkit finetune` and `vitkit train --start`, as people call them."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitkit
from vitkit import load_model
from vitkit.cli.main import run
from vitkit.errors import VitkitError
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


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty small pictures of two classes, as a folder of class folders."""
    root = tmp_path_factory.mktemp("photos")
    draw = np.random.default_rng(0)
    for number in range(40):
        pixels = draw.integers(0, 128, (12, 10 + number % 4, 3)) + 120 * (number % 2)
        path = root / ("bright" if number % 2 else "dark") / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    return root


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that is refused; returns what it says."""
    assert run(arguments) == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return " ".join(said.split())


def test_what_is_left_out_suits_the_start_and_the_data(
    tmp_path: Path, start: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run(["finetune", str(start), "--data", str(photos), "--out", str(out), "--threads", "1"]) == 0
    made = kind_of(out).run()
    assert made.model == "ViT-16x2x2/2"
    assert (
        made.preprocessing == kind_of(start).run().preprocessing
    )  # 8x8 and cut out of the middle, as the start
    assert made.optimizer.warmup_steps == 10
    assert (made.optimizer.learning_rate, made.optimizer.head_rate) == (5e-4, 6)
    assert card_of(load_model(out)).class_names == ("bright", "dark")
    # The same command again finds that all is done; from Python the same run is made.
    assert run(["finetune", str(start), "--data", str(photos), "--out", str(out), "--threads", "1"]) == 0
    assert "This run has finished" in capsys.readouterr().out
    assert vitkit.finetune(str(start), str(photos), out, threads=1) == out


def test_another_length_has_its_own_warm_up(tmp_path: Path, start: Path, photos: Path) -> None:
    out = tmp_path / "run"
    options = ["--data", str(photos), "--steps", "30", "--batch-size", "8", "--threads", "1"]
    assert run(["finetune", str(start), *options, "--out", str(out)]) == 0
    made = kind_of(out).run()
    assert (made.training.steps, made.training.batch_size) == (30, 8)
    assert made.optimizer.warmup_steps == 1


def test_the_recipes_of_the_paper_can_be_changed_like_any(
    tmp_path: Path, start: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    options = ["--recipe", "paper", "--data", str(photos), "--image-size", "12", *SMALL]
    assert run(["finetune", str(start), *options, "--momentum-dtype", "bfloat16", "--out", str(out)]) == 0
    made = kind_of(out).run()
    assert made.optimizer.optimizer == "sgd" and made.optimizer.momentum_dtype == "bfloat16"
    assert (made.recipe, made.preprocessing.image_size) == ("paper", (12, 12))


def test_what_is_neither_weights_nor_images_is_told_so(
    tmp_path: Path, start: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes").mkdir()
    for given, hint in (
        (str(tmp_path / "notes"), "found neither at"),
        (str(tmp_path / "nowhere"), "found no such path at"),
        ("vit-b16-in22k", "vit-b16-in21k"),
    ):
        said = fails(["finetune", given, "--epochs", "3"], capsys)
        assert "Expected images to train on or weights to begin from" in said and hint in said
    assert "Which images?" in fails(["finetune", str(start), "--epochs", "3"], capsys)


def test_a_finished_run_is_trained_for_longer_as_a_new_one(
    tmp_path: Path, start: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its own data, options and head; also from its best checkpoint."""
    out = tmp_path / "longer"
    assert run(["train", "--start", str(start), "--steps", "5", "--out", str(out), "--threads", "1"]) == 0
    assert "head: kept" in capsys.readouterr().out
    made, before = kind_of(out).run(), kind_of(start).run()
    assert made.start == StartConfig(str(start), head="keep") and made.training.steps == 5
    assert (made.data, made.optimizer, made.augmentation) == (
        *(before.data, before.optimizer),
        before.augmentation,
    )
    options = ["--start", str(start), "--start-from", "best", "--steps", "5", "--threads", "1"]
    assert run(["train", *options, "--out", str(tmp_path / "best")]) == 0
    assert "(its best checkpoint, step " in " ".join(capsys.readouterr().out.split())


def test_with_a_recipe_a_finished_run_is_fine_tuned(tmp_path: Path, start: Path) -> None:
    out = tmp_path / "tuned"
    options = [
        "--recipe",
        "paper",
        "--data",
        "digits",
        "--image-size",
        "16",
        "--steps",
        "2",
        "--batch-size",
        "8",
    ]
    assert run(["train", "--start", str(start), *options, "--out", str(out), "--threads", "1"]) == 0
    made = kind_of(out).run()
    assert (made.start, made.recipe) == (StartConfig(str(start)), "paper")
    with pytest.raises(VitkitError, match=r"vitkit\.finetune"):
        vitkit.train(start=start, recipe="paper")


def test_the_card_and_the_report_say_where_it_came_from(
    tmp_path: Path, start: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run(["finetune", str(start), "--data", "digits", "--out", str(out), *SMALL]) == 0
    digest = json.loads((start / "model.json").read_text())["weights"]["sha256"]
    capsys.readouterr()
    assert run(["card", str(out)]) == 0
    said = capsys.readouterr().out
    assert digest in "".join(said.split()) and "start from" in said
    # A line of the card is broken where the terminal ends, which moves with the length of the folder's name.
    card = " ".join(said.split())
    assert "weights of step" in card and "weights weights" not in card
    assert run(["report", str(out)]) == 0
    assert digest in (out / "report.html").read_text()


def test_mistakes_end_in_one_sentence(
    tmp_path: Path, start: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = ["--data", str(photos)], ["--out", str(tmp_path / "run")]
    assert "Which images?" in fails(["finetune"], capsys)
    assert "No checkpoint at" in fails(["finetune", str(tmp_path / "nothing"), *data], capsys)
    assert "Which images?" in fails(["finetune", str(start)], capsys)
    said = fails(["finetune", str(start), *data, *out, "--model", "ViT-B/16"], capsys)
    assert "is a ViT-16x2x2/2" in said and "Leave --model out" in said
    said = fails(["finetune", str(start), *data, *out, "--head", "keep"], capsys)
    assert "only the images have bright, dark" in said
    said = fails(["finetune", str(start), *data, *out, "--image-size", "1"], capsys)
    assert "hold no patch of 2x2 pixels" in said
    said = fails(["finetune", str(start), *data, *out, "--freeze-layers", "9"], capsys)
    assert "--freeze-layers is from 0 to 2, found 9" in said
    said = fails(["finetune", str(photos), *data, *out], capsys)
    assert "No weights in" in said
    said = fails(["finetune", str(start), *data, *out, "--recipe", "digits"], capsys)
    assert "The recipe digits trains a ViT-64x4x4x128/4" in said
    said = fails(["train", "--recipe", "finetune-cifar10", *data, *out], capsys)
    assert "give them with --start" in said
    said = fails(["finetune", str(start / "model.safetensors"), *data, *out, "--start-from", "best"], capsys)
    assert "is no run folder" in said
    assert not (tmp_path / "run").exists()

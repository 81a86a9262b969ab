"""Runs that begin from runs: named alike, tested on the same images, whether they have ended or not."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import vitkit
from tests.helpers.photos import noise_images
from vitkit.cli.main import run
from vitkit.data.config import Splits
from vitkit.runs import start
from vitkit.runs.config import StartConfig
from vitkit.runs.folder import kind_of
from vitkit.training.checkpoint import read_progress

pytestmark = pytest.mark.usefixtures("without_report")
SHORT = ["--steps", "4", "--warmup-steps", "0", "--batch-size", "8", "--threads", "1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, without_report: None) -> Path:
    """A short run of the digits' recipe, whose options give the model another name."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert run(["train", "--recipe", "digits", "--out", str(folder), *SHORT]) == 0
    return folder


def name_in(folder: Path) -> str:
    return str(json.loads((folder / "model.json").read_text())["name"])


def unfinished(folder: Path, out: Path) -> Path:
    shutil.copytree(folder, out)
    (out / "model.json").unlink()  # killed between the two files of the model
    return out


def test_a_run_whose_options_changed_its_name_can_be_trained_for_longer(
    trained: Path, tmp_path: Path
) -> None:
    assert name_in(trained) == "ViT-64x4x4x128/4"
    assert run(["train", "--start", str(trained), "--out", str(tmp_path / "longer"), *SHORT]) == 0
    assert name_in(tmp_path / "longer") == name_in(trained)
    part = unfinished(trained, tmp_path / "part")
    assert run(["train", "--start", str(part), "--out", str(tmp_path / "again"), *SHORT]) == 0
    assert name_in(tmp_path / "again") == name_in(trained)


def test_the_best_checkpoint_of_a_run_has_its_name(trained: Path, tmp_path: Path) -> None:
    """Fine-tuned on the same images, it is tested on those of its start."""
    arguments = ["finetune", str(trained), "--start-from", "best", "--data", "digits"]
    assert run([*arguments, "--out", str(tmp_path / "best"), *SHORT]) == 0
    assert name_in(tmp_path / "best") == name_in(trained)
    assert kind_of(tmp_path / "best").run().splits == kind_of(trained).run().splits != Splits()


def test_a_best_checkpoint_that_was_set_aside_is_not_replaced_in_silence(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "read_progress", lambda path: replace(read_progress(path), best_step=2))
    arguments = ["finetune", str(trained), "--data", "digits", "--out", str(tmp_path / "tuned"), *SHORT]
    assert run([*arguments, "--start-from", "best"]) == 1
    assert "step-00000002 is not whole: it was removed" in capsys.readouterr().err
    assert run([*arguments, "--start-from", "last"]) == 0


def test_an_unfinished_run_is_described_without_its_weights(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(checkpoint: Path) -> None:
        raise AssertionError(f"{checkpoint} is read")

    part = unfinished(trained, tmp_path / "part")
    assert run(["card", str(part)]) == 0
    assert "ViT-64x4x4x128/4" in capsys.readouterr().out
    assert vitkit.fewshot(part, "digits", shots=(1,), seeds=1, cache=False).test_images > 0
    monkeypatch.setattr(start, "load_weights", read)
    assert start.find_start(StartConfig(str(part))).model == start.identify_any(part).card.name
    with pytest.raises(AssertionError, match="is read"):
        start.load_any(part)


def test_a_model_of_a_part_of_the_images_knows_which_ones(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, tuned, whole = tmp_path / "part", tmp_path / "tuned", kind_of(trained).run().splits
    arguments = ["train", "--recipe", "digits", "--subset", "0.1", "--out", str(out), *SHORT]
    assert run(arguments) == 0
    assert run(["[:10.0%]" if argument == "0.1" else argument for argument in arguments]) == 0  # the same run
    assert kind_of(out).run().splits == replace(whole, subset="[:10%]")
    part, images = (json.loads((folder / "data.json").read_text())["images"] for folder in (out, trained))
    assert part == images | {"train": round(images["train"] / 10)}
    assert vitkit.evaluate(out, split="train").result.count == part["train"]
    assert run(["finetune", str(out), "--data", "digits", "--out", str(tmp_path / "all"), *SHORT]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert f"{out} was trained on the part [:10%] of these training images" in said
    assert "--subset '[:10%]'" in said and kind_of(tmp_path / "all").run().splits == whole
    # Fine-tuned on more of the same images, it is tested on the same ones.
    assert run(["finetune", str(out), "--data", "digits", "--subset=.5", "--out", str(tuned), *SHORT]) == 0
    assert "was trained on the part" not in capsys.readouterr().err
    assert kind_of(tuned).run().splits == replace(whole, subset="[:50%]")
    assert run([*arguments[:3], "--subset", "0.2", "--out", str(out), *SHORT]) == 1  # another run's folder
    assert "subset" in capsys.readouterr().err


def test_a_part_of_a_split_is_evaluated(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = vitkit.evaluate(trained, split=" test[ -050: ]")
    assert (part.result.count, part.split) == (50, "test[-50:]")
    evaluations = {path.name for path in (trained / "evaluation").iterdir()}
    assert run(["evaluate", str(trained), "--split", "train[:50%]"]) == 0
    printed = capsys.readouterr().out
    assert "train[:50%] images of digits" in printed and "Kept in" not in printed
    assert {path.name for path in (trained / "evaluation").iterdir()} == evaluations
    for split, said in (
        ("test[:9999]", "goes from image 0 to 9,999"),
        ("test[:10%", "with both brackets at its end"),
    ):
        assert run(["evaluate", str(trained), "--split", split]) == 1
        assert said in capsys.readouterr().err


def test_other_data_is_evaluated_whole_whatever_folds_the_model_was_trained_with(tmp_path: Path) -> None:
    images = noise_images(tmp_path / "images")
    shutil.copytree(images, tmp_path / "others")
    config = vitkit.recipe("digits", data=str(images), model="ViT-16x1x2/4", steps=2, batch_size=4)
    folder = vitkit.train(replace(config, splits=Splits(fold=0, folds=3)), tmp_path / "run")
    assert vitkit.evaluate(folder, str(tmp_path / "others")).result.count == 24

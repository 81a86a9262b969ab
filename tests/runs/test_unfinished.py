"""Runs that are still going or were stopped: they are read, and nothing of them is touched."""

import shutil
from pathlib import Path

import pytest
import torch

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.command_runs import command
from tests.helpers.photos import noise_images
from tests.helpers.refusals import refused
from tests.jobs.hearing import Hearing
from tests.training.small_run import contents, flip
from vitkit.cli.main import run
from vitkit.runs import start as unfinished
from vitkit.runs.folder import kind_of
from vitkit.runs.start import load_model
from vitkit.runs.trained_model import RECORD, DataRecord, RejectedFiles, open_model_data, read_record
from vitkit.training.checkpoint import load_weights, newest_first, read_progress


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, without_report: None) -> Path:
    """A run as a kill some checkpoints before its end leaves it."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    assert run(command(out, "--data", "digits", "--keep", "99")[3:]) == 0
    shutil.rmtree(out / "evaluation")
    for name in ("ended.json", "model.safetensors", "model.json", "report.html"):
        (out / name).unlink(missing_ok=True)
    for checkpoint in newest_first(out / "checkpoints")[:3]:
        shutil.rmtree(checkpoint)
    return out


def test_the_best_committed_weights_are_used_and_named(
    stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = contents(stopped)
    model = vitkit.load_model(stopped)
    step = read_progress(newest_first(stopped / "checkpoints")[0]).best_step
    expected = load_weights(stopped / "checkpoints" / f"step-{step:08d}")
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
    assert f"this run has not finished: its weights come from step {step}, the best validation" in caplog.text
    assert model.card.class_names == tuple("0123456789")
    assert contents(stopped) == before


def test_every_verb_works_on_it(stopped: Path, tmp_path: Path, cli: Cli) -> None:
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    before = contents(folder)
    image = tmp_path / "seven.pgm"
    image.write_bytes(b"P5 8 8 255\n" + bytes(64))
    for verb in (["evaluate", str(folder)], ["predict", str(folder), str(image)], ["report", str(folder)]):
        assert "this run has not finished" in cli(verb).text.lower()
    assert run(["inspect", str(folder), "--out", str(tmp_path / "pictures")]) == 0
    after = contents(folder)
    assert after.pop("report.html") and after == before
    assert "This run has not finished" in (folder / "report.html").read_text()


def test_a_damaged_checkpoint_is_passed_over(stopped: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    first = unfinished.read_snapshot(kind_of(folder))
    flip(first.file)
    assert unfinished.read_snapshot(kind_of(folder)).step != first.step
    shutil.rmtree(first.file.parent)
    for path in folder.glob("checkpoints/step-*/state.json"):
        path.unlink()
    refused("None of the checkpoints of", vitkit.load_model, folder)


def test_a_checkpoint_that_is_removed_meanwhile_is_no_error(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    removed: list[Path] = []

    def remove_once(checkpoint: Path) -> dict[str, torch.Tensor]:
        if not removed:
            removed.append(checkpoint)
            shutil.rmtree(checkpoint)
        return load_weights(checkpoint)

    monkeypatch.setattr("vitkit.training.checkpoint.load_weights", remove_once)
    snapshot = unfinished.read_snapshot(kind_of(folder))
    assert removed and snapshot.file.parent != removed[0]


def test_a_run_without_a_checkpoint_is_refused_in_words(stopped: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stopped, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    for use in (vitkit.load_model, vitkit.evaluate, vitkit.Predictor, vitkit.write_report):
        refused("has no checkpoint yet", use, folder)


# What of a trained model's images another command may use


def test_test_images_are_told_from_training_images_or_refused(tmp_path: Path, cli: Cli) -> None:
    """An image that is added changes how the others are cut: what was trained on would be tested."""
    root, out = noise_images(tmp_path / "data"), str(tmp_path / "run")
    options = ["--model", "ViT-8x1x1/8", "--image-size", "16", "--batch-size", "8", "--warmup-steps", "0"]
    assert run(["train", "--data", str(root), "--steps", "1", "--threads", "1", "--out", out, *options]) == 0
    model = load_model(out)
    assert len(open_model_data(model).splits["test"]) == 5
    new = (root / "a" / "00.png").rename(root / "a" / "new.png")
    for again in ([], ["--data", str(root)]):
        shown = cli(["evaluate", out, *again], 1).text
        assert "have changed since the model was trained" in shown and "give other images" in shown
    refused("unclear which are test images", open_model_data, model, str(root))
    new.rename(root / "a" / "00.png")
    assert run(["evaluate", out]) == 0


# The list of files that could not be read: on disk as soon as asked, and taken up again

RECORDED = DataRecord(
    "digits", "digits", "built-in", ("a", "b"), {}, (), {"train": {"1.png": "cut short"}}, "0", {}
)


def test_what_is_found_is_written_and_taken_up_again(tmp_path: Path) -> None:
    rejects = RejectedFiles(tmp_path, RECORDED)
    rejects.write()
    assert not (tmp_path / RECORD).exists()  # nothing new
    rejects.of_split["test"]["2.png"] = "empty"
    assert rejects.of_split["val"] == {}
    rejects.write()
    reasons = {"train": {"1.png": "cut short"}, "test": {"2.png": "empty"}}
    record = read_record(tmp_path)
    assert record is not None and record.rejects == reasons
    assert RejectedFiles(tmp_path, record).of_split["test"] == {"2.png": "empty"}


def test_the_listener_hears_how_many_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rejects, heard = RejectedFiles(tmp_path, RECORDED), Hearing()
    assert rejects.of_split["val"] == {}
    rejects.of_split["test"].update({"2.png": "empty", "3.png": "empty"})
    rejects.tell(heard)
    assert heard.warnings == [
        "1 image of train could not be read: see the report.",
        "2 images of test could not be read: see the report.",
    ]
    assert capsys.readouterr() == ("", "")

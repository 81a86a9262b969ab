"""`vitkit train`: what a run folder holds, and when a run continues, ends or is refused."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.photos import TINY
from tests.helpers.refusals import refused
from tests.jobs.hearing import Hearing
from vitkit.cli.main import run
from vitkit.evaluation import run_model
from vitkit.jobs import train_run as following
from vitkit.runs.folder import kind_of
from vitkit.world import World

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def end(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_run_folder_holds_everything(trained: Path, photos: Path) -> None:
    record = json.loads((trained / "data.json").read_text())
    rejected = {key for files in record["rejects"].values() for key in files}
    assert {Path(key).name for key in rejected} == {"page.jpg", "cut.png"}
    assert sum(sum(counts.values()) for counts in record["counts"].values()) == 50
    card = json.loads((trained / "model.json").read_text())
    assert card["class_names"] == ["red fruit", "sky"]
    assert card["preprocessing"]["image_size"] == [16, 16] and card["augmentation"]["flip"]


def test_the_same_command_again_does_nothing_and_other_options_are_refused(
    trained: Path, photos: Path, cli: Cli
) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*") if path.is_file()}
    command = ["train", "--data", str(photos), "--out", str(trained), *TINY]
    assert "has finished" in cli(command).out
    message = cli([*command, "--learning-rate", "0.5"], 1).err
    assert "--learning-rate 0.001 -> 0.5" in message and "--out" in message
    assert "--seed 0 -> 3" in cli(["train", "--resume", str(trained), "--seed", "3"], 1).err
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_run_is_validated_and_evaluated_in_its_own_precision(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precisions, predict = [], run_model.predict

    def spy(*arguments: Any, **options: Any) -> Any:
        precisions.append(options["precision"])
        return predict(*arguments, **options)

    monkeypatch.setattr("vitkit.jobs.train_run.write_report", lambda folder, **_: folder)  # takes seconds
    monkeypatch.setattr(run_model, "predict", spy)  # of the validation, and of what comes after training
    options = ["train", "--data", str(photos), "--out", "run", *TINY, "--precision", "bfloat16"]
    assert run(options) == 0
    assert len(precisions) >= 3 and set(precisions) == {"bfloat16"}


def test_changed_images_are_not_evaluated_and_moved_ones_are(photos: Path, tmp_path: Path, cli: Cli) -> None:
    images = shutil.copytree(photos, tmp_path / "images")
    command = ["train", "--data", "images", "--out", "run", *TINY]
    assert run(command) == 0
    before = (tmp_path / "run" / "evaluation" / "test.json").read_bytes()
    (images / "sky" / "5.png").rename(tmp_path / "5.png")
    assert "have changed since the model was trained" in cli(["evaluate", "run"], 1).err
    assert (tmp_path / "run" / "evaluation" / "test.json").read_bytes() == before
    assert "Without pictures" in cli(["report", "run"]).err
    (tmp_path / "5.png").rename(images / "sky" / "5.png")
    images.rename(tmp_path / "elsewhere")
    (tmp_path / "run" / "model.json").unlink()
    assert run(["train", "--resume", "run", "--data", "elsewhere"]) == 0
    assert run(["evaluate", "run"]) == 0


def test_a_disk_that_refuses_is_one_message(photos: Path, tmp_path: Path, cli: Cli) -> None:
    command = ["train", "--data", str(photos), *TINY, "--steps", "1", "--out", "run"]
    assert run(command) == 0
    for name in ("speed.jsonl", "report.html"):
        (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / "speed.jsonl").mkdir()
    message = cli(command, 1).err
    assert "speed.jsonl" in message and "same command again" in message


@pytest.mark.parametrize(
    "call",
    [
        "jobs.train_run.save_model",
        # These lie between the first and the last.
        pytest.param("runs.steps.evaluate_split", marks=pytest.mark.slow),
        pytest.param("runs.steps.write_evaluation", marks=pytest.mark.slow),
        "jobs.train_run.write_report",
    ],
)
def test_ended_after_training_the_rest_is_made_up_for(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    options = ["train", "--data", str(photos), "--out", "run", *TINY]
    with monkeypatch.context() as patch:
        patch.setattr(f"vitkit.{call}", end)
        assert run(options) == 130
    (tmp_path / "run" / ".report.html.77.tmp").write_text("left by a killed process")
    if call != "jobs.train_run.save_model":
        assert run(["report", "run"]) == 0  # written early, it does not make the run a finished one
    assert run(options) == 0
    names = {path.name for path in (tmp_path / "run").iterdir() if path.name != ".lock"}
    assert {"model.json", "evaluation", "report.html"} <= names
    assert not [name for name in names if name.startswith(".")]
    assert (tmp_path / "run" / "evaluation" / "test.json").exists()


def test_a_listener_hears_how_training_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short, heard = vitkit.recipe("digits", model="ViT-16x1x2/4", steps=4, evaluate_every=2), Hearing()
    out = vitkit.train(short, tmp_path / "run", listener=heard)
    assert [(loop, done) for loop, done, _ in heard.milestones] == [("training", 2), ("training", 4)]
    assert all("  val " in detail and "images/s" in detail for _, _, detail in heard.milestones)
    validations = [line for line in heard.measured if line["kind"] == "validation"]
    best = max(validations, key=lambda line: (line["accuracy"], -line["loss"], -line["step"]))
    ending = f"  best {best['accuracy']:.1%} at step {best['step']}"
    assert heard.milestones[-1][2].endswith(ending)  # what was the best so far, the last one or not
    # During a validation nothing else is told: it is named before.
    next_is_one = [heard.details["training", step].endswith("  validation next") for step in (1, 2, 3, 4)]
    assert next_is_one == [True, False, True, False]
    # The numbers that are heard are those that are kept.
    assert heard.measured == list(map(json.loads, (out / "metrics.jsonl").read_text().splitlines()))
    assert heard.runs == [(out, 0, 4)] and len(validations) == 2
    again = Hearing()
    assert vitkit.train(short, out, listener=again) == out
    assert again.rows == [("", [f"This run has finished: {out}"])]
    assert capsys.readouterr() == ("", "")


def test_a_process_that_sees_no_folder_or_other_images_does_not_follow(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, threads = kind_of(trained).run(), torch.get_num_threads()
    for folder, said in ((tmp_path, "cannot be seen by process 1"), (trained, "differ between process 1 on")):
        sent = SimpleNamespace(run=begun, folder=folder, fingerprint="0", threads=threads)
        monkeypatch.setattr("vitkit.runs.processes.await_message", lambda _world, sent=sent: sent)
        refused(said, following.follow, World(1, 2, 1, 2))

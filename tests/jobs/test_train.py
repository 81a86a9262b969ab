"""`vitkit train`: what a run folder holds, and when a run continues, ends or is refused."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import vitkit
from tests.helpers.photos import TINY
from tests.jobs.hearing import Hearing
from vitkit.cli.main import run
from vitkit.evaluation import run_model

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def test_a_run_folder_holds_everything(trained: Path, photos: Path) -> None:
    names = {path.name for path in trained.iterdir()}
    assert {
        "config.json",
        "data.json",
        "model.safetensors",
        "model.json",
        "metrics.jsonl",
        "report.html",
    } <= names
    record = json.loads((trained / "data.json").read_text())
    rejected = {key for files in record["rejects"].values() for key in files}
    assert {Path(key).name for key in rejected} == {"page.jpg", "cut.png"}
    assert sum(sum(counts.values()) for counts in record["counts"].values()) == 50
    report = (trained / "report.html").read_text()
    for phrase in ("red fruit", "page.jpg", "cut.png", "vitkit train", "stratified"):
        assert phrase in report
    card = json.loads((trained / "model.json").read_text())
    assert card["class_names"] == ["red fruit", "sky"]
    assert card["preprocessing"]["image_size"] == [16, 16] and card["augmentation"]["flip"]


def test_the_same_command_again_does_nothing(
    trained: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*") if path.is_file()}
    assert run(["train", "--data", str(photos), "--out", str(trained), *TINY]) == 0
    assert "has finished" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_other_options_do_not_touch_a_run(
    trained: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["train", "--data", str(photos), "--out", str(trained), *TINY, "--learning-rate", "0.5"]
    assert run(options) == 1
    message = capsys.readouterr().err
    assert "--learning-rate 0.001 -> 0.5" in message and "--out" in message
    assert run(["train", "--resume", str(trained), "--seed", "3"]) == 1
    assert "--seed 0 -> 3" in capsys.readouterr().err


def test_a_run_from_before_an_option_existed_is_the_same_run(trained: Path, tmp_path: Path) -> None:
    """Its config.json and model.json lack the option, which had its default then, and so has the run."""
    run_folder = tmp_path / "run"
    shutil.copytree(trained, run_folder)
    record = json.loads((run_folder / "config.json").read_text())
    card = json.loads((run_folder / "model.json").read_text())
    for name in ("interpolation", "crop_offset", "border"):
        del record["run"]["preprocessing"][name], card["preprocessing"][name]
    (run_folder / "config.json").write_text(json.dumps(record))
    (run_folder / "model.json").write_text(json.dumps(card))
    assert run(["train", "--resume", str(run_folder)]) == 0
    assert vitkit.Predictor(run_folder).preprocessing == vitkit.Predictor(trained).preprocessing


def test_without_out_the_same_run_is_found_again_and_another_gets_its_own_folder(
    photos: Path, tmp_path: Path
) -> None:
    base = ["train", "--data", str(photos), *TINY, "--steps", "1"]
    assert run(base) == 0
    assert run(base) == 0
    assert run([*base, "--seed", "1"]) == 0
    name = f"{photos.name}-ViT-16x2x2-4"
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [name, f"{name}-2"]


def test_a_run_is_validated_and_evaluated_in_its_own_precision(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precisions, predict = [], run_model.predict

    def spy(*arguments: Any, **options: Any) -> Any:
        precisions.append(options["precision"])
        return predict(*arguments, **options)

    monkeypatch.setattr(run_model, "predict", spy)  # of the validation, and of what comes after training
    monkeypatch.setattr("vitkit.jobs.train_run.write_report", lambda folder, **_options: folder)
    options = ["train", "--data", str(photos), "--out", "run", *TINY, "--precision", "bfloat16"]
    assert run(options) == 0
    assert len(precisions) >= 3 and set(precisions) == {"bfloat16"}


def test_changed_images_do_not_continue_a_run(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = tmp_path / "images"
    shutil.copytree(photos, images)
    options = ["train", "--data", str(images), "--out", "run", *TINY]
    assert run(options) == 0
    (tmp_path / "run" / "report.html").unlink()
    (images / "sky" / "5.png").unlink()
    assert run(options) == 1
    assert "have changed since run was started" in capsys.readouterr().err


def test_moved_images_continue_a_run(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(photos, tmp_path / "images")
    assert run(["train", "--data", "images", "--out", "run", *TINY]) == 0
    for name in ("report.html", "model.json"):
        (tmp_path / "run" / name).unlink()
    (tmp_path / "images").rename(tmp_path / "elsewhere")
    assert run(["train", "--resume", "run"]) == 1
    assert "images" in capsys.readouterr().err
    assert run(["train", "--resume", "run", "--data", "elsewhere"]) == 0
    assert run(["evaluate", "run"]) == 0


def test_a_refused_run_leaves_no_folder(photos: Path, tmp_path: Path) -> None:
    assert run(["train", "--data", str(photos), "--model", "ViT-7x1x2/4", "--out", "run"]) == 1
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    assert run(["train", "--data", str(photos), "--out", "run", *TINY]) == 1
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.txt"]


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

    def end(*arguments: object, **others: object) -> None:
        raise KeyboardInterrupt

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


def test_a_damaged_best_checkpoint_is_not_used(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["train", "--data", str(photos), "--out", "run", *TINY, "--patience", "2", "--epochs", "40"]

    def end(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("vitkit.jobs.train_run.save_model", end)
        assert run(options) == 130
    best, *_ = sorted((tmp_path / "run" / "checkpoints").iterdir())
    weights = best / "average.safetensors"
    weights = weights if weights.exists() else best / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert run(options) == 0
    assert "not whole" in capsys.readouterr().err
    assert "not whole" in json.loads((tmp_path / "run" / "model.json").read_text())["origin"]["weights"]


def test_a_disk_that_refuses_is_one_message(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert run(["train", "--data", str(photos), "--out", "file/run", *TINY]) == 1
    assert "file" in capsys.readouterr().err
    (tmp_path / "run" / "speed.jsonl").mkdir(parents=True)
    shutil.rmtree(tmp_path / "run")
    assert run(["train", "--data", str(photos), "--out", "run", *TINY, "--steps", "1"]) == 0
    for name in ("speed.jsonl", "report.html"):
        (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / "speed.jsonl").mkdir()
    assert run(["train", "--data", str(photos), "--out", "run", *TINY, "--steps", "1"]) == 1
    message = capsys.readouterr().err
    assert "speed.jsonl" in message and "same command again" in message


def test_training_from_python_is_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_options = vitkit.recipe("digits")
    short = dataclasses.replace(
        run_options, training=dataclasses.replace(run_options.training, steps=2), model="ViT-16x1x2/4"
    )
    out = vitkit.train(short, tmp_path / "run")
    assert vitkit.load_model(out).card.class_names == tuple("0123456789")
    assert capsys.readouterr() == ("", "")


def test_a_listener_hears_how_training_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_options, heard = vitkit.recipe("digits"), Hearing()
    training = dataclasses.replace(run_options.training, steps=4, evaluate_every=2)
    short = dataclasses.replace(run_options, training=training, model="ViT-16x1x2/4")
    out = vitkit.train(short, tmp_path / "run", listener=heard)
    headings = [heading for heading, _ in heard.rows if heading]
    assert headings == [
        *("data", "classes", "model", "training", "device", "folder", "images", "time"),
        *("val", "test", "weights", "report"),
    ]
    # What a run is going to do is told before the images are read; how long it takes, once that is known.
    moments = ["listing images", "folder", "reading train images", "time"]
    assert sorted(moments, key=heard.order.index) == moments
    (time,) = [lines for heading, lines in heard.rows if heading == "time"]
    assert time == ["about 0 s left (measured on step 2)"]
    assert [(loop, done) for loop, done, _ in heard.milestones] == [("training", 2), ("training", 4)]
    assert all("  val " in detail and "images/s" in detail for _, _, detail in heard.milestones)
    validations = [line for line in heard.measured if line["kind"] == "validation"]
    best = max(validations, key=lambda line: (line["accuracy"], -line["loss"], -line["step"]))
    ending = f"  best {best['accuracy']:.1%} at step {best['step']}"
    assert heard.milestones[-1][2].endswith(ending)  # what was the best so far, the last one or not
    # During a validation nothing else is told: it is named before.
    assert [heard.details["training", step].endswith("  validation next") for step in (1, 2, 3, 4)] == [
        *(True, False, True, False),
    ]
    # The numbers that are heard are those that are kept.
    assert heard.measured == list(map(json.loads, (out / "metrics.jsonl").read_text().splitlines()))
    assert heard.runs == [(out, 0, 4)] and len(validations) == 2
    again = Hearing()
    assert vitkit.train(short, out, listener=again) == out
    assert again.rows == [("", [f"This run has finished: {out}"])]
    assert capsys.readouterr() == ("", "")

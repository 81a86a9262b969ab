"""The folder of a series: the images that it goes on with, what a kill leaves, what it chooses and says."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from PIL import Image

import vitkit
from tests.helpers.refusals import refused
from tests.helpers.series import SMALL, SWEEP, Pretended, before_each_run, photos, swept
from tests.jobs.hearing import Hearing
from vitkit import load_model
from vitkit.data.config import Splits
from vitkit.data.sources import ImageData, open_data
from vitkit.jobs import train as job
from vitkit.jobs import train_run as training
from vitkit.jobs.train import train_series
from vitkit.runs.config import Run, StartConfig
from vitkit.runs.machine import InterruptedTraining
from vitkit.runs.run_options import SeriesOptions
from vitkit.runs.series_record import Member, Score, choose_rate, conclusions, read_series, summarise
from vitkit.training import checkpoint
from vitkit.training.checkpoint import read_ended, survey

pytestmark = pytest.mark.usefixtures("without_report")


def test_what_killed_processes_left_is_gone(
    tmp_path: Path, pretended: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = replace(SMALL, data=str(photos(tmp_path / "data"))), tmp_path / "series"
    train_series(run, out, SeriesOptions(runs=2))
    assert (out / "model.safetensors").samefile(out / "seed-0/model.safetensors")
    (out / "model.json").unlink()  # killed between link and rename
    train_series(run, out, SeriesOptions(runs=2))
    assert (out / "model.json").exists() and not list(out.glob(".*.tmp"))
    whole = (out / "model.safetensors").read_bytes()
    left = [out / ".series.json.4711.tmp", out / ".data.json.12.tmp", out / "seed-0/.ended.json.4711.tmp"]
    for name in ("model.safetensors", "model.json"):
        (out / name).unlink()
        left.append(out / f".{name}.tmp")
    for path in left:
        path.write_text("half")
    (out / "seed-0/ended.json").write_text('{"step": 4, "environment": {}}')
    (out / ".mine.tmp").write_text("of the user")
    monkeypatch.setattr("vitkit.jobs.train.os.link", Mock(side_effect=OSError(1, "Operation not permitted")))
    train_series(run, out, SeriesOptions(runs=2))
    assert not any(path.exists() for path in left) and (out / ".mine.tmp").exists()
    assert (out / "model.safetensors").read_bytes() == whole
    assert not (out / "model.safetensors").samefile(out / "seed-0/model.safetensors")


def test_an_unfinished_series_names_what_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "sweep"

    def stop_before_the_last(folder: Path) -> None:
        if folder.name == "final":
            raise InterruptedTraining(f"in {folder}", "again", 15)

    before_each_run(monkeypatch, stop_before_the_last)
    with pytest.raises(InterruptedTraining):
        train_series(SMALL, out, SWEEP)
    again = f"the series goes on with: vitkit train --resume {out}"
    message = f"such as {out / 'rate-0.02'} (others: rate-0.001); {again}"
    from_series = replace(SMALL, model="", start=StartConfig(str(out)))
    for use in (load_model, vitkit.evaluate, vitkit.Predictor, vitkit.inspect):
        refused(re.escape(message), use, out)
    refused(re.escape(message), training.train_run, from_series, tmp_path / "run")
    hearing = Hearing()
    assert vitkit.write_report(out, listener=hearing) == out / "report.html"
    assert message in hearing.notes[0]
    load_model(out / "rate-0.02")


def test_a_kill_while_checkpoints_go_leaves_a_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between two of three checkpoints that go; then called again."""
    training_options = replace(SMALL.training, checkpoint_every=1, keep=3)
    saving = replace(SMALL, data=str(photos(tmp_path / "data")), training=training_options)
    options, out, remove = SeriesOptions(sweep_rates=(0.01,)), tmp_path / "killed", checkpoint.remove

    def remove_one(path: Path) -> None:
        # Before it has ended, an older checkpoint makes room in training.
        if read_ended(out / "final") is not None and len(list(path.parent.iterdir())) < 3:
            raise KeyboardInterrupt
        remove(path)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(checkpoint, "remove", remove_one)
        train_series(saving, out, options)
    assert len(list((out / "final/checkpoints").glob("step-*"))) == 2
    assert survey(out / "final").whole == out / "final/checkpoints/step-00000004"
    written = (out / "final/model.safetensors").stat().st_mtime_ns
    train_series(saving, out, options)
    assert (out / "final/model.safetensors").stat().st_mtime_ns == written
    assert not list((out / "final/checkpoints").glob("*"))


def add_images(data: Path) -> None:
    for path in data.glob("*/*.png"):
        (path.parent / f"new-{path.name}").write_bytes(path.read_bytes())


def swap_classes(data: Path) -> None:
    (data / "light").rename(data / "other")
    (data / "dark").rename(data / "light")
    (data / "other").rename(data / "dark")


def blacken(data: Path) -> None:
    for path in sorted(data.glob("*/*.png"))[::3]:
        Image.new("RGB", (8, 8)).save(path)


RUNS, FOLDS = SeriesOptions(runs=3), SeriesOptions(cross_validate=3)


@pytest.mark.parametrize(("options", "change"), [(SWEEP, add_images), (FOLDS, swap_classes), (RUNS, blacken)])
def test_a_series_whose_images_changed_or_whose_record_of_them_is_lost_does_not_go_on(
    options: SeriesOptions, change: Callable[[Path], None], tmp_path: Path, pretended: Pretended
) -> None:
    data, out = photos(tmp_path / "data"), tmp_path / "series"
    run, pretended.stop_at = replace(SMALL, data=str(data)), 2
    with pytest.raises(KeyboardInterrupt):
        train_series(run, out, options)
    before, trained = (out / "series.json").read_bytes(), list(pretended.trained)
    change(data)
    refused(r"changed since .* was started", train_series, run, out, options)
    assert pretended.trained == trained and (out / "series.json").read_bytes() == before
    (out / "data.json").unlink()
    refused(r"has no record of its images: expected a data\.json", train_series, run, out, options)
    assert not (out / "data.json").exists()


def test_images_that_change_meanwhile_end_it(
    tmp_path: Path, pretended: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = photos(tmp_path / "data")

    def train_and_add(run: Run, folder: Path, **options: Any) -> Path:
        made = pretended.train(run, folder, **options)
        add_images(data)
        return made

    monkeypatch.setattr(job, "train_run", train_and_add)
    run = replace(SMALL, data=str(data))
    refused("files or labels were added, removed or changed", train_series, run, tmp_path / "series", FOLDS)
    assert pretended.trained == ["fold-0"]


def test_other_groups_are_other_folds(tmp_path: Path, pretended: Pretended) -> None:
    """The images, their names and labels stay, and so does the first fold: two images of the others are
    exchanged."""
    photos(tmp_path / "data")
    rows = [(str(path.relative_to(tmp_path)), path.parent.name) for path in sorted(tmp_path.rglob("*.png"))]
    table, groups = tmp_path / "list.csv", [number // 2 for number in range(30)]

    def first_fold() -> ImageData:
        lines = [f"{path},{label},{group}" for (path, label), group in zip(rows, groups, strict=True)]
        table.write_text("\n".join(["path,label,patient", *lines]))
        return open_data(str(table), replace(splits, fold=0, folds=3))

    splits = Splits(val_fraction=0, group="patient")
    before = first_fold()
    run = replace(SMALL, data=str(table), splits=splits)
    pretended.stop_at = 2
    with pytest.raises(KeyboardInterrupt):
        train_series(run, tmp_path / "folds", FOLDS)
    assert before.fold_of is not None
    image, other = (list(before.fold_of[:15]).index(fold) for fold in (1, 2))  # of the same class
    groups[image], groups[other] = groups[other], groups[image]
    assert first_fold().fingerprint() == before.fingerprint()
    refused("have changed since", train_series, run, tmp_path / "folds", FOLDS)


def test_a_rate_that_diverges_is_told_and_not_chosen(tmp_path: Path) -> None:
    """It keeps its checkpoints. Where all rates diverge, nothing is chosen."""
    wild = replace(SMALL, optimizer=replace(SMALL.optimizer, warmup_steps=0))
    hearing = Hearing()
    out = train_series(wild, tmp_path / "sweep", SeriesOptions(sweep_rates=(0.001, 1e36)), listener=hearing)
    series = read_series(out)
    assert series.chosen == 0.001
    assert "Step" in series.rates[1].diverged and series.rates[1].score is None
    assert read_ended(out / "rate-1e+36") is None
    assert any("training diverged" in said for said in hearing.warnings)
    assert "With 1e+36 training diverged." in series.reasons
    assert "diverged" in (out / "report.html").read_text()
    none = r"None of the learning rates 1e\+35, 1e\+36 led to a model"
    refused(none, train_series, wild, tmp_path / "none", SeriesOptions(sweep_rates=(1e36, 1e35)))
    assert not (tmp_path / "none/final").exists()


def test_ties_and_scores_that_are_none() -> None:
    cases: tuple[tuple[list[Any], float], ...] = (
        ([(0.1, 0.5, 1.0), (0.2, 0.6, 9.0)], 0.2),
        ([(0.1, 0.6, 1.0), (0.2, 0.6, 0.9)], 0.2),  # the lower loss
        ([(0.1, 0.6, 1.0), (0.2, 0.6, 1.0)], 0.1),  # the lower rate
        ([(0.1, None, None), (0.2, 0.1, 2.0)], 0.2),
        ([(0.1, float("nan"), 1.0), (0.2, 0.1, float("nan"))], 0.2),
    )
    for results, chosen in cases:
        series = choose_rate(swept(*results))
        assert series.chosen == chosen == series.members[0].learning_rate


UNTESTED = "There are no test images, so the final model is not evaluated."


def test_what_came_out_is_said() -> None:
    ties = choose_rate(swept((0.1, 0.6, 1.0), (0.2, 0.6, 2.0))).reasons
    assert "0.2 scored the same: the lower loss decided, then the lower rate." in ties
    refused("no labels to score by: give a higher splits_val_fraction", choose_rate, swept((0.1, None, None)))
    begun = swept((0.1, 0.5, 1.0))
    assert conclusions(begun) == ["Not all runs have ended yet: vitkit train --resume continues the series."]
    unscored = Member("final", 0.1, 0, score=Score("test", None, None, None, 10), finished=True)
    lost, ended = Member("seed-0", 0.1, 0, diverged="loss nan"), Member("seed-1", 0.1, 1, finished=True)
    for members, *said in (
        ((unscored,), "Accuracy is not defined on the test images: they have no labels."),
        ((lost, replace(lost, folder="seed-1")), "Training diverged in 2 of 2 runs."),
        ((lost, ended), "Training diverged in 1 of 2 runs.", UNTESTED),
    ):
        series = replace(begun, chosen=0.1, members=members)
        assert conclusions(replace(series, spread=summarise(series)))[1:] == said

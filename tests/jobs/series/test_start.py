"""Series that begin from the weights of another model."""

from dataclasses import replace
from pathlib import Path

import pytest

import vitkit
from tests.helpers.series import SMALL, SWEEP
from tests.jobs.hearing import Hearing
from vitkit.data.config import Splits
from vitkit.jobs import train_run as training
from vitkit.jobs.series import train_series
from vitkit.runs.config import Run, StartConfig
from vitkit.runs.folder import kind_of
from vitkit.runs.run_options import SeriesOptions
from vitkit.runs.series_record import read_series
from vitkit.weights.create import create_model
from vitkit.weights.loading import save_model

pytestmark = pytest.mark.usefixtures("without_report")


def test_a_start_is_fine_tuned_with_a_sweep_of_the_papers_rates(tmp_path: Path) -> None:
    save_model(create_model("ViT-16x1x2/4", num_classes=3, image_size=8), tmp_path / "start")
    run = vitkit.finetune_run(str(tmp_path / "start"), "digits", recipe="paper", image_size=8)
    run = replace(run, training=replace(run.training, steps=2, batch_size=16))
    out = train_series(run, tmp_path / "tuned")
    series = read_series(out)
    assert [member.learning_rate for member in series.rates] == [0.001, 0.003, 0.01, 0.03]
    assert kind_of(out / "final").run().optimizer.optimizer == "sgd"
    assert vitkit.finetune(str(tmp_path / "start"), "digits", tmp_path / "two", runs=2, minutes=0.01).is_dir()
    assert read_series(tmp_path / "two").run.training.minutes == 0.01


def started(tmp_path: Path, val_fraction: float) -> Run:
    """A run that fine-tunes a model on the digits that it was trained on, with the splits it had there."""
    first = replace(SMALL, splits=Splits(val_fraction=val_fraction))
    training.train_run(first, tmp_path / "start")
    run = vitkit.finetune_run(str(tmp_path / "start"), "digits")
    assert run.splits.val_fraction == val_fraction
    return replace(run, training=replace(SMALL.training, steps=2))


def test_a_sweep_over_images_that_the_start_has_seen_is_warned_of(tmp_path: Path) -> None:
    hearing = Hearing()
    train_series(started(tmp_path, 0.0), tmp_path / "sweep", SWEEP, listener=hearing)
    assert any("do not trust the choice of the sweep" in said for said in hearing.warnings)


def test_a_sweep_over_images_that_were_held_out_of_the_start_is_not_warned_of(tmp_path: Path) -> None:
    hearing = Hearing()
    train_series(started(tmp_path, 0.1), tmp_path / "sweep", SWEEP, listener=hearing)
    assert not any("sweep" in said for said in hearing.warnings)


def test_a_series_that_leaves_the_model_to_its_start_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(create_model("ViT-16x1x2/4", num_classes=3, image_size=8), tmp_path / "start")
    run = replace(SMALL, model="", start=StartConfig(str(tmp_path / "start")))
    first = train_series(run, options=SeriesOptions(runs=2))
    assert read_series(first).run.model  # that of the start
    assert train_series(run, options=SeriesOptions(runs=2)) == first
    (tmp_path / "start").rename(tmp_path / "gone")  # what has begun needs no start any more
    assert train_series(run, first, SeriesOptions(runs=2)) == first

"""The folder of a series: what a kill leaves, what is removed, and which runs can be used."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import vitkit
from tests.helpers.series import SMALL, SWEEP, Pretended, photos
from tests.jobs.hearing import Hearing
from vitkit import load_model
from vitkit.errors import VitkitError
from vitkit.jobs import series as job
from vitkit.jobs import train_run as training
from vitkit.jobs.series import train_series
from vitkit.runs.config import Run, StartConfig
from vitkit.runs.folder import lock_folder
from vitkit.runs.machine import InterruptedTraining
from vitkit.runs.series_options import SeriesOptions
from vitkit.training import checkpoint
from vitkit.training.checkpoint import read_ended, survey

pytestmark = pytest.mark.usefixtures("without_report")


def test_what_killed_processes_were_writing_is_removed(
    tmp_path: Path, pretended: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_names(*_: Any) -> None:
        raise OSError(1, "Operation not permitted")

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
    monkeypatch.setattr("vitkit.jobs.series.os.link", no_names)
    train_series(run, out, SeriesOptions(runs=2))
    assert not any(path.exists() for path in left) and (out / ".mine.tmp").exists()
    assert (out / "model.safetensors").read_bytes() == whole
    assert not (out / "model.safetensors").samefile(out / "seed-0/model.safetensors")


def test_an_unfinished_series_names_the_runs_that_can_be_used_and_how_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, trained = tmp_path / "sweep", training.train_run
    calls: list[Path] = []

    def stop_before_the_last(run: Run, folder: Path, **options: Any) -> Path:
        calls.append(folder)
        if len(calls) > 2:
            raise InterruptedTraining(f"in {folder}", "again", 15)
        return trained(run, folder, **options)

    monkeypatch.setattr(job, "train_run", stop_before_the_last)
    with pytest.raises(InterruptedTraining):
        train_series(SMALL, out, SWEEP)
    again = f"the series goes on with: vitkit train --resume {out}"
    message = f"such as {out / 'rate-0.02'} (others: rate-0.001); {again}"
    from_series = replace(SMALL, model="", start=StartConfig(str(out)))
    uses: list[Any] = [load_model, vitkit.evaluate, vitkit.Predictor]
    for use in uses:
        with pytest.raises(VitkitError, match=re.escape(message)):
            use(out)
    with pytest.raises(VitkitError, match=re.escape(message)):
        vitkit.inspect(out, out=tmp_path / "pictures")
    with pytest.raises(VitkitError, match=re.escape(message)):
        training.train_run(from_series, tmp_path / "run")
    hearing = Hearing()
    assert vitkit.write_report(out, listener=hearing) == out / "report.html"
    assert message in hearing.notes[0]
    load_model(out / "rate-0.02")


def test_a_kill_while_checkpoints_are_removed_leaves_a_run_that_has_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the first checkpoint goes, between two, and before the last; then called again."""
    training_options = replace(SMALL.training, checkpoint_every=1, keep=3)
    saving = replace(SMALL, data=str(photos(tmp_path / "data")), training=training_options)
    options = SeriesOptions(sweep_rates=(0.01,))
    whole, remove = train_series(saving, tmp_path / "whole", options), checkpoint.remove
    for removed in (0, 1, 2):
        out, gone = tmp_path / f"killed{removed}", list[Path]()

        def remove_some(path: Path, out: Path = out, gone: list[Path] = gone, most: int = removed) -> None:
            if read_ended(out / "final") is not None:  # else an older checkpoint makes room in training
                if len(gone) == most:
                    raise KeyboardInterrupt
                gone.append(path)
            remove(path)

        monkeypatch.setattr(checkpoint, "remove", remove_some)
        with pytest.raises(KeyboardInterrupt):
            train_series(saving, out, options)
        monkeypatch.setattr(checkpoint, "remove", remove)
        left = list((out / "final/checkpoints").glob("step-*"))
        assert len(left) == 3 - removed
        assert survey(out / "final").whole == out / "final/checkpoints/step-00000004"
        written = (out / "final/model.safetensors").stat().st_mtime_ns
        train_series(saving, out, options)
        assert (out / "final/model.safetensors").stat().st_mtime_ns == written
        assert not list((out / "final/checkpoints").glob("*"))
        for name in ("model.safetensors", "metrics.jsonl"):
            assert (out / "final" / name).read_bytes() == (whole / "final" / name).read_bytes()


def test_series_begun_together_take_different_folders(
    tmp_path: Path, pretended: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = replace(SMALL, data=str(photos(tmp_path / "data")))
    name = "runs/data-ViT-16x1x2-4-runs"
    options = SeriesOptions(runs=2)
    with lock_folder(Path(name)):  # another one has just begun there
        assert train_series(run, options=options) == Path(f"{name}-2")
        assert train_series(run, options=options) == Path(f"{name}-2")  # what was begun goes on
    with lock_folder(Path(f"{name}-2")):
        assert train_series(run, options=options) == Path(name)
    with lock_folder(Path(name)), pytest.raises(VitkitError, match="Another process is at work in"):
        train_series(run, name, options)


@pytest.mark.parametrize("link", ["seed-1", "seed-1/checkpoints"])
def test_links_that_leave_a_series_are_refused(link: str, tmp_path: Path, pretended: Pretended) -> None:
    run, out = replace(SMALL, data=str(photos(tmp_path / "data"))), tmp_path / "series"
    train_series(run, out, SeriesOptions(runs=2))
    checkpoint = tmp_path / "mine/step-00000004"
    checkpoint.mkdir(parents=True)
    (checkpoint / "COMMIT").write_text("")
    if link == "seed-1":
        (out / link).rename(tmp_path / "seed")
    (out / link).symlink_to(tmp_path / "mine")
    pretended.trained.clear()
    with pytest.raises(VitkitError, match="is a link that leads out of its folder"):
        train_series(run, out, SeriesOptions(runs=2), resume=True)
    assert pretended.trained == [] and (checkpoint / "COMMIT").exists()

"""The list of runs: what came of each, where it stands, and that nothing in its records is trusted."""

import errno
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.small_digits import small_run
from tests.jobs.hearing import Interrupting
from vitkit.errors import NonFiniteError
from vitkit.jobs.list_runs import LINES, RunList, RunSummary, is_held
from vitkit.report.template import write_page
from vitkit.runs.folder import lock_folder
from vitkit.runs.machine import InterruptedTraining
from vitkit.runs.series_record import read_score
from vitkit.training.config import OptimizerConfig

SMALL = small_run(4, evaluate_every=2, log_every=2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, without_report: None) -> Path:
    """A folder with a run that has ended, one that was interrupted, one that diverged, and a series."""
    folder = tmp_path_factory.mktemp("work") / "runs"
    vitkit.train(SMALL, folder / "ended")
    with pytest.raises(InterruptedTraining):
        vitkit.train(SMALL, folder / "order" / "interrupted", listener=Interrupting(1))
    vitkit.train_series(SMALL, folder / "series", vitkit.SeriesOptions(runs=2))
    wild = replace(SMALL, optimizer=OptimizerConfig(learning_rate=1e30, clip_norm=None, warmup_steps=0))
    with pytest.raises(NonFiniteError):
        vitkit.train(wild, folder / "wild")
    (folder / "a link").symlink_to(folder / "ended")
    return folder


def rows_of(folder: Path) -> dict[str, RunSummary]:
    return {Path(row.folder).name: row for row in vitkit.list_runs(folder)}


def test_every_run_is_listed_once_with_its_state_and_its_score(runs: Path) -> None:
    rows = rows_of(runs)
    # The newest comes last; neither the runs of a series nor what a link leads to is listed again.
    assert list(rows) == ["ended", "interrupted", "series", "wild"]
    assert [row.state for row in rows.values()] == ["ended", "interrupted", "ended", "diverged"]
    ended = rows["ended"]
    measured = json.loads((runs / "ended/evaluation/test.json").read_text())
    assert (ended.score, ended.interval) == (measured["accuracy"], tuple(measured["accuracy_interval"]))
    assert ended.standing == "ended: 4 steps" and ended.minutes is not None and 0 < ended.minutes < 60
    assert rows["interrupted"].standing == "interrupted at step 2 of 4"
    assert rows["interrupted"].score is None and rows["interrupted"].result == ""
    series = rows["series"]
    scores = [read_score(runs / "series" / f"seed-{seed}", "test", SMALL) for seed in (0, 1)]
    values = [score.value for score in scores if score is not None and score.value is not None]
    assert series.score == pytest.approx(sum(values) / 2) and series.interval is None
    assert (series.kind, series.standing) == ("series", "ended: 2 of 2 runs")
    assert rows["wild"].standing.startswith("diverged at step ")


def test_a_run_that_is_trained_is_running_and_not_diverged(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "order", tmp_path / "runs")
    folder = tmp_path / "runs" / "interrupted"
    assert not is_held(folder)
    with lock_folder(folder):
        row = rows_of(tmp_path)["interrupted"]
        assert is_held(folder) and row.standing == "running at step 2 of 4"
    assert not is_held(folder) and not is_held(runs)
    assert not (runs / ".lock").exists()  # asking makes no lock
    record = folder / "diverged.json"
    record.write_text('{"reason": "The loss is infinite."}')
    assert rows_of(tmp_path)["interrupted"].state == "diverged"
    vitkit.train(SMALL, folder)
    assert rows_of(tmp_path)["interrupted"].state == "ended" and not record.exists()


def test_a_damaged_or_locked_folder_hides_no_other(
    runs: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    top, look = tmp_path / "runs", os.stat
    for name in ("broken", "locked", "whole"):
        shutil.copytree(runs / "ended", top / name)

    def refuse(path: Any, *args: Any, **options: Any) -> Any:
        if "locked/" in os.fspath(path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return look(path, *args, **options)

    damages = {"config.json": b'{"run": {"trainig": 3}}', "data.json": b"[]"}
    for name, content in (damages | {"evaluation/test.json": b'{"accuracy": 7}'}).items():
        whole = (top / "broken" / name).read_bytes()
        (top / "broken" / name).write_bytes(content)
        with monkeypatch.context() as patched:
            patched.setattr("os.stat", refuse)
            rows = rows_of(top)
        assert {folder: row.state for folder, row in rows.items()} == {"broken": "damaged", "whole": "ended"}
        assert f"{top / 'broken'} is damaged: " in cli(["runs", str(top)]).out
        (top / "broken" / name).write_bytes(whole)


def test_the_minutes_of_all_starts_of_a_run_are_added(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "ended", tmp_path / "run")
    lines = [{"step": i, "images_per_second": 1.0, "seconds": s} for i, s in enumerate([60, 120, 30, 90, 15])]
    (tmp_path / "run/speed.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert rows_of(tmp_path)["run"].minutes == 2 + 1.5 + 0.25


def test_a_table_and_json_are_printed(runs: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs.parent)
    lines = cli(["runs"]).out.splitlines()
    # The newest one that can be gone on with or used: one that diverged would diverge again.
    assert lines[-1] == "Next: open runs/series/report.html in a browser"
    assert "Next: vitkit train --resume runs/order/interrupted\n" in cli(["runs", "runs/order"]).out
    (runs / "empty").mkdir()
    assert "There are no runs in" in cli(["runs", "runs/empty"]).out
    rows = json.loads(cli(["runs", str(runs), "--json"]).out)
    assert [row["state"] for row in rows] == ["ended", "interrupted", "ended", "diverged"]
    assert all(rows[i]["changed"] <= rows[i + 1]["changed"] for i in range(3))


def test_a_page_shows_what_differs(runs: Path, tmp_path: Path, cli: Cli) -> None:
    top = tmp_path / "runs"
    shutil.copytree(runs, top, symlinks=True)
    (top / "ended").rename(top / "<b>50%")
    (top / "<b>50%" / "report.html").write_text("mine")
    outside = tmp_path / "outside.html"
    outside.write_text("not ours")
    (top / "runs.html").symlink_to(outside)
    assert f"All of them on one page: {top / 'runs.html'}\n" in cli(["runs", str(top), "--html"]).out
    page = (top / "runs.html").read_text()
    assert outside.read_text() == "not ours" and not (top / "runs.html").is_symlink()
    assert "&lt;b&gt;50%</td>" in page and "<b>50" not in page
    assert '<a href="%3Cb%3E50%25/report.html">' in page and "accuracy of the validation images" in page
    headings = re.findall(r'<th scope="col"[^>]*>([^<]*)</th>', page)
    assert {"learning_rate", "clip_norm"} <= {*headings} and "batch_size" not in headings
    listed = vitkit.list_runs(top, html=True)
    assert listed.page == top / "runs.html" and len(listed) == 4
    again = json.loads(json.dumps(listed.to_json()))
    assert all("curve" not in row and "run" not in row for row in again)


def test_a_page_of_very_many_runs_draws_the_last_ones(tmp_path: Path) -> None:
    row = RunSummary("", "run", "digits", "ViT", "accuracy", "ended", "4 steps", curve=[(1, 0.5), (2, 0.75)])
    rows = [replace(row, folder=str(tmp_path / f"run-{number}")) for number in range(200)]
    page = write_page(RunList(rows, tmp_path), tmp_path / "runs.html").read_text()
    assert f"The {LINES} of 200 runs that were changed last are drawn." in page
    assert page.count("<tr><td>") == 200 and len(page) < 1_000_000

"""A study of VTAB-1k goes on where it was, and refuses other options, images and records."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.vtab import SMALL, arguments, refusal, vtab
from tests.vtab_layout import small_task
from vitkit.cli.main import run as command
from vitkit.errors import VitkitError
from vitkit.jobs import series as series_job
from vitkit.jobs import train_run as training
from vitkit.jobs.study.study import read_study
from vitkit.jobs.vtab import Vtab
from vitkit.runs.machine import InterruptedTraining
from vitkit.runs.series_record import read_series
from vitkit.weights.create import create_model
from vitkit.weights.loading import save_model

pytestmark = pytest.mark.usefixtures("without_report")


def test_finished_tasks_and_rates_are_not_repeated(
    start: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep: dict[str, Any] = {"out": tmp_path / "out", "sweep": True, "rates": (0.01, 0.1), **SMALL}
    first = vtab(start, root, tasks=["clevr_count"], **sweep)
    begun: list[str] = []

    def counted(run: Any, folder: Path, **options: Any) -> Path:
        begun.append(f"{folder.parent.name}/{folder.name}")
        return training.train_run(run, folder, **options)

    monkeypatch.setattr(series_job, "train_run", counted)
    assert vtab(start, root, tasks=["clevr_count"], **sweep) == first
    assert not begun
    both = vtab(start, root, **sweep)
    assert begun == [f"oxford_iiit_pet/{name}" for name in ("rate-0.01", "rate-0.1", "final")]
    assert both.tasks[1] == first.tasks[0]
    assert [arm.folder for arm in read_study(tmp_path / "out").arms] == ["oxford_iiit_pet", "clevr_count"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"steps": 5}, "steps 4 -> 5"),
        ({"seed": 1}, "seed 0 -> 1"),
        ({"image_size": 12}, r"image_size \[8, 8\] -> \[12, 12\]"),
        ({"protocol": "finetune"}, "protocol 'paper' -> 'finetune'"),
        ({"sweep": True}, r"holds another study:\n  rates \[\] -> \[0.001, 0.003, 0.01, 0.03\]\nGive"),
    ],
)
def test_other_options_are_refused(
    start: Path, root: Path, tmp_path: Path, change: dict[str, Any], line: str
) -> None:
    out = tmp_path / "out"
    vtab(start, root, tasks=["clevr_count"], out=out, **SMALL)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for task in ("clevr_count", "oxford_iiit_pet"):  # a task that is added has the options of the others
        with pytest.raises(VitkitError, match=line):
            vtab(start, root, tasks=[task], out=out, **(SMALL | change))
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_other_images_and_weights_are_refused(start: Path, tmp_path: Path) -> None:
    """A finished task is not trained again, so that it must be known what it was trained on."""
    small_task(tmp_path / "root/clevr_count", classes=8)
    shutil.copytree(start, tmp_path / "start")
    options: dict[str, Any] = {"out": tmp_path / "out", **SMALL}
    first = vtab(tmp_path / "start", tmp_path / "root", **options)
    listed = tmp_path / "root/clevr_count/test.txt"
    lines = listed.read_text()
    listed.write_text("".join(lines.splitlines(keepends=True)[:-1]))
    assert "clevr_count have changed since" in refusal(tmp_path / "start", tmp_path / "root", **options)
    listed.write_text(lines)
    assert vtab(tmp_path / "start", tmp_path / "root", **options) == first
    save_model(create_model("ViT-16x1x2/4", num_classes=9, image_size=8), tmp_path / "start")
    said = refusal(tmp_path / "start", tmp_path / "root", **options)
    assert "holds another study" in said and "\n  other weights of the start" in said


def test_an_edited_record_of_tasks_is_refused_or_completed(start: Path, root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = vtab(start, root, out=out, **SMALL)
    path = out / "study.json"
    record = json.loads(path.read_text())
    pets, clevr = record["arms"]

    def again(*arms: Any) -> Vtab:
        path.write_text(json.dumps(record | {"arms": arms}))
        return vtab(start, root, tasks=["clevr_count"], out=out, **SMALL)

    assert again(clevr).tasks == first.tasks[1:]
    assert [arm.folder for arm in read_study(out).arms] == ["clevr_count"]
    assert again(pets).tasks == first.tasks[1:]
    assert [arm.folder for arm in read_study(out).arms] == ["oxford_iiit_pet", "clevr_count"]
    for other in ({"folder": "mine"}, {"label": "mine"}):
        with pytest.raises(VitkitError, match="holds another study:\n  arms: "):
            again(pets, clevr | other)
    clevr["run"]["training"]["seed"] = 7
    with pytest.raises(VitkitError, match="holds another study:\n  seed 7 -> 0\n"):
        again(pets, clevr)


def ends(out: Path) -> dict[str, bytes]:
    """The files that tell what came out, without what tells of clock and place."""
    names = ("model.safetensors", "metrics.jsonl", "val.json", "test.json", "vtab.csv")
    files = [path for path in out.rglob("*") if path.name in names or path.match("evaluation/*.npy")]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


KILLED = """
import os, signal, sys
from vitkit.jobs import train_run as train
from vitkit.training import checkpoint

def write_report(folder, **_options):  # its pictures take seconds
    (folder / "report.html").write_text("a report")
    return folder / "report.html"

save = checkpoint.commit

def save_and_die(run, *rest):
    made = save(run, *rest)
    if run.parts[-2:] == ("clevr_count", "rate-0.1"):
        os.kill(os.getpid(), signal.SIGKILL)
    return made

train.write_report = write_report
checkpoint.commit = save_and_die
from vitkit.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.slow  # a task is trained as a series is: tests/cli/test_series.py kills one
def test_a_killed_process_goes_on_where_it_was(
    start: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first task is not trained again, nor is a rate of the second; another rate of it continues, and the
    bits are those of a whole run."""
    out, other = tmp_path / "killed", tmp_path / "whole"
    line = [*arguments(start, root, out), "--sweep", "--rates", "0.01,0.1"]
    killed = subprocess.run([sys.executable, "-c", KILLED, *line], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    first, second = out / "oxford_iiit_pet", out / "clevr_count"
    assert read_series(first).ended
    assert [member.finished for member in read_series(second).all_members] == [True, False, False]
    assert [path.name for path in (second / "rate-0.1/checkpoints").glob("step-*")] == ["step-00000003"]
    done = [path for folder in (first, second / "rate-0.01") for path in folder.rglob("*") if path.is_file()]
    weights = second / "rate-0.01/model.safetensors"
    anew = (weights, first / ".lock", first / "report.html")  # the page of a series is always written
    stamps = {path: path.stat().st_mtime_ns for path in done if path not in anew}
    assert command(line) == 0
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps} and not weights.exists()
    assert command([other.as_posix() if word == str(out) else word for word in line]) == 0
    assert ends(out) == ends(other)
    assert {f"{task}/final/model.safetensors" for task in ("oxford_iiit_pet", "clevr_count")} <= {*ends(out)}
    capsys.readouterr()


def test_a_stop_says_how_to_go_on(
    start: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*_arguments: Any, **_options: Any) -> Path:
        raise InterruptedTraining("after step 3", "vitkit train --resume", signal.SIGTERM)

    monkeypatch.setattr(series_job, "train_run", train)
    message = r"Stopped in task 1 of 2, oxford_iiit_pet; .* same command"
    with pytest.raises(InterruptedTraining, match=message) as caught:
        vtab(start, root, out=tmp_path / "out", **SMALL)
    assert caught.value.exit_code == 143


@pytest.mark.parametrize("run", ["final", "rate-0.1"])
def test_a_finished_task_knows_the_images_of_each_of_its_runs(
    run: str, start: Path, root: Path, tmp_path: Path
) -> None:
    rates: dict[str, Any] = {"sweep": True, "rates": (0.01, 0.1)}
    sweep: dict[str, Any] = {"out": tmp_path / "out", "tasks": ["clevr_count"], **rates, **SMALL}
    first = vtab(start, root, **sweep)
    path = tmp_path / "out/clevr_count" / run / "data.json"
    record = path.read_text()
    path.write_text(json.dumps(json.loads(record) | {"fingerprint": "0" * 64}))
    with pytest.raises(VitkitError, match=f"have changed since .*{run} was begun. Bring the former ones"):
        vtab(start, root, **sweep)
    path.unlink()
    with pytest.raises(VitkitError, match=f"have changed since .*{run} was begun. Bring the former ones"):
        vtab(start, root, **sweep)
    path.write_text(record)
    assert vtab(start, root, **sweep) == first
    path.parent.rename(tmp_path / "mine")
    path.parent.symlink_to(tmp_path / "mine")
    with pytest.raises(VitkitError, match=f"{run} is a link that leads out"):
        vtab(start, root, **sweep)

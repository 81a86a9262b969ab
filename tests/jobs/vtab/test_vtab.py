"""VTAB-1k: protocol, means, refusals, and going on where it was."""

import csv
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.jobs.hearing import Hearing
from tests.vtab_layout import small_task
from vitkit.cli.main import run as command
from vitkit.config import to_json
from vitkit.data.layouts.vtab_tasks import VTAB_TASKS, TaskFolder
from vitkit.data.sources import open_data
from vitkit.durable import hash_file
from vitkit.errors import VitkitError
from vitkit.jobs import train as training
from vitkit.jobs.series import series as series_job
from vitkit.jobs.vtab.data import TaskData, find_tasks
from vitkit.jobs.vtab.options import VtabOptions
from vitkit.jobs.vtab.result import PAPER, TaskScore, Vtab, mean_of, remarks, render_vtab
from vitkit.jobs.vtab.vtab import (
    CROPS,
    UNCUT,
    complete_task,
    departures,
    describe_options,
    task_run,
    vtab,
    whose,
)
from vitkit.listener import SILENT
from vitkit.models.build import create_model
from vitkit.runs.config import read_run
from vitkit.runs.data_record import require_same_images
from vitkit.runs.machine import InterruptedTraining
from vitkit.runs.series_record import read_series
from vitkit.weights import save_model

SMALL: dict[str, Any] = {"image_size": 8, "steps": 4, "batch_size": 16, "workers": 0, "threads": 1}
ARGUMENTS = ["--image-size", "8", "--steps", "4", "--batch-size", "16", "--workers", "0", "--threads", "1"]


pytestmark = pytest.mark.usefixtures("without_report")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vtab") / "start"
    save_model(create_model("ViT-16x1x2/4", num_classes=10, image_size=8), folder)
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stand-ins of two tasks, one under another of its names, and a folder that is no task."""
    folder = tmp_path_factory.mktemp("vtab") / "vtab-1k"
    small_task(folder / "clevr_count", classes=8)
    small_task(folder / "pets", classes=3, seed=1)
    (folder / "notes").mkdir()
    return folder


def score(folder: TaskFolder, accuracy: float, low: float, high: float) -> TaskScore:
    return TaskScore(
        folder=folder,
        data="",
        run="",
        accuracy=accuracy,
        interval=(low, high),
        images=100,
        unreadable=0,
        repeated=0,
        majority=0.5,
        verdict="better than guessing",
        learning_rate=0.01,
    )


def result(*scores: TaskScore) -> Vtab:
    found = {one.folder for one in scores}
    absent = tuple(task.folder for task in VTAB_TASKS if task.folder not in found)
    return Vtab("start", "root", "paper", (), scores, absent, ())


def test_means_are_over_tasks_and_not_over_groups() -> None:
    """By hand: natural (0.9 + 0.7) / 2, structured 0.2, all (0.9 + 0.7 + 0.2) / 3; limits by Pythagoras."""
    found = result(
        score("cifar", 0.9, 0.87, 0.92),
        score("svhn", 0.7, 0.66, 0.73),
        score("kitti", 0.2, 0.08, 0.24),
    )
    natural, structured, overall = found.mean("natural"), found.mean("structured"), found.mean()
    assert natural is not None and structured is not None and overall is not None
    assert found.mean("specialized") is None
    assert natural.accuracy == pytest.approx(0.8) and (natural.tasks, natural.of) == (2, 7)
    assert natural.interval == pytest.approx((0.8 - 0.05 / 2, 0.8 + 13**0.5 / 200))
    assert structured.accuracy == 0.2 and structured.interval == pytest.approx((0.08, 0.24))
    assert overall.accuracy == pytest.approx(0.6) and (overall.tasks, overall.of) == (3, 19)
    assert overall.interval == pytest.approx((0.6 - 0.13 / 3, 0.6 + (4 + 9 + 16) ** 0.5 / 300))
    assert overall.is_partial
    assert found.paper_mean() == pytest.approx(
        ((0.855 + 0.889 + 0.845) / 3, (0.819 + 0.874 + 0.822) / 3, (0.841 + 0.809 + 0.799) / 3)
    )


def test_the_papers_means_are_those_of_its_table() -> None:
    """Table 9 has 77.6, 76.3 and 72.7 as the means of its columns."""
    found = result(*(score(task.folder, 0.5, 0.4, 0.6) for task in VTAB_TASKS))
    assert [round(100 * mean, 1) for mean in found.paper_mean()] == [77.6, 76.3, 72.7]
    assert list(PAPER) != [] and {*PAPER} == {task.folder for task in VTAB_TASKS}
    mean = found.mean()
    assert mean is not None and not mean.is_partial
    assert not any("partial" in sentence for sentence in remarks(found))
    assert "mean of all 19" in [row[1] for row in found.csv_rows()]


def test_a_partial_mean_says_so_everywhere() -> None:
    found = replace(result(score("cifar", 0.9, 0.87, 0.92)), not_asked=("dtd",))
    found = replace(found, absent=tuple(name for name in found.absent if name != "dtd"))
    said = list(remarks(found))
    assert said[0].startswith("The mean is partial: 1 of 19 tasks. It is no VTAB score")
    assert said[1].startswith("Tasks absent, without a folder: Caltech101 (caltech101), Flowers102")
    assert said[2] == "Tasks left out by --tasks: DTD (dtd)."
    names = [row[1] for row in found.csv_rows()]
    assert names[1:] == [
        "CIFAR-100",
        "natural, mean of 1 of 7 (partial)",
        "mean of 1 of 19 (partial)",
    ]
    assert found.to_json()["partial"] is True and found.to_json()["means"]["all"]["tasks"] == 1
    page = render_vtab(found)
    assert "over 1 of 19 tasks (partial)" in page and "85.5%" in page


def test_an_interval_of_nothing_is_no_mean() -> None:
    assert mean_of([], 7) is None


def test_the_protocol_is_the_papers(start: Path, root: Path) -> None:
    """B.1.1 and Table 4: SGD, momentum 0.9, cosine, batch 512, no decay, clip 1, 2,500 steps, 0.01, 384."""
    options = VtabOptions(str(start), root=str(root))
    task = TaskData("clevr_count", root / "clevr_count", {"train800val200": root / "x.txt"})
    run = task_run(options, task)
    made, training = run.optimizer, run.training
    assert (made.optimizer, made.momentum, made.schedule, made.learning_rate) == ("sgd", 0.9, "cosine", 0.01)
    assert (made.weight_decay, made.clip_norm, made.polyak) == (0.0, 1.0, None)
    assert (training.steps, training.batch_size, training.select) == (2_500, 512, "last")
    assert (run.preprocessing.image_size, run.preprocessing.resize) == ((384, 384), "stretch")
    assert not list(departures(run, options, task))
    smaller = replace(options, steps=100, image_size=(32, 48), batch_size=64, sweep=True)
    run = task_run(smaller, task)
    assert (run.optimizer.warmup_steps, run.optimizer.learning_rate) == (10, 0.01)
    assert list(departures(run, smaller, task)) == [
        "batch 64 (512)",
        "pixels 32x48 (384x384)",
        "100 steps (2,500)",
        "rate of each task the best of 0.001, 0.003, 0.01, 0.03 (0.01 for all)",
    ]


def test_crops_and_flips_are_bits_where_they_keep_the_label(start: Path, root: Path) -> None:
    """BiT 3.3 and `get_resolution`: 480 of 512 pixels, or 128 of 160 of images under 96x96."""
    options = VtabOptions(str(start), root=str(root))
    rules = {}
    for one in VTAB_TASKS:
        task = TaskData(one.folder, root, {"train800val200": root / "x.txt"})
        run = task_run(options, task)
        assert not list(departures(run, options, task)) and run.augmentation.shift == 0
        assert run.augmentation.crop_aspect is None
        rules[one.folder] = run.augmentation.crop_area, run.augmentation.flip
    large, small = ((480 / 512) ** 2,) * 2, ((128 / 160) ** 2,) * 2
    assert {name for name, (area, _) in rules.items() if area == small} == {"cifar", "svhn", "eurosat"}
    assert {area for area, _ in rules.values()} == {large, small, None}
    structured = {one.folder for one in VTAB_TASKS if one.group == "structured"}
    assert {name for name, (area, _) in rules.items() if area is None} == structured
    assert {name for name, (_, flip) in rules.items() if not flip} == {"svhn", *structured}


@pytest.mark.parametrize("protocol", ["paper", "finetune"])
def test_a_folder_of_the_version_without_crops_is_refused(
    protocol: Literal["paper", "finetune"], start: Path, root: Path, tmp_path: Path
) -> None:
    """With the protocol finetune, which is what it was, it goes on."""
    described = describe_options(VtabOptions(str(start), root=str(root), protocol=protocol), {})
    kept = {name: value for name, value in described.items() if name != CROPS}
    (tmp_path / "options.json").write_text(json.dumps(kept))
    said = str(whose(tmp_path, described, []))
    assert said == "mine" if protocol == "finetune" else "neither cropped nor flipped. Finish it with" in said


def test_the_classes_of_a_task_are_those_of_the_paper() -> None:
    """The numbers of classes of VTAB's 19 tasks, in the order of Table 9."""
    classes = [102, 100, 47, 102, 37, 397, 10, 2, 10, 45, 5, 8, 6, 6, 16, 16, 4, 18, 9]
    assert [task.classes for task in VTAB_TASKS] == classes


def test_each_task_is_trained_on_1000_and_tested_once(start: Path, root: Path, tmp_path: Path) -> None:
    hearing = Hearing()
    found = vtab(start, root, out=tmp_path / "out", listener=hearing, **SMALL)
    assert [one.folder for one in found.tasks] == ["oxford_iiit_pet", "clevr_count"]
    assert len(found.absent) == 17 and not found.not_asked
    for one in found.tasks:
        folder = tmp_path / "out" / one.folder / "final"
        stored = json.loads((folder / "evaluation/test.json").read_text())
        assert (one.accuracy, one.images) == (stored["accuracy"], 50)
        assert list(one.interval) == stored["accuracy_interval"]
        assert not (folder / "evaluation/val.json").exists()
        assert read_run(folder).data.endswith("train800val200.txt")
        assert json.loads((folder / "data.json").read_text())["images"] == {"train": 50, "test": 50}
    cards = [json.loads((Path(one.run) / "model.json").read_text()) for one in found.tasks]
    assert [len(card["class_names"]) for card in cards] == [37, 8]
    kept = json.loads((tmp_path / "out/vtab.json").read_text())
    assert kept["means"]["all"]["accuracy"] == pytest.approx(sum(one.accuracy for one in found.tasks) / 2)
    rows = list(csv.reader((tmp_path / "out/vtab.csv").read_text().splitlines()))
    assert [row[1] for row in rows[1:3]] == ["Pets", "natural, mean of 1 of 7 (partial)"]
    assert "Pets" in (tmp_path / "out/vtab.html").read_text()
    assert kept["tasks"][0]["run"] == "oxford_iiit_pet/final" and kept["start"] == start.name
    for name in ("vtab.json", "vtab.csv", "vtab.html", "clevr_count/result.json"):
        said = (tmp_path / "out" / name).read_text()
        assert not any(str(place) in said for place in (tmp_path, start.parent, root.parent))
    assert "clevr_count: training" in hearing.loops
    assert hearing.notes[-1].startswith("task 2 of 2, clevr_count: ") and not hearing.rows


def test_the_sweep_chooses_on_200_images(start: Path, root: Path, tmp_path: Path) -> None:
    rates = (1e-9, 0.1)
    found = vtab(start, root, out=tmp_path / "out", tasks=["clevr_count"], sweep=True, rates=rates, **SMALL)
    (one,) = found.tasks
    assert found.not_asked == ("oxford_iiit_pet",)
    assert set(one.validation) == {"1e-09", "0.1"}
    for name, accuracy in one.validation.items():
        member = tmp_path / "out/clevr_count" / f"rate-{name}"
        stored = json.loads((member / "evaluation/val.json").read_text())
        assert (stored["accuracy"], stored["count"]) == (accuracy, 10)
        assert not (member / "evaluation/test.json").exists()
        assert json.loads((member / "data.json").read_text())["images"] == {"train": 40, "val": 10}
        assert not [*member.glob("checkpoints/step-*")] and not (member / "model.safetensors").exists()
    series = read_series(tmp_path / "out/clevr_count")
    assert {member.folder: member.score.value for member in series.rates if member.score is not None} == {
        f"rate-{name}": accuracy for name, accuracy in one.validation.items()
    }
    final = read_run(tmp_path / "out/clevr_count/final")
    assert one.learning_rate == series.chosen == final.optimizer.learning_rate
    assert json.loads((tmp_path / "out/clevr_count/final/data.json").read_text())["images"]["train"] == 50
    assert "1e-09" in (tmp_path / "out/vtab.html").read_text()


def test_a_rate_that_diverges_is_passed_over(start: Path, root: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"tasks": ["clevr_count"], "sweep": True, **SMALL}
    hearing = Hearing()
    found = vtab(start, root, out=tmp_path / "some", rates=(1e38, 0.01), listener=hearing, **asked)
    assert found.tasks[0].learning_rate == 0.01 and {*found.tasks[0].validation} == {"0.01"}
    (said,) = hearing.warnings
    assert said.startswith("clevr_count: learning rate 1e+38 on a part of the training images")
    assert "training diverged. Step " in said
    said = refusal(start, root, out=tmp_path / "none", rates=(1e38, 1e37), **asked)
    assert said.startswith("clevr_count: None of the learning rates 1e+37, 1e+38 led to a model")
    assert said.endswith("Give lower ones with --rates and another --out.")


def test_finished_tasks_and_rates_are_not_repeated(
    start: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {"out": tmp_path / "out", "sweep": True, "rates": (0.01, 0.1), **SMALL}
    first = vtab(start, root, tasks=["clevr_count"], **asked)
    begun: list[str] = []

    def counted(run: Any, folder: Path, **options: Any) -> Path:
        begun.append(f"{folder.parent.name}/{folder.name}")
        return training.train(run, folder, **options)

    monkeypatch.setattr(series_job, "train", counted)
    (tmp_path / "out/clevr_count/result.json").unlink()
    assert vtab(start, root, tasks=["clevr_count"], **asked) == first
    assert not begun
    both = vtab(start, root, **asked)
    assert begun == [f"oxford_iiit_pet/{name}" for name in ("rate-0.01", "rate-0.1", "final")]
    assert both.tasks[1] == first.tasks[0]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"steps": 5}, "--steps 4 -> 5"),
        ({"seed": 1}, "--seed 0 -> 1"),
        ({"image_size": 12}, r"--image-size \[8, 8\] -> \[12, 12\]"),
        ({"protocol": "finetune"}, "--protocol 'paper' -> 'finetune'"),
        ({"sweep": True}, "--sweep False -> True"),
    ],
)
def test_other_options_are_refused(
    start: Path, root: Path, tmp_path: Path, change: dict[str, Any], line: str
) -> None:
    out = tmp_path / "out"
    vtab(start, root, tasks=["clevr_count"], out=out, **SMALL)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(VitkitError, match=line):
        vtab(start, root, tasks=["clevr_count"], out=out, **(SMALL | change))
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_other_images_and_weights_are_refused(start: Path, tmp_path: Path) -> None:
    """A finished task is not trained again, so that it must be known what it was trained on."""
    small_task(tmp_path / "root/clevr_count", classes=8)
    shutil.copytree(start, tmp_path / "start")
    asked: dict[str, Any] = {"out": tmp_path / "out", **SMALL}
    first = vtab(tmp_path / "start", tmp_path / "root", **asked)
    listed = tmp_path / "root/clevr_count/test.txt"
    lines = listed.read_text()
    listed.write_text("".join(lines.splitlines(keepends=True)[:-1]))
    assert "clevr_count are not those that" in refusal(tmp_path / "start", tmp_path / "root", **asked)
    listed.write_text(lines)
    assert vtab(tmp_path / "start", tmp_path / "root", **asked) == first
    save_model(create_model("ViT-16x1x2/4", num_classes=9, image_size=8), tmp_path / "start")
    said = refusal(tmp_path / "start", tmp_path / "root", **asked)
    assert "other options or weights" in said and "\n  model.safetensors of START '" in said


def refusal(*arguments: Any, **options: Any) -> str:
    with pytest.raises(VitkitError) as caught:
        vtab(*arguments, **options)
    return str(caught.value)


def test_what_is_missing_is_named(start: Path, root: Path, tmp_path: Path) -> None:
    said = refusal(start, tmp_path / "nowhere")
    assert "nowhere cannot be listed: No such file" in said
    (tmp_path / "photos/cats").mkdir(parents=True)
    said = refusal(start, tmp_path / "photos")
    assert "holds no task of VTAB-1k. Expected a folder for each task" in said and "found cats" in said
    assert "has no folder for dtd, only for clevr_count, oxford_iiit_pet" in refusal(
        start, root, tasks=["dtd"]
    )
    small_task(tmp_path / "twice/pets", classes=3)
    small_task(tmp_path / "twice/oxford_iiit_pet", classes=3)
    assert "are both Pets" in refusal(start, tmp_path / "twice")
    small_task(tmp_path / "part/pets", classes=3)
    (tmp_path / "part/pets/val200.txt").unlink()
    assert "pets has no val200.txt." in refusal(start, tmp_path / "part", sweep=True)
    (tmp_path / "part/pets/test.txt").unlink()
    assert "pets has no test.txt." in refusal(start, tmp_path / "part")
    assert "No checkpoint at" in refusal(tmp_path / "no start", root)
    assert "rates are numbers above 0" in refusal(start, root, sweep=True, rates=(0.1, -1.0))
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.txt").write_text("do not lose me")
    assert "holds no VTAB-1k result" in refusal(start, root, out=tmp_path / "full")


def test_a_malformed_list_is_refused_before_any_task_is_trained(start: Path, tmp_path: Path) -> None:
    small_task(tmp_path / "root/clevr_count", classes=8)
    small_task(tmp_path / "root/smallnorb_ele", classes=8)  # comes last
    last = tmp_path / "root/smallnorb_ele/test.txt"
    last.write_text(last.read_text() + "images/test/000000.jpg nine\n")
    out = tmp_path / "out"
    said = refusal(start, tmp_path / "root", out=out, **SMALL)
    assert said.startswith(f"{last} line 51: expected a class number")
    assert not out.exists()


def test_protocol_finetune_is_that_of_finetuning(start: Path, root: Path, tmp_path: Path) -> None:
    found = vtab(start, root, tasks=["clevr_count"], out=tmp_path / "out", protocol="finetune", **SMALL)
    run = read_run(tmp_path / "out/clevr_count/final")
    assert (run.optimizer.optimizer, run.training.steps, run.training.select) == ("adamw", 4, "last")
    assert "optimizer adamw (sgd)" in found.departures
    assert "the same crops and flips for all tasks (BiT's, where they keep the label)" in found.departures
    assert not any("smallest crop" in line for line in found.departures)
    assert "factor of the head's rate 6 (1)" in found.departures


def arguments(start: Path, root: Path, out: Path) -> list[str]:
    return ["vtab", str(start), "--root", str(root), "--out", str(out), *ARGUMENTS]


def test_the_command_prints_the_table(
    start: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = arguments(start, root, tmp_path / "out")
    assert command(line) == 0
    printed = capsys.readouterr().out
    assert "Clevr-Count" in printed and "91.7" in printed and "mean of 2 of 19 (partial)" in printed
    assert "batch 16 (512), pixels 8x8 (384x384), 4 steps (2,500)" in " ".join(printed.split())
    assert f"{tmp_path / 'out'}/vtab.html" in printed and "Next: " in printed
    assert command([*line, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["means"]["all"]["of"] == 19
    assert command([*line, "--seed", "3"]) == 1
    assert "was begun with other options or weights" in capsys.readouterr().err


def ends(out: Path) -> dict[str, bytes]:
    """The files that tell what came out, without what tells of clock and place."""
    names = ("model.safetensors", "metrics.jsonl", "test.logits.npy", "val.json", "test.json", "vtab.csv")
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.name in names}


KILLED = """
import os, signal, sys
from vitkit.jobs import train
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
    assert (first / "result.json").exists() and not (second / "result.json").exists()
    assert [one.finished for one in read_series(second).all_members] == [True, False, False]
    assert [path.name for path in (second / "rate-0.1/checkpoints").glob("step-*")] == ["step-00000003"]
    done = [path for folder in (first, second / "rate-0.01") for path in folder.rglob("*") if path.is_file()]
    weights = second / "rate-0.01/model.safetensors"
    stamps = {path: path.stat().st_mtime_ns for path in done if path not in (weights, first / ".lock")}
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

    monkeypatch.setattr(series_job, "train", train)
    words = r"Stopped in task 1 of 2, oxford_iiit_pet; .* same command"
    with pytest.raises(InterruptedTraining, match=words) as caught:
        vtab(start, root, out=tmp_path / "out", **SMALL)
    assert caught.value.exit_code == 143


def test_parquet_files_named_train_and_test_are_a_task(tmp_path: Path) -> None:
    """The layout of copies on the Hugging Face Hub that do not cut the 1,000 training images."""
    task = small_task(tmp_path / "lists", classes=3)
    folder = tmp_path / "root/vtab-1k_cifar"
    write_parquet(task, "train800val200", folder / "data/train-00000-of-00001.parquet")
    write_parquet(task, "test", folder / "data/test-00000-of-00001.parquet")
    found = find_tasks(folder.parent, (), sweep=False).tasks
    assert [one.folder for one in found] == ["cifar"]
    data = open_data(str(found[0].all_training), UNCUT)
    assert {split: len(samples) for split, samples in data.splits.items()} == {"train": 50, "test": 50}
    with pytest.raises(VitkitError, match=r"vtab-1k_cifar has Parquet files named train-, test-: a sweep"):
        find_tasks(folder.parent, (), sweep=True)
    write_parquet(task, "val200", folder / "data/validation-00000-of-00001.parquet")
    with pytest.raises(VitkitError, match=r"vtab-1k_cifar .* trains on the first two together"):
        find_tasks(folder.parent, (), sweep=False)
    (folder / "data/test-00000-of-00001.parquet").unlink()
    with pytest.raises(VitkitError, match=r"vtab-1k_cifar .* none named test-"):
        find_tasks(folder.parent, (), sweep=False)


def write_parquet(task: Path, name: str, file: Path) -> None:
    """Write a list as a Parquet file, as the `datasets` library stores images."""
    lines = [line.split() for line in (task / f"{name}.txt").read_text().splitlines()]
    cells = [{"bytes": (task / path).read_bytes(), "path": path} for path, _ in lines]
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"image": cells, "label": [int(label) for _, label in lines]}), file)


def begun_by_an_earlier_version(root: Path, start: Path, out: Path, finished: bool) -> Path:
    """Write the folder of a sweep as a7c5a4b did, by hand: it kept its rates in sweep.json, and no series."""
    options = VtabOptions(str(start), root=str(root), sweep=True, rates=(0.01, 0.1), **STORED)
    described = describe_options(options, {"model.safetensors": hash_file(start / "model.safetensors")[1]})
    (out / "options.json").write_text(json.dumps(described))
    task, lists = out / "clevr_count", {"rate-0.01": "train800", "final": "train800val200"}
    for name, images in lists.items():
        if finished or name != "final":
            listed = open_data(str(root / f"clevr_count/{images}.txt"), UNCUT)
            (task / name).mkdir(parents=True)
            require_same_images(task / name, listed, listed.fingerprint(), "names", SILENT)
    (task / "images.json").write_text(json.dumps({f"{name}.txt": "0" * 64 for name in lists.values()}))
    accuracy = {"0.01": 0.5}
    tried = {"accuracy": accuracy, "loss": {"0.01": 1.5}, "diverged": ["0.1"] * finished}
    (task / "sweep.json").write_text(json.dumps(tried))
    if finished:
        kept = replace(score("clevr_count", 0.6, 0.5, 0.7), validation=accuracy)
        (task / "result.json").write_text(json.dumps(to_json(kept)))
    return task


STORED: dict[str, Any] = {"protocol": "finetune", "image_size": (8, 8), "steps": 4, "batch_size": 16}


def every_file(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("finished", [True, False])
def test_a_folder_of_an_earlier_version_is_taken_over_or_refused_untouched(
    finished: bool, start: Path, root: Path, tmp_path: Path
) -> None:
    (out := tmp_path / "out").mkdir()
    task = begun_by_an_earlier_version(root, start, out, finished)
    before = every_file(task if finished else out)
    asked: dict[str, Any] = {"out": out, "tasks": ["clevr_count"], "sweep": True, "rates": (0.01, 0.1)}
    asked |= {"workers": 0, "threads": 1, **STORED}
    if finished:
        (one,) = vtab(start, root, **asked).tasks
        assert (one.accuracy, one.validation, one.run) == (0.6, {"0.01": 0.5}, str(task / "final"))
    else:
        said = refusal(start, root, **asked)
        assert said.startswith(f"{task} was begun by an earlier vitkit") and "or remove that folder" in said
    assert every_file(task if finished else out) == before


@pytest.fixture
def finished(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], TaskScore]]]:
    """The folder of a task that is finished, and a function that looks at it again."""
    data, folder = small_task(tmp_path / "dtd", classes=3), tmp_path / "task"
    lists = {name: data / f"{name}.txt" for name in ("train800", "train800val200")}
    listed = {path: open_data(str(path), UNCUT) for path in lists.values()}
    for name, path in {"final": lists["train800val200"], "rate-0.1": lists["train800"]}.items():
        (folder / name).mkdir(parents=True)
        require_same_images(folder / name, listed[path], listed[path].fingerprint(), "names", SILENT)
    (folder / "result.json").write_text(json.dumps(to_json(score("dtd", 0.6, 0.5, 0.7))))
    options = VtabOptions("start", root="root", sweep=True)
    prints = {path: images.fingerprint() for path, images in listed.items()}
    task = TaskData("dtd", data, lists)
    yield folder, lambda: complete_task(options, task, prints, folder, "task 1 of 1", Hearing())


@pytest.mark.parametrize(
    "change",
    [
        {"accuracy": 1.5},
        {"accuracy": float("nan")},
        {"interval": [0.5, 2]},
        {"images": 0},
        {"images": -5},
        {"repeated": 1000},
        {"learning_rate": float("inf")},
        {"validation": {"0.1": -1.0}},
        {"folder": "svhn"},
        {"folder": "../.."},
    ],
    ids=str,
)
def test_a_result_that_makes_no_sense_is_refused(
    finished: tuple[Path, Callable[[], TaskScore]], tmp_path: Path, change: dict[str, Any]
) -> None:
    folder, complete = finished
    (folder / ".result.json.99.tmp").touch()
    good = json.loads((folder / "result.json").read_text()) | {"run": "/elsewhere", "data": "../secret"}
    (folder / "result.json").write_text(json.dumps(good))
    assert complete().run == str(folder / "final") and complete().data == str(tmp_path / "dtd")
    assert not (folder / ".result.json.99.tmp").exists()
    (folder / "result.json").write_text(json.dumps(good | change))
    with pytest.raises(VitkitError, match=r"result\.json"):
        complete()


@pytest.mark.parametrize("run", ["final", "rate-0.1"])
def test_a_finished_task_knows_the_images_of_each_of_its_runs(
    finished: tuple[Path, Callable[[], TaskScore]], run: str
) -> None:
    folder, complete = finished
    record = json.loads((folder / run / "data.json").read_text())
    (folder / run / "data.json").write_text(json.dumps(record | {"fingerprint": "0" * 64}))
    with pytest.raises(VitkitError, match=f"are not those that .*{run} was begun with. Bring them back"):
        complete()
    (folder / run / "data.json").unlink()
    with pytest.raises(VitkitError, match=f"are not those that .*{run} was begun with. Bring them back"):
        complete()


def test_a_rate_behind_a_link_is_left_alone(
    finished: tuple[Path, Callable[[], TaskScore]], tmp_path: Path
) -> None:
    folder, complete = finished
    (folder / "rate-0.1").rename(tmp_path / "mine")
    (tmp_path / "mine/model.safetensors").touch()
    (folder / "rate-0.1").symlink_to(tmp_path / "mine")
    with pytest.raises(VitkitError, match=r"rate-0\.1 is a link that leads out"):
        complete()
    assert (tmp_path / "mine/model.safetensors").exists()

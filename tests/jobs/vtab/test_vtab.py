"""Tasks of VTAB-1k are trained and tested once, by the paper's protocol; a study goes on where it was."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.refusals import refused
from tests.helpers.series import before_each_run
from tests.helpers.vtab import SMALL, score, vtab
from tests.jobs.hearing import Hearing
from tests.vtab_layout import small_task, write_parquet
from vitkit.data.layouts.vtab_tasks import VTAB_TASKS
from vitkit.data.sources import open_data
from vitkit.jobs import vtab as vtab_job
from vitkit.jobs.study.study import read_study
from vitkit.jobs.vtab import RATES, UNCUT, Vtab, departures, find_tasks, mean_of, remarks, task_run
from vitkit.runs.folder import kind_of
from vitkit.runs.series_record import read_series
from vitkit.weights.create import create_model
from vitkit.weights.loading import save_model

pytestmark = pytest.mark.usefixtures("without_report")

SWEEP: dict[str, Any] = {"tasks": ["clevr_count"], "sweep": True, "rates": (1e-9, 0.1), **SMALL}


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


@pytest.fixture(scope="module")
def swept(start: Path, root: Path, without_report: None, tmp_path_factory: pytest.TempPathFactory) -> Vtab:
    """A study of one task, whose rate a sweep has chosen."""
    return vtab(start, root, out=tmp_path_factory.mktemp("swept") / "out", **SWEEP)


def test_each_task_is_tested_once(start: Path, root: Path, tmp_path: Path) -> None:
    heard = Hearing()
    finished = vtab(start, root, out=tmp_path / "out", listener=heard, **SMALL)
    assert [score.task.folder for score in finished.tasks] == ["oxford_iiit_pet", "clevr_count"]
    for task, classes in zip(finished.tasks, (37, 8), strict=True):
        folder = finished.folder / task.task.folder / "final"
        stored = json.loads((folder / "evaluation/test.json").read_text())
        assert (task.accuracy, task.images) == (stored["accuracy"], 50)
        assert list(task.interval) == stored["accuracy_interval"]
        assert not (folder / "evaluation/val.json").exists()
        assert kind_of(folder).run().data.endswith("train800val200.txt")
        assert json.loads((folder / "data.json").read_text())["images"] == {"train": 50, "test": 50}
        assert len(json.loads((folder / "model.json").read_text())["class_names"]) == classes
    record = json.loads((finished.folder / "vtab.json").read_text())
    mean = sum(task.accuracy for task in finished.tasks) / 2
    assert record["means"]["all"]["accuracy"] == pytest.approx(mean) and record["start"] == start.name
    for name in ("vtab.json", "report.html"):
        said = (finished.folder / name).read_text()
        assert "Pets" in said
        assert not any(str(place) in said for place in (finished.folder, start.parent, root.parent))
    assert "clevr_count: training" in heard.loops
    assert heard.notes[-1].startswith("task 2 of 2, clevr_count: ") and not heard.rows


def test_a_plan_counts_the_runs_and_trains_none(start: Path, root: Path, tmp_path: Path) -> None:
    planned = vtab_job.vtab(start, root, out=tmp_path / "out", plan=True, **SWEEP)
    assert "3 runs" in planned.summary() and not (tmp_path / "out").exists()


def test_the_sweep_chooses_on_200_images(swept: Vtab) -> None:
    (task,) = swept.tasks
    folder = swept.folder / "clevr_count"
    series = read_series(folder)
    assert [tried.folder for tried in series.rates] == ["rate-1e-09", "rate-0.1"]
    for tried in series.rates:
        member = folder / tried.folder
        stored = json.loads((member / "evaluation/val.json").read_text())
        assert (stored["accuracy"], stored["count"]) == (tried.value, 10)
        assert not (member / "evaluation/test.json").exists()
        assert json.loads((member / "data.json").read_text())["images"] == {"train": 40, "val": 10}
        assert not [*member.glob("checkpoints/step-*")] and not (member / "model.safetensors").exists()
    final = kind_of(folder / "final").run()
    assert task.learning_rate == series.chosen == final.optimizer.learning_rate
    assert json.loads((folder / "final/data.json").read_text())["images"]["train"] == 50


def test_where_all_rates_diverge_lower_ones_are_asked_for(start: Path, root: Path, tmp_path: Path) -> None:
    said = r"clevr_count: None of the learning rates 1e\+37, 1e\+38 led .*Give lower ones with rates"
    refused(said, vtab, start, root, out=tmp_path / "none", **SWEEP | {"rates": (1e38, 1e37)})


def test_finished_tasks_and_rates_are_not_repeated_and_tasks_are_added(
    start: Path, root: Path, swept: Vtab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, begun = Path(shutil.copytree(swept.folder, tmp_path / "out")), list[Path]()
    before_each_run(monkeypatch, begun.append)
    assert vtab(start, root, out=out, **SWEEP).tasks == swept.tasks
    assert not begun
    for change, line in (
        ({"tasks": (), "seed": 1}, "seed 0 -> 1"),  # of a task that is added, too
        ({"protocol": "finetune"}, "protocol 'paper' -> 'finetune'"),
        ({"rates": (0.1, 0.2)}, r"rates \[1e-09, 0\.1\] -> \[0\.1, 0\.2\]"),
    ):
        refused(line, vtab, start, root, out=out, **SWEEP | change)
    both = vtab(start, root, out=out, **SWEEP | {"tasks": ()})
    assert begun == [out / "oxford_iiit_pet" / name for name in ("rate-1e-09", "rate-0.1", "final")]
    assert both.tasks[1] == swept.tasks[0]
    assert [arm.folder for arm in read_study(out).arms] == ["oxford_iiit_pet", "clevr_count"]


def test_other_images_and_weights_are_refused(start: Path, tmp_path: Path) -> None:
    """A finished task is not trained again, so that it must be known what it was trained on."""
    small_task(tmp_path / "root/clevr_count", classes=8)
    shutil.copytree(start, tmp_path / "start")
    both, options = (tmp_path / "start", tmp_path / "root"), {"out": tmp_path / "out", **SMALL}
    first = vtab(*both, **options)
    listed = tmp_path / "root/clevr_count/test.txt"
    lines = listed.read_text()
    listed.write_text("".join(lines.splitlines(keepends=True)[:-1]))
    refused("clevr_count have changed since", vtab, *both, **options)
    listed.write_text(lines)
    assert vtab(*both, **options) == first
    save_model(create_model("ViT-16x1x2/4", num_classes=9, image_size=8), tmp_path / "start")
    refused("holds another study:\n  other weights of the start", vtab, *both, **options)


def test_a_finished_task_knows_the_images_of_each_of_its_runs(
    start: Path, root: Path, swept: Vtab, tmp_path: Path
) -> None:
    run, out = "rate-0.1", Path(shutil.copytree(swept.folder, tmp_path / "out"))
    path = out / "clevr_count" / run / "data.json"
    record = path.read_text()
    changed = f"have changed since .*{run} was begun. Bring the former ones"
    path.write_text(json.dumps(json.loads(record) | {"fingerprint": "0" * 64}))
    refused(changed, vtab, start, root, out=out, **SWEEP)
    path.unlink()
    refused(changed, vtab, start, root, out=out, **SWEEP)
    path.write_text(record)
    assert vtab(start, root, out=out, **SWEEP).tasks == swept.tasks
    path.parent.rename(tmp_path / "mine")
    path.parent.symlink_to(tmp_path / "mine")
    refused(f"{run} is a link that leads out", vtab, start, root, out=out, **SWEEP)


def test_protocol_finetune_is_that_of_finetuning(start: Path, root: Path, tmp_path: Path) -> None:
    evaluation = vtab(start, root, tasks=["clevr_count"], out=tmp_path / "out", protocol="finetune", **SMALL)
    run = kind_of(tmp_path / "out/clevr_count/final").run()
    assert (run.optimizer.optimizer, run.training.steps, run.training.select) == ("adamw", 4, "last")
    crops = "the same crops and flips for all tasks (BiT's, where they keep the label)"
    departed = {"optimizer adamw (sgd)", crops, "factor of the head's rate 6 (1)"}
    assert departed <= set(evaluation.departures)
    assert not any("smallest crop" in line for line in evaluation.departures)


def test_what_is_missing_is_named(start: Path, root: Path, tmp_path: Path) -> None:
    (tmp_path / "photos/cats").mkdir(parents=True)
    for name in ("twice/pets", "twice/oxford_iiit_pet", "part/pets"):
        small_task(tmp_path / name, classes=3)
    (tmp_path / "part/pets/val200.txt").unlink()
    refused("no task of VTAB-1k. Expected a folder for .* found cats", vtab, start, tmp_path / "photos")
    refused("nowhere cannot be listed: No such file", vtab, start, tmp_path / "nowhere")
    refused("no folder for dtd, only for clevr_count, oxford_iiit_pet", vtab, start, root, tasks=["dtd"])
    refused("are both Pets", vtab, start, tmp_path / "twice")
    refused("pets has no val200.txt.", vtab, start, tmp_path / "part", sweep=True)
    (tmp_path / "part/pets/test.txt").unlink()
    refused("pets has no test.txt.", vtab, start, tmp_path / "part")
    refused("No checkpoint at", vtab, tmp_path / "no start", root)
    refused("Which weights to begin from?", vtab, "", root)
    # Options are refused before lists and weights are read.
    refused("protocol is paper or finetune, found 'papper'", vtab, "nowhere", "nowhere", protocol="papper")
    for sweep in (True, False):
        for rates, said in (((0.1, -1.0), "rates is a number above 0"), ((), "above 0, found none")):
            refused(said, vtab, "nowhere", "nowhere", sweep=sweep, rates=rates)


def test_a_malformed_list_is_refused_before_any_task_is_trained(start: Path, tmp_path: Path) -> None:
    small_task(tmp_path / "root/clevr_count", classes=8)
    small_task(tmp_path / "root/smallnorb_ele", classes=8)  # comes last
    last = tmp_path / "root/smallnorb_ele/test.txt"
    last.write_text(last.read_text() + "images/test/000000.jpg nine\n")
    out = tmp_path / "out"
    refused(f"{last} line 51: expected a class number", vtab, start, tmp_path / "root", out=out, **SMALL)
    assert not out.exists()


def test_parquet_files_named_train_and_test_are_a_task(tmp_path: Path) -> None:
    """The layout of copies on the Hugging Face Hub that do not cut the 1,000 training images."""
    task = small_task(tmp_path / "lists", classes=3)
    folder = tmp_path / "root/vtab-1k_cifar"
    write_parquet(task, "train800val200", folder / "data/train-00000-of-00001.parquet")
    write_parquet(task, "test", folder / "data/test-00000-of-00001.parquet")
    tasks = find_tasks(folder.parent, (), sweep=False)
    assert [task.folder for task in tasks] == ["cifar"]
    data = open_data(str(*next(iter(tasks.values()))), UNCUT)
    assert {split: len(samples) for split, samples in data.splits.items()} == {"train": 50, "test": 50}
    refused("has Parquet files named train-, test-. Expected", find_tasks, folder.parent, (), sweep=True)
    write_parquet(task, "val200", folder / "data/validation-00000-of-00001.parquet")
    refused("val-, test-. Expected train- and test- alone", find_tasks, folder.parent, (), sweep=False)
    (folder / "data/test-00000-of-00001.parquet").unlink()
    refused(r"files named train-, val-. Expected", find_tasks, folder.parent, (), sweep=False)


def test_the_protocol_is_the_papers(start: Path, root: Path) -> None:
    """B.1.1 and Table 4: SGD, momentum 0.9, cosine, batch 512, no decay, clip 1, 2,500 steps, 0.01, 384."""
    task, data = VTAB_TASKS[11], root / "x.txt"
    assert task.folder == "clevr_count"
    run = task_run(task, data, str(start), "paper", {})
    made, training = run.optimizer, run.training
    assert (made.optimizer, made.momentum, made.schedule, made.learning_rate) == ("sgd", 0.9, "cosine", 0.01)
    assert (made.weight_decay, made.clip_norm, made.polyak) == (0.0, 1.0, None)
    assert (training.steps, training.batch_size, training.select) == (2_500, 512, "last")
    assert (run.preprocessing.image_size, run.preprocessing.resize) == ((384, 384), "stretch")
    assert not list(departures(run, task))
    given = {"steps": 100, "image_size": (32, 48), "batch_size": 64, "workers": None}
    run = task_run(task, data, str(start), "paper", given)
    assert (run.optimizer.warmup_steps, run.optimizer.learning_rate) == (10, 0.01)
    rate = "rate of each task the best of 0.001, 0.003, 0.01, 0.03 (0.01 for all)"
    named = ["batch 64 (512)", "pixels 32x48 (384x384)", "100 steps (2,500)", rate]
    assert list(departures(run, task, RATES["paper"])) == named


def test_crops_and_flips_are_bits_where_they_keep_the_label(start: Path, root: Path) -> None:
    """BiT 3.3 and `get_resolution`: 480 of 512 pixels, or 128 of 160 of images under 96x96. The numbers of
    classes of VTAB's 19 tasks are in the order of Table 9."""
    classes = [102, 100, 47, 102, 37, 397, 10, 2, 10, 45, 5, 8, 6, 6, 16, 16, 4, 18, 9]
    assert [task.classes for task in VTAB_TASKS] == classes
    rules = {}
    for task in VTAB_TASKS:
        run = task_run(task, root / "x.txt", str(start), "paper", {})
        assert not list(departures(run, task)) and run.augmentation.shift == 0
        assert run.augmentation.crop_aspect is None
        rules[task.folder] = run.augmentation.crop_area, run.augmentation.flip
    large, small = ((480 / 512) ** 2,) * 2, ((128 / 160) ** 2,) * 2
    assert {name for name, (area, _) in rules.items() if area == small} == {"cifar", "svhn", "eurosat"}
    assert {area for area, _ in rules.values()} == {large, small, None}
    structured = {task.folder for task in VTAB_TASKS if task.group == "structured"}
    assert {name for name, (area, _) in rules.items() if area is None} == structured
    assert {name for name, (_, flip) in rules.items() if not flip} == {"svhn", *structured}


def test_means_are_over_tasks_and_not_over_groups() -> None:
    """By hand: natural (0.9 + 0.7) / 2, structured 0.2, all (0.9 + 0.7 + 0.2) / 3; limits by Pythagoras."""
    tasks = [score("cifar", 0.9, 0.87, 0.92), score("svhn", 0.7, 0.66, 0.73), score("kitti", 0.2, 0.08, 0.24)]
    natural, structured, overall = mean_of(tasks, "natural"), mean_of(tasks, "structured"), mean_of(tasks)
    assert natural is not None and structured is not None and overall is not None
    assert mean_of(tasks, "specialized") is None is mean_of([])
    assert natural.accuracy == pytest.approx(0.8) and (natural.tasks, natural.of) == (2, 7)
    assert natural.interval == pytest.approx((0.8 - 0.05 / 2, 0.8 + 13**0.5 / 200))
    assert structured.accuracy == 0.2 and structured.interval == pytest.approx((0.08, 0.24))
    assert overall.accuracy == pytest.approx(0.6) and (overall.tasks, overall.of) == (3, 19)
    assert overall.interval == pytest.approx((0.6 - 0.13 / 3, 0.6 + (4 + 9 + 16) ** 0.5 / 300))
    assert overall.name == "mean of 3 of 19 (partial)"
    assert overall.paper == pytest.approx(
        ((0.855 + 0.889 + 0.845) / 3, (0.819 + 0.874 + 0.822) / 3, (0.841 + 0.809 + 0.799) / 3)
    )


def test_the_papers_means_are_those_of_its_table() -> None:
    """Table 9 has 77.6, 76.3 and 72.7 as the means of its columns."""
    scores = tuple(score(task.folder, 0.5, 0.4, 0.6) for task in VTAB_TASKS)
    mean = mean_of(scores)
    assert mean is not None and mean.name == "mean of all 19"
    assert [round(100 * paper, 1) for paper in mean.paper] == [77.6, 76.3, 72.7]
    whole = Vtab(Path("out"), "start", "root", "paper", (), scores)
    assert not any("partial" in sentence for sentence in remarks(whole))

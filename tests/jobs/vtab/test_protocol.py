"""The protocol of VTAB-1k is the paper's, and departures are named."""

from pathlib import Path

import pytest

from tests.helpers.vtab import SMALL, vtab
from vitkit.data.layouts.vtab_tasks import VTAB_TASKS
from vitkit.jobs.vtab import (
    RATES,
    departures,
    task_run,
)
from vitkit.runs.folder import kind_of

pytestmark = pytest.mark.usefixtures("without_report")


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
    assert list(departures(run, task, RATES["paper"])) == [
        "batch 64 (512)",
        "pixels 32x48 (384x384)",
        "100 steps (2,500)",
        "rate of each task the best of 0.001, 0.003, 0.01, 0.03 (0.01 for all)",
    ]


def test_crops_and_flips_are_bits_where_they_keep_the_label(start: Path, root: Path) -> None:
    """BiT 3.3 and `get_resolution`: 480 of 512 pixels, or 128 of 160 of images under 96x96."""
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


def test_the_classes_of_a_task_are_those_of_the_paper() -> None:
    """The numbers of classes of VTAB's 19 tasks, in the order of Table 9."""
    classes = [102, 100, 47, 102, 37, 397, 10, 2, 10, 45, 5, 8, 6, 6, 16, 16, 4, 18, 9]
    assert [task.classes for task in VTAB_TASKS] == classes


def test_protocol_finetune_is_that_of_finetuning(start: Path, root: Path, tmp_path: Path) -> None:
    evaluation = vtab(start, root, tasks=["clevr_count"], out=tmp_path / "out", protocol="finetune", **SMALL)
    run = kind_of(tmp_path / "out/clevr_count/final").run()
    assert (run.optimizer.optimizer, run.training.steps, run.training.select) == ("adamw", 4, "last")
    assert "optimizer adamw (sgd)" in evaluation.departures
    assert (
        "the same crops and flips for all tasks (BiT's, where they keep the label)" in evaluation.departures
    )
    assert not any("smallest crop" in line for line in evaluation.departures)
    assert "factor of the head's rate 6 (1)" in evaluation.departures

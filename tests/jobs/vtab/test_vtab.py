"""Tasks of VTAB-1k are trained and tested once, and the command prints the table."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.vtab import SMALL, arguments, refusal, vtab
from tests.jobs.hearing import Hearing
from vitkit.cli.main import run as command
from vitkit.runs.folder import kind_of
from vitkit.runs.series_record import read_series

pytestmark = pytest.mark.usefixtures("without_report")


def test_each_task_is_trained_on_1000_and_tested_once(start: Path, root: Path, tmp_path: Path) -> None:
    hearing = Hearing()
    evaluation = vtab(start, root, out=tmp_path / "out", listener=hearing, **SMALL)
    assert [score.task.folder for score in evaluation.tasks] == ["oxford_iiit_pet", "clevr_count"]
    for task in evaluation.tasks:
        folder = tmp_path / "out" / task.task.folder / "final"
        stored = json.loads((folder / "evaluation/test.json").read_text())
        assert (task.accuracy, task.images) == (stored["accuracy"], 50)
        assert list(task.interval) == stored["accuracy_interval"]
        assert not (folder / "evaluation/val.json").exists()
        assert kind_of(folder).run().data.endswith("train800val200.txt")
        assert json.loads((folder / "data.json").read_text())["images"] == {"train": 50, "test": 50}
    finals = [evaluation.folder / score.task.folder / "final" for score in evaluation.tasks]
    cards = [json.loads((folder / "model.json").read_text()) for folder in finals]
    assert [len(card["class_names"]) for card in cards] == [37, 8]
    record = json.loads((tmp_path / "out/vtab.json").read_text())
    assert record["means"]["all"]["accuracy"] == pytest.approx(
        sum(task.accuracy for task in evaluation.tasks) / 2
    )
    rows = list(csv.reader((tmp_path / "out/vtab.csv").read_text().splitlines()))
    assert [row[0] for row in rows[1:3]] == ["Pets", "natural, mean of 1 of 7 (partial)"]
    assert "Pets" in (tmp_path / "out/report.html").read_text()
    assert record["start"] == start.name
    for name in ("vtab.json", "vtab.csv", "report.html"):
        said = (tmp_path / "out" / name).read_text()
        assert not any(str(place) in said for place in (tmp_path, start.parent, root.parent))
    assert "clevr_count: training" in hearing.loops
    assert hearing.notes[-1].startswith("task 2 of 2, clevr_count: ") and not hearing.rows


def test_the_sweep_chooses_on_200_images(start: Path, root: Path, tmp_path: Path) -> None:
    rates = (1e-9, 0.1)
    evaluation = vtab(
        start, root, out=tmp_path / "out", tasks=["clevr_count"], sweep=True, rates=rates, **SMALL
    )
    (task,) = evaluation.tasks
    series = read_series(tmp_path / "out/clevr_count")
    assert [tried.folder for tried in series.rates] == ["rate-1e-09", "rate-0.1"]
    for tried in series.rates:
        member = tmp_path / "out/clevr_count" / tried.folder
        stored = json.loads((member / "evaluation/val.json").read_text())
        assert (stored["accuracy"], stored["count"]) == (tried.value, 10)
        assert not (member / "evaluation/test.json").exists()
        assert json.loads((member / "data.json").read_text())["images"] == {"train": 40, "val": 10}
        assert not [*member.glob("checkpoints/step-*")] and not (member / "model.safetensors").exists()
    final = kind_of(tmp_path / "out/clevr_count/final").run()
    assert task.learning_rate == series.chosen == final.optimizer.learning_rate
    assert json.loads((tmp_path / "out/clevr_count/final/data.json").read_text())["images"]["train"] == 50


def test_a_rate_that_diverges_is_passed_over(start: Path, root: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"tasks": ["clevr_count"], "sweep": True, **SMALL}
    hearing = Hearing()
    evaluation = vtab(start, root, out=tmp_path / "some", rates=(1e38, 0.01), listener=hearing, **options)
    assert evaluation.tasks[0].learning_rate == 0.01
    (said,) = hearing.warnings
    assert said.startswith("clevr_count: learning rate 1e+38 on a part of the training images")
    assert "training diverged. Step " in said
    said = refusal(start, root, out=tmp_path / "none", rates=(1e38, 1e37), **options)
    assert said.startswith("clevr_count: None of the learning rates 1e+37, 1e+38 led to a model")
    assert said.endswith("Give lower ones with rates and another out.")


def test_the_command_prints_all_numbers_as_json(
    start: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = arguments(start, root, tmp_path / "out")
    assert command([*line, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["means"]["all"]["of"] == 19
    assert command([*line, "--seed", "3"]) == 1
    assert "holds another study" in capsys.readouterr().err


def test_a_plan_lists_the_tasks_and_trains_nothing(
    start: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        command([*arguments(start, root, tmp_path / "out"), "--sweep", "--rates", "0.01,0.1", "--plan"]) == 0
    )
    said = " ".join(capsys.readouterr().out.split())
    assert "clevr_count 0.01, 0.1 3 4" in said and "2 arms, 6 runs, about" in said
    assert not (tmp_path / "out").exists()

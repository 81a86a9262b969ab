"""Means over the tasks of VTAB-1k, beside the paper's."""

from pathlib import Path

import pytest

from tests.helpers.vtab import score
from vitkit.data.layouts.vtab_tasks import VTAB_TASKS
from vitkit.jobs.vtab import TaskScore, Vtab, mean_of, remarks, score_table
from vitkit.report.template import write_page


def result(*scores: TaskScore) -> Vtab:
    return Vtab(Path("out"), "start", "root", "paper", (), scores)


def test_means_are_over_tasks_and_not_over_groups() -> None:
    """By hand: natural (0.9 + 0.7) / 2, structured 0.2, all (0.9 + 0.7 + 0.2) / 3; limits by Pythagoras."""
    evaluation = result(
        score("cifar", 0.9, 0.87, 0.92),
        score("svhn", 0.7, 0.66, 0.73),
        score("kitti", 0.2, 0.08, 0.24),
    )
    tasks = evaluation.tasks
    natural, structured, overall = mean_of(tasks, "natural"), mean_of(tasks, "structured"), mean_of(tasks)
    assert natural is not None and structured is not None and overall is not None
    assert mean_of(tasks, "specialized") is None
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
    evaluation = result(*(score(task.folder, 0.5, 0.4, 0.6) for task in VTAB_TASKS))
    mean = mean_of(evaluation.tasks)
    assert mean is not None and mean.name == "mean of all 19"
    assert [round(100 * paper, 1) for paper in mean.paper] == [77.6, 76.3, 72.7]
    assert not any("partial" in sentence for sentence in remarks(evaluation))
    assert score_table(evaluation).rows[-1][0] == "mean of all 19"


def test_a_partial_mean_says_so_everywhere(tmp_path: Path) -> None:
    evaluation = result(score("cifar", 0.9, 0.87, 0.92))
    said = list(remarks(evaluation))
    assert said[0].startswith("The mean is partial: 1 of 19 tasks. It is no VTAB score")
    lacking = "Tasks without a folder, or left out by --tasks: Caltech101 (caltech101), DTD (dtd), Flowers102"
    assert said[1].startswith(lacking) and "CIFAR-100" not in said[1]
    assert [row[0] for row in score_table(evaluation).rows] == [
        "CIFAR-100",
        "natural, mean of 1 of 7 (partial)",
        "mean of 1 of 19 (partial)",
    ]
    assert evaluation.to_json()["means"]["all"]["tasks"] == 1
    page = write_page(evaluation, tmp_path / "vtab.html").read_text()
    assert "over 1 of 19 tasks (partial)" in page and "85.5%" in page


def test_an_interval_of_nothing_is_no_mean() -> None:
    assert mean_of([]) is None

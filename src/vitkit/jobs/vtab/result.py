"""The result of VTAB-1k: accuracy by task, means by group and over all, beside the paper's Table 9, and
its page."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vitkit import config
from vitkit._version import __version__
from vitkit.data.layouts.vtab_tasks import GROUPS, VTAB_TASKS, Group, TaskFolder, VtabTask, vtab_task
from vitkit.durable import replace_file, replace_json
from vitkit.report.template import Part, render_page
from vitkit.shown import Rows, Shown
from vitkit.tasks.page import Number, Table, Text, fraction_cell
from vitkit.text import csv_line, join_names, pluralize, without_places

PAPER_MODELS = ("ViT-H/14 JFT", "ViT-L/16 JFT", "ViT-L/16 I21k")
PAPER: dict[TaskFolder, tuple[float, float, float]] = {
    "caltech101": (95.3, 95.4, 90.8),
    "cifar": (85.5, 81.9, 84.1),
    "dtd": (75.2, 74.3, 74.1),
    "oxford_flowers102": (99.7, 99.7, 99.3),
    "oxford_iiit_pet": (97.2, 96.7, 92.7),
    "sun397": (65.0, 63.5, 61.0),
    "svhn": (88.9, 87.4, 80.9),
    "patch_camelyon": (83.3, 83.6, 82.5),
    "eurosat": (96.7, 96.5, 95.6),
    "resisc45": (91.4, 89.7, 85.2),
    "diabetic_retinopathy": (76.6, 77.1, 75.3),
    "clevr_count": (91.7, 86.4, 70.3),
    "clevr_dist": (63.8, 63.1, 56.1),
    "dmlab": (53.1, 49.7, 41.9),
    "dsprites_loc": (79.4, 74.5, 74.7),
    "dsprites_ori": (63.3, 60.5, 64.9),
    "kitti": (84.5, 82.2, 79.9),
    "smallnorb_azi": (33.2, 36.2, 30.5),
    "smallnorb_ele": (51.2, 51.1, 41.7),
}
"""Table 9 of the paper in per cent, a column for each of its models. Its means are over the 19 tasks."""


@dataclass(frozen=True)
class TaskScore:
    """The test accuracy of one task; fractions are from 0 to 1."""

    folder: TaskFolder
    data: str
    """The path of its images."""
    run: str
    """The run folder of the model that was tested."""
    accuracy: float
    interval: tuple[float, float]
    """95 % interval, over test images alone and not over seeds."""
    images: int
    """Test images that could be read."""
    unreadable: int
    repeated: int
    """Test images that are training images too, pixel for pixel."""
    majority: float
    """Accuracy of always naming the most frequent class of the test images."""
    verdict: str
    """The comparison with that guess on the same images: better, worse, or not distinguishable."""
    learning_rate: float
    validation: dict[str, float] = field(default_factory=dict)
    """Accuracy on the 200 validation images for each learning rate of the sweep, if there was one."""


@dataclass(frozen=True)
class Mean:
    """The mean accuracy of some tasks, with the same weight for each."""

    accuracy: float
    interval: tuple[float, float]
    """95 % interval, by the intervals of the tasks."""
    tasks: int
    of: int
    """The number of tasks in VTAB-1k, or in its group; with fewer the mean is partial."""

    @property
    def is_partial(self) -> bool:
        return self.tasks < self.of


@dataclass(frozen=True, repr=False)
class Vtab(Shown):
    """The result of VTAB-1k."""

    start: str
    root: str
    protocol: str
    departures: tuple[str, ...]
    """The ways in which it was not computed as in the paper."""
    tasks: tuple[TaskScore, ...]
    """In the order of the paper's Table 9."""
    absent: tuple[TaskFolder, ...]
    """Tasks that have no folder."""
    not_asked: tuple[TaskFolder, ...]
    """Tasks that have a folder and are not among the chosen ones."""

    def summary(self) -> str:
        """Give the mean over the tasks, and their number."""
        mean = self.mean()
        return "no task yet" if mean is None else f"{mean.accuracy:.1%}, {mean_name(mean)}"

    def in_rows(self) -> tuple[Sequence[str], Rows]:
        """Return the table of the tasks beside the paper's numbers."""
        table = score_table(self)
        return table.headings, table.rows

    def mean(self, group: Group | None = None) -> Mean | None:
        """Return the mean over the tasks of a group, or over all; None where there are none."""
        of = tasks_of(group)
        folders = {task.folder for task in of}
        return mean_of([score for score in self.tasks if score.folder in folders], len(of))

    def paper_mean(self, group: Group | None = None) -> tuple[float, ...]:
        """Return the paper's means over the same tasks, a fraction for each of its models."""
        folders = {task.folder for task in tasks_of(group)}
        rows = [PAPER[score.folder] for score in self.tasks if score.folder in folders]
        return tuple(math.fsum(column) / len(column) / 100 for column in zip(*rows, strict=True))

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        means = {name: self.mean(group) for name, group in ROWS}
        return {
            **config.to_json(self),
            "means": {name: config.to_json(mean) for name, mean in means.items() if mean is not None},
            "partial": len(self.tasks) < len(VTAB_TASKS),
        }

    def table(self) -> Iterator[tuple[str, str, TaskScore | Mean, tuple[float, ...]]]:
        """Yield each row of the result: group, name, score or mean, and the paper's fractions."""
        for group in GROUPS:
            for score in self.tasks:
                task = vtab_task(score.folder)
                if task.group == group:
                    yield group, task.title, score, tuple(percent / 100 for percent in PAPER[score.folder])
            mean = self.mean(group)
            if mean is not None:
                yield group, mean_name(mean, group), mean, self.paper_mean(group)
        overall = self.mean()
        if overall is not None:
            yield "all", mean_name(overall), overall, self.paper_mean()


ROWS: tuple[tuple[str, Group | None], ...] = (*((group, group) for group in GROUPS), ("all", None))
"""The names of the means."""


def tasks_of(group: Group | None) -> list[VtabTask]:
    """Return the tasks of a group, or all 19."""
    return [task for task in VTAB_TASKS if group in (None, task.group)]


def mean_of(scores: Sequence[TaskScore], of: int) -> Mean | None:
    """Return the mean over tasks, as in the paper: of their accuracies, not of all their images.

    Its interval adds the squared distances from accuracy to limit of the tasks, because their test images are
    drawn independently (Zou and Donner 2008, for a sum of estimates).
    """
    if not scores:
        return None
    count = len(scores)
    mean = math.fsum(score.accuracy for score in scores) / count
    below = math.hypot(*(score.accuracy - score.interval[0] for score in scores)) / count
    above = math.hypot(*(score.interval[1] - score.accuracy for score in scores)) / count
    return Mean(mean, (max(0.0, mean - below), min(1.0, mean + above)), count, of)


def mean_name(mean: Mean, group: Group | None = None) -> str:
    """Name a mean, and say whether it is partial: "natural, mean of 2 of 7 (partial)"."""
    counted = f"{mean.tasks} of {mean.of} (partial)" if mean.is_partial else f"all {mean.of}"
    return f"{group}, mean of {counted}" if group else f"mean of {counted}"


def remarks(vtab: Vtab) -> Iterator[str]:
    """Yield sentences that a reader of the numbers should know: missing tasks, departures, poor results."""
    if vtab.absent or vtab.not_asked:
        yield (
            f"The mean is partial: {len(vtab.tasks)} of {len(VTAB_TASKS)} tasks. It is no VTAB score; the "
            "paper's means stand for the same tasks here."
        )
        yield from _named("absent, without a folder", vtab.absent)
        yield from _named("left out by --tasks", vtab.not_asked)
    if vtab.departures:
        yield f"Other than in the paper (in brackets): {', '.join(vtab.departures)}."
    if vtab.protocol == "paper":
        yield (
            "Crops and flips are BiT's, where they keep the label: none in the structured tasks, no flips of "
            "SVHN. Neither paper lists the tasks."
        )
    yield "Intervals are over test images, not over seeds; the paper has means of three runs."
    for score in vtab.tasks:
        name = vtab_task(score.folder).title
        if score.verdict != "better than guessing":
            yield f"{name}: {score.verdict}; always naming one class is right on {score.majority:.1%}."
        if score.repeated:
            images = pluralize(
                score.repeated, "test image is a training image", "test images are training images"
            )
            yield f"{name}: {images} too, pixel for pixel."
        if score.unreadable:
            yield f"{name}: {pluralize(score.unreadable, 'test image')} could not be read and left out."


def _named(what: str, folders: Iterable[TaskFolder]) -> Iterator[str]:
    names = [f"{vtab_task(folder).title} ({folder})" for folder in folders]
    if names:
        yield f"Tasks {what}: {join_names(names, limit=len(VTAB_TASKS))}."


def score_table(vtab: Vtab) -> Table:
    """Make the table of the tasks and means, beside the paper's numbers."""
    rows: list[tuple[str | Number, ...]] = []
    for _, name, score, paper in vtab.table():
        low, high = score.interval
        images, rate = "", ""
        if isinstance(score, TaskScore):
            images, rate = f"{score.images:,}", f"{score.learning_rate:g}"
        ours = (fraction_cell(score.accuracy), Number(f"{low:.1%} to {high:.1%}", low))
        rows.append((name, *ours, Number(images, 0), Number(rate, 0), *map(fraction_cell, paper)))
    headings = ("task", "accuracy", "95 % interval", "images", "rate", *PAPER_MODELS)
    return Table(headings, tuple(rows))


def csv_rows(vtab: Vtab) -> Iterator[tuple[str, ...]]:
    """Yield the lines of a table: the head, each task, the means."""
    yield ("group", "name", "accuracy", "low", "high", "images", "learning_rate", *PAPER_MODELS)
    for group, name, score, paper in vtab.table():
        ours = (f"{fraction:.6f}" for fraction in (score.accuracy, *score.interval))
        beside = ("", "")
        if isinstance(score, TaskScore):
            beside = (f"{score.images}", f"{score.learning_rate:g}")
        yield group, name, *ours, *beside, *(f"{fraction:.4f}" for fraction in paper)


def portable_json(vtab: Vtab) -> dict[str, Any]:
    """Return all numbers as plain data that says nothing of where things lie on this machine."""
    here = replace(vtab, tasks=tuple(replace(task, run=f"{task.folder}/final") for task in vtab.tasks))
    numbers: dict[str, Any] = without_places(here.to_json())
    return numbers


def write_result(folder: Path, vtab: Vtab) -> None:
    """Write the result as JSON, CSV and a page."""
    replace_json(folder / "vtab.json", portable_json(vtab))
    table = "".join(f"{csv_line(row)}\n" for row in csv_rows(vtab))
    replace_file(folder / "vtab.csv", [table.encode()])
    replace_file(folder / "vtab.html", [render_vtab(vtab).encode()])


def render_vtab(vtab: Vtab) -> str:
    """Render the page as HTML, to be written as UTF-8."""
    mean = vtab.mean()
    assert mean is not None  # a result has a task at least
    low, high = mean.interval
    tasks = "the 19 tasks" if not mean.is_partial else f"{mean.tasks} of 19 tasks (partial)"
    answer = f"Mean accuracy over {tasks}: {mean.accuracy:.1%} (95 % interval {low:.1%} to {high:.1%})."
    caption = "The last columns are the paper's Table 9; its means are taken over the same tasks."
    parts: list[Part] = [
        ("Accuracy on the test images", (*remarks(vtab), score_table(vtab), Text(caption, "caption")))
    ]
    if any(score.validation for score in vtab.tasks):
        parts.append(("Accuracy on 200 validation images by rate", (_sweep(vtab),)))
    start, root = without_places([vtab.start, vtab.root])
    footer = f"{start} on {root}, protocol {vtab.protocol}, vitkit {__version__}"
    return render_page("VTAB-1k", [answer], parts, footer=footer)


def _sweep(vtab: Vtab) -> Table:
    rates = sorted({rate for score in vtab.tasks for rate in score.validation}, key=float)
    rows = tuple(
        (score.folder, *(fraction_cell(score.validation.get(rate)) for rate in rates))
        for score in vtab.tasks
        if score.validation
    )
    return Table(("task", *(f"rate {rate}" for rate in rates)), rows)

"""Show the result of a study of the paper on a page: our numbers beside the paper's, and why they differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitkit.config import to_json
from vitkit.evaluation.paired import SURE
from vitkit.jobs.reproduce.designs import Design
from vitkit.jobs.reproduce.verdict import ALIKE, Finding
from vitkit.jobs.study.comparison import Comparison, ScoredArms, arm_table, difference_plot
from vitkit.report.template import Part, render_page
from vitkit.runs.config import shown_command
from vitkit.tasks.page import Number, Plot, Table, points, shown_score
from vitkit.text import pluralize

if TYPE_CHECKING:
    from vitkit.jobs.reproduce.items import Item


@dataclass(frozen=True)
class ArmRow:
    """The options, cost and scores of an arm; scores are from 0 to 1."""

    name: str
    label: str
    line: str
    x: float
    steps: int
    learning_rate: float | None
    flops: int | None
    """FLOPs of a forward pass for one image; None where a start decides the model."""
    images_per_second: float | None
    """In training, as measured when the study began; None where it was not timed."""
    scores: Mapping[str, float]
    """Mean score of the test images by seed."""
    mean: float | None
    interval: tuple[float, float] | None
    """95 %, over seeds and test images."""
    validation: float | None
    """Mean score of the validation images; -1 where there are none."""


@dataclass(frozen=True)
class Answer:
    """The result of a study."""

    sentences: tuple[str, ...]
    findings: tuple[Finding, ...]
    arms: tuple[ArmRow, ...]
    collected: Any = None
    """The numbers of other verbs as plain data."""
    tested: ScoredArms | None = None
    seeds: int = 0
    setting: tuple[tuple[str, str], ...] = ()
    """The data, model and so on: a topic and its value each."""

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        tested = self.tested
        return {
            "answer": list(self.sentences),
            "findings": [to_json(row) for row in self.findings],
            "arms": [to_json(row) for row in self.arms],
            "images": None if tested is None else tested.images,
            "split": None if tested is None else tested.split,
            "seeds": self.seeds,
            "setting": dict(self.setting),
            "collected": self.collected,
        }


def say(finding: Finding, tested: ScoredArms) -> str:
    """Write a finding in a sentence: outcome, difference with its interval, and detectable difference."""
    difference, claim = finding.difference, finding.claim
    if difference is None:
        return f"{claim.statement}: cannot be told, because training diverged in every run of an arm."
    low, high = (points(tested, value, signed=True) for value in difference.interval)
    size = f"{points(tested, difference.mean, signed=True)} points (95 % interval {low} to {high})"
    if difference.seed_variance is None or claim.one_pretraining:
        sample = "pre-training of each kind" if claim.one_pretraining else "seed"
        return f"{claim.statement}: this cannot be told from one {sample}, {size} for these weights."
    least = (
        f"a difference of {points(tested, difference.detectable)} points or more would have been found in 8 "
        "of 10 studies of this size"
    )
    if claim.kind == "open":
        sure = finding.adjusted_p is not None and finding.adjusted_p < SURE
        return (
            f"{claim.statement}: {size}."
            if sure
            else f"{claim.statement}: no difference found, {size}; {least}."
        )
    if finding.outcome == "cannot be told":
        margin = f"; alike means within {100 * ALIKE:g} point" if claim.kind == "alike" else ""
        return f"{claim.statement}: this cannot be told at this size, {size}; {least}{margin}."
    return f"{claim.statement}: this {finding.outcome} at this size, {size}."


def study_parts(answer: Answer, design: Design, comparison: Comparison, timed: bool) -> list[Part]:
    """Make the parts of the page on a study's own numbers.

    Args:
        answer: of the study.
        design: decides the axis of its figure.
        comparison: of its arms with the first one, for a figure without an axis.
        timed: whether the scores are drawn against the speed of training too.
    """
    assert answer.tested is not None  # of a study that was trained
    images = answer.tested.describe()
    sentences = (
        design.shared,
        f"{pluralize(answer.seeds, 'seed')} on {images}; the intervals are 95 %, over seeds and test images.",
    )
    places = {arm.name: arm.x for arm in answer.arms}
    plot = _line_plot(answer, places, design.axis) if design.axis else difference_plot(comparison)
    parts: list[Part] = [("Here", (_arm_table(answer), *sentences, plot))]
    speeds = {arm.name: arm.images_per_second for arm in answer.arms if arm.images_per_second is not None}
    if timed and speeds:
        when = "Images a second in training, as measured here when the study began."
        drawn = _line_plot(answer, speeds, "images a second in training")
        parts.append(("Against the speed", (when, drawn)))
    if not design.axis and comparison.arms:
        against = f"Each arm against {comparison.base.label}, on the same images with the same seeds."
        parts.append(("Differences", (arm_table(comparison), against)))
    return parts


def _arm_table(answer: Answer) -> Table:
    tested = answer.tested
    assert tested is not None
    rows: list[tuple[str | Number, ...]] = []
    for arm in answer.arms:
        low, high = arm.interval or (None, None)
        rows.append(
            (
                arm.label,
                _number("{:,.2f}", None if arm.flops is None else arm.flops / 1e6),
                Number(f"{arm.steps:,}", arm.steps),
                _number("{:,.0f}", arm.images_per_second),
                _number("{:g}", arm.learning_rate),
                "–" if arm.mean is None else Number(shown_score(tested, arm.mean), arm.mean),
                "–" if low is None else f"{shown_score(tested, low)} to {shown_score(tested, high)}",
            )
        )
    headings = ("arm", "million FLOPs", "steps", "images a second", "rate", tested.score, "95 % interval")
    return Table(headings, tuple(rows))


def _number(form: str, value: float | None) -> str | Number:
    return "–" if value is None else Number(form.format(value), value)


def _line_plot(answer: Answer, places: Mapping[str, float], axis: str) -> Plot | None:
    """Draw the lines of a figure; of several arms at the same point the best by validation.

    Args:
        answer: has the arms.
        places: the place on the axis of each arm that is drawn, by name.
        axis: its label.
    """
    from vitkit.analysis.study_figures import line_figure

    assert answer.tested is not None
    best: dict[tuple[str, float], ArmRow] = {}
    for arm in answer.arms:
        point = arm.line, places.get(arm.name, 0.0)
        before = best.get(point)
        if arm.name in places and (before is None or (arm.validation or 0) > (before.validation or 0)):
            best[point] = arm
    lines: dict[str, list[tuple[float, float, tuple[float, float]]]] = {}
    for (line, x), arm in sorted(best.items()):
        if arm.mean is not None and arm.interval is not None:
            lines.setdefault(line, []).append((x, arm.mean, arm.interval))
    if not lines:
        return None
    figure = line_figure({"": lines}, axis, answer.tested.score)
    return Plot(figure, axis.replace(" ", "-"), f"The {answer.tested.score} of the arms, as in the table.")


def render(
    item: "Item",
    answer: Answer,
    setting: Sequence[tuple[str, str]],
    parts: Sequence[Part],
    folders: Sequence[str],
    name: str,
    command: str,
) -> str:
    """Make the page as HTML.

    Args:
        item: the figure or table.
        answer: of the study.
        setting: our data, model and so on.
        parts: of our numbers.
        folders: within the study's folder, of runs that have a page of their own.
        name: of the study's folder.
        command: that made the study.
    """
    curve = "" if item.paper else " The paper shows a curve or pictures, whose numbers it does not print."
    theirs: list[Part] = [
        ("The paper", (f"Its conclusion: {item.conclusion}{curve}",)),
        *((numbers.source, (numbers.table(),)) for numbers in item.paper),
    ]
    here = dict(setting)
    topics = list(dict.fromkeys([*(topic for topic, _ in item.setting), *here]))
    rows = tuple((topic, dict(item.setting).get(topic, "–"), here.get(topic, "–")) for topic in topics)
    why = (
        f"The numbers differ because data, model and training do. The paper's size would need: "
        f"{item.at_paper_size}."
    )
    page = [*parts, *theirs, ("Why they differ", (Table(("", "paper", "here"), rows), why))]
    title = f"{item.title} ({name})"
    return render_page(title, answer.sentences, page, folders=folders, command=shown_command(command))

"""Show the result of a law of scale: as plain data, in sentences, and on a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitkit.config import to_json
from vitkit.durable import replace_file, replace_json
from vitkit.evaluation.power_law import LawFit, Point, Prediction
from vitkit.jobs.study.options import Axis
from vitkit.jobs.study.study import StudyResult
from vitkit.runs.config import shown_command
from vitkit.shown import Rows
from vitkit.tasks.page import Plot, Table
from vitkit.text import format_count, pluralize, without_places

AXES: dict[Axis, tuple[str, str, str]] = {
    "data": ("training images", "as many images", "images"),
    "steps": ("steps", "as many steps", "steps"),
    "size": ("FLOPs of training", "the FLOPs, in a larger model,", "FLOPs"),
}
"""For each axis its label, the noun of "three times ...", and its unit."""


@dataclass(frozen=True)
class Measured:
    """A point of the study, and its test errors."""

    label: str
    folder: str
    x: float
    point: Point | None
    """None where training diverged with every seed."""
    diverged: int
    """Seeds with which it diverged."""


@dataclass(frozen=True, repr=False)
class Scale(StudyResult):
    """A law of scale: its points, its prediction, and the error of the held-out point."""

    data: str
    model: str
    along: Axis
    hold: Literal["steps", "epochs"]
    metric: str
    is_fraction: bool
    """Whether errors are 1 minus a fraction, such as accuracy; else they are a loss."""
    steps: int
    """Updates of the held-out point."""
    measured: tuple[Measured, ...]
    """The points that the law was fitted to."""
    held_out: Measured
    fit: LawFit
    prediction: Prediction
    """The prediction at the held-out point, made before it was trained."""
    final: LawFit | None
    """The law fitted to all points, the held-out one too; None where that diverged."""
    objection: str
    """The reason why the law does not hold; "" where it does."""
    beyond: Prediction | None
    """The error at three times the held-out point; None where the law does not hold."""

    def summary(self) -> str:
        """Give the conclusions."""
        return " ".join(conclusions(self))

    def in_rows(self) -> tuple[Sequence[str], Rows]:
        """Return the table of the points."""
        table = point_table(self)
        return table.headings, table.rows

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain data, with the sentences about them."""
        return {**to_json(self), "folder": str(self.folder), "conclusions": conclusions(self)}


def conclusions(result: Scale) -> list[str]:
    """Conclude from the held-out point, and from the extrapolation or the objection to it."""
    label, more, _ = AXES[result.along]
    metric = result.metric.replace("_", " ")
    low, high = (format_count(place.x) for place in (result.measured[0], result.measured[-1]))
    sentences = [
        f"From {low} to {high} {label} the {'error' if result.is_fraction else metric} is "
        f"{result.fit.law.describe()}."
    ]
    point, prediction = result.held_out.point, result.prediction
    expected = (
        f"the law predicted {shown(result, prediction.error)} ({interval(result, prediction)} if it holds)"
    )
    where = f"At {result.held_out.label}, three times beyond"
    if point is None:
        sentences.append(f"{where}, {expected}; training diverged.")
    else:
        side = "inside" if prediction.holds(point.error) else "OUTSIDE of"
        sentences.append(
            f"{where}, {expected}; {shown(result, point.error)} {metric} came out, {side} the interval."
        )
    if result.objection:
        sentences.append(
            f"The law does not hold here: {result.objection}. Nothing is said about three times {more}."
        )
    if result.beyond is not None and result.final is not None and point is not None:
        ends = "from no further gain to one as fast as through the last points"
        expected = f"about {shown(result, result.beyond.error)} {metric} by the law"
        if not result.final.falls_at_last:
            ends, expected = "the last points show no gain", f"{shown(result, point.error)} {metric} as now"
        sentences.append(
            f"EXTRAPOLATION: three times {more} would reach {expected} "
            f"({interval(result, result.beyond)}: {ends})."
        )
    return sentences


def remarks(result: Scale) -> list[str]:
    """Explain what was equal at all points, what the intervals cover, and which runs diverged."""
    equal = {
        "data": "Every point made the same number of updates and was validated equally often, on the same "
        "images: with equal passes, fewer images would also mean fewer updates.",
        "steps": "Every point is a training of its own, whose learning rate ends with it.",
        "size": "Width and depth grow together, and the steps stay the same.",
    }[result.along]
    if result.hold == "epochs":
        equal = "Every point made the same number of passes: fewer images also mean fewer updates."
    sentences = [
        equal,
        "At every point the best weights by validation are tested, on the same test images; the intervals "
        "are for these images, and not for others.",
    ]
    if result.fit.residuals <= 2:
        sentences.append(
            "Five points leave two residuals to estimate the noise by: more --points or --seeds narrow the "
            "interval."
        )
    return [
        *sentences,
        *(
            f"{place.label}: training diverged in {pluralize(place.diverged, 'run')}, left out."
            for place in (*result.measured, result.held_out)
            if place.diverged
        ),
    ]


def shown(result: Scale, error: float) -> str:
    """Write an error as the metric: of a fraction such as accuracy, the percentage that is right."""
    return f"{1 - error:.1%}".replace("%", " %") if result.is_fraction else f"{error:.4g}"


def interval(result: Scale, prediction: Prediction) -> str:
    """Write the interval of a prediction, from its lower to its upper end."""
    ends = (prediction.high, prediction.low) if result.is_fraction else (prediction.low, prediction.high)
    low, high = (shown(result, end) for end in ends)
    return f"95 % interval {low.removesuffix(' %')} to {high}"


def point_table(result: Scale) -> Table:
    """Make the table of the points: x, the measured scores, and the law's."""
    metric = result.metric.replace("_", " ")
    rows = []
    for place in (*result.measured, result.held_out):
        law = shown(result, result.fit.law.at(place.x))
        is_last = place is result.held_out
        law += f" ({interval(result, result.prediction)})" if is_last else ""
        remark = "held out" if is_last else ""
        if place.point is None:
            rows.append((place.label, "–", "–", law, "diverged"))
            continue
        seeds = ", ".join(shown(result, error) for error in place.point.errors)
        rows.append((place.label, shown(result, place.point.error), seeds, law, remark))
    return Table(
        (AXES[result.along][0], f"{metric} on test images", "each seed", "the law", "remark"), tuple(rows)
    )


def write_result(result: Scale, command: str) -> Path:
    """Write `scale.json` and `report.html` into the folder of the study.

    Args:
        result: of the study.
        command: that made it.

    Returns:
        The page.
    """
    from vitkit.report.template import render_page

    folder = result.folder
    replace_json(folder / "scale.json", without_places(result.to_json()))
    folders = [place.folder for place in (*result.measured, result.held_out)]
    pages = [name for name in folders if (folder / name / "report.html").exists()]
    page = render_page(
        folder.resolve().name,
        conclusions(result),
        [("Points", (point_table(result), *remarks(result), _plot(result)))],
        folders=pages,
        command=shown_command(command),
    )
    path = folder / "report.html"
    replace_file(path, [page.encode()])
    return path


def _plot(result: Scale) -> Plot:
    """Draw the points, the law with its interval, the held-out point and three times beyond."""
    from vitkit.analysis.study_figures import scale_plot

    first, last = result.measured[0].x, result.held_out.x
    band = [result.fit.predict(x) for x in np.geomspace(first, last, 40).tolist()]
    beyond: list[Prediction] = []
    if result.beyond is not None and result.final is not None:
        beyond = [result.final.extrapolate(x) for x in np.geomspace(last, result.beyond.x, 12).tolist()]
    figure = scale_plot(
        result.fit.points,
        band,
        result.held_out.point,
        beyond,
        AXES[result.along][0],
        f"test error (1 - {result.metric.replace('_', ' ')})" if result.is_fraction else result.metric,
        result.is_fraction,
    )
    return Plot(figure, "law", " ".join(conclusions(result)))

"""Draw the figures of studies: lines with their intervals over an axis, differences, a law of scale."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from vitkit.analysis import drawing
from vitkit.evaluation.fewshot.config import Method
from vitkit.evaluation.fewshot.methods import FewShotScore
from vitkit.evaluation.statistics import Point, Prediction
from vitkit.text import format_count

COLOURS = (drawing.BLUE, drawing.VERMILION, drawing.GREEN, "#CC79A7", "#E69F00", drawing.SKY, "black")
"""Okabe & Ito's; more lines than these differ by their dashes."""
DASHES = ("-", "--", ":", "-.")
PANELS = 4
"""The most numbers of shots that are drawn beside one another: the largest ones."""
METHOD_NAMES: Mapping[str, str] = {
    "ridge": "ridge, closed form (the paper's)",
    "knn": "nearest neighbours",
    "logistic": "logistic regression",
}

Points = Sequence[tuple[float, float, tuple[float, float] | None]]
"""Points of a line: place on the axis, value, and the interval that its bar shows, if it has one."""
RIGHT = "fraction of test images right"


def line_figure(
    panels: Mapping[str, Mapping[str, Points]],
    across: str,
    up: str,
    *,
    title: Sequence[str] = (),
    chance: float | None = None,
    is_fraction: bool = True,
    steps: bool = False,
) -> Figure:
    """Draw lines with their intervals, in one picture or in several side by side.

    Args:
        panels: the points of each line by its name, for each picture by its title.
        across: label of the axis.
        up: name of the values.
        title: of the figure, each part in lines of its own.
        chance: the value of guessing, to draw a line at; None for no line.
        is_fraction: whether values are fractions, written as percentages; else they are drawn on a
            logarithmic axis, where a value of 0 has no place.
        steps: whether the axis is that of the steps of a training; else it is logarithmic.
    """
    places = sorted({point[0] for lines in panels.values() for points in lines.values() for point in points})
    size = drawing.WIDTH * (0.6 if len(panels) == 1 else 1), 3.4 if steps else 4.0
    grid: dict[str, Any] = {"ncols": len(panels), "sharey": True, "squeeze": False}
    with drawing.chart(*size, *title, **grid) as (figure, every):
        for number, (axes, (name, lines)) in enumerate(zip(every[0], panels.items(), strict=True)):
            _draw_lines(axes, lines, named=number == 0)
            if chance is not None:
                label = "guessing" if number == 0 else "_"
                axes.axhline(chance, color=drawing.GREY, linestyle="--", linewidth=1, label=label)
            axes.set(xlabel=across, ylabel=up if number == 0 else "", title=name)
            if steps:
                if is_fraction:
                    low, high = axes.get_ylim()
                    axes.set_ylim(min(low, 0.9), min(high, 1.01))  # no accuracy is above 1
                axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
            else:
                axes.set_xscale("log")
                axes.set_xlim(places[0] / 1.15, places[-1] * 1.15)  # the same in all pictures
                axes.xaxis.set_major_locator(FixedLocator(_apart(places, 20 / len(panels))))
                axes.xaxis.set_minor_locator(NullLocator())
                axes.xaxis.set_major_formatter(FuncFormatter(lambda place, _: _short(place)))
            if is_fraction:
                axes.yaxis.set_major_formatter(drawing.percentages())
            else:
                axes.set_yscale("log")
                axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
                axes.yaxis.set_minor_formatter(NullFormatter())
    return figure


def _draw_lines(axes: Axes, lines: Mapping[str, Points], named: bool, joined: bool = True) -> None:
    """Draw lines, no two alike up to 28, with bars for their intervals; if `named`, in the legend, and if not
    `joined`, their points alone."""
    looks = itertools.cycle(itertools.product(DASHES, COLOURS))
    for (name, points), (dashes, colour) in zip(lines.items(), looks, strict=False):
        values = np.array([value for _, value, _ in points])
        ends = np.array([interval or (value, value) for _, value, interval in points])
        axes.errorbar(
            [place for place, _, _ in points],
            values,
            yerr=np.abs(ends.T - values),
            label=drawing.shortened(name, 60) if named else "_",  # matplotlib leaves such a label out
            color=colour,
            linestyle=dashes if joined else "none",
            marker="o",
            markersize=4,
            linewidth=1.6,
            elinewidth=1,
            capsize=2 if any(interval for _, _, interval in points) else 0,
        )
    axes.grid(True)


def _apart(places: Sequence[float], most: float) -> list[float]:
    """Choose the places of an axis that are written: no two nearer than one of `most` parts of it."""
    nearest = (places[-1] / places[0]) ** (1 / most)
    written = list(places[:1])
    for place in places[1:]:
        if place >= written[-1] * nearest:
            written.append(place)
    return written


def _short(number: float) -> str:
    """Write a number of an axis: up to 99,999 in full, above it, as FLOPs are, with a prefix."""
    return f"{number:,.5g}" if number < 1e5 else format_count(number)


def fewshot_plot(
    models: Mapping[str, Sequence[FewShotScore]], images: str, chance: float, seeds: int
) -> Figure:
    """Draw mean accuracy against the number of shots, with the standard deviation over draws.

    Args:
        models: scores by the name of a checkpoint. Of one checkpoint the methods are lines in one picture; of
            several each method is a picture of its own, and the checkpoints are its lines.
        images: the test images as a phrase ("360 test images of digits"), for the title.
        chance: accuracy of guessing, from 0 to 1.
        seeds: number of draws.
    """
    panels: dict[str, dict[str, Points]] = {}
    for name, scores in models.items():
        for method in dict.fromkeys(score.method for score in scores):
            panel, line = (METHOD_NAMES[method], name) if len(models) > 1 else ("", METHOD_NAMES[method])
            points = [_point(score.shots, score) for score in scores if score.method == method]
            panels.setdefault(panel, {})[line] = points
    title = (f"Few-shot accuracy on {images},", _draws(seeds))
    return line_figure(panels, "images of each class (shots)", RIGHT, title=title, chance=chance)


def pretraining_plot(
    models: Mapping[str, Sequence[tuple[int, Sequence[FewShotScore]]]],
    images: str,
    method: Method,
    chance: float,
    seeds: int,
) -> Figure:
    """Draw few-shot accuracy against the number of pre-training images, as Figure 4 (right) of the paper.

    Args:
        models: by architecture, the number of images of each checkpoint's pre-training and its scores; the
            checkpoints of an architecture are a line.
        images: the test images as a phrase ("360 test images of digits"), for the title.
        method: the method of the scores.
        chance: accuracy of guessing, from 0 to 1.
        seeds: number of draws.
    """
    shots = [score.shots for score in next(iter(models.values()))[0][1]][-PANELS:]
    panels = {
        f"{count:,} shots" if count > 1 else "1 shot": {
            name: [_point(size, score) for size, scores in points for score in scores if score.shots == count]
            for name, points in models.items()
        }
        for count in shots
    }
    title = (f"Few-shot accuracy on {images},", f"{METHOD_NAMES[method]}, {_draws(seeds)}")
    return line_figure(panels, "images of the pre-training", RIGHT, title=title, chance=chance)


def _point(place: float, score: FewShotScore) -> tuple[float, float, tuple[float, float]]:
    deviation = score.deviation or 0.0
    return place, score.mean, (score.mean - deviation, score.mean + deviation)


def _draws(seeds: int) -> str:
    return f"mean of {seeds} draws; bars: standard deviation" if seeds > 1 else "of one draw"


def tracking_plot(steps: Sequence[int], curves: Mapping[str, Sequence[float]], images: str) -> Figure:
    """Draw few-shot accuracy against the steps of a training.

    Args:
        steps: at which it was measured.
        curves: accuracies (0 to 1, NaN where one is missing) at these steps by name ("5 shots").
        images: the test images as a phrase, for the title.
    """
    lines: dict[str, Points] = {
        name: [(step, value, None) for step, value in zip(steps, values, strict=True)]
        for name, values in curves.items()
    }
    title = (f"Few-shot accuracy on {images}",)
    return line_figure({"": lines}, "step", RIGHT, title=title, steps=True)


def scale_plot(
    points: Sequence[Point],
    law: Sequence[Prediction],
    held_out: Point | None,
    beyond: Sequence[Prediction],
    across: str,
    label: str,
    is_fraction: bool,
) -> Figure:
    """Draw errors against images, steps or FLOPs, with the law fitted to them, on logarithmic axes.

    Args:
        points: the points that the law was fitted to.
        law: its predictions from the first point to the held-out point, with their intervals.
        held_out: the point that was predicted and then measured; None where training diverged.
        beyond: extrapolations from it, by the law fitted to the held-out point too; may be empty.
        across, label: of the axes.
        is_fraction: whether errors are fractions, written as percentages.
    """
    measured = [place for place in (*points, held_out) if place is not None]
    lowest = min(error for place in measured for error in place.errors)
    # A logarithmic axis has no 0: intervals that reach it are cut off at half of the smallest error.
    floor = 0.5 * max(1e-6, min([lowest, *(place.error for place in (*law, *beyond))]))
    with drawing.chart(drawing.WIDTH * 0.72, 4.2) as (figure, axes):
        for part, colour, dashes, name in (
            (law, drawing.BLUE, "-", "the law, and where 95 % of measurements should lie"),
            (beyond, drawing.GREY, "--", "extrapolation, from no further gain to one as fast as last"),
        ):
            if part:
                x = [place.x for place in part]
                ends = [(place.error, place.low, place.high) for place in part]
                middle, low, high = np.maximum(ends, floor).T
                axes.plot(x, middle, color=colour, linestyle=dashes, label=name)
                axes.fill_between(x, low, high, color=colour, alpha=0.13, linewidth=0)
        bars: dict[str, list[tuple[float, float, tuple[float, float]]]] = {}
        for place in measured:
            kind = "held out: predicted, then measured" if place is held_out else "measured, and fitted to"
            height, reach = max(place.error, floor), 1.96 * math.sqrt(place.variance)
            reach = 0.0 if place.noise is None else reach
            interval = max(height - reach, 0.95 * floor), height + reach
            bars.setdefault(f"{kind} (bars: 95 %)", []).append((place.x, height, interval))
        _draw_lines(axes, bars, named=True, joined=False)
        axes.set(xscale="log", yscale="log", xlabel=across, ylabel=label)
        top = max(place.high for place in (*law, *beyond)) if law else axes.get_ylim()[1]
        bottom = max(floor, min([lowest, *(place.low for place in (*law, *beyond))]))
        axes.set_ylim(0.9 * bottom, 1.1 * top)
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        # Less than half a decade would hold a single round number.
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if top > 3 * bottom else MaxNLocator(6))
        axes.yaxis.set_minor_formatter(NullFormatter())
        plain = FuncFormatter(lambda value, _: f"{value:.4g}")
        axes.yaxis.set_major_formatter(drawing.percentages() if is_fraction else plain)
    return figure


def difference_figure(differences: Sequence[tuple[str, float, tuple[float, float]]], axis: str) -> Figure:
    """Draw differences with their 95 % intervals, one below the other, beside a line at no difference.

    Args:
        differences: of fractions, from -1 to 1, each with its name and its interval.
        axis: label of the axis, whose numbers are hundredths.
    """
    labels, means, intervals = zip(*differences, strict=True)
    across, down = 100 * np.array(means), np.arange(len(labels))
    reach = np.abs(100 * np.array(intervals).T - across)
    with drawing.chart(drawing.WIDTH * 0.75, 1.2 + 0.32 * len(labels)) as (figure, axes):
        axes.axvline(0, color=drawing.GREY, linestyle="--", linewidth=1)
        axes.errorbar(across, down, xerr=reach, fmt="o", color=drawing.BLUE, capsize=3, linewidth=1.4)
        axes.set_yticks(down, [drawing.shortened(label, 60) for label in labels])
        axes.set_ylim(len(labels) - 0.5, -0.5)  # in the order of the table, from the top
        axes.set_xlabel(axis)
        axes.grid(True, axis="x")
    return figure

"""Draw the figures of studies: few-shot accuracy, a sweep over learning rates, speed against image size."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

from vitkit.analysis import drawing
from vitkit.evaluation.fewshot.config import Method
from vitkit.evaluation.fewshot.scores import FewShotScore
from vitkit.evaluation.power_law import Point, Prediction
from vitkit.text import format_count

COLOURS = (drawing.BLUE, drawing.VERMILION, drawing.GREEN, "#CC79A7", "#E69F00", drawing.SKY, "black")
"""Okabe & Ito's; more lines than these differ by their dashes."""
DASHES = ("-", "--", ":", "-.")
PANELS = 4
"""The most numbers of shots that are drawn beside one another: the largest ones."""
METHOD_NAMES: Mapping[Method, str] = {
    "ridge": "ridge, closed form (the paper's)",
    "knn": "nearest neighbours",
    "logistic": "logistic regression",
}


@contextmanager
def _panels(
    width: float,
    height: float,
    count: int = 1,
    *title: str,
    same_scale: bool = False,
    grid: Literal["both", "x"] = "both",
) -> Iterator[Figure]:
    """Give a figure of panels side by side, which gets a grid, a title and a legend when they are drawn.

    Args:
        width: as a fraction of the page's.
        height: in inches.
        count: panels.
        title: its parts; none: no title.
        same_scale: whether all panels have the same axis up.
        grid: its lines.
    """
    with drawing.styled():
        figure = Figure((drawing.WIDTH * width, height), layout="constrained")
        figure.subplots(1, count, sharey=same_scale)
        yield figure
        for axes in figure.axes:
            axes.grid(True, axis=grid)
        if title:
            drawing.add_title(figure, *title)
        drawing.add_legend(figure)


_Line = tuple[str, Sequence[float], Sequence[float], NDArray[np.float64] | Sequence[float] | None]
"""A name, the places across, the values from 0 to 1, and how far their bars reach, if there are any."""


def _lines(axes: Axes, lines: Sequence[_Line], across: str, up: str, named: bool = True) -> None:
    """Draw lines with bars, no two of up to 28 alike, and write the values as percentages.

    Args:
        lines: to draw.
        across, up: labels of the axes.
        named: whether this is the panel by which the legend names the lines.
    """
    looks = itertools.cycle(itertools.product(DASHES, COLOURS))
    for (name, places, values, reach), (dashes, colour) in zip(lines, looks, strict=False):
        axes.errorbar(
            places,
            values,
            yerr=reach,
            label=drawing.shortened(name, 60) if named else "_",  # matplotlib leaves such a label out
            color=colour,
            linestyle=dashes,
            marker="o",
            markersize=4,
            linewidth=1.6,
            elinewidth=1,
            capsize=2,
        )
    axes.set(xlabel=across, ylabel=up)
    axes.yaxis.set_major_formatter(drawing.percentages())


def _reach(values: Sequence[float], intervals: Sequence[tuple[float, float]]) -> NDArray[np.float64]:
    """Compute how far intervals reach below and above their values, `(2, N)`."""
    reach: NDArray[np.float64] = np.abs(np.array(intervals).T - np.array(values))
    return reach


def _ticks_at(axes: Axes, places: Sequence[float], written: str) -> None:
    """Make the axis across logarithmic, with ticks at these places alone, written in a format."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(places)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(written)


def _guessing(axes: Axes, chance: float, named: bool) -> None:
    label = "guessing" if named else "_"
    axes.axhline(chance, color=drawing.GREY, linestyle="--", linewidth=1, label=label)


def _draws(seeds: int) -> str:
    return f"mean of {seeds} draws; bars: standard deviation" if seeds > 1 else "of one draw"


def _scored(name: str, places: Sequence[float], scores: Sequence[FewShotScore]) -> _Line:
    return name, places, [score.mean for score in scores], [score.deviation or 0.0 for score in scores]


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
    methods = list(dict.fromkeys(score.method for scores in models.values() for score in scores))
    single = len(models) == 1
    count, height = (1, 3.8) if single else (len(methods), 3.8 + 0.06 * len(models))
    title = f"Few-shot accuracy on {images},", _draws(seeds)
    with _panels(0.6 if count == 1 else 1, height, count, *title, same_scale=True) as figure:
        for number, axes in enumerate(figure.axes):
            lines = [
                _scored(METHOD_NAMES[method] if single else name, [score.shots for score in own], own)
                for name, scores in models.items()
                for method in (methods if single else [methods[number]])
                if (own := [score for score in scores if score.method == method])
            ]
            up = "" if number else "fraction of test images right"
            _lines(axes, lines, "images of each class (shots)", up, number == 0)
            _guessing(axes, chance, number == 0)
            shots = sorted({place for _, places, _, _ in lines for place in places})
            _ticks_at(axes, shots, "{x:,.0f}")
            axes.set_xlim(shots[0] / 1.15, shots[-1] * 1.15)
            if not single:
                axes.set_title(METHOD_NAMES[methods[number]])
    return figure


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
    title = f"Few-shot accuracy on {images},", f"{METHOD_NAMES[method]}, {_draws(seeds)}"
    with _panels(0.6 if len(shots) == 1 else 1, 3.6, len(shots), *title, same_scale=True) as figure:
        for number, (axes, shown) in enumerate(zip(figure.axes, shots, strict=True)):
            lines = [
                _scored(
                    name,
                    [size for size, _ in points],
                    [next(score for score in scores if score.shots == shown) for _, scores in points],
                )
                for name, points in models.items()
            ]
            up = "" if number else "fraction of test images right"
            _lines(axes, lines, "images of the pre-training", up, number == 0)
            _guessing(axes, chance, number == 0)
            axes.set_xscale("log")
            axes.set_title(f"{shown:,} shots" if shown > 1 else "1 shot")
    return figure


def tracking_plot(steps: Sequence[int], curves: Mapping[str, Sequence[float]], images: str) -> Figure:
    """Draw few-shot accuracy against the steps of a training.

    Args:
        steps: at which it was measured.
        curves: accuracies (0 to 1, NaN where one is missing) at these steps by name ("5 shots").
        images: the test images as a phrase, for the title.
    """
    with _panels(0.6, 3.4, 1, f"Few-shot accuracy on {images}") as figure:
        (axes,) = figure.axes
        lines = [(name, steps, values, None) for name, values in curves.items()]
        _lines(axes, lines, "step", "fraction of test images right")
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, 0.9), min(high, 1.01))  # no accuracy is above 1
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    return figure


def rate_plot(
    rates: Sequence[float],
    values: Sequence[float],
    intervals: Sequence[tuple[float, float] | None],
    chosen: float,
    label: str,
) -> Figure:
    """Draw scores with their 95 % intervals against the learning rate.

    Args:
        rates: of each run that has a score.
        values: the scores, from 0 to 1.
        intervals: of the scores; None where there is none.
        chosen: the rate that was chosen.
        label: of the axis of the scores.
    """
    ends = [(v, v) if i is None else i for v, i in zip(values, intervals, strict=True)]
    with _panels(0.6, 3.2) as figure:
        (axes,) = figure.axes
        _lines(axes, [("", rates, values, _reach(values, ends))], "learning rate", label, named=False)
        colours = [drawing.VERMILION if rate == chosen else drawing.BLUE for rate in rates]
        axes.scatter(rates, values, c=colours, zorder=3)
        _ticks_at(axes, rates, "{x:g}")
    return figure


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
    with _panels(0.72, 4.2) as figure:
        (axes,) = figure.axes
        lowest = min(error for place in (*points, held_out) if place is not None for error in place.errors)
        # A logarithmic axis has no 0: intervals that reach it are cut off at half of the smallest error.
        floor = 0.5 * max(1e-6, min([lowest, *(place.error for place in (*law, *beyond))]))
        for part, colour, dashes, name in (
            (law, drawing.BLUE, "-", "the law, and where 95 % of measurements should lie"),
            (beyond, drawing.GREY, "--", "extrapolation, from no further gain to one as fast as last"),
        ):
            x = [place.x for place in part]
            if not x:
                continue
            axes.plot(
                x, [max(place.error, floor) for place in part], color=colour, linestyle=dashes, label=name
            )
            axes.fill_between(
                x,
                [max(place.low, floor) for place in part],
                [max(place.high, floor) for place in part],
                color=colour,
                alpha=0.13,
                linewidth=0,
            )
        drawn = [
            (points, drawing.BLUE, "o", "measured, and fitted to (bars: 95 %, by the number of test images)")
        ]
        if held_out is not None:
            drawn.append(([held_out], drawing.VERMILION, "D", "held out: predicted first, then measured"))
        for places, colour, marker, name in drawn:
            heights = [max(place.error, floor) for place in places]
            reach = [1.96 * math.sqrt(place.variance) if place.noise is not None else 0.0 for place in places]
            below = [min(up, height - 0.95 * floor) for up, height in zip(reach, heights, strict=True)]
            axes.errorbar(
                [place.x for place in places],
                heights,
                yerr=[below, reach],
                color=colour,
                linestyle="none",
                marker=marker,
                markersize=5,
                capsize=2,
                label=name,
                zorder=3,
            )
        axes.set(xscale="log", yscale="log", xlabel=across, ylabel=label)
        top = max(place.high for place in (*law, *beyond)) if law else axes.get_ylim()[1]
        bottom = max(floor, min([lowest, *(place.low for place in (*law, *beyond))]))
        axes.set_ylim(0.9 * bottom, 1.1 * top)
        axes.xaxis.set_minor_formatter(NullFormatter())
        # Images and steps are written out, FLOPs have too many digits.
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:,.0f}" if value < 1e7 else format_count(value))
        )
        # Less than half a decade would hold a single round number.
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if top > 3 * bottom else MaxNLocator(6))
        axes.yaxis.set_minor_formatter(NullFormatter())
        percent = FuncFormatter(lambda fraction, _: f"{100 * fraction:.4g} %")
        axes.yaxis.set_major_formatter(percent if is_fraction else FuncFormatter(lambda v, _: f"{v:.4g}"))
    return figure


def difference_figure(
    labels: Sequence[str], means: Sequence[float], intervals: Sequence[tuple[float, float]], axis: str
) -> Figure:
    """Draw differences with their 95 % intervals, one below the other, beside a line at no difference.

    Args:
        labels: names of the differences.
        means: differences of fractions, from -1 to 1.
        intervals: of the differences.
        axis: label of the axis, whose numbers are hundredths.
    """
    across, down = 100 * np.array(means), np.arange(len(labels))
    reach = 100 * _reach(means, intervals)
    with _panels(0.75, 1.2 + 0.32 * len(labels), grid="x") as figure:
        (axes,) = figure.axes
        axes.axvline(0, color=drawing.GREY, linestyle="--", linewidth=1)
        axes.errorbar(across, down, xerr=reach, fmt="o", color=drawing.BLUE, capsize=3, linewidth=1.4)
        axes.set_yticks(down, [drawing.cut(label, 60) for label in labels])
        axes.set_ylim(len(labels) - 0.5, -0.5)  # in the order of the table, from the top
        axes.set_xlabel(axis)
    return figure


def interval_lines(
    lines: Mapping[str, Sequence[tuple[float, float, tuple[float, float]]]], across: str, up: str
) -> Figure:
    """Draw lines of scores with their 95 % intervals over a logarithmic axis.

    Args:
        lines: points by the name of a line: place on the axis above 0, score from 0 to 1, and its interval.
        across: label of the axis.
        up: name of the scores.
    """
    with _panels(0.75, 3.8) as figure:
        (axes,) = figure.axes
        drawn = [
            (
                name,
                [place for place, _, _ in points],
                [score for _, score, _ in points],
                _reach([score for _, score, _ in points], [interval for *_, interval in points]),
            )
            for name, points in lines.items()
        ]
        _lines(axes, drawn, across, up)
        # Numbers nearer than a twentieth of the axis would overlap.
        places = sorted({point[0] for points in lines.values() for point in points})
        nearest = (places[-1] / places[0]) ** (1 / 20)
        written = places[:1]
        for place in places[1:]:
            if place >= written[-1] * nearest:
                written.append(place)
        _ticks_at(axes, written, "{x:.3g}")
    return figure


BENCH_COLOURS = (drawing.BLUE, drawing.VERMILION, drawing.GREEN, drawing.SKY, drawing.GREY)
MARKERS = "osD^v"

Points = Mapping[tuple[str, int], float]
"""Values by model and pixels a side."""


def throughput_figure(speeds: Points, batches: Points, device: str, precision: str) -> Figure:
    """Draw images per second of inference, and the largest batch of training, against the size of the images.

    Args:
        speeds: images per second.
        batches: images of the largest batch; may be empty.
        device, precision: of the measurements, for the title.
    """
    drawn = [(speeds, "images per second, inference")]
    sizes = sorted({size for _, size in speeds})
    if any(batches.values()):
        drawn.append((batches, "largest batch, training"))
    models = list(dict.fromkeys(model for model, _ in speeds))
    title = f"Speed by image size in {precision} on {drawing.cut(device, 60)}"
    with _panels(1 if len(drawn) == 2 else 0.6, 4.0, len(drawn), title) as figure:
        for axes, (points, label) in zip(figure.axes, drawn, strict=True):
            _draw(axes, points, models, sizes, points is speeds)
            axes.set(xlabel="image size in pixels", ylabel=label)
    return figure


def _draw(axes: Axes, points: Points, models: list[str], sizes: list[int], named: bool) -> None:
    """Draw a line for each model, on logarithmic axes, where a value of 0 has no place.

    Args:
        named: whether this is the panel by which the legend names the models.
    """
    for number, model in enumerate(models):
        line = sorted((size, value) for (name, size), value in points.items() if name == model and value > 0)
        axes.plot(
            [size for size, _ in line],
            [value for _, value in line],
            marker=MARKERS[number % len(MARKERS)],
            color=BENCH_COLOURS[number % len(BENCH_COLOURS)],
            label=drawing.shortened(model, 60) if named else "_",  # matplotlib leaves such a label out
        )
    axes.set_yscale("log")
    _ticks_at(axes, sizes, "{x:,.0f}")
    axes.set_xlim(sizes[0] / 1.1, sizes[-1] * 1.1)  # the same in both panels
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))  # 0.5 and 20,000
    axes.yaxis.set_minor_formatter(NullFormatter())


def flip_figure(
    names: Sequence[str], first: Sequence[int], second: Sequence[int], labels: tuple[str, str]
) -> Figure:
    """Draw for each class the images that one of two models alone is right on: bars to the left and right.

    Args:
        names: of the classes, from the top.
        first: images of the first model alone.
        second: images of the second model alone.
        labels: of the bars to the left and to the right.
    """
    down, most = np.arange(len(names)), max(*first, *second)
    with _panels(0.75, 1.3 + 0.26 * len(names), grid="x") as figure:
        (axes,) = figure.axes
        axes.barh(
            down, [-count for count in first], color=drawing.VERMILION, label=drawing.shortened(labels[0], 60)
        )
        axes.barh(down, second, color=drawing.BLUE, label=drawing.shortened(labels[1], 60))
        axes.axvline(0, color="black", linewidth=1)
        axes.set_yticks(down, [drawing.shortened(name, 40) for name in names])
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlim(-1.08 * most, 1.08 * most)  # the same scale to both sides
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{abs(count):g}"))
        axes.set_xlabel("images")
    return figure

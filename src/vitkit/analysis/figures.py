"""Draw the curves of training and the quality of the result: arrays in, matplotlib Figures out."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from vitkit.analysis import drawing
from vitkit.evaluation.classify import CalibrationBin, ClassScore, LabelScore
from vitkit.evaluation.statistics import binomial_interval

MATRIX_WITH_NAMES = 20
"""The most classes of a confusion matrix with names and counts; for more it is a picture."""
MATRIX_CELLS = 100
"""The most rows and columns of the picture: of more classes, neighbours are in one cell."""
BARS_SHOWN = 40
"""Classes in a bar chart: more bars would not fit on a screen."""
LEGEND_COLUMNS = 36
"""Letters of a line of the legend of a training curve: more are wider than the figure."""
POINTS_SHOWN = 800
"""Points of a curve; of more, groups of neighbours are averaged."""

Columns = Mapping[str, drawing.Floats]


def training_curves(
    train: Columns,
    validation: Columns,
    altered: str = "",
    metric: str = "accuracy",
    title: str = "Validation accuracy",
    label: str = "fraction of images right",
    best: int | None = None,
    is_fraction: bool = True,
) -> tuple[Figure, Figure, Figure]:
    """Draw loss, a validation metric and learning rate against the step, with epochs on top.

    They are three figures, so that a page can put them beside or below one another: three panels in
    one figure cannot be read on a telephone.

    Args:
        train: equally long `step`, `epoch`, `loss` and `learning_rate`.
        validation: equally long `step`, `epoch`, `loss` and `metric`; may be empty.
        altered: the options by which the training loss differs from the validation loss ("label smoothing
            0.1"), for the legend; may be empty.
        metric: the name of the validation metric; its curve has `title` and `label`.
        best: the row of the best validation, which is marked.
        is_fraction: whether the metric is written as a percentage.

    Long runs are drawn as means over groups of steps.
    """
    steps, has_validation = train["step"], bool(len(validation["step"]))
    training = "training, running mean" + (f"\n(with {altered})" if altered else "")
    marks: dict[str, Any] = {"color": drawing.VERMILION, "marker": "o", "markersize": 3, "linewidth": 1.4}
    x, y = _thinned(steps, train["loss"])
    dots = "o" if len(x) == 1 else None
    with _panel(train, "Loss", "loss (nats)") as (loss, axes):
        if len(steps):
            axes.plot(x, y, color=drawing.BLUE, alpha=0.35, linewidth=0.8, marker=dots)
            named = drawing.wrapped(training, LEGEND_COLUMNS)
            axes.plot(x, _smoothed(y), color=drawing.BLUE, linewidth=1.6, label=named)
        if has_validation:
            axes.plot(validation["step"], validation["loss"], label="validation", **marks)
    with _panel(train, title, label) as (middle, axes):
        if has_validation:
            axes.plot(validation["step"], validation[metric], **marks)
        else:
            centred: dict[str, Any] = {"transform": axes.transAxes, "ha": "center", "va": "center"}
            axes.text(0.5, 0.5, "no validation was made", color="#555555", **centred)
            axes.set(xticks=[], yticks=[])
        if has_validation and best is not None:
            step, value = validation["step"][best], validation[metric][best]
            shown = f"{value:.1%}" if is_fraction else f"{value:.4g}"
            circle: dict[str, Any] = {"markersize": 7, "markerfacecolor": "none"}
            circle |= {"markeredgecolor": "black", "label": f"best: {shown} at step {step:,.0f}"}
            axes.plot([step], [value], "o", **circle)
            axes.margins(y=0.12)  # so that the circle is whole
        if is_fraction:
            axes.yaxis.set_major_formatter(drawing.percentages())
    with _panel(train, "Learning rate", "learning rate") as (rate, axes):
        if len(steps):
            rates = _thinned(steps, train["learning_rate"])
            axes.plot(*rates, color=drawing.GREEN, linewidth=1.6, marker=dots)
        axes.yaxis.set_major_formatter("{x:.3g}")
        axes.set_ylim(bottom=0)
    return loss, middle, rate


@contextmanager
def _panel(train: Columns, heading: str, unit: str) -> Iterator[tuple[Figure, Axes]]:
    """Give a figure over the steps of a training, with epochs on top where something is drawn."""
    with drawing.chart(drawing.WIDTH / 3, 3.1, heading) as (figure, axes):
        yield figure, axes
        axes.set(xlabel="step", ylabel=unit)
        axes.grid(True)
        if not axes.has_data():
            return
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=1))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        if len(train["step"]) and train["step"][-1] > 0 and train["epoch"][-1] > 0:
            ratio = float(train["epoch"][-1] / train["step"][-1])
            both_ways = partial(np.multiply, ratio), partial(np.multiply, 1 / ratio)
            top = axes.secondary_xaxis("top", functions=both_ways)
            top.set_xlabel("epoch")
            top.xaxis.set_major_locator(MaxNLocator(5))
            top.spines["top"].set_visible(True)


def confusion_matrix(cells: Sequence[tuple[int, int, int]], class_names: Sequence[str], data: str) -> Figure:
    """Draw how often each true class (rows) was predicted as each class (columns).

    Up to 20 classes with names and counts, coloured by their fraction of the true class; more as a picture.

    Args:
        cells: `(true class, predicted class, count)`, left out where the count is zero.
        class_names: K names.
        data: the images as a phrase ("360 test images"), for the title.
    """
    classes, is_picture = len(class_names), len(class_names) > MATRIX_WITH_NAMES
    group = -(-classes // MATRIX_CELLS)
    names = ["000"] if is_picture else [drawing.shortened(name, 20) for name in class_names]
    longest = max(map(len, names))
    side = 4.2 if is_picture else max(2.2, (0.42 if classes <= 12 else 0.36) * classes)
    size = side + 0.08 * longest + 1.4, side + max(0.3, 0.08 * longest) + 0.7
    with drawing.chart(*size, f"Confusion matrix of {data}") as (figure, axes):
        true, predicted, counts = np.array(cells, np.int64).reshape(-1, 3).T
        matrix = np.zeros((-(-classes // group),) * 2, np.int64)
        np.add.at(matrix, (true // group, predicted // group), counts)
        fractions: drawing.Floats = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
        end = len(matrix) * group - 0.5
        looks = {"cmap": "Blues", "interpolation": "none", "extent": (-0.5, end, end, -0.5)}
        # By the colour of their square root: rare confusions could not be seen.
        image = axes.imshow(fractions, norm=PowerNorm(0.5, 0, 1), **looks)
        colours = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02, ticks=(0, 0.01, 0.05, 0.2, 0.5, 1))
        colours.set_label("fraction of the true class")
        colours.ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        for spine in axes.spines.values():
            spine.set_visible(True)
        unit = f" (number{f', {group} to a cell' if group > 1 else ''})" if is_picture else ""
        axes.set(xlabel=f"predicted class{unit}", ylabel=f"true class{unit}")
        if is_picture:
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MaxNLocator(6, integer=True))
            return figure
        for row, column in np.argwhere(matrix).tolist():
            colour = "white" if fractions[row, column] > 0.35 else "black"
            axes.text(column, row, str(matrix[row, column]), ha="center", va="center", color=colour)
        # Browsers have other fonts: the last letter stays at the axis whatever the width of the name.
        turned = {"rotation": 90, "rotation_mode": "anchor", "ha": "right", "va": "center"}
        axes.set_xticks(range(classes), names, **(turned if longest > 3 else {}))
        axes.set_yticks(range(classes), names)
    return figure


def class_accuracy(scores: Sequence[ClassScore], data: str) -> Figure:
    """Draw the accuracy within each class (its recall) as bars with 95 % intervals, the worst on top.

    With many classes only the 40 worst are drawn.
    """
    bars = [
        (score.correct / score.count, binomial_interval(score.correct, score.count), score.name, score.count)
        for score in scores
        if score.count
    ]
    across = "fraction of the class's images right (line: 95% interval)"
    return _bars(bars, "Accuracy within", "class", "classes", data, across)


def label_precision(scores: Sequence[LabelScore], count: int, data: str) -> Figure:
    """Draw the average precision of each label as bars with 95 % intervals, the worst on top.

    With many labels only the 40 worst are drawn. The dots are the average precision of ranking by chance: the
    fraction of images that have the label.

    Args:
        scores: of all labels; labels that no image has are left out.
        count: images.
        data: the images as a phrase ("360 test images"), for the title.
    """
    bars = [
        (score.average_precision, score.average_precision_interval, score.name, score.count)
        for score in scores
        if score.average_precision is not None
    ]
    across = "average precision (line: 95% interval; dot: by chance)"
    return _bars(bars, "Average precision of", "label", "labels", data, across, images=count)


_Bar = tuple[float, tuple[float, float] | None, str, int]
"""Value and interval, from 0 to 1, of a class; its name and the number of its images."""


def _bars(
    bars: Sequence[_Bar],
    what: str,
    singular: str,
    plural: str,
    data: str,
    across: str,
    images: int | None = None,
) -> Figure:
    """Draw bars with their intervals from the worst to the best, and the names and sizes of their classes; of
    many the worst alone. Given the number of all images, a dot shows the fraction that is of a class."""
    every, bars = len(bars), sorted(bars, key=lambda bar: bar[0])[:BARS_SHOWN]
    which = f"each {singular}" if len(bars) == every else f"the {len(bars)} worst of {every} {plural}"
    rows, size = range(len(bars)), (drawing.WIDTH * 0.58, 1.3 + 0.2 * max(len(bars), 2))
    with drawing.chart(*size, f"{what} {which}, {data}") as (figure, axes):
        axes.barh(rows, [value for value, *_ in bars], height=0.7, color=drawing.SKY)
        for row, (_, interval, _, _) in zip(rows, bars, strict=True):
            if interval is not None:
                axes.hlines(row, *interval, color="black", linewidth=1.2)
        if images is not None:
            chance = [count / images for *_, count in bars]
            axes.plot(chance, rows, "o", color=drawing.VERMILION, markersize=3)
        axes.set_yticks(rows, [f"{drawing.shortened(name, 28)}  ({count})" for _, _, name, count in bars])
        axes.set(xlim=(0, 1), ylim=(len(bars) - 0.4, -0.6), xlabel=across, ylabel=f"{singular} (images)")
        axes.xaxis.set_major_formatter(PercentFormatter(1))
        axes.grid(True, axis="x")
        axes.tick_params(axis="y", length=0)
    return figure


def calibration_figure(models: Mapping[str, Sequence[CalibrationBin]], data: str = "") -> Figure:
    """Draw the accuracy of models against their confidence, with 95 % intervals, and the images of each bin.

    Args:
        models: bins by the name of the model.
        data: the images as a phrase ("360 test images"), for the title; left out, there is none.
    """
    title = f"Calibration on {data}" if data else ""
    width = drawing.WIDTH * (0.6 if len(models) == 1 else 0.75)
    grid: dict[str, Any] = {"nrows": 2, "sharex": True, "height_ratios": (3, 1)}
    with drawing.chart(width, 5.2, title, **grid) as (figure, (diagram, histogram)):
        diagram.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=1, label="calibrated")
        # The colours that the bars of single classes have; the marks differ too. No line joins them: between
        # bins of a few images each it would show more noise than shape.
        looks = zip((drawing.VERMILION, drawing.BLUE), "os", strict=True)
        for number, ((name, bins), (colour, mark)) in enumerate(zip(models.items(), looks, strict=False)):
            used = [(b.confidence, b.accuracy, b.count) for b in bins if b.confidence is not None]
            across = [confidence for confidence, _, _ in used]
            up = np.array([accuracy or 0.0 for _, accuracy, _ in used])
            ends = np.array([binomial_interval(round(c * (accuracy or 0.0)), c) for _, accuracy, c in used]).T
            reach = np.maximum(0.0, np.abs(ends - up))
            style: dict[str, Any] = {"fmt": mark, "color": colour, "capsize": 2, "markersize": 5}
            diagram.errorbar(across, up, yerr=reach, label=drawing.shortened(name, 60), **style)
            width = (bins[0].upper - bins[0].lower) / len(models)
            left = [b.lower + number * width for b in bins]
            histogram.bar(left, [b.count for b in bins], width, align="edge", color=colour)
        diagram.set(xlim=(0, 1), ylim=(0, 1.02), ylabel="fraction of images right")
        histogram.set(xlabel="confidence: probability of the predicted class", ylabel="images")
        histogram.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        for axis in (diagram.yaxis, histogram.xaxis):
            axis.set_major_formatter(PercentFormatter(1))
        for axes in (diagram, histogram):
            axes.grid(True)
    return figure


def _thinned(x: drawing.Floats, y: drawing.Floats) -> tuple[drawing.Floats, drawing.Floats]:
    """Average groups of neighbours, so that no more than `POINTS_SHOWN` points are left."""
    size = -(-len(x) // POINTS_SHOWN)
    if size <= 1:
        return x, y
    starts = np.arange(0, len(x), size)
    lengths = np.diff([*starts, len(x)])
    return np.add.reduceat(x, starts) / lengths, np.add.reduceat(y, starts) / lengths


def _smoothed(y: drawing.Floats) -> drawing.Floats:
    """Average over a window of a twentieth of the curve, shorter at its ends; missing values take no part."""
    half = len(y) // 40
    finite = np.isfinite(y)
    sums = np.concatenate([[0.0], np.where(finite, y, 0).cumsum()])
    counts = np.concatenate([[0], finite.cumsum()])
    first = np.maximum(np.arange(len(y)) - half, 0)
    last = np.minimum(np.arange(len(y)) + half + 1, len(y))
    with np.errstate(invalid="ignore", divide="ignore"):
        smoothed: drawing.Floats = (sums[last] - sums[first]) / (counts[last] - counts[first])
    return smoothed

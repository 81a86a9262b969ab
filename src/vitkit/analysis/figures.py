"""Draw figures: arrays in, matplotlib Figures out; and write them as PNG and SVG.

Colours: Okabe & Ito's for categories and viridis for maps, which colour-blind readers can tell apart. Figures
have white grounds and are made for a width of about 1000 CSS pixels.

First the style that all share; then the curves of training and the quality of its result; a model's filters,
positions and attention, the paper's Figures 6 and 7; and studies: lines with their intervals, differences, a
law of scale.
"""

import base64
import io
import itertools
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.backends.backend_mixed import MixedModeRenderer
from matplotlib.backends.backend_svg import RendererSVG
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from rich.cells import cell_len, set_cell_size

from vitkit.durable import replace_file
from vitkit.evaluation.classify import CalibrationBin, ClassScore, LabelScore
from vitkit.evaluation.fewshot.config import Method
from vitkit.evaluation.fewshot.methods import FewShotScore
from vitkit.evaluation.statistics import Point, Prediction, binomial_interval
from vitkit.text import format_count

BLUE, SKY, GREEN, VERMILION, GREY = "#0072B2", "#56B4E9", "#009E73", "#D55E00", "#8a8a8a"
WIDTH = 10.0  # inches

STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "text.parse_math": False,  # a name from outside may have dollar signs, which are no formula
    "svg.fonttype": "none",  # text stays text: it can be searched, and shows the letters of any script
}

Floats = NDArray[Any]
Scores = Sequence[FewShotScore]


def enlarged(image: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Enlarge a picture of few pixels by repeating each, until its longer side is about `side` pixels."""
    factor = max(1, round(side / max(image.shape[:2])))
    return image.repeat(factor, 0).repeat(factor, 1)


def save_figure(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write `stem.png` and `stem.svg`; the same figure gives the same SVG bytes.

    Returns:
        The paths written.
    """
    png, svg = stem.with_name(stem.name + ".png"), stem.with_name(stem.name + ".svg")
    buffer = io.BytesIO()
    with styled():
        figure.savefig(buffer, format="png", dpi=150)
    replace_file(png, [buffer.getvalue()])
    replace_file(svg, [_svg(figure, stem.name).encode()])
    return png, svg


def figure_svg(figure: Figure, name: str) -> str:
    """Return the figure as an `<svg>` element for an HTML page.

    Args:
        figure: the figure.
        name: unique within the page; the identifiers of the element's parts are derived from it.
    """
    svg = _svg(figure, name)
    svg = svg[svg.index("<svg") :]
    # Nothing refers to element names such as axes_1, and every figure of a page would repeat them.
    return re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)


def image_data_uri(image: NDArray[np.uint8]) -> str:
    """Return a picture `(H, W, 3)` as a `data:` URI: PNG up to 64 pixels, where JPEG blurs, JPEG above."""
    kind = "png" if max(image.shape[:2]) <= 64 else "jpeg"
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind, quality=85, optimize=True)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


@contextmanager
def styled(salt: str = "vitkit") -> Iterator[None]:
    """Give figures our style while the block lasts; the salt decides the identifiers within an SVG.

    Letters that matplotlib's font lacks are not warned of: browsers have other fonts.
    """
    style: Any = {**STYLE, "svg.hashsalt": salt}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


@contextmanager
def chart(width: float, height: float, *title: str, **grid: Any) -> Iterator[tuple[Figure, Any]]:
    """Give a figure in our style and its axes; its title and its legend are written when it is drawn.

    Args:
        width, height: in inches.
        title: above the figure, at its left edge; each part has lines of its own, two at most.
        grid: the rows and columns of its axes, as for `Figure.subplots`; left out, there is one.
    """
    with styled():
        figure = Figure((width, height), layout="constrained")
        yield figure, figure.subplots(**grid)
        letters = int(72 * width / 6.6)  # points of a bold letter on average
        lines = "\n".join(wrapped(part, letters, 2) for part in title if part)
        if lines:
            figure.suptitle(lines, x=0.01, ha="left", fontsize=10, fontweight="bold")
        labels = [label for axes in figure.axes for label in axes.get_legend_handles_labels()[1]]
        if labels:
            longest = max(cell_len(line) for label in labels for line in label.split("\n"))
            # Points of the figure, of the line before a name, and of a letter.
            columns = int((72 * width) // (34 + 5.8 * longest))
            figure.legend(loc="outside lower left", ncols=max(1, min(len(labels), columns)))


def axis_percentage(fraction: float, _place: float) -> str:
    """Write a fraction of an axis as a percentage in the fewest digits, for matplotlib."""
    return f"{100 * fraction:.4g}%"


def bare(axes: Axes) -> None:
    """Remove ticks and frame from axes that show a picture."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def wrapped(caption: str, width: int, most: int = 3) -> str:
    """Wrap a caption into `most` lines of `width` columns at most; wide letters take two columns."""
    lines: list[str] = []
    for part in caption.split("\n"):
        line = ""
        for word in part.split():
            joined = f"{line} {word}" if line else word
            if line and cell_len(joined) > width:
                lines.append(line)
                joined = word
            line = joined
        lines.append(line)
    if len(lines) > most:
        lines = [*lines[: most - 1], f"{lines[most - 1]} …"]
    return "\n".join(shortened(line, width) for line in lines)


def shortened(text: str, width: int) -> str:
    """Return a name from outside in one line of `width` columns, without its middle if it is longer.

    Chinese, Japanese and Korean letters, and pictures, take two columns.
    """
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if cell_len(text) <= width:
        return text
    # A space stands in place of a wide letter that would be cut in two, and is removed.
    start, end = set_cell_size(text, width - width // 3 - 1), set_cell_size(text[::-1], width // 3)
    return f"{start.rstrip()}…{end.rstrip()[::-1]}"


class _Renderer(RendererSVG):
    """Measures wide letters as browsers draw them: matplotlib's font lacks them, and its box is narrower."""

    def get_text_width_height_descent(self, s: str, prop: Any, ismath: Any) -> tuple[float, float, float]:
        # In matplotlib's font this dash is exactly as wide as the font is high.
        s = "".join("\N{EM DASH}" if cell_len(letter) > 1 else letter for letter in s)
        measure: Any = super().get_text_width_height_descent
        extent: tuple[float, float, float] = measure(s, prop, ismath)
        return extent


# matplotlib gives no types for these two.
_make_renderer: Any = _Renderer
_make_mixed_renderer: Any = MixedModeRenderer  # it draws colour bars as pictures: strips of paths show seams


class _Canvas(FigureCanvasBase):
    """Lays figures out by our renderer's measures."""

    def get_renderer(self) -> Any:
        return _make_renderer(self.figure.bbox.width, self.figure.bbox.height, io.StringIO())


def _svg(figure: Figure, name: str) -> str:
    buffer = io.StringIO()
    dpi, figure.dpi = figure.dpi, 72  # SVG counts in points
    _Canvas(figure)
    with styled(name):
        absent = {"Date": None, "Creator": None, "Format": None, "Type": None}
        width, height = figure.get_size_inches()
        vectors = _make_renderer(72 * width, 72 * height, buffer, image_dpi=dpi, metadata=absent)
        renderer = _make_mixed_renderer(figure, width, height, dpi, vectors)
        figure.draw(renderer)
        renderer.finalize()
    figure.dpi = dpi
    return buffer.getvalue()


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

Columns = Mapping[str, Floats]


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
    marks: dict[str, Any] = {"color": VERMILION, "marker": "o", "markersize": 3, "linewidth": 1.4}
    x, y = _thinned(steps, train["loss"])
    dots = "o" if len(x) == 1 else None
    with _panel(train, "Loss", "loss (nats)") as (loss, axes):
        if len(steps):
            axes.plot(x, y, color=BLUE, alpha=0.35, linewidth=0.8, marker=dots)
            axes.plot(x, _smoothed(y), color=BLUE, linewidth=1.6, label=wrapped(training, LEGEND_COLUMNS))
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
            axes.yaxis.set_major_formatter(axis_percentage)
    with _panel(train, "Learning rate", "learning rate") as (rate, axes):
        if len(steps):
            axes.plot(*_thinned(steps, train["learning_rate"]), color=GREEN, linewidth=1.6, marker=dots)
        axes.yaxis.set_major_formatter("{x:.3g}")
        axes.set_ylim(bottom=0)
    return loss, middle, rate


@contextmanager
def _panel(train: Columns, heading: str, unit: str) -> Iterator[tuple[Figure, Axes]]:
    """Give a figure over the steps of a training, with epochs on top where something is drawn."""
    with chart(WIDTH / 3, 3.1, heading) as (figure, axes):
        yield figure, axes
        axes.set(xlabel="step", ylabel=unit)
        axes.grid(True)
        if not axes.has_data():
            return
        axes.xaxis.set_major_locator(ticker.MaxNLocator(4, integer=True, min_n_ticks=1))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        if len(train["step"]) and train["step"][-1] > 0 and train["epoch"][-1] > 0:
            ratio = float(train["epoch"][-1] / train["step"][-1])
            both_ways = partial(np.multiply, ratio), partial(np.multiply, 1 / ratio)
            top = axes.secondary_xaxis("top", functions=both_ways)
            top.set_xlabel("epoch")
            top.xaxis.set_major_locator(ticker.MaxNLocator(5))
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
    names = ["000"] if is_picture else [shortened(name, 20) for name in class_names]
    longest = max(map(len, names))
    side = 4.2 if is_picture else max(2.2, (0.42 if classes <= 12 else 0.36) * classes)
    size = side + 0.08 * longest + 1.4, side + max(0.3, 0.08 * longest) + 0.7
    with chart(*size, f"Confusion matrix of {data}") as (figure, axes):
        true, predicted, counts = np.array(cells, np.int64).reshape(-1, 3).T
        matrix = np.zeros((-(-classes // group),) * 2, np.int64)
        np.add.at(matrix, (true // group, predicted // group), counts)
        fractions: Floats = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
        end = len(matrix) * group - 0.5
        looks = {"cmap": "Blues", "interpolation": "none", "extent": (-0.5, end, end, -0.5)}
        # Coloured by the square root: in proportion, rare confusions could not be seen.
        image = axes.imshow(fractions, norm=PowerNorm(0.5, 0, 1), **looks)
        colours = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02, ticks=(0, 0.01, 0.05, 0.2, 0.5, 1))
        colours.set_label("fraction of the true class")
        colours.ax.yaxis.set_major_formatter(ticker.PercentFormatter(1, decimals=0))
        axes.spines[:].set_visible(True)
        unit = f" (number{f', {group} to a cell' if group > 1 else ''})" if is_picture else ""
        axes.set(xlabel=f"predicted class{unit}", ylabel=f"true class{unit}")
        if is_picture:
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(ticker.MaxNLocator(6, integer=True))
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
    across = "fraction of the class's images right (line: 95 % interval)"
    return _bars(bars, "Accuracy within", "class", "classes", data=data, across=across)


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
    across = "average precision (line: 95 % interval; dot: by chance)"
    return _bars(bars, "Average precision of", "label", "labels", data=data, across=across, images=count)


_Bar = tuple[float, tuple[float, float] | None, str, int]
"""Value and interval, from 0 to 1, of a class; its name and the number of its images."""


def _bars(
    bars: Sequence[_Bar], what: str, noun: str, nouns: str, data: str, across: str, images: int | None = None
) -> Figure:
    """Draw bars with their intervals from the worst to the best, and the names and sizes of their classes; of
    many the worst alone. `noun` and `nouns` are the words for a class and for several. With `images`, the
    number of all images, a dot shows the fraction of them that is of a class."""
    every, bars = len(bars), sorted(bars, key=lambda bar: bar[0])[:BARS_SHOWN]
    which = f"each {noun}" if len(bars) == every else f"the {len(bars)} worst of {every} {nouns}"
    rows, size = range(len(bars)), (WIDTH * 0.58, 1.3 + 0.2 * max(len(bars), 2))
    with chart(*size, f"{what} {which}, {data}") as (figure, axes):
        axes.barh(rows, [value for value, *_ in bars], height=0.7, color=SKY)
        for row, (_, interval, _, _) in zip(rows, bars, strict=True):
            if interval is not None:
                axes.hlines(row, *interval, color="black", linewidth=1.2)
        if images is not None:
            axes.plot([count / images for *_, count in bars], rows, "o", color=VERMILION, markersize=3)
        axes.set_yticks(rows, [f"{shortened(name, 26)}  ({count})" for _, _, name, count in bars])
        axes.set(xlim=(0, 1), ylim=(len(bars) - 0.4, -0.6), xlabel=across, ylabel=f"{noun} (images)")
        axes.xaxis.set_major_formatter(ticker.PercentFormatter(1))
        axes.grid(True, axis="x")
        axes.tick_params(axis="y", length=0)
    return figure


def calibration_figure(models: Mapping[str, Sequence[CalibrationBin]], data: str = "") -> Figure:
    """Draw the accuracy of one or two models against confidence, with 95 % intervals, and the images of each
    bin.

    Args:
        models: bins by the name of the model.
        data: the images as a phrase ("360 test images"), for the title; left out, there is none.
    """
    title = f"Calibration on {data}" if data else ""
    width = WIDTH * (0.6 if len(models) == 1 else 0.75)
    grid: dict[str, Any] = {"nrows": 2, "sharex": True, "height_ratios": (3, 1)}
    with chart(width, 5.2, title, **grid) as (figure, (diagram, histogram)):
        diagram.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=1, label="calibrated")
        # The colours that the bars of single classes have; the marks differ too. No line joins them: between
        # bins of a few images each it would show more noise than shape.
        looks = zip((VERMILION, BLUE), "os", strict=True)
        for number, ((name, bins), (colour, mark)) in enumerate(zip(models.items(), looks, strict=False)):
            used = [(b.confidence, b.accuracy, b.count) for b in bins if b.confidence is not None]
            across = [confidence for confidence, _, _ in used]
            up = np.array([accuracy or 0.0 for _, accuracy, _ in used])
            ends = np.array([binomial_interval(round(c * (accuracy or 0.0)), c) for _, accuracy, c in used]).T
            reach = np.abs(ends - up)
            style: dict[str, Any] = {"fmt": mark, "color": colour, "capsize": 2, "markersize": 5}
            diagram.errorbar(across, up, yerr=reach, label=shortened(name, 60), **style)
            width = (bins[0].upper - bins[0].lower) / len(models)
            left = [b.lower + number * width for b in bins]
            histogram.bar(left, [b.count for b in bins], width, align="edge", color=colour)
        diagram.set(xlim=(0, 1), ylim=(0, 1.02), ylabel="fraction of images right")
        histogram.set(xlabel="confidence: probability of the predicted class", ylabel="images")
        histogram.yaxis.set_major_locator(ticker.MaxNLocator(3, integer=True))
        for axis in (diagram.yaxis, histogram.xaxis):
            axis.set_major_formatter(ticker.PercentFormatter(1))
        for axes in (diagram, histogram):
            axes.grid(True)
    return figure


def _thinned(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Average groups of neighbours, so that no more than `POINTS_SHOWN` points are left."""
    size = -(-len(x) // POINTS_SHOWN)
    if size <= 1:
        return x, y
    starts = np.arange(0, len(x), size)
    lengths = np.diff([*starts, len(x)])
    return np.add.reduceat(x, starts) / lengths, np.add.reduceat(y, starts) / lengths


def _smoothed(y: Floats) -> Floats:
    """Average over a window of a twentieth of the curve, shorter at its ends; missing values take no part."""
    window, finite = np.ones(2 * (len(y) // 40) + 1), np.isfinite(y)
    sums, counts = (np.convolve(part, window, "same") for part in (np.where(finite, y, 0.0), finite))
    with np.errstate(invalid="ignore"):
        smoothed: Floats = sums / counts
    return smoothed


TILES_SHOWN = 14
"""The most tiles along a side of the position similarities; larger grids show every second or third."""
PAIRS_IN_A_ROW = 4
"""Images beside their attention."""
NARROWEST = 3.2
"""Narrowest figure in inches: its title must fit."""


def filter_grid(components: Floats, explained: Floats) -> Figure:
    """Draw the principal components of the filters that see the pixels (paper Figure 7, left).

    Args:
        components: `(n, p, q, 3)` in [0, 1].
        explained: `(n,)`, the fraction of the variance that each component explains.
    """
    columns = min(7, len(components)) or 1
    rows = -(-len(components) // columns) or 1
    size = max(0.95 * columns + 0.2, NARROWEST), 1.12 * rows + 0.5
    title = "Filters that see the pixels"
    with chart(*size, title, nrows=rows, ncols=columns, squeeze=False) as (figure, grid):
        for axes in grid.flat:
            bare(axes)
        for axes, component, fraction in zip(grid.flat, components, explained, strict=False):
            axes.imshow(component, interpolation="none", vmin=0, vmax=1)
            axes.set_title(f"{fraction:.1%}", fontsize=8, fontweight="normal", loc="center", pad=2)
    return figure


def position_similarity_map(similarity: Floats) -> Figure:
    """Draw how similar the position embedding of each patch is to all others (paper Figure 7, centre).

    Args:
        similarity: `(R, C, R, C)` cosine similarities.
    """
    rows, columns = similarity.shape[:2]
    step = -(-max(rows, columns) // TILES_SHOWN)
    gap = max(1, round(0.12 * max(rows, columns)))
    tiles = np.pad(similarity[::step, ::step], ((0, 0), (0, 0), (0, gap), (0, gap)), constant_values=np.nan)
    mosaic = tiles.transpose(0, 2, 1, 3).reshape(len(tiles) * (rows + gap), -1)[:-gap, :-gap]
    height, width = (5.0 * length / max(mosaic.shape) for length in mosaic.shape)
    size = max(width + 1.6, NARROWEST), height + 0.8
    with chart(*size, "Similarity of position embeddings") as (figure, axes):
        lowest = min(0.0, float(similarity.min()))
        image = axes.imshow(mosaic, cmap="viridis", vmin=lowest, vmax=1, interpolation="none")
        figure.colorbar(image, ax=axes, shrink=0.85, pad=0.02).set_label("cosine similarity")
        for axis, tile, count in zip((axes.yaxis, axes.xaxis), similarity.shape, tiles.shape, strict=False):
            named = range(0, count, max(1, count // 7))
            middles = [number * (tile + gap) + (tile - 1) / 2 for number in named]
            axis.set_ticks(middles, [str(number * step + 1) for number in named])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set(xlabel="patch column", ylabel="patch row")
    return figure


def attention_distance_plot(distances: Floats, even: float, data: str) -> Figure:
    """Plot every head's mean attention distance by depth (paper Figure 7, right).

    Args:
        distances: `(L, h)` in pixels.
        even: the distance of attention that is spread evenly, in pixels.
        data: the images as a phrase ("128 test images of 224 x 224 pixels"), for the title.
    """
    depth, heads = distances.shape
    layers = np.arange(1, depth + 1)
    with chart(WIDTH * 0.62, 3.8, f"Attention distance, {data}") as (figure, axes):
        axes.scatter(layers.repeat(heads), distances.ravel(), s=26, color=BLUE, alpha=0.6, linewidths=0)
        axes.scatter([], [], s=26, color=BLUE, linewidths=0, label=f"one of the {heads} heads")
        axes.plot(layers, distances.mean(1), color=VERMILION, linewidth=1.6, marker=".", label="their mean")
        axes.axhline(even, color="black", linestyle="--", linewidth=1, label="attention spread evenly")
        axes.xaxis.set_major_locator(ticker.MaxNLocator(12, integer=True, min_n_ticks=1))
        axes.set_xlim(0.5, depth + 0.5)
        axes.set_ylim(0, max(float(distances.max()), even) * 1.1 or 1)
        axes.grid(True)
        axes.set(xlabel="layer (1: nearest to the image)", ylabel="mean attention distance (pixels)")
    return figure


def rollout_gallery(images: Sequence[NDArray[np.uint8]], maps: Floats, captions: Sequence[str]) -> Figure:
    """Draw images next to the model's attention to their parts (paper Figure 6).

    Args:
        images: n of `(H, W, 3)`, as the model sees them.
        maps: `(n, R, C)` attention over the patches.
        captions: n lines.
    """
    pairs = []
    for small, heat in zip(images, maps, strict=True):
        image = enlarged(small, 128)
        white = np.full((len(image), max(1, image.shape[1] // 16), 3), 255, np.uint8)
        pairs.append(np.concatenate([image, white, heat_overlay(image, heat)], axis=1))
    columns = max(1, min(PAIRS_IN_A_ROW, len(pairs)))
    rows = max(1, -(-len(pairs) // columns))
    below = [wrapped(caption, 36) for caption in captions]
    lines = max((caption.count("\n") + 1 for caption in below), default=1)
    size = 2.45 * columns + 0.2, (1.3 + 0.15 * lines) * rows + 0.4
    with chart(*size, "Attention rollout", nrows=rows, ncols=columns, squeeze=False) as (figure, grid):
        for axes in grid.flat:
            bare(axes)
        for axes, pair, caption in zip(grid.flat, pairs, below, strict=False):
            axes.imshow(pair, interpolation="none")
            axes.set_xlabel(caption, fontsize=7.5)
    return figure


def heat_overlay(image: NDArray[np.uint8], heat: Floats) -> NDArray[np.uint8]:
    """Lay a map over a grey version of a picture: dark blue its lowest value, yellow its highest.

    Args:
        image: `(H, W, 3)`
        heat: `(R, C)`, of any scale; enlarged bilinearly.

    Returns:
        `(H, W, 3)`
    """
    span = float(heat.max() - heat.min())
    scaled = (heat - heat.min()) / span if span > 0 else np.zeros_like(heat)
    size = (image.shape[1], image.shape[0])
    smooth = np.asarray(Image.fromarray(scaled.astype(np.float32)).resize(size, Image.Resampling.BILINEAR))
    colours = np.asarray(matplotlib.colormaps["viridis"](smooth.clip(0, 1)))[..., :3]
    grey = np.asarray(Image.fromarray(image).convert("L"), np.float32)[..., None] / 255
    blended: Floats = 255 * colours * (0.45 + 0.55 * grey)
    return blended.round().astype(np.uint8)


def picture_sheet(sheet: NDArray[np.uint8], rows: Sequence[str]) -> Figure:
    """Draw a sheet of pictures in rows, with the name of each row beside it.

    Args:
        sheet: `(H, W, 3)`, rows of equal height.
        rows: their names, from the top.
    """
    height, width = sheet.shape[:2]
    with chart(WIDTH, 1.1 * WIDTH * height / width + 0.1) as (figure, axes):
        bare(axes)
        axes.imshow(sheet, interpolation="none")
        middles = [(number + 0.5) * height / len(rows) for number in range(len(rows))]
        axes.set_yticks(middles, rows, rotation=90, va="center", fontsize=8)
        axes.tick_params(left=False, labelleft=True)
    return figure


COLOURS = (BLUE, VERMILION, GREEN, "#CC79A7", "#E69F00", SKY, "black")
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
    size = WIDTH * (0.6 if len(panels) == 1 else 1), 3.4 if steps else 4.0
    with chart(*size, *title, ncols=len(panels), sharey=True, squeeze=False) as (figure, every):
        for number, (axes, (name, lines)) in enumerate(zip(every[0], panels.items(), strict=True)):
            _draw_lines(axes, lines, named=number == 0)
            if chance is not None:
                label = "guessing" if number == 0 else "_"
                axes.axhline(chance, color=GREY, linestyle="--", linewidth=1, label=label)
            axes.set(xlabel=across, ylabel=up if number == 0 else "", title=name)
            if steps:
                if is_fraction:
                    low, high = axes.get_ylim()
                    axes.set_ylim(min(low, 0.9), min(high, 1.01))  # no accuracy is above 1
                axes.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True, min_n_ticks=1))
            else:
                axes.set_xscale("log")
                axes.set_xlim(places[0] / 1.15, places[-1] * 1.15)  # the same in all pictures
                axes.xaxis.set_major_locator(ticker.FixedLocator(_apart(places, 20 / len(panels))))
                axes.xaxis.set_minor_locator(ticker.NullLocator())
                axes.xaxis.set_major_formatter(_short)
            if is_fraction:
                axes.yaxis.set_major_formatter(axis_percentage)
            else:
                axes.set_yscale("log")
                axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
                axes.yaxis.set_major_formatter("{x:,.10g}")
                axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    return figure


def _draw_lines(axes: Axes, lines: Mapping[str, Points], named: bool, joined: bool = True) -> None:
    """Draw lines, no two alike up to 28, with bars for their intervals; if `named`, in the legend, and if not
    `joined`, their points alone."""
    looks = itertools.cycle(itertools.product(DASHES, COLOURS))
    style: dict[str, Any] = {"marker": "o", "markersize": 4, "linewidth": 1.6, "elinewidth": 1}
    for (name, points), (dashes, colour) in zip(lines.items(), looks, strict=False):
        values = np.array([value for _, value, _ in points])
        ends = np.array([interval or (value, value) for _, value, interval in points])
        axes.errorbar(
            [place for place, _, _ in points],
            values,
            yerr=np.abs(ends.T - values),
            label=shortened(name, 60) if named else "_",  # matplotlib leaves such a label out
            color=colour,
            linestyle=dashes if joined else "none",
            capsize=2 if any(interval for _, _, interval in points) else 0,
            **style,
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


def _short(number: float, _place: float) -> str:
    """Write a number of an axis: up to 99,999 in full, above it, as FLOPs are, with a prefix."""
    return f"{number:,.5g}" if number < 1e5 else format_count(number)


def fewshot_plot(models: Mapping[str, Scores], images: str, chance: float, seeds: int) -> Figure:
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
    models: Mapping[str, Sequence[tuple[int, Scores]]], images: str, method: Method, chance: float, seeds: int
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
    return line_figure({"": lines}, "step", RIGHT, title=(f"Few-shot accuracy on {images}",), steps=True)


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
    with chart(WIDTH * 0.72, 4.2) as (figure, axes):
        for part, colour, dashes, name in (
            (law, BLUE, "-", "the law, and where 95 % of measurements should lie"),
            (beyond, GREY, "--", "extrapolation: from no further gain to gains as fast as the last"),
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
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())
        axes.xaxis.set_major_formatter(_short)
        # Less than half a decade would hold a single round number.
        is_wide = top > 3 * bottom
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)) if is_wide else ticker.MaxNLocator(6))
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
        axes.yaxis.set_major_formatter(axis_percentage if is_fraction else "{x:.4g}")
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
    with chart(WIDTH * 0.75, 1.2 + 0.32 * len(labels)) as (figure, axes):
        axes.axvline(0, color=GREY, linestyle="--", linewidth=1)
        axes.errorbar(across, down, xerr=reach, fmt="o", color=BLUE, capsize=3, linewidth=1.4)
        axes.set_yticks(down, [shortened(label, 60) for label in labels])
        axes.set_ylim(len(labels) - 0.5, -0.5)  # in the order of the table, from the top
        axes.set_xlabel(axis)
        axes.grid(True, axis="x")
    return figure

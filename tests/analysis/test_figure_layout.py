"""Every figure that vitkit draws, with short and wide names: no text lies over text, curves or the edge."""

import re
import unicodedata
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from vitkit.analysis import figures
from vitkit.evaluation.classify import LabelScore, classification
from vitkit.evaluation.fewshot.methods import FewShotScore
from vitkit.evaluation.predictions import Predictions
from vitkit.evaluation.statistics import Point, Prediction

SLACK = 1.0
"""Pixels by which boxes may overlap: the box of a text is a little taller than its letters."""
RNG = np.random.default_rng(0)
LABELS: Mapping[str, str] = {
    "short": "ant",
    "wide": "在公园里奔跑的金毛寻回犬的照片🐕🐈" * 5,
    # No formula that matplotlib can read, and nothing that a page may run.
    "nasty": r"<script>é</script> $ \frac{$ s_{x}",
}


def find_faults(figure: Figure) -> list[str]:
    """List what lies over what, and what leaves the figure, as a browser would show it.

    Wide characters count as one em each, which the font of matplotlib does not know of them.
    """
    boxes, legends, curves = draw(figure)
    size = 72 * figure.get_size_inches()
    inside = Bbox.from_extents(-SLACK, -SLACK, size[0] + SLACK, size[1] + SLACK)
    faults = [f"'{text}' leaves the figure" for text, box in boxes if not contains(inside, box)]
    for number, (text, box) in enumerate(boxes):
        faults += [f"'{text}' over '{other}'" for other, at in boxes[number + 1 :] if overlap(box, at)]
        faults += [f"'{text}' over '{curve}'" for curve, path in curves if path.intersects_bbox(box, False)]
    for frame, own in legends:
        faults += [f"legend over '{text}'" for text, box in boxes if text not in own and overlap(frame, box)]
        faults += [f"legend over '{curve}'" for curve, path in curves if path.intersects_bbox(frame, False)]
        if not contains(inside, frame):
            faults.append("legend leaves the figure")
    return faults


def draw(
    figure: Figure,
) -> tuple[list[tuple[str, Bbox]], list[tuple[Bbox, set[str]]], list[tuple[str, Path]]]:
    """Draw a figure as for a page; return its texts, legends and curves with their places in points.

    Only what is really drawn counts: matplotlib makes ticks outside the view, too.
    """
    texts: dict[Text, Bbox] = {}
    legends: dict[Legend, Bbox] = {}
    curves: dict[Line2D, Path] = {}

    def record(artist: Any, renderer: Any) -> None:
        if isinstance(artist, Text) and artist.get_text().strip():
            texts[artist] = shown_box(artist, renderer)
        elif isinstance(artist, Legend):
            legends[artist] = artist.get_window_extent(renderer)
        elif isinstance(artist, Line2D) and artist.axes is not None and artist in artist.axes.lines:
            curves[artist] = artist.get_path().transformed(artist.get_transform())

    with pytest.MonkeyPatch.context() as patch:
        for kind in (Text, Legend, Line2D):
            patch.setattr(kind, "draw", recording(kind.draw, record))
        check_svg(figures.figure_svg(figure, "x"))
    return (
        [(text.get_text().strip(), box) for text, box in texts.items()],
        [(box, {text.get_text().strip() for text in legend.get_texts()}) for legend, box in legends.items()],
        [(str(line.get_label()), path) for line, path in curves.items() if np.isfinite(path.vertices).any()],
    )


def check_svg(svg: str) -> None:
    """Hold that a picture is well formed, whatever the names in it, and reaches for nothing outside of it."""
    ET.fromstring(svg)
    assert "script>" not in svg
    links = {"http://www.w3.org/1999/xlink", "http://www.w3.org/2000/svg"}
    assert set(re.findall(r"https?://[^\"' ]+", svg)) == links


def recording(plain: Callable[..., Any], record: Callable[[Any, Any], None]) -> Callable[..., Any]:
    """Make a method that draws as the plain one, and records what is visible."""

    def draw(self: Any, renderer: Any, *rest: Any, **named: Any) -> Any:
        result = plain(self, renderer, *rest, **named)
        if self.get_visible():
            record(self, renderer)
        return result

    return draw


def shown_box(text: Text, renderer: Any) -> Bbox:
    """Give the place of a text in pixels, in a font that has its letters."""
    letters = text.get_text()
    wide = [unicodedata.east_asian_width(letter) in "WF" for letter in letters]
    text.set_text("".join("\N{EM DASH}" if is_wide else c for c, is_wide in zip(letters, wide, strict=True)))
    try:
        return text.get_window_extent(renderer)
    finally:
        text.set_text(letters)


def overlap(first: Bbox, second: Bbox) -> bool:
    """Whether two boxes share more than a pixel both ways."""
    shared = Bbox.intersection(first, second)
    return shared is not None and min(shared.size) > SLACK


def contains(outer: Bbox, inner: Bbox) -> bool:
    return outer.count_contains(inner.corners()) == 4


def columns(steps: int, *names: str) -> dict[str, np.ndarray]:
    return {"step": np.arange(1.0, steps + 1) * 1357, "epoch": np.arange(1.0, steps + 1) / 7} | {
        name: np.linspace(0.2, 0.9, steps) for name in names
    }


def curves(word: str) -> list[Figure]:
    train, validation = columns(90, "loss", "learning_rate"), columns(60, "loss", "accuracy")
    return list(figures.training_curves(train, validation, altered=word, best=40))


def scores(word: str, classes: int) -> list[Figure]:
    labels = np.arange(20 * classes) % classes
    logits = RNG.normal(size=(len(labels), classes)).astype(np.float32)
    made = Predictions(logits, labels, np.arange(len(labels)), np.zeros(0, np.int64))
    result = classification(made, [f"{i} {word} {i}" for i in range(classes)])
    data = f"{len(labels):,} validation images"
    return [
        figures.confusion_matrix(result.confusion_cells, result.class_names, data),
        figures.class_accuracy(result.per_class, data),
        figures.calibration_figure({"accuracy": result.calibration}, data),
    ]


def labels(word: str) -> list[Figure]:
    label_scores = [
        LabelScore(f"{i} {word}", 1234, 20, 10, 0.5, 0.5, 0.5, i / 60, (i / 70, i / 55), 0.5, 0.5)
        for i in range(50)
    ]
    parts = (label_scores[:2], label_scores)
    return [figures.label_precision(part, 12345, "12,345 validation images") for part in parts]


def few_shot(method: Any = "ridge", level: float = 0.5) -> list[FewShotScore]:
    return [
        FewShotScore(method, shots, (level,), level + shots / 100, 0.1, None, (), (), ())
        for shots in (1, 5, 10, 25)
    ]


def learned(word: str) -> list[Figure]:
    methods = [score for method in figures.METHOD_NAMES for score in few_shot(method)]
    several = {f"{i} {word} {i}": methods for i in range(3)}
    sizes = {f"{i} {word}": [(10**n, few_shot(level=n / 10)) for n in (4, 6, 8)] for i in range(3)}
    return [
        figures.fewshot_plot({word: methods}, f"12,345 test images of {word}", 0.1, 3),
        figures.fewshot_plot(several, f"360 test images of {word}", 0.1, 1),
        figures.pretraining_plot(sizes, f"360 test images of {word}", "ridge", 0.1, 3),
        figures.tracking_plot([10, 20, 30], {f"{i} shots": [0.2, 0.5, 0.7] for i in (1, 5, 10, 25)}, word),
    ]


def benchmarks(word: str) -> list[Figure]:
    lines: Mapping[str, figures.Points] = {
        f"{i} {word} {i}": [(size, 1e6 / size / (i + 1), None) for size in (64, 128, 224, 384, 512)]
        for i in range(4)
    }
    title = [f"Speed by image size on {word} (cpu)"]
    return [
        figures.line_figure({"": lines}, "image size", "images per second", title=title, is_fraction=False)
    ]


def rates(word: str) -> list[Figure]:
    up = "mean average precision on held-out images"
    return [
        figures.line_figure({"": {word: [(rate, 0.5, (0.4, 0.6)) for rate in tried]}}, "learning rate", up)
        for tried in ([1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2], [8e-4, 9e-4, 1e-3, 1.1e-3])
    ]


def laws(word: str) -> list[Figure]:
    def point(x: float, error: float) -> Point:
        return Point(x, (error, 0.9 * error), 0.01)

    def law(*places: float) -> list[Prediction]:
        return [Prediction(x, 3 / x, 0.0, 6 / x) for x in places]

    axis = "test error (1 - mean average precision)"
    few = [point(x, 3 / x) for x in (14, 34, 80, 189, 449)]
    flops = [point(1e15 * x, 3 / x) for x in (14, 34, 80, 189, 449)]
    return [
        figures.scale_plot(few, law(14, 80, 1347), point(1347, 0.0), law(1347, 13470), "images", axis, True),
        figures.scale_plot(flops, [], None, [], "FLOPs of training", axis, False),
    ]


def differences(word: str) -> list[Figure]:
    wide, axis = (-0.05, 0.02), "fraction of labels right less that of the base, in points"
    return [
        figures.difference_figure([(f"{word} {i}", -0.015, wide) for i in range(count)], axis)
        for count in (1, 2, 12)
    ]


def comparisons(word: str) -> list[Figure]:
    bins = {}
    for number in range(2):
        logits, labels = RNG.normal(size=(90, 3)).astype(np.float32), RNG.integers(0, 3, 90)
        made = Predictions(logits, labels, np.arange(90), np.arange(0))
        bins[f"{word} {number}"] = classification(made, "abc").calibration
    return [figures.calibration_figure(bins)]


def insides(word: str) -> list[Figure]:
    pictures = list(RNG.integers(0, 256, (7, 16, 16, 3), dtype=np.uint8))
    captions = [f"{word}/{i}.png: predicted {word} ({i}%)" for i in range(7)]
    size = "128 validation images of 1024 x 1024 pixels"
    return [
        figures.filter_grid(RNG.random((28, 16, 16, 3)), RNG.random(28)),
        figures.filter_grid(RNG.random((3, 16, 16, 3)), RNG.random(3)),
        figures.filter_grid(RNG.random((1, 16, 16, 3)), RNG.random(1)),
        figures.position_similarity_map(RNG.random((14, 14, 14, 14))),
        figures.position_similarity_map(RNG.random((2, 2, 2, 2))),
        figures.position_similarity_map(RNG.random((37, 4, 37, 4))),
        figures.attention_distance_plot(RNG.random((12, 16)) * 100, 90.0, size),
        figures.rollout_gallery(pictures, RNG.random((7, 4, 4)), captions),
        figures.rollout_gallery(pictures[:1], RNG.random((1, 4, 4)), captions[:1]),
    ]


def unusual(word: str) -> list[Figure]:
    """The figures are of one step, of nothing, and of as many classes as are grouped."""
    nothing = columns(0, "loss", "accuracy")
    return [
        *figures.training_curves(
            columns(1, "loss", "learning_rate"), columns(1, "loss", "accuracy"), best=None
        ),
        *figures.training_curves(columns(30, "loss", "learning_rate"), nothing, best=None),
        *figures.training_curves(columns(0, "loss", "learning_rate"), columns(3, "loss", "accuracy"), best=1),
        figures.confusion_matrix([(0, 0, 3)], [word], "3 images"),
        figures.confusion_matrix([(5, 5, 9)], [word] * 30, "9 images"),
        figures.confusion_matrix([(5, 999, 9)], [word] * 1000, "9 images"),
        figures.filter_grid(np.zeros((0, 2, 2, 3)), np.zeros(0)),
        figures.position_similarity_map(np.ones((1, 1, 1, 1))),
        figures.attention_distance_plot(np.zeros((1, 1)), 0.0, "1 image"),
    ]


FIGURES: Mapping[str, Callable[[str], Sequence[Figure]]] = {
    "two models": comparisons,
    "training curves": curves,
    "scores of 2 classes": lambda word: scores(word, 2),
    "scores of 20 classes": lambda word: scores(word, 20),
    "scores of 150 classes": lambda word: scores(word, 150),
    "labels": labels,
    "few-shot": learned,
    "benchmarks": benchmarks,
    "laws of scale": laws,
    "learning rates": rates,
    "differences": differences,
    "inside a model": insides,
    "unusual": unusual,
}


@pytest.mark.parametrize(
    ("name", "word"),
    [pytest.param(name, word, id=f"{name}-{kind}") for kind, word in LABELS.items() for name in FIGURES],
)
def test_no_text_of_a_figure_lies_over_another_or_over_the_edge(name: str, word: str) -> None:
    drawn = FIGURES[name](word)
    assert [find_faults(figure) for figure in drawn] == [[]] * len(drawn)
    for axes in [axes for figure in drawn for axes in figure.axes if name == "few-shot"]:
        heights = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.lines])
        assert min(axes.get_ylim()) <= heights.min() and heights.max() <= max(axes.get_ylim())

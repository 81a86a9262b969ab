import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from vitkit.analysis import drawing, figures, model_figures
from vitkit.analysis.study_figures import fewshot_plot, pretraining_plot
from vitkit.evaluation.classify import Classification, classification
from vitkit.evaluation.fewshot.config import Method
from vitkit.evaluation.fewshot.methods import FewShotScore
from vitkit.evaluation.predictions import Predictions

RNG = np.random.default_rng(0)
NASTY = [
    "<script>alert(1)</script>",
    r"cost in $ and $\frac{$",  # no formula that matplotlib can read
    r"back\slash_{x}",
    "两只猫 🐈",
    "line\nbreak",
    "é" * 80,
]


def scores(classes: int, count: int = 400) -> Classification:
    labels = RNG.integers(0, classes, count)
    logits = RNG.normal(size=(count, classes)).astype(np.float32)
    logits[np.arange(count), labels] += 2
    names = [f"{NASTY[i % len(NASTY)]} {i}" for i in range(classes)]
    return classification(Predictions(logits, labels, np.arange(count), np.zeros(0, np.int64)), names)


def columns(steps: int, *names: str) -> dict[str, np.ndarray]:
    return {"step": np.arange(1.0, steps + 1), "epoch": np.arange(1.0, steps + 1) / 7} | {
        name: RNG.random(steps) for name in names
    }


def curves(steps: int, validations: int) -> tuple[Figure, Figure, Figure]:
    train = columns(steps, "loss", "learning_rate")
    return figures.training_curves(
        train, columns(validations, "loss", "accuracy"), best=validations // 2 or None
    )


def images(count: int, size: tuple[int, int]) -> list[np.ndarray]:
    return list(RNG.integers(0, 256, (count, *size, 3), dtype=np.uint8))


FIGURES: dict[str, Callable[[], Figure]] = {
    "curves": lambda: curves(5000, 9)[0],
    "curves of one step": lambda: curves(1, 1)[0],
    "curves without validation": lambda: curves(30, 0)[1],
    "curves of validation alone": lambda: curves(0, 3)[1],
    "confusion of 1": lambda: figures.confusion_matrix([(0, 0, 3)], ["a"], "3 images"),
    "confusion of 2": lambda: confusion(2),
    "confusion of 20": lambda: confusion(20),
    "confusion of 21": lambda: confusion(21),
    "confusion of 1000": lambda: confusion(1000),
    "confusion, all right": lambda: figures.confusion_matrix([(5, 5, 9)], ["x"] * 30, "9 images"),
    "classes": lambda: figures.class_accuracy(scores(2).per_class, "400 images"),
    "many classes": lambda: figures.class_accuracy(scores(100).per_class, "400 images"),
    "reliability": lambda: figures.calibration_figure({"accuracy": scores(10).calibration}, "400 images"),
    "filters": lambda: model_figures.filter_grid(RNG.random((28, 16, 16, 3)), RNG.random(28)),
    "filters of none": lambda: model_figures.filter_grid(np.zeros((0, 2, 2, 3)), np.zeros(0)),
    "positions": lambda: model_figures.position_similarity_map(RNG.random((7, 7, 7, 7))),
    "large grid": lambda: model_figures.position_similarity_map(RNG.random((37, 20, 37, 20))),
    "one patch": lambda: model_figures.position_similarity_map(np.ones((1, 1, 1, 1))),
    "distance": lambda: model_figures.attention_distance_plot(RNG.random((12, 12)) * 100, 90.0, "128 images"),
    "distance of nothing": lambda: model_figures.attention_distance_plot(np.zeros((1, 1)), 0.0, "1 image"),
    "rollout": lambda: model_figures.rollout_gallery(images(3, (32, 16)), RNG.random((3, 4, 2)), NASTY[:3]),
}


def confusion(classes: int) -> Figure:
    result = scores(classes)
    return figures.confusion_matrix(result.confusion_cells, result.class_names, "400 test images")


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_can_be_drawn(name: str) -> None:
    svg = drawing.figure_svg(FIGURES[name](), name)
    ET.fromstring(svg)  # well formed, whatever the names
    assert "script>" not in svg
    assert set(re.findall(r"https?://[^\"' ]+", svg)) == {
        "http://www.w3.org/1999/xlink",
        "http://www.w3.org/2000/svg",
    }


def test_saved_files_and_same_bytes(tmp_path: Path) -> None:
    matplotlib.rcParams["svg.hashsalt"] = None
    before = dict(matplotlib.rcParams)
    written = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        result = classification(
            Predictions(np.eye(3, dtype=np.float32), np.arange(3), np.arange(3), np.zeros(0, np.int64)),
            ["a", "b", "c"],
        )
        figure = figures.confusion_matrix(result.confusion_cells, result.class_names, "3 images")
        written.append(drawing.save_figure(figure, tmp_path / folder / "fig.1"))
    (png, svg), (_, other) = written
    assert (png.name, svg.name) == ("fig.1.png", "fig.1.svg")
    with Image.open(png) as picture:
        assert picture.size[0] > 200
    assert svg.read_bytes() == other.read_bytes() and b"<dc:date" not in svg.read_bytes()
    assert dict(matplotlib.rcParams) == before


def test_identifiers_of_two_figures_differ() -> None:
    ids = [set(re.findall(r' id="([^"]+)"', drawing.figure_svg(curves(30, 3)[0], name))) for name in "ab"]
    assert ids[0] and not ids[0] & ids[1]


def texts(figure: Figure) -> str:
    return " ".join(
        text for text in ET.fromstring(drawing.figure_svg(figure, "x")).itertext() if text.strip()
    )


def test_confusion_shows_counts() -> None:
    small = figures.confusion_matrix([(0, 0, 41), (0, 1, 17)], ["cat", "dog"], "58 test images")
    assert all(word in texts(small) for word in ("41", "17", "cat", "dog", "58 test images"))
    names = [f"n{i}" for i in range(30)]
    large = figures.confusion_matrix([(3, 3, 5), (3, 4, 2), (7, 8, 9)], names, "16 images")
    assert "(number)" in texts(large) and "n7" not in texts(large)


def test_groups_of_classes_keep_every_count() -> None:
    cells = [(0, 1, 2), (7, 19, 6), (999, 999, 3), (12, 19, 4)]
    names = [str(number) for number in range(1000)]
    (drawn,) = figures.confusion_matrix(cells, names, "15 images").axes[0].images
    fractions = np.asarray(drawn.get_array())
    assert fractions.shape == (100, 100) and fractions.sum() == 3
    assert [fractions[row, row] for row in (0, 1, 99)] == [0.25, 1, 1] and fractions[0, 1] == 0.75


def test_long_runs_keep_their_mean_and_missing_values_stay_out() -> None:
    x, y = figures._thinned(np.arange(10_000.0), np.tile([0.0, 2.0], 5000))
    assert len(x) <= figures.POINTS_SHOWN and y[:-1] == pytest.approx(1, abs=0.1)
    smooth = figures._smoothed(np.where(np.arange(200) % 3 == 0, np.nan, 5.0))
    assert smooth == pytest.approx(5)


def test_heat_overlay_is_bright_where_the_heat_is() -> None:
    image = np.full((32, 32, 3), 128, np.uint8)
    heat = np.zeros((4, 4))
    heat[1, 2] = 1
    overlay = model_figures.heat_overlay(image, heat).astype(int).sum(-1)
    assert np.unravel_index(overlay.argmax(), overlay.shape)[0] // 8 == 1
    assert overlay[12, 20] == overlay.max() and overlay[0, 0] == overlay.min()
    assert np.ptp(model_figures.heat_overlay(image, np.ones((4, 4))).reshape(-1, 3), axis=0).max() == 0


def test_enlarged_repeats_whole_pixels() -> None:
    image = RNG.integers(0, 256, (8, 6, 3), dtype=np.uint8)
    large = drawing.enlarged(image, 128)
    assert large.shape == (128, 96, 3) and (large[::16, ::16] == image).all()
    assert drawing.enlarged(large, 100) is not None and drawing.enlarged(large, 10).shape == large.shape


@pytest.mark.parametrize(("side", "start"), [(8, "data:image/png;base64,"), (200, "data:image/jpeg;base64,")])
def test_image_data_uri(side: int, start: str) -> None:
    assert drawing.image_data_uri(images(1, (side, side))[0]).startswith(start)


def test_every_point_of_a_few_shot_figure_lies_inside_its_panel() -> None:
    """Several panels share one scale, and their values are higher the more shots there are."""

    def measured(method: Method, shots: int, mean: float) -> FewShotScore:
        return FewShotScore(method, shots, (mean,), mean, 0.02, None, (), (), ())

    rising = [measured("ridge", shots, 0.3 + 0.05 * shots) for shots in (1, 5, 10)]
    several = {"a": rising, "b": [*rising, *(measured("knn", shots, 0.9) for shots in (1, 5, 10))]}
    for figure in (
        fewshot_plot(several, "360 test images", 0.1, 5),
        pretraining_plot({"B": [(1_000, rising), (10_000, rising)]}, "360 test images", "ridge", 0.1, 5),
    ):
        for axes in figure.axes:
            low, high = axes.get_ylim()
            heights = [y for line in axes.lines for y in np.asarray(line.get_ydata(), float).tolist()]
            assert heights and low <= min(heights) and max(heights) <= high

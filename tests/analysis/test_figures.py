import re
import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from vitkit.analysis import figures

RNG = np.random.default_rng(0)


def test_saved_files_and_same_bytes(tmp_path: Path) -> None:
    matplotlib.rcParams["svg.hashsalt"] = None
    before = dict(matplotlib.rcParams)
    written = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        figure = figures.confusion_matrix([(0, 0, 3)], ["cat"], "3 images")
        written.append(figures.save_figure(figure, tmp_path / folder / "fig.1"))
    (png, svg), (_, other) = written
    assert (png.name, svg.name) == ("fig.1.png", "fig.1.svg")
    with Image.open(png) as picture:
        assert picture.size[0] > 200
    assert svg.read_bytes() == other.read_bytes() and b"<dc:date" not in svg.read_bytes()
    assert dict(matplotlib.rcParams) == before


def test_identifiers_of_two_figures_differ() -> None:
    svgs = [figures.figure_svg(figures.confusion_matrix([(0, 0, 3)], ["cat"], "3 images"), x) for x in "ab"]
    ids = [set(re.findall(r' id="([^"]+)"', svg)) for svg in svgs]
    assert ids[0] and not ids[0] & ids[1]


def texts(figure: Figure) -> str:
    return " ".join(ET.fromstring(figures.figure_svg(figure, "x")).itertext())


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
    overlay = figures.heat_overlay(image, heat).astype(int).sum(-1)
    assert overlay[12, 20] == overlay.max() and overlay[0, 0] == overlay.min()
    assert np.ptp(figures.heat_overlay(image, np.ones((4, 4))).reshape(-1, 3), axis=0).max() == 0


def test_enlarged_repeats_whole_pixels() -> None:
    image = RNG.integers(0, 256, (8, 6, 3), dtype=np.uint8)
    large = figures.enlarged(image, 128)
    assert large.shape == (128, 96, 3) and (large[::16, ::16] == image).all()
    assert figures.enlarged(large, 10).shape == large.shape


@pytest.mark.parametrize(("side", "start"), [(8, "data:image/png;base64,"), (200, "data:image/jpeg;base64,")])
def test_image_data_uri(side: int, start: str) -> None:
    assert figures.image_data_uri(RNG.integers(0, 256, (side, side, 3), dtype=np.uint8)).startswith(start)

"""Style figures and write them: colours, fonts, PNG and SVG.

Colours: Okabe & Ito's for categories and viridis for maps, which colour-blind readers can tell apart. Figures
have white grounds and are made for a width of about 1000 CSS pixels.
"""

import base64
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_mixed import MixedModeRenderer
from matplotlib.backends.backend_svg import RendererSVG
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from rich.cells import cell_len, set_cell_size

from vitkit.durable import replace_file

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
    with styled(), _any_letters():
        FigureCanvasAgg(figure)
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


def styled(salt: str = "vitkit") -> AbstractContextManager[None]:
    """Give a context in which figures have our style; the salt decides the identifiers within an SVG."""
    style: Any = {**STYLE, "svg.hashsalt": salt}
    return matplotlib.rc_context(style)


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


def percentage(fraction: float, _place: float) -> str:
    """Write a fraction of an axis as a percentage in the fewest digits, for matplotlib."""
    return f"{100 * fraction:.4g}%"


@contextmanager
def _any_letters() -> Iterator[None]:
    """Silence warnings of letters that matplotlib's font lacks: browsers have other fonts."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


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
    # A wide letter that would be cut in two is left out: a space stands in its place, which goes.
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
    with styled(name), _any_letters():
        absent = {"Date": None, "Creator": None, "Format": None, "Type": None}
        width, height = figure.get_size_inches()
        vectors = _make_renderer(72 * width, 72 * height, buffer, image_dpi=dpi, metadata=absent)
        renderer = _make_mixed_renderer(figure, width, height, dpi, vectors)
        figure.draw(renderer)
        renderer.finalize()
    figure.dpi = dpi
    return buffer.getvalue()

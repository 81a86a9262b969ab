"""The style of figures, and writing them: colours, fonts, PNG and SVG.

Colours: Okabe & Ito's for categories and viridis for maps, which colour-blind readers can tell apart. Figures
have white grounds and are made for a width of about 1000 CSS pixels.
"""

import base64
import io
import re
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

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
    "svg.fonttype": "none",  # text stays text: it can be searched, and any script's letters are shown
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
    replace_file(png, [_png(figure)])
    replace_file(svg, [_svg(figure, stem.name).encode()])
    return png, svg


def figure_svg(figure: Figure, name: str) -> str:
    """Return the figure as an `<svg>` element for an HTML page.

    Args:
        figure: what to draw.
        name: unique within the page; the identifiers of the element's parts are derived from it.
    """
    svg = _svg(figure, name)
    svg = svg[svg.index("<svg") :]
    # Element names such as axes_1 are referred to by nothing and would be there once per figure.
    return re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)


def figure_png_data_uri(figure: Figure) -> str:
    """Return the figure as a PNG `data:` URI."""
    return _data_uri(_png(figure), "png")


def image_data_uri(image: NDArray[np.uint8]) -> str:
    """Return a picture `(H, W, 3)` as a `data:` URI: PNG up to 64 pixels, where JPEG blurs, JPEG above."""
    kind = "png" if max(image.shape[:2]) <= 64 else "jpeg"
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind, quality=85, optimize=True)
    return _data_uri(buffer.getvalue(), kind)


def styled(salt: str = "vitkit") -> AbstractContextManager[None]:
    """Give a context in which figures have our style; the salt decides the identifiers within an SVG."""
    style: Any = {**STYLE, "svg.hashsalt": salt}
    return matplotlib.rc_context(style)


@contextmanager
def _any_letters() -> Iterator[None]:
    """Silence warnings of letters that matplotlib's font lacks: browsers have other fonts."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def bare(axes: Axes) -> None:
    """Remove ticks and frame from axes that show a picture."""
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)


def wrapped(caption: str, width: int) -> str:
    """Wrap a caption into at most three lines of `width` characters."""
    lines = [line for part in caption.split("\n") for line in textwrap.wrap(part, width)]
    return "\n".join(shortened(line, width) for line in lines[:3])


def shortened(text: str, length: int) -> str:
    """Return a name from outside in one short line that matplotlib does not take for a formula."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(text) > length:
        text = f"{text[: length - length // 3 - 1]}…{text[-(length // 3) :]}"
    return text.replace("$", r"\$")


def _svg(figure: Figure, name: str) -> str:
    buffer = io.StringIO()
    with styled(name), _any_letters():
        FigureCanvasSVG(figure)
        figure.savefig(
            buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    return buffer.getvalue()


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    with styled(), _any_letters():
        FigureCanvasAgg(figure)
        figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def _data_uri(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"

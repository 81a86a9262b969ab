"""Fill the templates of pages: single files that need no network.

Names come from outside and are escaped; what is no text becomes a question mark.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from vitkit.analysis.drawing import figure_svg
from vitkit.tasks.page import percent


@dataclass(frozen=True)
class Drawing:
    """A figure of a page."""

    svg: Markup
    alt: str
    """The same in words, for those who cannot see it."""


def drawing(figure: Figure, name: str, alt: str) -> Drawing:
    """Draw a figure for a page; no other of the page has its name."""
    return Drawing(Markup(figure_svg(figure, name)), alt)


def fill(template: str, values: Mapping[str, Any]) -> str:
    """Render a template of this folder as HTML: a whole document, to be written as UTF-8."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "count": lambda number: f"{number:,}"}
    # Names of files and classes need not be valid text.
    return environment.get_template(template).render(values).encode("utf-8", "replace").decode("utf-8")

"""Render one page about few-shot accuracy: the table, the curves, the classes.

As the report of a run, the page is a single file that needs no network; it runs no script. Names come from
outside and are escaped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from vitkit.analysis import drawing


@dataclass(frozen=True)
class FewShotContent:
    """The content of the page, in words."""

    title: str
    answer: str
    protocol: str
    """A sentence on the test images and the accuracy of guessing."""
    remarks: Sequence[str]
    """Warnings where the numbers mean another thing than they seem to."""
    figure: Figure
    alt: str
    """The figure in words."""
    by_images: Figure | None
    """Accuracy against the images of the pre-training; None where they are not known of two checkpoints."""
    by_images_alt: str
    headings: Sequence[str]
    words: int
    """How many of the first columns are words; the others are numbers."""
    rows: Sequence[Sequence[str]]
    names: Sequence[str]
    """Names of the checkpoints, for the table of classes."""
    classes: Sequence[Sequence[str]]
    """A row for each class: its name, and the accuracy of each checkpoint."""
    notes: Sequence[str]
    """About the data."""


def render_fewshot(content: FewShotContent) -> str:
    """Render the page as HTML: a whole document, to be written as UTF-8."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = Path(__file__).with_name("fewshot.html.j2").read_text(encoding="utf-8")
    svg = Markup(drawing.figure_svg(content.figure, "fewshot"))
    by_images = "" if content.by_images is None else Markup(drawing.figure_svg(content.by_images, "images"))
    # Names of files and classes need not be valid text: what is none is shown as a question mark.
    page = environment.from_string(source).render(vars(content) | {"svg": svg, "by_images": by_images})
    return page.encode("utf-8", "replace").decode("utf-8")

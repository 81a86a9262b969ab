"""Fill the templates of pages: single files that need no network.

The pages that a template alone makes are here too: tables of a study, a series of runs, few-shot accuracy.
They run no script. Names come from outside and are escaped; what is no text becomes a question mark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from vitkit.analysis.drawing import figure_svg
from vitkit.tasks.page import Plot, Section, Table, Text, percent


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


def render_tables(title: str, sections: Sequence[Section], footer: str) -> str:
    """Render the page as HTML.

    Args:
        title: its name and heading.
        sections: paragraphs and tables; figures and pictures have no place on this page.
        footer: the last line.

    Returns:
        A whole document, to be written as UTF-8.
    """
    parts = [
        (section, [block for block in section.blocks if isinstance(block, Text | Table)])
        for section in sections
    ]
    return fill("tables.html.j2", {"title": title, "parts": parts, "footer": footer})


@dataclass(frozen=True)
class Picture:
    """A picture that is there already, as an address that needs no network: "data:image/png;base64,..."."""

    source: str
    alt: str


@dataclass(frozen=True)
class SeriesSection:
    """A part of the page: a table of members, what it says, and figures where there are some."""

    title: str
    sentences: tuple[str, ...]
    table: Table | None = None
    plot: Plot | None = None
    pictures: tuple[Picture, ...] = ()


def render_series(
    title: str, answer: Sequence[str], sections: Sequence[SeriesSection], folders: Sequence[str], command: str
) -> str:
    """Render the page as HTML.

    Args:
        title: the name of the series.
        answer: the sentences at the head of the page.
        sections: in the order of the page.
        folders: of the members that have a page of their own, within that of the series.
        command: the one that made the series.

    Returns:
        A whole document, to be written as UTF-8.
    """
    plots = [
        None if one.plot is None else drawing(one.plot.figure, one.plot.name, one.plot.alt)
        for one in sections
    ]
    values = {"title": title, "answer": answer, "folders": folders, "command": command}
    return fill("series.html.j2", {**values, "sections": list(zip(sections, plots, strict=True))})


def render_views(
    title: str, sentences: Sequence[str], epochs: Sequence[int], rows: Sequence[Mapping[str, Any]]
) -> str:
    """Render the page of training images as HTML.

    Args:
        title: its name and heading.
        sentences: what is shown, and what changes the images.
        epochs: the numbers above the columns of augmented versions.
        rows: for each image its `label`, its `name` and its `pictures`: `source`, a data address, `width`
            and `height` in CSS pixels, and `alt`.

    Returns:
        A whole document, to be written as UTF-8.
    """
    values = {"title": title, "sentences": sentences, "epochs": epochs, "rows": rows}
    return fill("views.html.j2", {**values, "footer": "Made by vitkit data show."})


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
    """Number of leading columns that hold words; the others hold numbers."""
    rows: Sequence[Sequence[str]]
    names: Sequence[str]
    """Names of the checkpoints, for the table of classes."""
    classes: Sequence[Sequence[str]]
    """A row for each class: its name, and the accuracy of each checkpoint."""
    notes: Sequence[str]
    """About the data."""


def render_fewshot(content: FewShotContent) -> str:
    """Render the page as HTML: a whole document, to be written as UTF-8."""
    plots = [drawing(content.figure, "fewshot", content.alt)]
    if content.by_images is not None:
        plots.append(drawing(content.by_images, "images", content.by_images_alt))
    return fill("fewshot.html.j2", vars(content) | {"plots": plots})

"""Fill the templates of pages: single files that need no network.

The pages that a template alone makes are here too: tables of a study, a series of runs, few-shot accuracy.
They run no script, except, on some pages, the script that sorts tables and enlarges pictures. Names come from
outside and are escaped; bytes that are no text become question marks.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from vitkit.analysis.drawing import figure_svg
from vitkit.tasks.page import Plot, Section, Table, Text, percent

PAGE_SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  table.querySelectorAll("th").forEach((head, column) => {
    head.tabIndex = 0;
    const sort = () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      table.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const text = row => row.cells[column].textContent;
      const number = row => Number(row.cells[column].dataset.value);
      const rows = [...table.tBodies[0].rows].sort((one, other) =>
        number(one) - number(other) || text(one).localeCompare(text(other), undefined, {numeric: true}));
      table.tBodies[0].append(...(down ? rows.reverse() : rows));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
  });
}
for (const picture of document.querySelectorAll(".side img")) {
  picture.tabIndex = 0;
  picture.addEventListener("click", () => picture.classList.toggle("large"));
  picture.addEventListener("keydown", event => { if (event.key === "Enter") picture.click(); });
}
addEventListener("keydown", event => {
  if (event.key !== "Escape") return;
  document.querySelectorAll(".large").forEach(picture => picture.classList.remove("large"));
});
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(part => part.open = true));
"""


def page_script() -> dict[str, Any]:
    """Give the script of pages, and its hash, by which a page's policy allows this script alone."""
    digest = base64.b64encode(hashlib.sha256(PAGE_SCRIPT.encode()).digest()).decode()
    return {"script": Markup(PAGE_SCRIPT), "script_digest": digest}


@dataclass(frozen=True)
class Drawing:
    """A figure of a page."""

    svg: Markup
    alt: str
    """The same in words, for readers who cannot see it."""


def drawing(figure: Figure, name: str, alt: str) -> Drawing:
    """Draw a figure for a page, under a name that no other figure of the page has."""
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
        title: name and heading of the page.
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


class InlinePicture(NamedTuple):
    """A finished picture, as an address that needs no network: "data:image/png;base64,..."."""

    source: str
    alt: str


@dataclass(frozen=True)
class SeriesSection:
    """A part of the page: sentences, and a table of members, a figure or pictures."""

    title: str
    sentences: tuple[str, ...]
    table: Table | None = None
    plot: Plot | None = None
    pictures: tuple[InlinePicture, ...] = ()


def render_series(
    title: str, answer: Sequence[str], sections: Sequence[SeriesSection], folders: Sequence[str], command: str
) -> str:
    """Render the page as HTML.

    Args:
        title: the name of the series.
        answer: the sentences at the head of the page.
        sections: in the order of the page.
        folders: of the members that have a page of their own, within the folder of the series.
        command: that made the series.

    Returns:
        A whole document, to be written as UTF-8.
    """
    plots = [
        None if section.plot is None else drawing(section.plot.figure, section.plot.name, section.plot.alt)
        for section in sections
    ]
    values = {"title": title, "answer": answer, "folders": folders, "command": command}
    return fill("series.html.j2", {**values, "sections": list(zip(sections, plots, strict=True))})


def render_views(
    title: str, sentences: Sequence[str], epochs: Sequence[int], rows: Sequence[Mapping[str, Any]]
) -> str:
    """Render the page of training images as HTML.

    Args:
        title: name and heading of the page.
        sentences: about the images and the options that change them.
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
    """The content of the page on few-shot accuracy."""

    title: str
    answer: str
    protocol: str
    """A sentence on the test images and the accuracy of guessing."""
    remarks: Sequence[str]
    """Warnings where the numbers mean something else than they seem to."""
    figure: Figure
    alt: str
    """The figure in words."""
    by_images: Figure | None
    """Accuracy against the images of the pre-training; None where fewer than two checkpoints name them."""
    by_images_alt: str
    headings: Sequence[str]
    text_columns: int
    """Number of leading columns that hold text; the others hold numbers."""
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


@dataclass(frozen=True)
class Flipped:
    """An image on which one of two models scores higher."""

    source: str
    """The picture as an address that needs no network."""
    key: str
    """The name of the image."""
    true: str
    guesses: tuple[tuple[str, str, float, bool], ...]
    """For each model: its name, the predicted classes, its confidence (0 to 1), whether it scores higher."""


@dataclass(frozen=True)
class FlippedSection:
    """The images on which one of two models is better."""

    title: str
    pictures: Sequence[Flipped]
    caption: str
    """A sentence in place of the pictures where there are none."""


@dataclass(frozen=True)
class ComparisonContent:
    """The content of the page of two models."""

    title: str
    answer: str
    sentences: Sequence[str]
    measures: Table
    speed: str
    """A sentence; empty where no speed was measured."""
    flipped: Sequence[FlippedSection]
    flips: Plot | None
    """The classes by the images on which one model alone is right."""
    flips_caption: str
    classes: Table
    sureness: Plot | None
    """The calibration of both."""
    options: Table | None
    no_options: str
    """A sentence in place of the table where there is none."""
    command: str


def render_comparison(content: ComparisonContent) -> str:
    """Render the page of two models as HTML: a whole document, to be written as UTF-8."""
    drawn = {
        name: None if plot is None else drawing(plot.figure, plot.name, plot.alt)
        for name, plot in (("flips", content.flips), ("sureness", content.sureness))
    }
    return fill("comparison.html.j2", {**vars(content), **drawn, **page_script()})

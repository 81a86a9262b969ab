"""Render the page of a series of runs: a table of its members, and how the learning rate was chosen.

Like the page of a run it is a single file that needs no network; it links to the pages of the members.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from vitkit.analysis.drawing import figure_svg
from vitkit.tasks.page import Plot, Table


@dataclass(frozen=True)
class SeriesSection:
    """A part of the page: a table of members, what it says, and a figure where there is one."""

    title: str
    sentences: tuple[str, ...]
    table: Table
    plot: Plot | None = None


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
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(
        Path(__file__).with_name("series.html.j2").read_text(encoding="utf-8"),
    )
    plots = [
        None if one.plot is None else Markup(figure_svg(one.plot.figure, one.plot.name)) for one in sections
    ]
    html = template.render(
        title=title,
        answer=answer,
        sections=list(zip(sections, plots, strict=True)),
        folders=folders,
        command=command,
    )
    # Paths need not be valid text: what cannot be written as UTF-8 is shown as a question mark.
    return html.encode("utf-8", "replace").decode("utf-8")

"""Render the page of a series of runs: a table of its members, and how the learning rate was chosen.

It links to the pages of the members.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vitkit.report.template import drawing, fill
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
    plots = [
        None if one.plot is None else drawing(one.plot.figure, one.plot.name, one.plot.alt)
        for one in sections
    ]
    values = {"title": title, "answer": answer, "folders": folders, "command": command}
    return fill("series.html.j2", {**values, "sections": list(zip(sections, plots, strict=True))})

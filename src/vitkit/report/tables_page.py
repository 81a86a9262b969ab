"""Render a page of paragraphs and tables, for results that belong to no single run.

It runs no script.
"""

from collections.abc import Sequence

from vitkit.report.template import fill
from vitkit.tasks.page import Section, Table, Text


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

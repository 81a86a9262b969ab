"""Render a page of paragraphs and tables, for results that belong to no single run.

Texts come from outside as well: the template escapes them, and the page runs no script.
"""

from collections.abc import Sequence
from pathlib import Path

import jinja2

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
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(Path(__file__).with_name("tables.html.j2").read_text(encoding="utf-8"))
    parts = [
        (section, [block for block in section.blocks if isinstance(block, Text | Table)])
        for section in sections
    ]
    html = template.render(title=title, parts=parts, footer=footer)
    # File names need not be valid text: what cannot be written as UTF-8 is shown as a question mark.
    return html.encode("utf-8", "replace").decode("utf-8")

"""Fill the templates of pages: single files that need no network.

The pages that a template alone makes are here too: tables of a study, a series of runs, few-shot accuracy.
They run no script, except, on some pages, the script that sorts tables and enlarges pictures. Names come from
outside and are escaped; bytes that are no text become question marks.
"""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from vitkit.durable import replace_file
from vitkit.result import Block, Facts, Photos, Plot, Plots, Result, Section, Table, Text
from vitkit.tasks.page import percent

PAGE_SCRIPT = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
"""Sorts the tables of a page and enlarges its pictures."""


def drawn(block: Any) -> Any:
    """Draw plots, load pictures, and make a table of facts; any other block is returned as it is."""
    if isinstance(block, Plot):
        from vitkit.analysis.figures import figure_svg  # matplotlib, which a refusal does not wait for

        svg = Markup(figure_svg(block.draw(), block.name))
        return {"svg": svg, "name": block.name, "alt": block.alt, "coloured": block.coloured}
    if isinstance(block, Plots):
        return {"plots": [drawn(plot) for plot in block.plots]}
    if isinstance(block, Photos):
        return {"photos": block.load()}
    return block.table() if isinstance(block, Facts) else block


def emphasised(sentence: str) -> Markup:
    """Escape a text, and show the words between two pairs of asterisks bold."""
    bold = Markup("<b>{}</b>").format
    return Markup("").join(bold(part) if i % 2 else part for i, part in enumerate(sentence.split("**")))


_FILES = jinja2.FileSystemLoader(Path(__file__).parent)
ENVIRONMENT = jinja2.Environment(
    loader=_FILES, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
"""The templates of this folder."""
ENVIRONMENT.filters |= {"emphasised": emphasised, "percent": percent, "count": "{:,}".format}


def render_page(
    title: str,
    answer: Sequence[Block],
    sections: Sequence[Section],
    *,
    facts: Sequence[tuple[str, str]] = (),
    folders: Sequence[str] = (),
    files: Sequence[str] = (),
    command: str = "",
    footer: str = "",
) -> str:
    """Render the page of a result as HTML: a whole document, to be written as UTF-8.

    Args:
        title: name and heading of the page.
        answer: what stands at the head of the page; a sentence at its beginning is the answer.
        sections: in the order of the page.
        facts: values and their names, for tiles below the answer.
        folders: of runs that have a page of their own, within the folder of the page.
        files: below the folder of the page, which it links.
        command: that made the result.
        footer: the last line.
    """
    blocks = [block for section in sections for block in section.blocks if block]
    lead = list(answer)
    if lead and isinstance(lead[0], str):
        lead[0] = Text(lead[0], "answer")
    scripted = any(block.sortable or block.folded for block in blocks if isinstance(block, Table))
    scripted = scripted or any(isinstance(block, Photos) for block in blocks)
    digest = base64.b64encode(hashlib.sha256(PAGE_SCRIPT.encode()).digest()).decode() if scripted else ""
    shown = {"title": title, "answer": lead, "facts": facts, "folders": folders, "files": files}
    shown |= {"command": command, "footer": footer, "script": Markup(PAGE_SCRIPT), "script_digest": digest}
    parts = [(section, [drawn(block) for block in section.blocks if block]) for section in sections]
    page = ENVIRONMENT.get_template("page.html.j2").render(shown, parts=parts)
    # Names of files and classes need not be valid text.
    return page.encode("utf-8", "replace").decode("utf-8")


def write_page(result: Result, path: Path, *, folders: Sequence[str] = (), command: str = "") -> Path:
    """Write the page of a result, in place of an earlier one, and return its path.

    Args:
        result: has a heading, a headline and sections.
        path: of the page.
        folders, command: as for `render_page`.
    """
    whole = result.heading(), result.headline(), result.sections()
    replace_file(path, [render_page(*whole, folders=folders, command=command).encode()])
    return path

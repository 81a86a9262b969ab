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
from typing import TYPE_CHECKING, Any, TypeAlias

import jinja2
from markupsafe import Markup

from vitkit.durable import replace_file
from vitkit.result import Block, Facts, Photos, Plot, Result, Table
from vitkit.tasks.page import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


def drawing(figure: "Figure", name: str, alt: str) -> Drawing:
    """Draw a figure for a page, under a name that no other figure of the page has."""
    from vitkit.analysis.drawing import figure_svg  # matplotlib, which a refusal does not wait for

    return Drawing(Markup(figure_svg(figure, name)), alt)


def drawn(block: Any) -> Any:
    """Draw a plot, load pictures, and make a table of facts; any other block is returned as it is."""
    if isinstance(block, Plot):
        return drawing(block.draw(), block.name, block.alt)
    if isinstance(block, Photos):
        return block.load()
    return block.table() if isinstance(block, Facts) else block


def emphasised(sentence: str) -> Markup:
    """Escape a text, and show the words between two pairs of asterisks bold."""
    parts = sentence.split("**")
    return Markup("").join(
        Markup("<b>{}</b>").format(part) if i % 2 else part for i, part in enumerate(parts)
    )


def fill(template: str, values: Mapping[str, Any]) -> str:
    """Render a template of this folder as HTML: a whole document, to be written as UTF-8."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "emphasised": emphasised,
        "percent": percent,
        "count": lambda number: f"{number:,}",
    }
    # Names of files and classes need not be valid text.
    return environment.get_template(template).render(values).encode("utf-8", "replace").decode("utf-8")


Part: TypeAlias = tuple[str, Sequence[Block | None]]
"""The title of a part of a page, and what it shows; None shows nothing."""


def render_page(
    title: str,
    answer: Sequence[str],
    parts: Sequence[Part],
    *,
    folders: Sequence[str] = (),
    command: str = "",
    footer: str = "",
) -> str:
    """Render the page of a result as HTML: a whole document, to be written as UTF-8.

    Args:
        title: name and heading of the page.
        answer: the sentences at the head of the page.
        parts: in the order of the page.
        folders: of runs that have a page of their own, within the folder of the page.
        command: that made the result.
        footer: the last line.
    """
    shown = [(name, [drawn(block) for block in blocks if block]) for name, blocks in parts]
    values = {"title": title, "answer": answer, "parts": shown, "folders": folders, "command": command}
    sortable = any(isinstance(block, Table) and block.sortable for _, blocks in parts for block in blocks)
    script = page_script() if sortable else {"script": "", "script_digest": ""}
    return fill("page.html.j2", {**values, "footer": footer, **script})


def write_page(
    result: Result, path: Path, *, folders: Sequence[str] = (), command: str = "", footer: str = ""
) -> Path:
    """Write the page of a result, in place of an earlier one, and return its path.

    Args:
        result: has a heading, a headline and sections.
        path: of the page.
        folders, command, footer: as for `render_page`.
    """
    parts = [(section.title, section.blocks) for section in result.sections()]
    page = render_page(
        result.heading(), result.headline(), parts, folders=folders, command=command, footer=footer
    )
    replace_file(path, [page.encode()])
    return path

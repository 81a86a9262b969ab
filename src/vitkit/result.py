"""The result of a job: numbers, and the blocks that a terminal, a page and a notebook show of them.

Texts are plain: whatever they hold is escaped, except that words between two pairs of asterisks,
`**right on 3 of 4**`, are shown bold on a page. They hold no names that come from outside; cells and captions
may.
"""

import base64
import html
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from vitkit import config
from vitkit.text import csv_line, json_text, visible

if TYPE_CHECKING:  # prediction and evaluation draw nothing, and do not wait for matplotlib
    from matplotlib.figure import Figure

ROWS_SHOWN = 40
"""Rows of a table in a notebook, about a screen; the report and the fields have the others."""

REJECTS_SHOWN = 10
"""Unreadable images that are named with the reason."""


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    sentences: str
    kind: Literal["plain", "answer", "caption", "warning", "heading", "command"] = "plain"
    """answer: larger; caption: smaller, below what it describes; warning: in the colour of mistakes; heading:
    above a part of a section; command: as it is typed."""


Caption = partial(Text, kind="caption")
"""A paragraph below what it describes."""


@dataclass(frozen=True)
class Plot:
    """A figure of `vitkit.analysis`; a terminal shows none."""

    draw: Callable[[], "Figure"]
    """Draws it, for pages and notebooks: a terminal does not wait for matplotlib."""
    name: str
    """A name that no other plot of the page has: the ids inside the drawing begin with it."""
    alt: str
    """The same in words, for readers who cannot see it."""
    coloured: bool = False
    """Whether it is about its colours, which a dark page must not turn round."""


@dataclass(frozen=True)
class Plots:
    """Figures that a page shows side by side, where there is room."""

    plots: tuple[Plot, ...]


@dataclass(frozen=True)
class Photo:
    """A finished picture, as an address that needs no network: "data:image/png;base64,..."."""

    source: str
    alt: str
    key: str = ""
    """The name of the image; empty for a picture that stands alone."""
    true: str = ""
    """The true classes of the image."""
    guesses: tuple[tuple[str, str, float, bool], ...] = ()
    """For each model: its name, the predicted classes, its confidence (0 to 1), and whether it is right, or
    scores higher. A model alone needs no name."""
    beside: str = ""
    """The address of a second picture of the image; empty without one."""


def png_address(content: bytes) -> str:
    """Return the address of a PNG that a page holds itself."""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


@dataclass(frozen=True)
class Photos:
    """Pictures side by side; a terminal shows none."""

    load: Callable[[], Sequence[Photo]]
    """Reads or draws them, for pages alone."""


@dataclass(frozen=True)
class Number:
    """A cell that is sorted by its value and stands at the right."""

    text: str
    value: float


Cell = str | Number
Item = TypeVar("Item")


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers."""

    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    sortable: bool = False
    """Whether a click on a heading sorts the rows."""
    left: Sequence[int] = (0,)
    """The columns whose cells stand at the left in a terminal, counted from the last one where negative."""
    most: int | None = None
    """The most rows that a terminal shows; a page has all."""
    folded: str = ""
    """The words that a page shows in place of the table, until a click unfolds it; empty: it is shown."""


def table_of(
    items: Iterable[Item], columns: Mapping[str, Callable[[Item], Cell]], sortable: bool = False
) -> Table:
    """Make a table with a row for each item: beside the heading of a column stands what makes its cells."""
    rows = tuple(tuple(cell(item) for cell in columns.values()) for item in items)
    return Table(tuple(columns), rows, sortable)


@dataclass(frozen=True)
class Facts:
    """Lines below headings that stand beside them; the same heading is shown once."""

    rows: tuple[tuple[str, Sequence[str]], ...]

    def table(self) -> Table:
        """Return the same as a table, with a row for each heading that has lines."""
        return Table(("", ""), tuple((heading, "; ".join(lines)) for heading, lines in self.rows if lines))


def unreadable(rejects: Mapping[str, str], fate: str) -> list[str]:
    """Say how many images could not be read, and the first of them with the reason.

    Args:
        rejects: the reason for each image, by its key.
        fate: what became of them: "were left out".
    """
    if not rejects:
        return []
    first = [f"  {key}: {reason}" for key, reason in list(rejects.items())[:REJECTS_SHOWN]]
    return [f"Images that could not be read and {fate} ({len(rejects):,}):", *first]


Block: TypeAlias = str | Text | Plot | Plots | Table | Facts | Photo | Photos
"""A paragraph, a figure, a table, facts or pictures of a result."""


@dataclass(frozen=True)
class Section:
    """A part of a result under a heading of its own."""

    title: str
    """The heading on a page; empty: it has none."""
    blocks: Sequence[Block | None]
    """None shows nothing."""
    page_only: bool = False
    """Whether a terminal leaves it out, because it repeats or explains what stands above."""
    name: str = ""
    """A word that no other section of the page has, for links to it."""
    menu: str = ""
    """One or two words for the line of links above a long page; empty: it has no link."""


def flatten(data: Any, name: str = "") -> dict[str, Any]:
    """List the values within plain data by their places: interval.0, difference.mean.

    A list of lists or objects is one value, as JSON.
    """
    if not isinstance(data, Mapping | list | tuple):
        return {name: data}
    if not isinstance(data, Mapping) and any(isinstance(part, Mapping | list | tuple) for part in data):
        return {name: json_text(data)}
    parts = data.items() if isinstance(data, Mapping) else enumerate(data)
    places = {f"{name}.{key}" if name else str(key): part for key, part in parts}
    return {place: value for key, part in places.items() for place, value in flatten(part, key).items()}


class Result:
    """The result of a job, which five printers show: terminal, `--json`, page, notebook and Python prompt.

    Each gives sections, and a headline or a summary. A dataclass that extends it is declared with
    `repr=False`.
    """

    def heading(self) -> str:
        """Say what was studied: the title of the page."""
        return self.summary()

    def headline(self) -> Sequence[str]:
        """Return the conclusions in sentences, the answer first."""
        return ()

    def sections(self) -> Sequence[Section]:
        """Return the tables, figures and explanations, the most important first."""
        return ()

    def summary(self) -> str:
        """Describe the result in a line or a few sentences."""
        return " ".join(self.headline())

    def blocks(self) -> Sequence[Block]:
        """Return what a terminal and a notebook show: the sections, and the conclusions at the end."""
        shown = [block for section in self.sections() if not section.page_only for block in section.blocks]
        return (*(block for block in shown if block), *self.headline())

    def following(self) -> Sequence[str]:
        """Return the commands that make use of the result."""
        return ()

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        data: dict[str, Any] = config.to_json(self)
        return data

    def to_csv(self) -> str:
        """Write all numbers as a table: a row for each entry of the longest list, with the numbers of the
        whole in front."""
        data = self.to_json()
        whole: Mapping[str, Any] = data if isinstance(data, Mapping) else {"": data}
        filled = {name: part for name, part in whole.items() if isinstance(part, list) and part}
        # Of objects alone, as a table holds rows.
        lists = {name: part for name, part in filled.items() if all(isinstance(x, Mapping) for x in part)}
        longest = max(lists, key=lambda name: len(lists[name]), default="")
        common = flatten({name: part for name, part in whole.items() if name not in lists})
        rows = [common | flatten(record, longest) for record in lists.get(longest, [{}])]
        columns = list(dict.fromkeys(chain.from_iterable(rows)))
        cells = ([row.get(column) for column in columns] for row in rows)
        texts = (["" if cell is None else str(cell) for cell in row] for row in cells)
        return "".join(f"{csv_line(line)}\n" for line in (columns, *texts))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {visible(self.summary())}>"

    def _repr_html_(self) -> str:
        shown = f"<p>{escape(self.summary())}</p>"
        for block in self.blocks():
            block = block.table() if isinstance(block, Facts) else block
            if isinstance(block, Plot):
                content = io.BytesIO()
                block.draw().savefig(content, format="png")
                block = Photo(png_address(content.getvalue()), block.alt)
            if isinstance(block, Photo):
                shown += f'<p><img src="{block.source}" alt="{escape(block.alt)}"/></p>'
            shown += html_table(block) if isinstance(block, Table) and block.rows else ""
        return shown


@dataclass(frozen=True, repr=False)
class Listing(Result):
    """Things that are listed in a table: models, recipes, costs."""

    counted: str
    """The summary."""
    shown: Sequence[Block]
    """The table, and what its numbers mean."""
    uses: Sequence[str]
    """The commands that take one of them."""
    data: Any
    """The same as plain data."""

    def summary(self) -> str:
        """Count them."""
        return self.counted

    def sections(self) -> Sequence[Section]:
        """Return the table, and what its numbers mean."""
        return (Section("", self.shown),)

    def following(self) -> Sequence[str]:
        """Return the commands that take one of them."""
        return self.uses

    def to_json(self) -> Any:
        """Return them as plain data."""
        return self.data


def html_table(table: Table) -> str:
    """Write a table as HTML; of a long one the first rows, and how many there are."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in table.headings)
    shown = ((str(getattr(cell, "text", cell)) for cell in row) for row in table.rows[:ROWS_SHOWN])
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in shown)
    left = len(table.rows) - ROWS_SHOWN
    more = f"<p>... and {left:,} more</p>" if left > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def escape(text: str) -> str:
    """Escape text for HTML, control characters included."""
    return html.escape(visible(text))

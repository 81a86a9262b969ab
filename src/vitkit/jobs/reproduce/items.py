"""The figures and tables of the paper that can be reproduced, with their needs, conclusions and numbers.

`paper.toml` describes them. An item has a design, whose arms are trained here, or shows the results of other
verbs.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vitkit.config import from_json
from vitkit.result import Cell, Number, Table


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper."""

    source: str
    """The table, and the quantity and unit of its numbers."""
    headings: tuple[str, ...]
    rows: Mapping[str, tuple[float, ...]]
    """The numbers of each row by its label; NaN where the paper has none."""
    digits: int = 2
    """Digits after the point that the paper prints."""

    def table(self) -> Table:
        """Lay the numbers out for a page."""

        def cell(value: float) -> Cell:
            return "" if math.isnan(value) else Number(f"{value:,.{self.digits}f}", value)

        return Table(self.headings, tuple((name, *map(cell, values)) for name, values in self.rows.items()))


@dataclass(frozen=True)
class Item:
    """A figure or a table of the paper."""

    title: str
    conclusion: str
    """The paper's conclusion."""
    at_paper_size: str
    """The compute that the paper's own size would need."""
    setting: Mapping[str, str]
    """The paper's data, model and so on, which the page shows beside ours: a topic and its value each."""
    paper: tuple[str, ...] = ()
    """The names of the paper's tables; none where it shows a curve without numbers."""
    design: str = ""
    """The function of `designs.py` that makes the arms that are trained here; "" where the results of other
    verbs are shown."""
    pictures: tuple[str, ...] = ()
    """The names of the pictures of `vitkit inspect` that are shown."""
    needs_start: bool = False
    """Whether it is about a given checkpoint."""
    timed: bool = False
    """Whether the speed of training is part of the result."""
    needs: str = "nothing: it trains on --data, digits if none is given"
    here: str = "--minutes, 30 if none are given"
    """The time that it takes on this machine."""


_PAPER = tomllib.loads(Path(__file__).with_name("paper.toml").read_text(encoding="utf-8"))
TABLES: Mapping[str, PaperTable] = {
    name: from_json(PaperTable, table, "paper.toml") for name, table in _PAPER["tables"].items()
}
"""The paper's tables by their names in `paper.toml`."""
ITEMS: Mapping[str, Item] = {
    name: from_json(Item, fields, "paper.toml") for name, fields in _PAPER["items"].items()
}
"""Each by its name on the command line, in the order of `ItemName`."""

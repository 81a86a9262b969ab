"""The figures and tables of the paper that can be reproduced, with their needs, conclusions and numbers.

`paper.toml` describes them, and holds the rows of the paper's recipes (`recipes.py`). An item has a design,
whose arms are trained here, or shows the results of other verbs.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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
class Claim:
    """A conclusion of the paper, or a question of today, about the arms of a study.

    Arms are named by their folders. A name that ends in * stands for the arm with the best validation among
    the arms whose names begin so.
    """

    statement: str
    """A sentence without its full stop."""
    more: tuple[str, ...]
    """The arms whose scores are added."""
    less: tuple[str, ...]
    """The arms, as many, whose scores are subtracted."""
    kind: Literal["more", "alike", "open"] = "more"
    """more: the difference is above 0; alike: it is within a margin; open: the paper concludes nothing."""
    one_pretraining: bool = False
    """Whether its arms begin from a single pre-training each, so that they say nothing of other ones."""


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
    claims: tuple[Claim, ...] = ()
    """The conclusions that its arms test."""
    shared: str = "All arms have the same recipe, learning rate, steps, seeds and test images."
    """A sentence about the options that are the same in all arms."""
    axis: str = ""
    """Label of the figure's axis; "": the figure shows differences from the first arm."""
    pictures: tuple[str, ...] = ()
    """The names of the pictures of `vitkit inspect` that are shown."""
    needs_start: bool = False
    """Whether it is about a given checkpoint."""
    timed: bool = False
    """Whether the speed of training is part of the result."""
    needs: str = "nothing: it trains on --data, digits if none is given"
    here: str = "--minutes, 30 if none are given"
    """The time that it takes on this machine."""


PAPER = tomllib.loads(Path(__file__).with_name("paper.toml").read_text(encoding="utf-8"))
"""The contents of `paper.toml`."""
TABLES: Mapping[str, PaperTable] = {
    name: from_json(PaperTable, table, "paper.toml") for name, table in PAPER["tables"].items()
}
"""The paper's tables by their names in `paper.toml`."""
ITEMS: Mapping[str, Item] = {
    name: from_json(Item, fields, "paper.toml") for name, fields in PAPER["items"].items()
}
"""Each by its name on the command line, in the order of `ItemName`."""

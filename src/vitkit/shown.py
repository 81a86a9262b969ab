"""Show a result as a sentence at the Python prompt, and with a table in a notebook."""

import html
from collections.abc import Sequence
from typing import Any

from vitkit import config
from vitkit.text import visible

ROWS_SHOWN = 40
"""Rows of a table in a notebook, about a screen; the report and the fields have the others."""

Rows = Sequence[Sequence[Any]]
"""The rows of a table; a cell is a string, or has one as its `text`."""


class Shown:
    """A result that is shown as a sentence and a table in place of all of its fields.

    A dataclass that extends it is declared with `repr=False`.
    """

    def summary(self) -> str:
        """Describe the result in a line or a few sentences."""
        raise NotImplementedError

    def in_rows(self) -> tuple[Sequence[str], Rows]:
        """Return the headings and rows of a table for a notebook; empty where the sentence is enough."""
        return (), ()

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        return config.to_json(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {visible(self.summary())}>"

    def _repr_html_(self) -> str:
        headings, rows = self.in_rows()
        return f"<p>{escape(self.summary())}</p>{html_table(headings, rows) if rows else ''}"


def html_table(headings: Sequence[str], rows: Rows) -> str:
    """Write a table as HTML; of a long one the first rows, and how many there are."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:ROWS_SHOWN])
    more = f"<p>... and {len(rows) - ROWS_SHOWN:,} more</p>" if len(rows) > ROWS_SHOWN else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(cell: Any) -> str:
    return f"<td>{escape(cell if isinstance(cell, str) else cell.text)}</td>"


def escape(text: str) -> str:
    """Escape text for HTML, control characters included."""
    return html.escape(visible(text))

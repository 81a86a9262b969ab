"""How the terminal hears a job."""

import io
import re

import pytest
from rich.table import Table

from tests.helpers.cli import Capture
from vitkit.cli import console
from vitkit.cli.console import TerminalListener


def screen_of(patch: pytest.MonkeyPatch, width: int) -> io.StringIO:
    """Make standard error a terminal of some columns, and return what it is written."""
    screen = io.StringIO()
    patch.setattr(console, "err", console.Terminal(file=screen, force_terminal=True, width=width))
    patch.setattr(console, "is_terminal", lambda stream: True)
    return screen


def test_what_is_not_counted_has_neither_count_nor_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = screen_of(monkeypatch, 100)
    with TerminalListener().progress("building the model"):
        pass
    text = screen.getvalue()
    assert "building the model" in text and "?" not in text.replace("[?25", "") and "left" not in text
    with TerminalListener().progress("reading", 4) as progress:
        for done in (1, 2, 3):
            progress(done)
    with TerminalListener().progress("reading", 4) as progress:
        progress(4, detail="headers")
    assert all(part in screen.getvalue() for part in ("3/4", " left", "4/4", "headers"))


def test_a_narrow_terminal_loses_nothing_of_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    detail = "loss 2.303  1,047 images/s  553.2 MB  val 97.2%  best 97.5% at step 1,300"

    def shown(width: int) -> list[str]:
        screen = screen_of(monkeypatch, width)
        with TerminalListener().progress("training", 10_000) as progress:
            progress(1_234, detail=detail)
        # Movements of the cursor and colours are left out.
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).replace("\r", "\n").split("\n")
        return [line.rstrip() for line in lines if line.strip()]

    assert max(map(len, shown(80))) <= 80 and f"  {detail}" in shown(80)  # on a line of its own
    assert any("1,234/10,000" in line for line in shown(80))
    assert any("1,234/10,000" in line and line.endswith(detail) for line in shown(160))
    parts = {word for line in shown(40) for word in line.split()}
    assert max(map(len, shown(40))) <= 40 and {"553.2", "97.5%", "1,300"} <= parts


def test_lines_of_a_log_end_where_their_words_end(capsys: Capture) -> None:
    table = Table("name", "number", box=None)
    table.add_row("a name that is long", "1")
    table.add_row("b", "")
    console.out.print(table)
    console.out.print("two  \nlines  ", soft_wrap=True)
    assert capsys.readouterr().out.endswith("\n a name that is long  1\n b\ntwo\nlines\n")

"""How the terminal hears a job."""

import io
import re

import pytest
from rich.table import Table

from vitkit.cli import console
from vitkit.cli.console import TerminalListener


def test_sentences_go_to_standard_error_and_summaries_to_standard_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    listener = TerminalListener()
    listener.note("a note [with brackets]")
    listener.warn("a warning \x1b[31m")
    listener.show([("data", ["10 images", "of 2 classes"]), ("model", ["ViT"])])
    out, err = capsys.readouterr()
    assert err.splitlines() == ["a note [with brackets]", "a warning \\x1b[31m"]
    assert [line.split() for line in out.splitlines()] == [
        ["data", "10", "images"],
        ["of", "2", "classes"],
        ["model", "ViT"],
    ]
    listener.show([("", ["This run has finished: runs/[mine]"])])  # rows without headings are lines
    listener.show([("val", ["50 %"])])
    listener.show([("weights", ["of the last step"])])
    assert capsys.readouterr().out.splitlines() == [
        *("This run has finished: runs/[mine]", "val       50 %", "weights   of the last step")
    ]


def test_what_is_not_counted_has_neither_count_nor_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(console, "err", console.Terminal(file=screen, force_terminal=True, width=100))
    monkeypatch.setattr(console, "is_terminal", lambda stream: True)
    with TerminalListener().progress("building the model"):
        pass
    text = screen.getvalue()
    assert "building the model" in text and "?" not in text.replace("[?25", "") and "left" not in text
    with TerminalListener().progress("reading", 4) as progress:
        for done in (1, 2, 3):
            progress(done)
    assert "3/4" in screen.getvalue() and " left" in screen.getvalue()
    with TerminalListener().progress("reading", 4) as progress:
        progress(4, detail="headers")
    assert all(part in screen.getvalue() for part in ("4/4", "headers"))


def screen_of(width: int, detail: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Show a bar with a detail on a terminal of some columns, and return its last picture."""
    screen = io.StringIO()
    monkeypatch.setattr(console, "err", console.Terminal(file=screen, force_terminal=True, width=width))
    monkeypatch.setattr(console, "is_terminal", lambda stream: True)
    with TerminalListener().progress("training", 10_000) as progress:
        progress(1_234, detail=detail)
    # The last picture before the bar goes away; movements of the cursor and colours are left out.
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).replace("\r", "\n").split("\n")
    return [line.rstrip() for line in lines if line.strip()]


def test_a_narrow_terminal_loses_nothing_of_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    detail = "loss 2.303  1,047 images/s  553.2 MB  val 97.2%  best 97.5% at step 1,300"
    shown = screen_of(80, detail, monkeypatch)
    assert max(map(len, shown)) <= 80
    assert f"  {detail}" in shown  # on a line of its own
    assert any("1,234/10,000" in line for line in shown)
    wide = screen_of(160, detail, monkeypatch)
    assert any("1,234/10,000" in line and line.endswith(detail) for line in wide)
    narrow = screen_of(40, detail, monkeypatch)
    parts = {word for line in narrow for word in line.split()}
    assert max(map(len, narrow)) <= 40 and {"553.2", "97.5%", "1,300"} <= parts


def test_lines_of_a_log_end_where_their_words_end(capsys: pytest.CaptureFixture[str]) -> None:
    TerminalListener().show([("data", ["10 images", "of 2 classes, which are longer"]), ("model", ["ViT"])])
    table = Table("name", "number", box=None)
    table.add_row("a name that is long", "1")
    table.add_row("b", "")
    console.out.print(table)
    console.out.print("two  \nlines  ", soft_wrap=True)
    lines = capsys.readouterr().out.split("\n")
    assert [line for line in lines if line != line.rstrip()] == []
    assert "data      10 images" in lines and "          of 2 classes, which are longer" in lines
    assert "two" in lines and "lines" in lines

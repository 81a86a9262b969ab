"""What a person sees in the terminal: pictures of progress, numbers in words. Quiet when not a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

WIDTH_OF_PIPES = 110

out = Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else WIDTH_OF_PIPES)
"""Results."""
err = Console(
    stderr=True, highlight=False, emoji=False, width=None if sys.stderr.isatty() else WIDTH_OF_PIPES
)
"""Progress and messages: never mixed into what a pipe reads."""


def progress_bar() -> Progress:
    """A bar with time left on stderr, shown only on a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        MofNCompleteColumn(table_column=Column(min_width=11)),
        TimeRemainingColumn(table_column=Column(min_width=7)),
        # Last, and the only one that a narrow terminal cuts off.
        TextColumn("left  {task.fields[detail]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        console=err,
        transient=True,
        disable=not sys.stderr.isatty(),
    )


@contextmanager
def counting(description: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar for a loop that says how many more it has done: `advance(count)`."""
    with progress_bar() as bar:
        task = bar.add_task(description, total=total, detail="")
        yield lambda count: bar.advance(task, count)


@contextmanager
def reaching(description: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for a loop that says where it is: `progress(done, total)`."""
    with progress_bar() as bar:
        task = bar.add_task(description, total=None, detail="")
        yield lambda done, total: bar.update(task, completed=done, total=total)


def duration(seconds: float) -> str:
    """'45 s', '3 min 20 s', '2 h 05 min', '3 days 4 h'."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} days {whole % 86400 // 3600} h"


def size(count: float) -> str:
    """'512 bytes', '8.2 MB', '1.3 GB'."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def number(count: float, unit: str = "") -> str:
    """'950', '86.6 M', '35.1 G'."""
    for prefix in ("", "k", "M", "G", "T"):
        if count < 1000:
            return f"{count:.0f}{unit and ' ' + unit}" if not prefix else f"{count:.1f} {prefix}{unit}"
        count /= 1000
    return f"{count:.1f} P{unit}"

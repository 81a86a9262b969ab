"""Print to the terminal: results, messages and progress bars."""

import codecs
import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, cast

from rich.cells import cell_len
from rich.console import (
    Console,
    ConsoleOptions,
    HighlighterType,
    JustifyMethod,
    OverflowMethod,
    RenderableType,
)
from rich.markup import escape
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.style import Style
from rich.table import Column, Table
from rich.text import Text

from vitkit.cli.streams import is_terminal
from vitkit.text import csv_line, format_bytes, format_duration, json_text, pluralize, visible
from vitkit.weights.published import find_start_named, is_address

if TYPE_CHECKING:
    from vitkit.tasks import page

WIDTH_OF_PIPES = 110
LINE_SECONDS = 60.0
"""Seconds between two lines of progress of a long loop, where there is no terminal."""
BAR_COLUMNS = 60
"""Columns of a bar without its details: a description of 15 letters, 16 of the bar, "1,234/10,000", the time
that is left, and the blanks between them."""
REJECTS_SHOWN = 10


_BLANKS_AT_ENDS = re.compile(" +\n")


class Terminal(Console):
    """A console that shows control characters instead of obeying them, whoever wrote the text.

    Only what rich itself adds, colours and movements of the cursor, reaches the terminal as such.
    """

    def render_str(
        self,
        text: str,
        *,
        style: str | Style = "",
        justify: JustifyMethod | None = None,
        overflow: OverflowMethod | None = None,
        emoji: bool | None = None,
        markup: bool | None = None,
        highlight: bool | None = None,
        highlighter: HighlighterType | None = None,
    ) -> Text:
        """Make a text of a string; escaped here already, so that it is laid out at the width it will have."""
        return super().render_str(
            visible(text, keep="\n\t"),
            style=style,
            justify=justify,
            overflow=overflow,
            emoji=emoji,
            markup=markup,
            highlight=highlight,
            highlighter=highlighter,
        )

    def on_broken_pipe(self) -> None:
        """Leave it to the command line what a reader that has gone means; rich would end the process."""
        raise BrokenPipeError

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render anything; what comes to the terminal by another way than `render_str` is escaped here.

        Lines end with their last word where there is no terminal: the blanks that fill the columns of a
        table would be a nuisance in a log.
        """
        blanks: list[Segment] = []
        for segment in super().render(renderable, options):
            if not segment.control:
                segment = Segment(visible(segment.text, keep="\n"), segment.style)
            if self.is_terminal:
                yield segment
                continue
            text = _BLANKS_AT_ENDS.sub("\n", segment.text)
            if text.startswith("\n"):
                blanks.clear()
            words = text.rstrip(" ")
            if words or segment.control:
                yield from blanks
                blanks.clear()
                yield segment if segment.control else Segment(words, segment.style)
            if len(words) < len(text):
                blanks.append(Segment(text[len(words) :], segment.style))
        yield from blanks


class _StandardError:
    """Standard error as it is at the moment of writing. What it refuses is lost: a line of progress that
    cannot be written is no reason to end a run."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            if sys.stderr is not None:
                sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            if sys.stderr is not None:
                sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


def _width(stream: Any) -> int | None:
    """Return the width of a pipe in columns; None where rich finds it: a terminal's, or that of COLUMNS."""
    return None if is_terminal(stream) or os.environ.get("COLUMNS", "").isdigit() else WIDTH_OF_PIPES


out = Terminal(highlight=False, emoji=False, width=_width(sys.stdout))
"""Results."""
err = Terminal(file=cast("IO[str]", _StandardError()), highlight=False, emoji=False, width=_width(sys.stderr))
"""Progress and messages: never mixed into what a pipe reads."""


def lay_out(table: "page.Table") -> Table:
    """Lay a table out for the terminal; all columns but the first and the last stand at the right."""
    shown = Table(*map(escape, table.headings), box=None)
    for column in shown.columns[1:-1]:
        column.justify = "right"
    rows = [[cell if isinstance(cell, str) else cell.text for cell in row] for row in table.rows]
    for row in rows:
        shown.add_row(*map(escape, row))
    # A narrow terminal breaks lines between words: each column has its longest word, and of the rest the last
    # ones take what they need, so that the names in the first one are broken before intervals are.
    columns = list(zip(shown.columns, table.headings, *rows, strict=True))
    longest = [
        max((len(word) for cell in cells for word in cell.split()), default=1) for _, *cells in columns
    ]
    free = out.width - sum(longest) - 2 * len(columns)  # a blank at each side
    for (column, *cells), least in reversed(list(zip(columns, longest, strict=True))):
        extra = max(0, min(free, max(map(len, cells)) - least))
        column.width, free = least + extra, free - extra
    return shown


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print data as JSON on standard output; in ASCII alone where the output is of another encoding than
    UTF-8."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    unicode = codecs.lookup(encoding).name == "utf-8"
    print(json_text(value, ascii_only=not unicode, indent=indent), flush=True)


def print_csv(cells: Iterable[str]) -> None:
    """Print a line of CSV on standard output."""
    text = csv_line(cells)
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


class _Lines(Progress):
    """Progress where there is no terminal: now and then a line, so that a log tells how a run goes."""

    def __init__(self) -> None:
        super().__init__(console=err, disable=True)
        self._last_line = time.monotonic()

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._say(task_id, False)

    def update(
        self,
        task_id: TaskID,
        *,
        total: float | None = None,
        completed: float | None = None,
        advance: float | None = None,
        description: str | None = None,
        visible: bool | None = None,
        refresh: bool = False,
        **fields: Any,
    ) -> None:
        """Update the task as a bar does; a field `milestone` that is true asks for a line now."""
        super().update(
            task_id,
            total=total,
            completed=completed,
            advance=advance,
            description=description,
            visible=visible,
            refresh=refresh,
            **fields,
        )
        self._say(task_id, bool(fields.get("milestone")))

    def _say(self, task_id: TaskID, milestone: bool) -> None:
        now = time.monotonic()
        if not milestone and now - self._last_line < LINE_SECONDS:
            return
        self._last_line = now
        task = self.tasks[self.task_ids.index(task_id)]
        in_bytes = task.fields.get("bytes", False)
        done, total = (
            "?" if count is None else format_bytes(count) if in_bytes else f"{count:,.0f}"
            for count in (task.completed, task.total)
        )
        left = task.time_remaining
        parts = [
            f"{task.description} {done}" + ("" if task.total is None else f"/{total}"),
            "" if left is None or task.finished else f"{format_duration(left)} left",
            str(task.fields.get("detail", "")),
        ]
        err.print("  ".join(part for part in parts if part), markup=False, soft_wrap=True)


class _Count(MofNCompleteColumn):
    """A column with the count that is done and its total; empty where nothing is counted."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.total is not None or task.completed else Text()


class _Left(TimeRemainingColumn):
    """A column with the time that is left; empty where it is unknown."""

    def render(self, task: Task) -> Text:
        time_left = super().render(task)
        return time_left.append(" left") if time_left.plain else time_left


class _Detail(ProgressColumn):
    """A column with what else is worth a look; empty where it has a line of its own."""

    def render(self, task: Task) -> Text:
        detail = str(task.fields["detail"])
        return Text("" if _needs_a_line(detail) else detail, no_wrap=True)


class _Bar(Progress):
    """A bar, with a line below it for details that a narrow terminal would cut off."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table([task for task in self.tasks if task.visible])
        for task in self.tasks:
            detail = str(task.fields["detail"])
            if task.visible and _needs_a_line(detail):
                yield Padding(Text(detail, overflow="fold"), (0, 0, 0, 2))


def _needs_a_line(detail: str) -> bool:
    """Whether details do not fit beside a bar."""
    return cell_len(detail) > err.width - BAR_COLUMNS


def print_rejects(rejects: Mapping[str, str], fate: str) -> None:
    """Print how many images could not be read, and the first of them with the reason.

    Args:
        rejects: the reason for each image, by its key.
        fate: a verb that says what became of them in the numbers, such as "were left out".
    """
    if not rejects:
        return
    out.print(f"{len(rejects):,} of the images could not be read and {fate}:")
    for key, reason in list(rejects.items())[:REJECTS_SHOWN]:
        out.print(f"  {key}: {reason}", markup=False)


def say_continued(parts: int) -> str:
    """Say how many parts of a table were on the disk before, in words that end a sentence; "" for none."""
    return f"; {pluralize(parts, 'part was', 'parts were')} there already" if parts else ""


def progress_bar(in_bytes: bool = False) -> Progress:
    """Make a bar with the time left on stderr; lines at long intervals where that is no terminal.

    `update(task, detail=..., milestone=True)` asks for a line at once.
    """
    if not is_terminal(sys.stderr):
        return _Lines()
    count: ProgressColumn = _Count(table_column=Column(min_width=11))
    return _Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),
        DownloadColumn() if in_bytes else count,
        _Left(table_column=Column(min_width=12)),
        _Detail(table_column=Column(no_wrap=True)),
        console=err,
        transient=True,
    )


@contextmanager
def count_bar(description: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar for a loop that calls `advance(count)` with how many more it has done."""
    with progress_bar() as bar:
        task = bar.add_task(visible(description), total=total, detail="")
        yield lambda count: bar.advance(task, count)


@contextmanager
def download_bar(description: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show a bar for a download, from its first bytes on: `progress(bytes, all bytes or None)`."""
    with progress_bar(in_bytes=True) as bar:
        task = bar.add_task(visible(description), total=None, detail="", bytes=True, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)


def download(path: str | Path) -> None:
    """Fetch a checkpoint if it is an address, so that what reads it afterwards finds it on this machine.

    The Hub's own library shows its own bar. A path is left alone.

    Raises:
        VitkitError: as `fetch`.
    """
    start = find_start_named(path)
    address = str(path) if start is None else start.address
    if is_address(path) and not address.startswith("hf:"):
        from vitkit.weights.files.download import fetch_any  # torch: an exported folder is read without it

        name = PurePosixPath(address.split("#")[0].split("?")[0]).name
        with download_bar(f"fetching {name}") as progress:
            fetch_any(path, progress)

"""Print to the terminal: results, messages and progress bars."""

import codecs
import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, cast

from rich.cells import cell_len
from rich.console import (
    Console,
    ConsoleOptions,
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
from rich.table import Column, Table
from rich.text import Text

from vitkit.cli.streams import is_terminal
from vitkit.config import to_json
from vitkit.listener import Listener
from vitkit.listener import Progress as Report
from vitkit.text import csv_line, format_bytes, format_duration, json_text, pluralize, visible
from vitkit.weights.published import find_start_named, is_address
from vitkit.world import world_of_environment

if TYPE_CHECKING:
    from vitkit.jobs.study.study import Planned
    from vitkit.result import Block, Number

WIDTH_OF_PIPES = 110
"""Columns of a table that is written to a file or pipe, which have no width."""
LINE_SECONDS = 60.0
"""Seconds between two lines of progress of a long loop, where there is no terminal."""
BAR_COLUMNS = 60
"""Columns of a bar without its details: a description of 15 letters, 16 of the bar, "1,234/10,000", the time
left, and the blanks between them."""
HEADING_WIDTH = 8
"""The fewest columns of a heading: summaries that follow one another then stand in line."""

_BLANKS_AT_ENDS = re.compile(" +\n")


class Terminal(Console):
    """A console that shows control characters in any text instead of obeying them.

    Only the control characters of rich itself, for colours and the cursor, reach the terminal.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """Convert a string to a text; escaped already here, so that rich knows how wide it becomes.

        Args:
            text: to be escaped.
            options: rich's own.
        """
        return super().render_str(visible(text, keep="\n\t"), **options)

    def on_broken_pipe(self) -> None:
        """Tell the command line that the reader has gone; rich would end the process."""
        raise BrokenPipeError

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render anything, with the control characters of texts that did not pass `render_str` escaped.

        Where there is no terminal, the blanks at the ends of lines, which fill the columns of a table, are
        left out.
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
            ink = text.rstrip(" ")
            if ink or segment.control:
                yield from blanks
                blanks.clear()
                yield segment if segment.control else Segment(ink, segment.style)
            if len(ink) < len(text):
                blanks.append(Segment(text[len(ink) :], segment.style))
        yield from blanks


class _StandardError:
    """Standard error as it is at the moment of writing. Its errors are dropped: a line of progress that
    cannot be written ends no run."""

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
    """Return the width of a pipe in columns; None where rich takes it from the terminal or from COLUMNS."""
    return None if is_terminal(stream) or os.environ.get("COLUMNS", "").isdigit() else WIDTH_OF_PIPES


out = Terminal(highlight=False, emoji=False, width=_width(sys.stdout))
"""Results."""
err = Terminal(file=cast("IO[str]", _StandardError()), highlight=False, emoji=False, width=_width(sys.stderr))
"""Progress and messages, which a pipe does not read."""


def bold(text: str) -> Text:
    """Make a cell of a table that stands out."""
    return Text(visible(text), style="bold")


def print_table(
    headings: Iterable[str],
    rows: Iterable[Sequence["str | Text | Number"]],
    *,
    text: Sequence[int] = (0,),
    to: Terminal | None = None,
) -> None:
    """Print a table that fits the terminal and loses no letter.

    Args:
        headings: a text for each column.
        rows: a cell for each column, in which nothing is markup: what is bold is made by `bold`.
        text: the numbers of the columns that stand at the left, from the right where they are negative; the
            others stand at the right, as figures do.
        to: the terminal; standard output where it is left out.
    """
    to = to or out
    lines = [
        [
            cell if isinstance(cell, Text) else Text(visible(cell if isinstance(cell, str) else cell.text))
            for cell in line
        ]
        for line in (tuple(headings), *rows)
    ]
    table = Table(*map(Column, lines[0]), box=None, pad_edge=False)
    for line in lines[1:]:
        table.add_row(*line)
    count = len(table.columns)
    # A narrow terminal breaks lines between words: each column has its longest word, and of the rest the last
    # ones take as much as they need, so that names in the first column are broken before intervals.
    columns = [[cell.plain for cell in cells] for cells in zip(*lines, strict=True)]
    longest = [
        max((cell_len(word) for cell in cells for word in cell.split()), default=1) for cells in columns
    ]
    room = to.width - 2 * (count - 1)  # two blanks between columns
    while sum(longest) > room and max(longest) > 1:
        longest[longest.index(max(longest))] -= 1  # the longest word is broken
    free = room - sum(longest)
    for number in reversed(range(count)):
        column = table.columns[number]
        extra = max(0, min(free, max(map(cell_len, columns[number])) - longest[number]))
        column.width, free = longest[number] + extra, free - extra
        column.justify = "left" if number in text or number - count in text else "right"
        column.overflow = "fold"
    to.print(table)


def print_lines(*lines: str) -> None:
    """Print lines as they are, unbroken and without markup: a person copies commands and paths from them."""
    out.print(*lines, sep="\n", markup=False, soft_wrap=True)


def print_facts(rows: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Print lines beside their headings, each heading once; lines without any heading stand at the left."""
    rows = list(rows)
    if not any(heading for heading, _ in rows):
        print_lines(*(line for _, lines in rows for line in lines))
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(min_width=HEADING_WIDTH)
    for heading, lines in rows:
        for line in lines:
            grid.add_row(f"[bold]{escape(heading)}[/]", escape(line))
            heading = ""  # once, before its first line
    out.print(grid)


def print_result(result: Any, as_json: bool) -> None:
    """Print the result of a command: its `to_json()` where --json is given, else its blocks and what follows.

    Args:
        result: a `vitkit.result.Result`.
        as_json: whether --json is given.
    """
    if as_json:
        print_json(result.to_json())
        return
    print_blocks(result.blocks())
    if following := result.following():
        print_next(*following)


def print_blocks(blocks: "Sequence[Block | None]", to: Terminal | None = None) -> None:
    """Print paragraphs and tables, with a blank line around each table; figures, pictures and captions are
    for pages alone."""
    from vitkit import result

    to, before = to or out, None
    for block in blocks:
        if block is None or isinstance(block, result.Plot | result.Plots | result.Photo | result.Photos):
            continue
        if isinstance(block, result.Text) and block.kind == "caption":  # it explains a figure or a page
            continue
        is_table = isinstance(block, result.Table)
        if before is not None and (is_table or isinstance(before, result.Table)):
            to.print()
        if isinstance(block, result.Table):
            print_table(block.headings, block.rows[: block.most], text=block.text, to=to)
            if block.most is not None and len(block.rows) > block.most:
                to.print(f"... and {len(block.rows) - block.most:,} more on the page.")
        elif isinstance(block, result.Facts):
            print_facts(block.rows)
        else:
            plain = isinstance(block, str) or block.kind != "answer"
            text = block if isinstance(block, str) else block.sentences
            # A command or a path is copied from the terminal: no line may end within it.
            whole = "/" in text or "vitkit " in text
            to.print(text if plain else bold(text), markup=False, soft_wrap=whole)
        before = block


def print_plan(planned: Sequence["Planned"], as_json: bool, beside: str = "", **more: Any) -> None:
    """Print the arms of a study that has not begun, a row each, their runs and the time of all of them.

    Args:
        planned: the arms.
        as_json: whether --json is given.
        beside: a clause on the time that comes on top.
        more: is printed beside the arms as JSON.
    """
    runs, seconds = sum(arm.runs for arm in planned), sum(arm.seconds for arm in planned)
    if as_json:
        print_json({**more, "arms": [to_json(arm) for arm in planned], "seconds": seconds})
        return
    columns: dict[str, Callable[[Planned], str]] = {
        "arm": lambda arm: arm.name,
        "": lambda arm: arm.label,
        "rates tried": lambda arm: ", ".join(f"{rate:g}" for rate in arm.rates) or "its own",
        "runs": lambda arm: str(arm.runs),
        "steps": lambda arm: f"{arm.steps:,}",
        "time": lambda arm: format_duration(arm.seconds),
    }
    print_table(columns, ([cell(arm) for cell in columns.values()] for arm in planned), text=(0, 1))
    print_lines(
        f"\n{pluralize(len(planned), 'arm')}, {pluralize(runs, 'run')}, about {format_duration(seconds)} on "
        f"this machine, as measured now{beside}"
    )
    print_next("the same command without --plan trains them")


def print_next(*commands: str) -> None:
    """Print below a blank line which commands make use of a result, each in a line of its own."""
    print_lines("", "Next: " + "\n      ".join(commands))


@contextmanager
def show_warnings() -> Iterator[None]:
    """Print the warnings of the library while a command runs."""
    handler, logger = _Warnings(logging.WARNING), logging.getLogger("vitkit")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Warnings(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        err.print(record.getMessage(), markup=False, soft_wrap=True)


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print data as JSON on standard output; in ASCII alone where its encoding is not UTF-8."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    unicode = codecs.lookup(encoding).name == "utf-8"
    print(json_text(value, ascii_only=not unicode, indent=indent), flush=True)


def print_csv(cells: Iterable[str]) -> None:
    """Print a line of CSV on standard output."""
    text = csv_line(cells)
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


class _Lines(Progress):
    """Progress in a log: a line now and then."""

    def __init__(self) -> None:
        super().__init__(console=err, disable=True)
        self._last_line = time.monotonic()

    def update(self, task_id: TaskID, **fields: Any) -> None:
        """Update the task as a bar does; print a line at once where the field `milestone` is true."""
        super().update(task_id, **fields)
        now = time.monotonic()
        if not fields.get("milestone") and now - self._last_line < LINE_SECONDS:
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
    """A column with the count and its total; empty where nothing is counted."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.total is not None or task.completed else Text()


class _Left(TimeRemainingColumn):
    """A column with the time left; empty where it is unknown."""

    def render(self, task: Task) -> Text:
        time_left = super().render(task)
        return time_left.append(" left") if time_left.plain else time_left


class _Detail(ProgressColumn):
    """A column with details such as the loss; empty where they have a line of their own."""

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


def say_continued(parts: int) -> str:
    """Write the end of a sentence on parts of a table that were on the disk before; "" for none."""
    return f"; {pluralize(parts, 'part was', 'parts were')} there already" if parts else ""


def progress_bar(in_bytes: bool = False) -> Progress:
    """Make a bar on standard error with the time left; where that is no terminal, lines at long intervals.

    `update(task, detail=..., milestone=True)` prints a line at once.
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
def download_bar(description: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show a bar for a download from its first bytes on: `progress(bytes, total bytes or None)`."""
    with progress_bar(in_bytes=True) as bar:
        task = bar.add_task(visible(description), total=None, detail="", bytes=True, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)


def download(*paths: str | Path) -> None:
    """Fetch the checkpoints that are given by address or name, with a bar; files and folders are left alone.

    The Hub's own library fetches from the Hub later, with its own bar.

    Raises:
        VitkitError: as `fetch`.
    """
    for path in paths if world_of_environment().rank == 0 else ():
        start = find_start_named(path)
        address = str(path) if start is None else start.address
        if is_address(path) and not address.startswith("hf:"):
            from vitkit.weights.files.download import (
                fetch_any,  # torch: an exported folder is read without it
            )

            name = PurePosixPath(address.split("#")[0].split("?")[0]).name
            with download_bar(f"fetching {name}") as progress:
                fetch_any(path, progress)


class TerminalListener(Listener):
    """Shows the progress and results of a job on the terminal, or in a log."""

    def note(self, sentence: str) -> None:
        err.print(sentence, markup=False, soft_wrap=True)

    def warn(self, sentence: str) -> None:
        err.print(f"[yellow]{escape(sentence)}[/]", soft_wrap=True)

    def show(self, rows: list[tuple[str, list[str]]]) -> None:
        print_facts(rows)

    @contextmanager
    def progress(self, what: str, total: int | None = None, *, unit: str = "") -> Iterator[Report]:
        in_bytes = unit == "bytes"
        with progress_bar(in_bytes=in_bytes) as bar:
            task = bar.add_task(visible(what), total=total, detail="", bytes=in_bytes)

            def progress(
                done: int, total: int | None = None, *, detail: str = "", milestone: bool = False
            ) -> None:
                bar.update(
                    task,
                    completed=done,
                    total=bar.tasks[0].total if total is None else total,
                    detail=detail,
                    milestone=milestone,
                )

            yield progress

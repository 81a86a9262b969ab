"""Print to the terminal: results, messages and progress bars."""

import codecs
import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, cast

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from vitkit.cli.streams import is_terminal
from vitkit.listener import Listener
from vitkit.listener import Progress as Report
from vitkit.text import format_bytes, format_duration, json_text, visible
from vitkit.weights.published import find_start_named, is_address
from vitkit.world import world_of_environment

if TYPE_CHECKING:
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
        """Render anything, with the control characters of texts that did not pass `render_str` escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text, keep="\n"), segment.style)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does; where there is no terminal, without the blanks at the ends of lines."""
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write(re.sub(" +\n", "\n", captured.get()))
        self.file.flush()


class _StandardError:
    """Standard error as it is at the moment of writing. Its errors are dropped: a line of progress that
    cannot be written ends no run."""

    def write(self, text: str) -> int:
        with contextlib.suppress(AttributeError, OSError, ValueError):  # None where it is closed
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


# Of a terminal rich knows the width; COLUMNS goes first everywhere.
_is_given = os.environ.get("COLUMNS", "").isdigit()
_widths = [None if _is_given or is_terminal(each) else WIDTH_OF_PIPES for each in (sys.stdout, sys.stderr)]
out = Terminal(highlight=False, emoji=False, width=_widths[0])
"""Results."""
err = Terminal(file=cast("IO[str]", _StandardError()), highlight=False, emoji=False, width=_widths[1])
"""Progress and messages, which a pipe does not read."""


def bold(text: str) -> Text:
    """Make a cell of a table that stands out."""
    return Text(visible(text), style="bold")


def print_table(
    headings: Iterable[str], rows: Iterable[Sequence["str | Text | Number"]], *, left: Sequence[int] = (0,)
) -> None:
    """Print a table that fits the terminal and loses no letter.

    Args:
        headings: a text for each column.
        rows: a cell for each column, in which nothing is markup: what is bold is made by `bold`.
        left: the columns whose cells stand at the left, counted from the last one where they are negative;
            the others stand at the right, as figures do.
    """
    lines = [
        [cell if isinstance(cell, Text) else Text(visible(str(getattr(cell, "text", cell)))) for cell in line]
        for line in (tuple(headings), *rows)
    ]
    table = Table(*map(Column, lines[0]), box=None, pad_edge=False)
    for line in lines[1:]:
        table.add_row(*line)
    count = len(table.columns)
    # A narrow terminal breaks lines between words: each column has its longest word, and of the rest the last
    # ones take as much as they need, so that names in the first column are broken before intervals.
    columns = [[cell.plain for cell in cells] for cells in zip(*lines, strict=True)]
    longest = [max([cell_len(word) for word in " ".join(cells).split()], default=1) for cells in columns]
    room = out.width - 2 * (count - 1)  # two blanks between columns
    while sum(longest) > room and max(longest) > 1:
        longest[longest.index(max(longest))] -= 1  # the longest word is broken
    free = room - sum(longest)
    for number in reversed(range(count)):
        column = table.columns[number]
        extra = max(0, min(free, max(map(cell_len, columns[number])) - longest[number]))
        column.width, free = longest[number] + extra, free - extra
        column.justify = "left" if number in left or number - count in left else "right"
        column.overflow = "fold"
    out.print(table)


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


def print_result(result: Any, given: Mapping[str, Any]) -> None:
    """Print the result of a command: its blocks and what follows, or with --json or --csv its data.

    Args:
        result: a `vitkit.result.Result`.
        given: the options that are given.
    """
    if given.get("json"):
        print_json(result.to_json())
        return
    if given.get("csv"):
        print(result.to_csv(), end="", flush=True)
        return
    print_blocks(result.blocks())
    if following := result.following():
        print_next(*following)


def print_blocks(blocks: "Sequence[Block | None]") -> None:
    """Print paragraphs and tables, with a blank line around each table; figures, pictures and captions are
    for pages alone."""
    from vitkit import result

    before: Block | None = None
    for block in blocks:
        if block is None or isinstance(block, result.Plot | result.Plots | result.Photo | result.Photos):
            continue
        if isinstance(block, result.Text) and block.kind == "caption":  # it explains a figure or a page
            continue
        if before is not None and (isinstance(block, result.Table) or isinstance(before, result.Table)):
            out.print()
        if isinstance(block, result.Table):
            print_table(block.headings, block.rows[: block.most], left=block.left)
            if block.most is not None and len(block.rows) > block.most:
                out.print(f"... and {len(block.rows) - block.most:,} more; --json has all.")
        elif isinstance(block, result.Facts):
            print_facts(block.rows)
        else:
            plain = isinstance(block, str) or block.kind != "answer"
            text = block if isinstance(block, str) else block.sentences
            # A command or a path is copied from the terminal: no line may end within it.
            whole = "/" in text or "vitkit " in text
            out.print(text if plain else bold(text), markup=False, soft_wrap=whole)
        before = block or None  # an empty paragraph is a blank line by itself


def print_next(*commands: str) -> None:
    """Print below a blank line which commands make use of a result, each in a line of its own."""
    print_lines("", "Next: " + "\n      ".join(commands))


@contextmanager
def show_warnings() -> Iterator[None]:
    """Print the warnings of the library while a command runs."""
    handler, logger = logging.Handler(logging.WARNING), logging.getLogger("vitkit")
    handler.emit = lambda record: TerminalListener().note(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print data as JSON on standard output; in ASCII alone where its encoding is not UTF-8."""
    encoding = codecs.lookup(getattr(sys.stdout, "encoding", None) or "ascii").name
    print(json_text(value, ascii_only=encoding != "utf-8", indent=indent), flush=True)


class _Bar(Progress):
    """A bar, with a line below it for details that a narrow terminal would cut off."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        for task in self.tasks:
            if below := task.fields["below"]:
                yield Padding(Text(below, overflow="fold"), (0, 0, 0, 2))


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
            # Here, as it imports torch: an exported folder is read without it.
            from vitkit.weights.files.download import fetch

            name = PurePosixPath(address.split("#")[0].split("?")[0]).name
            with TerminalListener().progress(f"fetching {name}", unit="bytes") as progress:
                fetch(path, progress)


class TerminalListener(Listener):
    """Shows the progress and results of a job on the terminal, or in a log."""

    def note(self, sentence: str) -> None:
        err.print(sentence, markup=False, soft_wrap=True)

    def warn(self, sentence: str) -> None:
        err.print(f"[yellow]{escape(sentence)}[/]", soft_wrap=True)

    show = staticmethod(print_facts)

    @contextmanager
    def progress(self, what: str, total: int | None = None, *, unit: str = "") -> Iterator[Report]:
        """Show a bar on standard error; where that is no terminal, lines at long intervals."""
        is_shown, last_line = is_terminal(sys.stderr), time.monotonic()
        texts = ("{task.fields[count]}", 11), ("{task.fields[left]}", 12), ("{task.fields[beside]}", 0)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            *(TextColumn(t, markup=False, table_column=Column(min_width=w, no_wrap=True)) for t, w in texts),
        )
        with _Bar(*columns, console=err, transient=True, disable=not is_shown) as bar:
            number = bar.add_task(visible(what), total=total, count="", left="", beside="", below="")
            (task,) = bar.tasks

            def progress(
                done: int, total: int | None = None, *, detail: str = "", milestone: bool = False
            ) -> None:
                nonlocal last_line
                bar.update(number, completed=done, total=task.total if total is None else total)
                if not (is_shown or milestone) and time.monotonic() - last_line < LINE_SECONDS:
                    return  # the time left takes a hundredth of a small model's step
                counts = [count for count in (task.completed, task.total) if count is not None]
                count = "/".join(format_bytes(n) if unit == "bytes" else f"{n:,.0f}" for n in counts)
                seconds = task.time_remaining
                left = "" if seconds is None or task.finished else f"{format_duration(seconds)} left"
                fits = cell_len(detail) <= err.width - BAR_COLUMNS
                beside, below = (detail, "") if fits else ("", detail)
                bar.update(number, count=count, left=left, beside=beside, below=below)
                if is_shown:
                    return
                last_line = time.monotonic()
                parts = [f"{task.description} {count}", left, detail]
                err.print("  ".join(filter(None, parts)), markup=False, soft_wrap=True)

            yield progress


class BesideData(TerminalListener):
    """Leaves standard output to the data of --json and --csv."""

    def show(self, rows: Iterable[tuple[str, Sequence[str]]]) -> None:
        for heading, lines in rows:
            self.note(f"{heading}  {' '.join(lines)}".strip())

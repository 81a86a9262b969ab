"""Show the progress of a job on a terminal: bars and sentences on stderr, summaries on stdout."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.markup import escape
from rich.table import Table

from vitkit.cli import console
from vitkit.listener import Listener, Progress
from vitkit.text import visible

HEADING_WIDTH = 8
"""The fewest columns of a heading: summaries that follow one another then stand in line."""


class TerminalListener(Listener):
    """Shows the progress and results of a job on the terminal, or in a log."""

    def note(self, sentence: str) -> None:
        console.err.print(sentence, markup=False, soft_wrap=True)

    def warn(self, sentence: str) -> None:
        console.err.print(f"[yellow]{escape(sentence)}[/]", soft_wrap=True)

    def show(self, rows: list[tuple[str, list[str]]]) -> None:
        if not any(heading for heading, _ in rows):
            for _, lines in rows:
                console.out.print(*lines, sep="\n", markup=False)
            return
        grid = Table.grid(padding=(0, 2))
        grid.add_column(min_width=HEADING_WIDTH)
        for heading, lines in rows:
            for line in lines:
                grid.add_row(f"[bold]{escape(heading)}[/]", escape(line))
                heading = ""  # once, before its first line
        console.out.print(grid)

    @contextmanager
    def progress(self, what: str, total: int | None = None, *, unit: str = "") -> Iterator[Progress]:
        in_bytes = unit == "bytes"
        with console.progress_bar(in_bytes=in_bytes) as bar:
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

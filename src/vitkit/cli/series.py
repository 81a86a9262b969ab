"""Train a series of runs for `vitkit train` and `vitkit finetune`, and print what came of it."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from vitkit.cli import console
from vitkit.cli.listener import TerminalListener
from vitkit.cli.options import importing
from vitkit.runs.config import Run
from vitkit.runs.series_options import SeriesOptions

if TYPE_CHECKING:
    from vitkit.runs.plan import Request
    from vitkit.runs.series_record import Series
    from vitkit.tasks import page


def train_and_tell(
    run: Run,
    options: SeriesOptions,
    resume: str | None,
    out: str | None,
    device: str,
    threads: int | None,
    command: str,
    request: "Request",
    listener: TerminalListener,
) -> None:
    """Train what a command line asks for; the arguments are those of `vitkit.train_series`."""
    with importing():
        from vitkit.jobs.series.series import train_series
        from vitkit.runs.series_record import read_series

    folder = train_series(
        run,
        resume or out,
        options,
        resume=resume is not None,
        device=device,
        threads=threads,
        command=command,
        request=request,
        listener=listener,
    )
    _print(folder, read_series(folder))


def _print(folder: Path, series: "Series") -> None:
    """Print the tables of a series, its conclusions, and commands that use what it made."""
    from vitkit.jobs.series.report import conclusions, member_table, rate_table

    console.out.print()
    if series.rates:
        console.out.print(_table(rate_table(series)))
    console.out.print(*series.reasons, sep="\n", markup=False, soft_wrap=True)
    console.out.print(_table(member_table(series)))
    console.out.print(*conclusions(series), sep="\n", markup=False, soft_wrap=True)
    first = next(one for one in series.members if one.finished)
    of_series = series.options.cross_validate is None
    predicted = shlex.quote(str(folder if of_series else folder / first.folder))
    which = f"   (the model of {first.folder})" if of_series else ""
    lines = [
        f"Next:    open {folder / 'report.html'} in a browser",
        f"         vitkit predict {predicted} IMAGE_OR_FOLDER{which}",
        f"         vitkit inspect {shlex.quote(str(folder / first.folder))}",
    ]
    console.out.print("", *lines, sep="\n", markup=False, soft_wrap=True)


def _table(table: "page.Table") -> Table:
    """Lay a table out for the terminal; all columns but the first and the last stand at the right."""
    shown = Table(*map(escape, table.headings), box=None)
    for column in shown.columns[1:-1]:
        column.justify = "right"
    for row in table.rows:
        shown.add_row(*(escape(cell if isinstance(cell, str) else cell.text) for cell in row))
    return shown

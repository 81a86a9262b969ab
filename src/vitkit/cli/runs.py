"""`vitkit runs`: the runs, series and studies below a folder, and where they stand."""

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.markup import escape
from rich.table import Table

from vitkit.cli import console
from vitkit.cli.help import HelpPage
from vitkit.cli.options import importing, parse
from vitkit.jobs.functions import read_field_texts
from vitkit.jobs.options import RunsOptions
from vitkit.text import format_duration

if TYPE_CHECKING:
    from vitkit.jobs.list_runs import RunSummary


@dataclass(frozen=True)
class Command(RunsOptions):
    """List runs, series of runs and studies, the one that changed last at the end."""

    # Only what has no default is positional by itself.
    folder: Annotated[
        str, tyro.conf.Positional, tyro.conf.arg(help=read_field_texts(RunsOptions)["folder"])
    ] = "runs"
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """print everything as JSON."""


HELP = HelpPage("[FOLDER] [OPTIONS]", ("--json", "--quiet"), ("vitkit runs", "vitkit runs my_runs/ --json"))


def main(arguments: list[str]) -> None:
    """Parse the command line and print the runs."""
    options: Command = parse(Command, arguments, "runs", HELP)
    with importing():
        from vitkit.jobs.list_runs import run_list_runs

    rows = run_list_runs(options)
    if options.json_output:
        console.print_json([row.to_json() for row in rows])
        return
    if rows:
        console.out.print(_table(rows))
    else:
        console.out.print(f"There are no runs in {options.folder}.", markup=False, soft_wrap=True)
    for row in rows:
        if row.state == "damaged":
            console.out.print(f"{row.folder} is damaged: {row.progress}", markup=False, soft_wrap=True)
    console.out.print("", f"Next: {_next(rows)}", sep="\n", markup=False, soft_wrap=True)


def _table(rows: "list[RunSummary]") -> Table:
    """Put the runs in a table."""
    table = Table("folder", "data", "model", "result", "time", "state", box=None, pad_edge=False)
    table.columns[0].overflow = "fold"  # it is what one copies
    table.columns[4].justify = "right"
    for row in rows:
        time = "" if row.minutes is None else format_duration(60 * row.minutes)
        cells = row.folder, row.data, row.model, row.result, time, row.standing
        table.add_row(*map(escape, cells))
    return table


def _next(rows: "list[RunSummary]") -> str:
    """Name a command that goes on with the newest run that can be gone on with, or uses the newest one."""
    for row in reversed(rows):
        if row.kind == "study" or row.state in ("running", "damaged", "diverged"):
            continue
        if row.state == "interrupted":
            return f"vitkit train --resume {shlex.quote(row.folder)}"
        return f"open {row.folder}/report.html in a browser"
    return "vitkit train --recipe digits"

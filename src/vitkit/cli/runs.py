"""`vitkit runs`: the runs, series and studies below a folder, and where they stand."""

import shlex
from typing import TYPE_CHECKING

from vitkit.cli import console
from vitkit.cli.options import Verb
from vitkit.cli.verb_options import JSON
from vitkit.runs.folder import require_runs
from vitkit.text import format_duration

if TYPE_CHECKING:
    from vitkit.jobs.list_runs import RunSummary

VERB = Verb("runs", "vitkit.jobs.list_runs", "list_runs", JSON)


def main(arguments: list[str]) -> None:
    """Parse the command line and print the runs."""
    given = VERB.parse(arguments)
    require_runs(given.get("folder", "runs"))
    rows = VERB.call(given)
    if given.get("json"):
        console.print_json([row.to_json() for row in rows])
        return
    if rows:
        console.print_table(
            ("folder", "data", "model", "result", "training", "state"),
            map(_cells, rows),
            text=(0, 1, 2, 3, 5),
        )
    else:
        console.print_lines(f"There are no runs in {given.get('folder', 'runs')}.")
    for row in rows:
        if row.state == "damaged":
            console.print_lines(f"{row.folder} is damaged: {row.progress}")
    console.print_next(_next(rows))


def _cells(row: "RunSummary") -> tuple[str, ...]:
    time = "" if row.minutes is None else format_duration(60 * row.minutes)
    return row.folder, row.data, row.model, row.result, time, row.standing


def _next(rows: "list[RunSummary]") -> str:
    """Name the command that resumes the newest run if it was interrupted, or shows its report."""
    for row in reversed(rows):
        if row.kind == "study" or row.state in ("running", "damaged", "diverged"):
            continue
        if row.state == "interrupted":
            return f"vitkit train --resume {shlex.quote(row.folder)}"
        return f"open {row.folder}/report.html in a browser"
    return "vitkit train --recipe digits"

"""`vitkit vtab`: fine-tune a checkpoint on the 19 tasks of VTAB-1k, and take the mean."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints, require_images
from vitkit.cli.options import JsonOption, importing, parse
from vitkit.jobs.options import as_arguments
from vitkit.jobs.vtab.options import VtabOptions
from vitkit.runs.destination import require_folder

if TYPE_CHECKING:
    from vitkit.jobs.vtab.vtab import Vtab


@dataclass(frozen=True, kw_only=True)
class Command(JsonOption, VtabOptions):
    """Fine-tune a checkpoint on the tasks of VTAB-1k, and compare it with the paper's Table 9.

    Stopped anywhere, the same command goes on: finished tasks are not repeated."""


def main(arguments: list[str]) -> None:
    """Parse the command line, fine-tune on each task, and print the table."""
    command = parse(Command, arguments, "vtab")
    options = VtabOptions(**as_arguments(VtabOptions, command))
    if command.out is not None:
        require_folder(Path(command.out))
    require_checkpoints(command.start)
    require_images(command.root)
    with importing():
        from vitkit.jobs.vtab.vtab import run_vtab, vtab_folder

    console.download(options.start)
    vtab = run_vtab(options, shlex.join(["vitkit", "vtab", *arguments]))
    console.print_result(vtab, command.json, lambda result: _print(result, vtab_folder(options)))


def _print(vtab: "Vtab", folder: Path) -> None:
    """Print a row for each task and mean, beside the paper's, and what a reader of them should know."""
    from vitkit.jobs.vtab.vtab import remarks, score_table

    table = score_table(vtab)
    console.print_table(table.headings, table.rows)
    caption = "The last columns are the ViTs of the paper's Table 9."
    console.out.print(caption, *remarks(vtab), sep="\n", markup=False)
    console.print_lines(*(str(folder / name) for name in ("vtab.html", "vtab.json", "vtab.csv")))
    worst = min(vtab.tasks, key=lambda score: score.accuracy)
    page = shlex.quote(f"{worst.run}/report.html")
    console.print_next(f"open {page} in a browser: {worst.folder} has the most mistakes")

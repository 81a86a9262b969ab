"""`vitkit vtab`: fine-tune a checkpoint on the 19 tasks of VTAB-1k, and take the mean."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.cli import console
from vitkit.cli.checks import require_images
from vitkit.cli.options import Verb
from vitkit.cli.verb_options import JSON
from vitkit.runs.destination import require_folder

if TYPE_CHECKING:
    from vitkit.jobs.vtab.vtab import Vtab

VERB = Verb("vtab", "vitkit.jobs.vtab.vtab", "vtab", JSON, without=("command",))


def main(arguments: list[str]) -> None:
    """Parse the command line, fine-tune on each task, and print the table."""
    given = VERB.parse(arguments)
    if "out" in given:
        require_folder(Path(given["out"]))
    require_images(given.get("root"))
    vtab = VERB.call(given, command=shlex.join(["vitkit", "vtab", *arguments]))
    from vitkit.jobs.vtab.vtab import vtab_folder

    folder = vtab_folder(given["start"], given.get("out"))
    console.print_result(vtab, bool(given.get("json")), lambda result: _print(result, folder))


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

"""`vitkit vtab`: fine-tune a checkpoint on the 19 tasks of VTAB-1k, and take the mean."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.markup import escape
from rich.table import Table

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints, require_images
from vitkit.cli.help import HelpPage
from vitkit.cli.options import importing, parse
from vitkit.jobs.options import as_arguments
from vitkit.jobs.vtab.options import VtabOptions
from vitkit.runs.destination import require_folder

if TYPE_CHECKING:
    from vitkit.jobs.vtab.result import Vtab


@dataclass(frozen=True)
class Command(VtabOptions):
    """Fine-tune a checkpoint on the tasks of VTAB-1k, and compare it with the paper's Table 9.

    Stopped anywhere, the same command goes on: finished tasks are not repeated."""

    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """print all numbers as JSON."""


HELP = HelpPage(
    "START --root FOLDER [OPTIONS]",
    (
        "--root",
        "--tasks",
        "--protocol",
        "--sweep",
        "--steps",
        "--batch-size",
        "--micro-batch-size",
        "--out",
        "--device",
        "--json",
    ),
    (
        "vitkit vtab vit-b16-augreg-in21k --root vtab/",
        "vitkit vtab runs/mine --root vtab/ --tasks dtd,svhn --protocol finetune",
    ),
)


def main(arguments: list[str]) -> None:
    """Parse the command line, fine-tune on each task, and print the table."""
    command: Command = parse(Command, arguments, "vtab", HELP)
    options = VtabOptions(**as_arguments(VtabOptions, command))
    if command.out is not None:
        require_folder(Path(command.out))
    require_checkpoints(command.start)
    require_images(command.root)
    with importing():
        from vitkit.cli.console import download
        from vitkit.jobs.vtab.result import remarks
        from vitkit.jobs.vtab.vtab import run_vtab, vtab_folder

    download(options.start)
    found = run_vtab(options)
    folder = vtab_folder(options)
    if command.json_output:
        console.print_json(found.to_json())
        return
    console.out.print(_table(found))
    console.out.print("The last columns are the ViTs of the paper's Table 9.", markup=False)
    for sentence in remarks(found):
        console.out.print(sentence, markup=False)
    for name in ("vtab.html", "vtab.json", "vtab.csv"):
        console.out.print(str(folder / name), markup=False, soft_wrap=True)
    worst = min(found.tasks, key=lambda score: score.accuracy)
    page = shlex.quote(f"{worst.run}/report.html")
    following = f"open {page} in a browser: {worst.folder} has the most mistakes"
    console.out.print(f"Next: {following}", markup=False, soft_wrap=True)


def _table(found: "Vtab") -> Table:
    """Put the accuracies in a table, a row for each task and mean, beside the paper's."""
    from vitkit.jobs.vtab.result import PAPER_MODELS, TaskScore, cells

    swept = any(score.validation for score in found.tasks)
    names = ("task", "accuracy", "95 % interval", "images", *(["rate"] if swept else []))
    table = Table(*names, *(model.removeprefix("ViT-") for model in PAPER_MODELS), box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for _, name, score, paper in found.table():
        low, high = score.interval
        images, rate = cells(score)
        table.add_row(
            escape(name),
            f"{score.accuracy:.1%}",
            f"{low:.1%} to {high:.1%}",
            images,
            *([rate] if swept else []),
            *(f"{100 * share:.1f}" for share in paper),
            style="" if isinstance(score, TaskScore) else "bold",
            end_section=not isinstance(score, TaskScore),
        )
    return table

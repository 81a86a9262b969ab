"""`vitkit reproduce`: the figures and tables of the paper at this machine's size, beside its numbers."""

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.markup import escape
from rich.table import Table

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints, require_images, require_models
from vitkit.cli.help import HelpPage
from vitkit.cli.options import importing, parse
from vitkit.jobs.functions import read_field_texts
from vitkit.jobs.options import as_arguments
from vitkit.jobs.reproduce.options import ReproduceOptions
from vitkit.text import format_duration, pluralize

if TYPE_CHECKING:
    from vitkit.jobs.reproduce.reproduce import Planned, Reproduction

TEXTS = read_field_texts(ReproduceOptions)


@dataclass(frozen=True)
class Command(ReproduceOptions):
    """Reproduce a figure or table of the paper here: vitkit reproduce table8 --minutes 30.

    Its runs have the same seeds and images, and the page says whether the paper's conclusion holds at this
    size. Stopped anywhere, the same command goes on. vitkit reproduce --list says what there is."""

    recipe: Annotated[str | None, tyro.conf.arg(help=TEXTS["recipe"])] = None
    list_items: Annotated[bool, tyro.conf.arg(name="list")] = False
    """list the figures and tables: what each is, what it needs, how long it takes here and at the paper's
    size."""
    plan: bool = False
    """list the arms, their runs and the time they take here, and train nothing."""
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """print all numbers as JSON."""


HELP = HelpPage(
    "ITEM [OPTIONS]",
    (
        "--list",
        "--plan",
        "--minutes",
        "--data",
        "--start",
        "--seeds",
        "--steps",
        "--only",
        "--out",
        "--json",
    ),
    (
        "vitkit reproduce --list",
        "vitkit reproduce table8 --minutes 30",
    ),
)


def main(arguments: list[str]) -> None:
    """Parse the command line, do the study, and print what holds here."""
    if not arguments or "--list" in arguments:
        _print_list("--json" in arguments)
        return
    command: Command = parse(Command, arguments, "reproduce", HELP)
    options = ReproduceOptions(**as_arguments(ReproduceOptions, command))
    require_images(command.data)
    if options.item == "fig12":  # which times models by name too
        require_models(options.starts)
    else:
        require_checkpoints(*options.starts)
    with importing():
        from vitkit.cli.console import download
        from vitkit.jobs.reproduce.reproduce import plan_reproduction, run_reproduce

    if command.plan:
        _print_plan(options, plan_reproduction(options), command.json_output)
        return
    for start in options.starts:
        download(start)
    reproduction = run_reproduce(options, shlex.join(["vitkit", "reproduce", *arguments]))
    if command.json_output:
        console.print_json(reproduction.to_json())
    else:
        _print(reproduction)


def _print_list(as_json: bool) -> None:
    """Print what can be reproduced."""
    with importing():
        from vitkit.jobs.reproduce.items import ITEMS

    if as_json:
        listed = [
            {
                "item": name,
                "title": item.title,
                "conclusion": item.conclusion,
                "needs": item.needs,
                "here": item.here,
                "at_paper_size": item.at_paper_size,
            }
            for name, item in ITEMS.items()
        ]
        console.print_json({"items": listed})
        return
    table = Table("", "what it is", "needs", "here", "at the paper's size", box=None, pad_edge=False)
    for name, item in ITEMS.items():
        table.add_row(name, *map(escape, (item.title, item.needs, item.here, item.at_paper_size)))
    console.out.print(table)
    console.out.print("\nNext: vitkit reproduce table8 --plan", markup=False)


def _print_plan(options: ReproduceOptions, planned: "tuple[Planned, ...]", as_json: bool) -> None:
    """Print the arms with their runs, steps and time, and what the study needs."""
    from vitkit.config import to_json
    from vitkit.jobs.reproduce.items import ITEMS

    item, seconds = ITEMS[options.item], sum(arm.seconds for arm in planned)
    if as_json:
        arms = [to_json(arm) for arm in planned]
        console.print_json({"item": options.item, "needs": item.needs, "arms": arms, "seconds": seconds})
        return
    console.out.print(item.title, f"Needs {item.needs}.", sep="\n", markup=False, soft_wrap=True)
    if planned:
        table = Table("arm", "", "runs", "steps", "time", box=None)
        for arm in planned:
            cells = (str(arm.runs), f"{arm.steps:,}", format_duration(arm.seconds))
            table.add_row(escape(arm.name), escape(arm.label), *cells)
        console.out.print(table)
        runs = sum(arm.runs for arm in planned)
        counted = f"{pluralize(len(planned), 'arm')}, {pluralize(runs, 'run')}"
        console.out.print(
            f"\n{counted}, about {format_duration(seconds)} on this machine, as measured now",
            markup=False,
            soft_wrap=True,
        )
    else:
        console.out.print(f"Here: {item.here}.", markup=False, soft_wrap=True)
    console.out.print("Next: the same command without --plan", markup=False)


def _print(reproduction: "Reproduction") -> None:
    """Print what came of a study, and what can follow."""
    console.out.print()
    paper = f"The paper: {reproduction.item.conclusion}"
    console.out.print(
        reproduction.item.title,
        paper,
        "",
        *reproduction.answer.sentences,
        sep="\n",
        markup=False,
        soft_wrap=True,
    )
    page = shlex.quote(str(reproduction.folder / "report.html"))
    console.out.print(f"\nNext: open {page} in a browser", markup=False, soft_wrap=True)

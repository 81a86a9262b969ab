"""`vitkit reproduce`: the figures and tables of the paper at this machine's size, beside its numbers."""

import shlex
from dataclasses import dataclass

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints, require_images, require_models
from vitkit.cli.options import JsonOption, importing, parse
from vitkit.jobs.options import as_arguments
from vitkit.jobs.reproduce.options import ReproduceOptions


@dataclass(frozen=True, kw_only=True)
class Command(JsonOption, ReproduceOptions):
    """Reproduce a figure or table of the paper here: vitkit reproduce table8 --minutes 30.

    Its runs have the same seeds and images, and the page says whether the paper's conclusion holds at this
    size. Stopped anywhere, the same command goes on. vitkit reproduce --list says what there is."""

    list: bool = False
    """list the figures and tables: what each is, what it needs, how long it takes here and at the paper's
    size."""
    plan: bool = False
    """list the arms, their runs and the time they take here, and train nothing."""


def main(arguments: list[str]) -> None:
    """Parse the command line, do the study, and print whether the paper's conclusion holds here."""
    if not arguments or "--list" in arguments:
        _print_list("--json" in arguments)
        return
    command = parse(Command, arguments, "reproduce")
    options = ReproduceOptions(**as_arguments(ReproduceOptions, command))
    require_images(command.data)
    if options.item == "fig12":  # which times models by name too
        require_models(options.starts)
    else:
        require_checkpoints(*options.starts)
    with importing():
        from vitkit.jobs.reproduce.items import ITEMS
        from vitkit.jobs.reproduce.reproduce import plan_reproduction, run_reproduce

    if command.plan:
        item, planned = ITEMS[options.item], plan_reproduction(options)
        if not command.json:
            console.print_lines(item.title, f"Needs {item.needs}.")
        if planned or command.json:
            console.print_plan(planned, command.json, item=options.item, needs=item.needs)
        else:
            console.print_lines(f"Here: {item.here}.")
            console.print_next("the same command without --plan")
        return
    console.download(*options.starts)
    line = shlex.join(["vitkit", "reproduce", *arguments])
    console.print_result(run_reproduce(options, line), command.json)


def _print_list(as_json: bool) -> None:
    """Print the figures and tables that can be reproduced."""
    with importing():
        from vitkit.jobs.reproduce.items import ITEMS

    if as_json:
        keys = ("title", "conclusion", "needs", "here", "at_paper_size")
        listed = [{"item": name} | {key: getattr(item, key) for key in keys} for name, item in ITEMS.items()]
        console.print_json({"items": listed})
        return
    console.print_table(
        ("", "what it is", "needs", "here", "at the paper's size"),
        ((name, item.title, item.needs, item.here, item.at_paper_size) for name, item in ITEMS.items()),
        text=range(5),
    )
    console.print_next("vitkit reproduce table8 --plan")

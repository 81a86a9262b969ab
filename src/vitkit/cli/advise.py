"""`vitkit advise`: what to expect of images and starts, before anyone waits for a run."""

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.markup import escape
from rich.table import Table

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints, require_images
from vitkit.cli.help import HelpPage
from vitkit.cli.options import importing, parse
from vitkit.data.config import DecodeRule, Splits
from vitkit.jobs.advice.options import AdviseOptions
from vitkit.jobs.options import MachineOptions, StrPaths, as_names
from vitkit.text import format_bytes, format_duration

if TYPE_CHECKING:
    from vitkit.jobs.advice.choice import Advice, Option


@dataclass(frozen=True)
class Command(MachineOptions, AdviseOptions):
    """Say what to do with images and what to expect, before anyone waits for a run.

    Images are counted and looked at, this machine's speed is measured, and frozen features of each start are
    probed on training images. --go trains as advised."""

    starts: tyro.conf.Positional[StrPaths] = ()
    splits: Splits = field(default_factory=Splits)
    decode: Annotated[DecodeRule, tyro.conf.OmitArgPrefixes] = field(default_factory=DecodeRule)
    go: bool = False
    """train as advised; what was expected is compared with what came out."""
    out: str | None = None
    """run folder of --go; left out, runs/DATA-MODEL."""
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """print everything as JSON."""


HELP = HelpPage(
    "DATA [START...] [OPTIONS]",
    (
        "--go",
        "--seconds",
        "--out",
        "--splits.val-fraction",
        "--splits.test-fraction",
        "--device",
        "--threads",
        "--json",
    ),
    (
        "vitkit advise my_photos/ vit-ti16-augreg-in21k",
        "vitkit advise digits",
    ),
)


def main(arguments: list[str]) -> None:
    """Parse the command line, give advice, and follow it where that is asked for."""
    options: Command = parse(Command, arguments, "advise", HELP)
    line = shlex.join(["vitkit", "advise", *arguments])
    require_images(options.data)
    require_checkpoints(*as_names(options.starts))
    with importing():
        import torch

        from vitkit.cli.console import download
        from vitkit.jobs.advice.advise import follow, run_advise
        from vitkit.runs.machine import require_threads

    require_threads(options.threads)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    starts = as_names(options.starts)
    for start in starts:
        download(start)
    found = run_advise(options)
    if options.json_output:
        console.print_json(found.to_json())
    else:
        print_advice(found)
    if options.go:
        folder = follow(
            found,
            options.out,
            device=options.device,
            threads=options.threads,
            command=line,
            listener=options.listener,
        )
        console.out.print(f"\nNext: open {folder / 'report.html'} in a browser", markup=False, soft_wrap=True)
    elif not options.json_output:
        if found.can_go:
            again = shlex.join(["vitkit", "advise", options.data, *starts])
            following = f"{again} --go trains so"
        elif found.default:
            following = f"vitkit finetune {shlex.quote(options.data)}   (from {found.default})"
        else:
            following = f"vitkit advise {shlex.quote(options.data)} START"
        console.out.print(f"\nNext: {following}", markup=False, soft_wrap=True)


def print_advice(found: "Advice") -> None:
    """Print what is in the images, the ways to train on them, and the advice in words."""
    tested = f", {found.tested:,} to test on" if found.tested else ""
    console.out.print(
        f"[bold]{escape(found.name)}[/]: {found.images:,} training images{tested}, {found.classes:,} classes"
    )
    for warning in () if found.check is None else found.check.warnings:
        console.out.print(f"  [yellow]![/] {escape(warning)}")
    table = Table("begin from", "model", "probe", "expected", "steps", "time", "memory", box=None)
    for column in table.columns[2:]:
        column.justify = "right"
    for option in (*found.options, found.scratch):
        table.add_row(*_row(option, found))
    console.out.print()
    console.out.print(table)
    console.out.print()
    for sentence in found.sentences:
        console.out.print(f"- {sentence}", markup=False)


def _row(option: "Option", found: "Advice") -> list[str]:
    """Make the row of a way to train."""
    begin = "new weights" if option is found.scratch else escape(option.start or option.published)
    mark = "[bold]" if option is found.chosen else ""
    return [
        mark + begin,
        escape(option.where),
        "" if option.folded is None else f"{option.folded.accuracy:.0%}",
        "" if option.forecast is None else f"{mark}{option.forecast.percentages}",
        f"{option.steps:,}",
        format_duration(option.seconds),
        format_bytes(option.memory),
    ]

"""`vitkit advise`: what to expect of images and starts, before anyone waits for a run."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.text import Text

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints, require_images
from vitkit.cli.options import JsonOption, importing, parse
from vitkit.data.config import Splits
from vitkit.jobs.advice.options import AdviseOptions
from vitkit.jobs.options import MachineOptions, as_arguments, as_names
from vitkit.text import format_bytes, format_duration

if TYPE_CHECKING:
    from vitkit.jobs.advice.advise import Advice, Option


@dataclass(frozen=True, kw_only=True)
class Command(JsonOption, MachineOptions, AdviseOptions):
    """Say what to do with images and what to expect, before anyone waits for a run.

    Images are counted and looked at, this machine's speed is measured, and frozen features of each start are
    probed on training images. --go trains as advised."""

    splits: Splits = field(default_factory=Splits)
    go: bool = False
    """train as advised, and compare the expectation with the result."""
    out: str | None = None
    """run folder of --go; left out, runs/DATA-MODEL."""


def main(arguments: list[str]) -> None:
    """Parse the command line, give advice, and follow it with --go."""
    options = parse(Command, arguments, "advise")
    line = shlex.join(["vitkit", "advise", *arguments])
    require_images(options.data)
    starts = as_names(options.starts)
    require_checkpoints(*starts)
    with importing():
        import torch

        from vitkit.jobs.advice.advise import follow, run_advise
        from vitkit.runs.machine import require_threads

    require_threads(options.threads)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    console.download(*starts)
    advice = run_advise(options)
    console.print_result(advice, options.json, _print)
    if options.go:
        machine = as_arguments(MachineOptions, options)
        folder = follow(advice, options.out, command=line, listener=options.listener, **machine)
        console.print_next(f"open {folder / 'report.html'} in a browser")
    elif not options.json:
        if advice.can_go:
            following = f"{shlex.join(['vitkit', 'advise', options.data, *starts])} --go   (trains so)"
        elif advice.default:
            following = f"vitkit finetune {shlex.quote(options.data)}   (from {advice.default})"
        else:
            following = f"vitkit advise {shlex.quote(options.data)} START"
        console.print_next(following)


def _print(advice: "Advice") -> None:
    """Print what is in the images, the ways to train on them, and the advice in sentences."""
    tested = f", {advice.tested:,} to test on" if advice.tested else ""
    console.out.print(
        f"[bold]{escape(advice.name)}[/]: {advice.images:,} training images{tested}, "
        f"{advice.classes:,} classes"
    )
    for warning in () if advice.check is None else advice.check.warnings:
        console.out.print(f"  [yellow]![/] {escape(warning)}")
    console.print_lines("")
    console.print_table(
        ("begin from", "model", "probe", "expected", "steps", "time", "memory"),
        (_cells(option, advice) for option in (*advice.options, advice.scratch)),
        text=(0, 1),
    )
    console.print_lines("")
    for sentence in advice.sentences:
        console.out.print(f"- {sentence}", markup=False)


def _cells(option: "Option", advice: "Advice") -> list[str | Text]:
    """Write the row of a way to train; the advised way stands out."""
    mark: Callable[[str], str | Text] = console.bold if option is advice.chosen else str
    return [
        mark("new weights" if option is advice.scratch else option.start or option.published),
        option.where,
        "" if option.folded is None else f"{option.folded.accuracy:.0%}",
        "" if option.forecast is None else mark(option.forecast.percentages),
        f"{option.steps:,}",
        format_duration(option.seconds),
        format_bytes(option.memory),
    ]

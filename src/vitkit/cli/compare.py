"""`vitkit compare`: two models on the same images, which is better and where they differ."""

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.markup import escape

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints, require_images
from vitkit.cli.help import HelpPage
from vitkit.cli.options import importing, parse
from vitkit.jobs.compare.options import CompareOptions
from vitkit.text import pluralize

if TYPE_CHECKING:
    from vitkit.jobs.compare.result import ModelComparison

CLASSES_SHOWN = 6


@dataclass(frozen=True)
class Command(CompareOptions):
    """Compare two models on the same images: vitkit compare runs/one runs/other.

    Evaluations that two runs hold of the same test images are read; otherwise, or with --data, both are
    evaluated. Stopped anywhere, the same command goes on."""

    data: str | None = None
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """print all numbers as JSON."""


HELP = HelpPage(
    "FIRST SECOND [OPTIONS]",
    ("--data", "--split", "--out", "--speed-seconds", "--threads", "--device", "--batch-size", "--json"),
    (
        "vitkit compare runs/digits-seed0 runs/digits-seed1",
        "vitkit compare runs/photos vit-b16-augreg --data new_photos/",
    ),
)


def main(arguments: list[str]) -> None:
    """Parse the command line, compare, and print what came of it."""
    options: Command = parse(Command, arguments, "compare", HELP)
    require_checkpoints(options.first, options.second)
    require_images(options.data)
    with importing():
        from vitkit.cli.console import download
        from vitkit.jobs.compare.compare import run_compare

    download(options.first)
    download(options.second)
    found = run_compare(options)
    if options.json_output:
        console.print_json(found.to_json())
    else:
        _print(found)


def _print(found: "ModelComparison") -> None:
    """Print the answer, both models side by side, and the classes that changed most."""
    from vitkit.jobs.compare.result import (
        class_table,
        conclusions,
        measure_table,
        option_table,
        speed_sentence,
    )

    answer, *sentences = conclusions(found)
    measures = console.lay_out(measure_table(found))
    measures.columns[1].justify = "left"  # words and intervals: there is no digit to align
    console.out.print(measures)
    console.out.print(f"\n[bold]{escape(answer)}[/]", soft_wrap=True)
    more = [*sentences, speed_sentence(found)]
    console.out.print(*filter(None, more), sep="\n", markup=False, soft_wrap=True)
    changed = class_table(found, CLASSES_SHOWN)
    if changed.rows:
        console.out.print()
        classes = console.lay_out(changed)
        classes.columns[-1].justify = "right"
        console.out.print(classes)
        if len(found.classes) > len(changed.rows):
            left = len(found.classes) - len(changed.rows)
            console.out.print(f" ... and {pluralize(left, 'more class', 'more classes')} on the page.")
    options = option_table(found)
    if options is not None:
        console.out.print()
        console.out.print(console.lay_out(options))
    elif found.options is not None:
        console.out.print("\nThe two were trained with the same options.")
    better = found.second if found.difference.mean > 0 else found.first
    lines = [f"Next:    open {found.page} in a browser"]
    if found.difference.differs:
        lines.append(f"         vitkit predict {shlex.quote(better.given)} IMAGE_OR_FOLDER")
    console.out.print("", *lines, sep="\n", markup=False, soft_wrap=True)

"""`vitkit compare`: two models on the same images, which is better and where they differ."""

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.markup import escape

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints, require_images
from vitkit.cli.options import JsonOption, importing, parse
from vitkit.jobs.compare.options import CompareOptions
from vitkit.text import pluralize

if TYPE_CHECKING:
    from vitkit.jobs.compare.result import ModelComparison

CLASSES_SHOWN = 6
"""Classes whose accuracy changed most that are printed; the page has all."""


@dataclass(frozen=True, kw_only=True)
class Command(JsonOption, CompareOptions):
    """Compare two models on the same images: vitkit compare runs/one runs/other.

    Evaluations that two runs hold of the same test images are read; otherwise, or with --data, both are
    evaluated. Stopped anywhere, the same command goes on."""


def main(arguments: list[str]) -> None:
    """Parse the command line, compare, and print the comparison."""
    options = parse(Command, arguments, "compare")
    require_checkpoints(options.first, options.second)
    require_images(options.data)
    with importing():
        from vitkit.jobs.compare.compare import run_compare

    console.download(options.first, options.second)
    comparison = run_compare(options)
    console.print_result(comparison, options.json, _print)


def _print(comparison: "ModelComparison") -> None:
    """Print the answer, both models side by side, and the classes that changed most."""
    from vitkit.jobs.compare.result import (
        class_table,
        conclusions,
        measure_table,
        option_table,
        speed_sentence,
    )

    answer, *sentences = conclusions(comparison)
    measures = measure_table(comparison)
    console.print_table(measures.headings, measures.rows, text=range(3))
    console.out.print(f"\n[bold]{escape(answer)}[/]", soft_wrap=True)
    console.print_lines(*filter(None, [*sentences, speed_sentence(comparison)]))
    classes = class_table(comparison, CLASSES_SHOWN)
    if classes.rows:
        console.print_lines("")
        console.print_table(classes.headings, classes.rows)
        left = len(comparison.classes) - len(classes.rows)
        if left > 0:
            console.print_lines(f"... and {pluralize(left, 'more class', 'more classes')} on the page.")
    options = option_table(comparison)
    if options is not None:
        console.print_lines("")
        console.print_table(options.headings, options.rows, text=range(3))
    elif comparison.options is not None:
        console.print_lines("\nThe two were trained with the same options.")
    better = comparison.second if comparison.difference.mean > 0 else comparison.first
    following = [f"open {comparison.page} in a browser"]
    if comparison.difference.differs:
        following.append(f"vitkit predict {shlex.quote(better.given)} IMAGE_OR_FOLDER")
    console.print_next(*following)

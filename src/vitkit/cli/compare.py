"""`vitkit compare`: two models on the same images, which is better and where they differ."""

import shlex
from typing import TYPE_CHECKING

from rich.markup import escape

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints, require_images
from vitkit.cli.options import call, importing, parse_given
from vitkit.cli.verb_options import JSON, describe
from vitkit.jobs.functions import read_signature
from vitkit.text import pluralize

if TYPE_CHECKING:
    from vitkit.jobs.compare.result import ModelComparison

CLASSES_SHOWN = 6
"""Classes whose accuracy changed most that are printed; the page has all."""


SIGNATURE = read_signature("vitkit.jobs.compare.compare", "compare")
OPTIONS = (*describe(SIGNATURE), JSON)


def main(arguments: list[str]) -> None:
    """Parse the command line, compare, and print the comparison."""
    given = parse_given(SIGNATURE, OPTIONS, arguments, "compare")
    models = given["first"], given["second"]
    require_checkpoints(*models)
    require_images(given.get("data"))
    with importing():
        from vitkit.jobs.compare.compare import compare

    console.download(*models)
    console.print_result(call(compare, given, OPTIONS), bool(given.get("json")), _print)


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

"""`vitkit fewshot`: learn classes from a few images by the features of a checkpoint."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.cli import console
from vitkit.cli.options import Verb
from vitkit.cli.processes import start_several
from vitkit.cli.verb_options import JSON, PROCESSES
from vitkit.runs.destination import require_folder

if TYPE_CHECKING:
    from vitkit.jobs.fewshot.fewshot import FewShot

HARDEST_SHOWN = 3
"""Classes with the lowest accuracy that are printed for each model."""
DRAWS_SHOWN = 5
"""Accuracies of single draws that the table has room for."""

KEEP = Verb("fewshot", "vitkit.jobs.fewshot.fewshot", "keep_fewshot")
VERB = Verb("fewshot", "vitkit.jobs.fewshot.fewshot", "fewshot", JSON, *KEEP.only("out"), PROCESSES)


def main(arguments: list[str]) -> None:
    """Parse the command line, measure, and print the numbers."""
    if start_several("fewshot", arguments):
        return
    given = VERB.parse(arguments)
    if "out" in given:  # before minutes of measurements
        require_folder(Path(given["out"]))
    measured = VERB.call(given)
    paths = KEEP.call(given, measured)
    if given.get("json"):
        console.print_json(measured.to_json())
        return
    from vitkit.jobs.fewshot.fewshot import score_table

    table = score_table(measured)
    console.print_table(table.headings, table.rows, text=(0, 1) if len(measured.models) > 1 else (0,))
    _print_remarks(measured)
    console.print_lines(*map(str, paths))
    size = given.get("image_size")
    of_size = [] if size is None else ["--image-size", *map(str, size)]
    following = shlex.join(["vitkit", "fewshot", *given["starts"], "ANOTHER", given["data"], *of_size])
    console.print_next(f"{following}   (to compare them)")


def _print_remarks(measured: "FewShot") -> None:
    """Print the accuracy of guessing, the hardest classes, and the images that could not be read."""
    from vitkit.jobs.fewshot.fewshot import describe_guessing

    console.out.print(describe_guessing(measured), markup=False)
    if len(measured.class_names) > 2:
        for model in measured.models:
            best = model.best
            classes = [
                (accuracy, name)
                for accuracy, name in zip(best.class_accuracy, measured.class_names, strict=True)
                if accuracy is not None
            ]
            hardest = [f"{name} {accuracy:.0%}" for accuracy, name in sorted(classes)[:HARDEST_SHOWN]]
            console.out.print(
                f"Hardest for {model.name} ({best.method}, {best.shots:,} shots): {', '.join(hardest)}.",
                markup=False,
            )
    console.print_rejects(measured.rejects, "were left out")

"""`vitkit fewshot`: learn classes from a few images by the features of a checkpoint."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from vitkit.cli import console
from vitkit.cli.options import Verb
from vitkit.cli.processes import PROCESSES, start_several
from vitkit.cli.verb_options import JSON
from vitkit.runs.destination import require_folder

if TYPE_CHECKING:
    from vitkit.jobs.fewshot.result import FewShot, FewShotModel

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
    if len(measured.models) == 1:
        _print_model(measured, measured.models[0])
    else:
        _print_models(measured)
    _print_remarks(measured)
    console.print_lines(*map(str, paths))
    size = given.get("image_size")
    of_size = [] if size is None else ["--image-size", *map(str, size)]
    following = shlex.join(["vitkit", "fewshot", *given["starts"], "ANOTHER", given["data"], *of_size])
    console.print_next(f"{following}   (to compare them)")


def _print_model(measured: "FewShot", model: "FewShotModel") -> None:
    """Print the numbers of a single checkpoint, a row for each method and number of shots."""
    rows = []
    for score in model.scores:
        interval = score.shown_interval
        rows.append(
            (
                score.method if score.shots == measured.shots[0] else "",
                f"{score.shots:,}",
                console.bold(f"{score.mean:.2%}"),
                "" if score.deviation is None else f"{score.deviation:.2%}",
                "" if interval is None else f"{interval[0]:.1%} to {interval[1]:.1%}",
                " ".join(f"{accuracy:.1%}" for accuracy in score.accuracies[:DRAWS_SHOWN]),
            )
        )
    console.print_table(("method", "shots", "accuracy", "deviation", "95 % over draws", "each draw"), rows)


def _print_models(measured: "FewShot") -> None:
    """Print the numbers of several checkpoints, a column for each number of shots."""
    rows: list[tuple[str | Text, ...]] = []
    for method in dict.fromkeys(score.method for score in measured.models[0].scores):
        for number, model in enumerate(measured.models):
            cells = [
                Text.assemble(
                    (f"{score.mean:.1%}", "bold"),
                    "" if score.deviation is None else f" ±{100 * score.deviation:.1f}",
                )
                for score in model.of_method(method)
            ]
            rows.append((method if number == 0 else "", model.name, *cells))
    shots = [f"{count:,} shots" if count > 1 else "1 shot" for count in measured.shots]
    console.print_table(("method", "checkpoint", *shots), rows, text=(0, 1))


def _print_remarks(measured: "FewShot") -> None:
    """Print the accuracy of guessing, the hardest classes, and the images that could not be read."""
    console.out.print(
        f"On {measured.test_images:,} {measured.test_split} images of {measured.data_name} in "
        f"{len(measured.class_names):,} classes: a class drawn at random is right for {measured.chance:.1%}, "
        f"always naming the most frequent class for {measured.majority:.1%}.",
        markup=False,
    )
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

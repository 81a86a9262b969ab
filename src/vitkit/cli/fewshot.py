"""`vitkit fewshot`: learn classes from a few images by the features of a checkpoint."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints, require_images
from vitkit.cli.options import JsonOption, importing, parse
from vitkit.cli.processes import start_several
from vitkit.jobs.fewshot.options import FewShotOptions
from vitkit.models.config.image_config import height_and_width
from vitkit.runs.destination import require_folder

if TYPE_CHECKING:
    from vitkit.jobs.fewshot.result import FewShot, FewShotModel

HARDEST_SHOWN = 3
"""Classes with the lowest accuracy that are printed for each model."""
DRAWS_SHOWN = 5
"""Accuracies of single draws that the table has room for."""


@dataclass(frozen=True, kw_only=True)
class Command(JsonOption, FewShotOptions):
    """Measure how well classes are learned from a few images, by the features of frozen checkpoints."""

    out: str | None = None
    """folder for the numbers and the plot; left out, fewshot/ in the run folder, or in the working folder."""
    processes: int = 1
    """processes that compute features together on this machine, one for each GPU or some for its
    processors; the numbers are the same. On several machines: torchrun ... -m vitkit fewshot."""


def main(arguments: list[str]) -> None:
    """Parse the command line, measure, and print the numbers."""
    if start_several("fewshot", arguments):
        return
    options = parse(Command, arguments, "fewshot")
    if options.out is not None:  # before minutes of measurements
        require_folder(Path(options.out))
    require_checkpoints(*options.checkpoints)
    require_images(options.data)
    with importing():
        from vitkit.jobs.fewshot.fewshot import keep_fewshot, run_fewshot

    console.download(*options.checkpoints)
    measured = run_fewshot(options)
    paths = keep_fewshot(options, measured, options.out)
    if options.json:
        console.print_json(measured.to_json())
        return
    if len(measured.models) == 1:
        _print_model(measured, measured.models[0])
    else:
        _print_models(measured)
    _print_remarks(measured)
    console.print_lines(*map(str, paths))
    size = height_and_width(options.image_size)
    of_size = "" if size is None else f" --image-size {size[0]} {size[1]}"
    starts, data = shlex.join(options.checkpoints), shlex.quote(options.data)
    console.print_next(f"vitkit fewshot {starts} ANOTHER {data}{of_size}   (to compare them)")


def compute_part(arguments: list[str]) -> None:
    """Compute a part of the features for the numbers that process 0 prints."""
    from vitkit.jobs.fewshot.fewshot import run_fewshot

    run_fewshot(parse(Command, arguments, "fewshot"))


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

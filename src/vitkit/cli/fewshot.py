"""`vitkit fewshot`: learn classes from a few images by the features of a checkpoint."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints, require_images
from vitkit.cli.options import JsonOption, importing, parse
from vitkit.cli.processes import start_several
from vitkit.jobs.fewshot.options import FewShotOptions
from vitkit.models.config.image_config import height_and_width
from vitkit.runs.destination import require_folder

if TYPE_CHECKING:
    from vitkit.jobs.fewshot.fewshot import FewShot

HARDEST_SHOWN = 3
"""Classes with the lowest accuracy that are printed for each model."""


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
        from vitkit.jobs.fewshot.fewshot import keep_fewshot, run_fewshot, score_table

    console.download(*options.checkpoints)
    measured = run_fewshot(options)
    paths = keep_fewshot(options, measured, options.out)
    if options.json:
        console.print_json(measured.to_json())
        return
    table = score_table(measured)
    console.print_table(table.headings, table.rows, text=(0, 1) if len(measured.models) > 1 else (0,))
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

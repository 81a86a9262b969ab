"""`vitkit fewshot`: learn classes from a few images by the features of a checkpoint."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.markup import escape
from rich.table import Table

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints, require_images
from vitkit.cli.help import HelpPage
from vitkit.cli.options import importing, parse, take_option
from vitkit.cli.processes import start_several
from vitkit.jobs.fewshot.options import FewShotOptions
from vitkit.models.config.image_config import height_and_width
from vitkit.runs.destination import require_folder

if TYPE_CHECKING:
    from vitkit.jobs.fewshot.result import FewShot, FewShotModel

HARDEST_SHOWN = 3


@dataclass(frozen=True)
class Command(FewShotOptions):
    """Measure how well classes are learned from a few images, by the features of frozen checkpoints."""

    out: str | None = None
    """folder for the numbers and the plot; left out, fewshot/ in the run folder, or in the working folder."""
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """print all numbers as JSON."""
    processes: int = 1
    """processes that compute features together on this machine, one for each GPU or some for its
    processors; the numbers are the ones of one process. On several machines: torchrun ... -m vitkit
    fewshot."""


HELP = HelpPage(
    "START... --data DATA [OPTIONS]",
    (
        "--data",
        "--shots",
        "--seeds",
        "--methods",
        "--image-size",
        "--out",
        "--batch-size",
        "--device",
        "--processes",
        "--json",
    ),
    (
        "vitkit fewshot vit-ti16-augreg-in21k --data my_photos/",
        "vitkit fewshot runs/a runs/b --data digits --shots 1,5",
    ),
)


def main(arguments: list[str]) -> None:
    """Parse the command line, measure, and print the numbers, which one of several processes does."""
    arguments = list(arguments)
    if start_several(take_option(arguments, "--processes"), "fewshot", arguments):
        return
    options: Command = parse(Command, arguments, "fewshot", HELP)
    if options.out is not None:  # now, and not when all has been measured
        require_folder(Path(options.out))
    require_checkpoints(*options.checkpoints)
    require_images(options.data)
    with importing():
        from vitkit.cli.console import download
        from vitkit.jobs.fewshot.fewshot import keep_fewshot, run_fewshot

    for start in options.checkpoints:
        download(start)
    found = run_fewshot(options)
    kept = keep_fewshot(options, found, options.out)
    if options.json_output:
        console.print_json(found.to_json())
        return
    console.out.print(_one(found, found.models[0]) if len(found.models) == 1 else _several(found))
    _print_more(found)
    for path in kept:
        console.out.print(str(path), markup=False, soft_wrap=True)
    starts = shlex.join(options.checkpoints)
    shown = height_and_width(options.image_size)
    size = "" if shown is None else f" --image-size {' '.join(map(str, shown))}"
    following = (
        f"vitkit fewshot {starts} ANOTHER --data {shlex.quote(options.data)}{size}   (to compare them)"
    )
    console.out.print(f"Next: {following}", markup=False, soft_wrap=True)


def compute_part(arguments: list[str]) -> None:
    """Compute a part of the features of what process 0 prints."""
    from vitkit.jobs.fewshot.fewshot import run_fewshot

    run_fewshot(parse(Command, arguments, "fewshot", HELP))


def _one(found: "FewShot", model: "FewShotModel") -> Table:
    """Put the numbers of one checkpoint in a table, a row for each method and number of shots."""
    table = Table("method", "shots", "accuracy", "deviation", "95 % over draws", "each draw", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for score in model.scores:
        interval = score.shown_interval
        table.add_row(
            score.method if score.shots == found.shots[0] else "",
            f"{score.shots:,}",
            f"[bold]{score.mean:.2%}[/]",
            "" if score.deviation is None else f"{score.deviation:.2%}",
            "" if interval is None else f"{interval[0]:.1%} to {interval[1]:.1%}",
            " ".join(f"{accuracy:.1%}" for accuracy in score.accuracies[:5]),
        )
    return table


def _several(found: "FewShot") -> Table:
    """Put the numbers of several checkpoints in a table, a column for each number of shots."""
    shots = [f"{count:,} shots" if count > 1 else "1 shot" for count in found.shots]
    table = Table("method", "checkpoint", *shots, box=None)
    for column in table.columns[2:]:
        column.justify = "right"
    for method in dict.fromkeys(score.method for score in found.models[0].scores):
        for number, model in enumerate(found.models):
            cells = [
                f"[bold]{score.mean:.1%}[/]"
                + ("" if score.deviation is None else f" ±{100 * score.deviation:.1f}")
                for score in model.of_method(method)
            ]
            table.add_row(method if number == 0 else "", escape(model.name), *cells)
    return table


def _print_more(found: "FewShot") -> None:
    """Print what the numbers are to be compared with, the hardest classes, and the files that are bad."""
    console.out.print(
        f"On {found.test_images:,} {found.test_split} images of {found.data_name} in "
        f"{len(found.class_names):,} classes: guessing is right for {found.chance:.1%}, always naming the "
        f"most frequent class for {found.majority:.1%}.",
        markup=False,
    )
    if len(found.class_names) > 2:
        for model in found.models:
            best = model.best
            classes = [
                (share, name)
                for share, name in zip(best.class_accuracy, found.class_names, strict=True)
                if share is not None
            ]
            hardest = ", ".join(f"{name} {share:.0%}" for share, name in sorted(classes)[:HARDEST_SHOWN])
            console.out.print(
                f"Hardest for {model.name} ({best.method}, {best.shots:,} shots): {hardest}.",
                markup=False,
            )
    console.print_rejects(found.rejects, "were left out")

"""`vitkit evaluate`: measure a model on images it was not trained on."""

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.markup import escape

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints, require_images
from vitkit.cli.options import JsonOption, importing, parse
from vitkit.cli.processes import start_several
from vitkit.data.imagenet_config import ProtocolName
from vitkit.errors import VitkitError
from vitkit.jobs.options import EvaluateOptions, ProtocolFiles, ProtocolOptions, as_arguments
from vitkit.world import world_of_environment

if TYPE_CHECKING:
    from vitkit.evaluation.protocols import ProtocolResult
    from vitkit.jobs.evaluate import Evaluation
    from vitkit.tasks.page import Table

ROWS_SHOWN = 40
"""Rows of a task's table that are printed."""
WORST_SHOWN = 10
"""Classes with the lowest accuracy by a protocol that are printed."""


@dataclass(frozen=True, kw_only=True)
class Command(JsonOption, ProtocolFiles, EvaluateOptions):
    """Evaluate a model on images it was not trained on."""

    protocol: ProtocolName | None = None
    """score --data by the rules of this test set, for models of ImageNet's classes; left out, by the names of
    its folders."""
    processes: int = 1
    """processes that evaluate together on this machine, one for each GPU or some for its processors; the
    result is the same. On several machines: torchrun ... -m vitkit evaluate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol is None and (self.labels is not None or self.wnids is not None):
            raise VitkitError("--labels and --wnids belong to a --protocol: give one, or leave them out.")
        if self.protocol is not None and self.data is None:
            raise VitkitError(f"--protocol {self.protocol} needs --data, the folder of its images.")
        if self.protocol is not None and self.split is not None:
            raise VitkitError(f"--protocol {self.protocol} scores all images of --data: leave --split out.")


def main(arguments: list[str]) -> None:
    """Parse the command line, evaluate, and print the numbers."""
    if start_several("evaluate", arguments):
        return
    options = parse(Command, arguments, "evaluate")
    if options.protocol is not None and world_of_environment().size > 1:
        raise VitkitError("--protocol is scored by one process: leave --processes out, or torchrun.")
    require_checkpoints(options.path)
    require_images(options.data, options.labels, options.wnids)
    with importing():
        from vitkit.jobs.evaluate import keep_evaluation, run_evaluate, run_protocol

    console.download(options.path)
    if options.protocol is not None:
        result, rejects = run_protocol(ProtocolOptions(**as_arguments(ProtocolOptions, options)))
        if options.json:
            console.print_json({"rejects": rejects, **result.to_json()})
        else:
            _print_protocol(result, rejects)
        return
    evaluation = run_evaluate(options)
    path = keep_evaluation(options, evaluation)
    if options.json:
        record = {
            "model": str(evaluation.model.path),
            "data": evaluation.data.name,
            "split": "all" if evaluation.whole else evaluation.split,
            "rejects": evaluation.rejects,
            "kept_in": None if path is None else str(path),
        }
        console.print_json({**record, **evaluation.result.to_json()})
        return
    _print(evaluation)
    model = shlex.quote(str(options.path))
    if path is None:
        console.print_next(f"vitkit predict {model} IMAGE_OR_FOLDER")
    elif evaluation.trained_on:
        console.print_lines(f"Kept in {path}.")
        console.print_next(f"vitkit report {model}")
    else:
        console.print_lines(f"Kept in {path}: every class and confusion, and which images were mistaken.")
        console.print_next(f"vitkit predict {model} IMAGE_OR_FOLDER")


def compute_part(arguments: list[str]) -> None:
    """Compute a part of the evaluation that process 0 prints."""
    from vitkit.jobs.evaluate import run_evaluate

    run_evaluate(parse(Command, arguments, "evaluate"))


def _print(evaluation: "Evaluation") -> None:
    """Print the result in a sentence, the task's table, and the first images that could not be read."""
    split = "" if evaluation.whole else f"{evaluation.split} "
    figure, rest = evaluation.answering.summary(evaluation.result, f"{split}images of {evaluation.data.name}")
    console.out.print(f"[bold]{escape(figure)}[/]{escape(rest)}")
    details = evaluation.answering.details(evaluation.result)
    if details is not None:
        _print_details(details)
    console.print_rejects(evaluation.rejects, "count for nothing")


def _print_protocol(result: "ProtocolResult", rejects: dict[str, str]) -> None:
    """Print the accuracy by a protocol in a sentence, the images left out, and the worst classes."""
    low, high = result.accuracy_interval
    console.out.print(
        f"[bold]{result.accuracy:.2%}[/] accuracy by {result.protocol} on {result.count:,} images "
        f"(95 % interval {low:.1%} to {high:.1%}), choosing among {result.candidates:,} classes"
    )
    low, high = result.top5_accuracy_interval
    console.out.print(
        f"{result.top5_accuracy:.2%} top-5: one of the five likeliest classes is right "
        f"(95 % interval {low:.1%} to {high:.1%})"
    )
    for reason, count in result.left_out.items():
        console.out.print(f"Left out: {count:,} image{'s' * (count != 1)}, {reason}.", markup=False)
    console.print_rejects(rejects, "count for nothing")
    console.print_lines(f"The {result.note}.")
    worst = result.per_class[:WORST_SHOWN]
    console.print_table(
        ("worst classes", "right", "images"),
        ((score.name, f"{score.accuracy:.1%}", f"{score.count:,}") for score in worst),
    )
    console.print_next("the same command with --json   (every class)")


def _print_details(details: "Table") -> None:
    """Print the first rows of a task's table."""
    text = [number for number, cells in enumerate(zip(*details.rows, strict=True)) if str in map(type, cells)]
    console.print_table(details.headings, details.rows[:ROWS_SHOWN], text=text)
    if len(details.rows) > ROWS_SHOWN:
        console.out.print(f"... and {len(details.rows) - ROWS_SHOWN:,} more; --json and the report have all.")

"""`vitkit evaluate`: measure a model on images it was not trained on."""

import shlex
from typing import TYPE_CHECKING

from rich.markup import escape

from vitkit.cli import console
from vitkit.cli.options import Verb
from vitkit.cli.processes import start_several
from vitkit.cli.verb_options import JSON, PROCESSES
from vitkit.errors import VitkitError
from vitkit.world import world_of_environment

if TYPE_CHECKING:
    from vitkit.evaluation.protocols import ProtocolResult
    from vitkit.jobs.evaluate import Evaluation

ROWS_SHOWN = 40
"""Rows of a task's table that are printed."""
WORST_SHOWN = 10
"""Classes with the lowest accuracy by a protocol that are printed."""

PROTOCOL = Verb("evaluate", "vitkit.jobs.evaluate", "evaluate_protocol")
OF_PROTOCOL = PROTOCOL.only("protocol", "labels", "wnids")
VERB = Verb("evaluate", "vitkit.jobs.evaluate", "evaluate", *OF_PROTOCOL, JSON, PROCESSES)


def main(arguments: list[str]) -> None:
    """Parse the command line, evaluate, and print the numbers."""
    if start_several("evaluate", arguments):
        return
    given = VERB.parse(arguments)
    protocol = given.get("protocol")
    if protocol is None and {"labels", "wnids"} & {*given}:
        raise VitkitError("--labels and --wnids belong to a --protocol: give one, or leave them out.")
    if protocol is not None and "data" not in given:
        raise VitkitError(f"--protocol {protocol} needs --data, the folder of its images.")
    if protocol is not None and "split" in given:
        raise VitkitError(f"--protocol {protocol} scores all images of --data: leave --split out.")
    if protocol is not None and world_of_environment().size > 1:
        raise VitkitError("--protocol is scored by one process: leave --processes out, or torchrun.")
    if protocol is not None:
        console.print_result(PROTOCOL.call(given), bool(given.get("json")), _print_protocol)
        return
    evaluation = VERB.call(given)
    from vitkit.jobs.evaluate import keep_evaluation

    path = keep_evaluation(evaluation, console.TerminalListener())
    if given.get("json"):
        record = {
            "model": evaluation.model.name,
            "data": evaluation.data.name,
            "split": "all" if evaluation.whole else evaluation.split,
            "rejects": evaluation.rejects,
            "kept_in": None if path is None else str(path),
        }
        console.print_json({**record, **evaluation.result.to_json()})
        return
    _print(evaluation)
    model = shlex.quote(given["path"])
    if path is None:
        console.print_next(f"vitkit predict {model} IMAGE_OR_FOLDER")
    elif evaluation.trained_on:
        console.print_lines(f"Kept in {path}.")
        console.print_next(f"vitkit report {model}")
    else:
        console.print_lines(f"Kept in {path}: every class and confusion, and which images were mistaken.")
        console.print_next(f"vitkit predict {model} IMAGE_OR_FOLDER")


def _print(evaluation: "Evaluation") -> None:
    """Print the result in a sentence, the task's table, and the first images that could not be read."""
    split = "" if evaluation.whole else f"{evaluation.split} "
    figure, rest = evaluation.answering.summary(evaluation.result, f"{split}images of {evaluation.data.name}")
    console.out.print(f"[bold]{escape(figure)}[/]{escape(rest)}")
    details = evaluation.answering.details(evaluation.result)
    if details is not None:
        cells = enumerate(zip(*details.rows, strict=True))
        text = [number for number, column in cells if str in map(type, column)]
        console.print_table(details.headings, details.rows[:ROWS_SHOWN], text=text)
        if len(details.rows) > ROWS_SHOWN:
            left = len(details.rows) - ROWS_SHOWN
            console.out.print(f"... and {left:,} more; --json and the report have all.")
    console.print_rejects(evaluation.rejects, "count for nothing")


def _print_protocol(result: "ProtocolResult") -> None:
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
    console.print_rejects(result.rejects, "count for nothing")
    console.print_lines(f"The {result.note}.")
    worst = result.per_class[:WORST_SHOWN]
    console.print_table(
        ("worst classes", "right", "images"),
        ((score.name, f"{score.accuracy:.1%}", f"{score.count:,}") for score in worst),
    )
    console.print_next("the same command with --json   (every class)")

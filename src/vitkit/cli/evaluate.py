"""`vitkit evaluate`: measure a model on images it was not trained on."""

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.markup import escape
from rich.table import Table

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints, require_images
from vitkit.cli.help import HelpPage
from vitkit.cli.options import importing, parse, take_option
from vitkit.cli.processes import start_several
from vitkit.data.imagenet_config import ProtocolName
from vitkit.errors import VitkitError
from vitkit.jobs.options import EvaluateOptions, ProtocolFiles, ProtocolOptions, as_arguments
from vitkit.text import visible
from vitkit.world import world_of_environment

if TYPE_CHECKING:
    from vitkit.evaluation.protocols import ProtocolResult
    from vitkit.jobs.evaluate import Evaluation
    from vitkit.tasks.page import Table as TaskTable

ROWS_SHOWN = 40
WORST_SHOWN = 10


@dataclass(frozen=True)
class Command(ProtocolFiles, EvaluateOptions):
    """Evaluate a model on images it was not trained on."""

    protocol: ProtocolName | None = None
    """score --data as the test set of that name is scored, for models of ImageNet's classes; left out, by the
    names of its folders."""
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """print all numbers as JSON."""
    processes: int = 1
    """processes that evaluate together on this machine, one for each GPU or some for its processors; the
    result is that of one process. On several machines: torchrun ... -m vitkit evaluate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol is None and (self.labels is not None or self.wnids is not None):
            raise VitkitError("--labels and --wnids belong to a --protocol: give one, or leave them out.")
        if self.protocol is not None and self.data is None:
            raise VitkitError(f"--protocol {self.protocol} needs --data, the folder of its images.")
        if self.protocol is not None and self.split is not None:
            raise VitkitError(f"--protocol {self.protocol} scores all images of --data: leave --split out.")


HELP = HelpPage(
    "MODEL [OPTIONS]",
    (
        "--data",
        "--split",
        "--protocol",
        "--batch-size",
        "--image-size",
        "--precision",
        "--device",
        "--workers",
        "--processes",
        "--json",
    ),
    (
        "vitkit evaluate runs/digits-ViT-96x6x3-4",
        "vitkit evaluate runs/my_photos-ViT-Ti-16 --data new_photos/ --json",
    ),
)


def main(arguments: list[str]) -> None:
    """Parse the command line, evaluate, and print the numbers, which one of several processes does."""
    arguments = list(arguments)
    if start_several(take_option(arguments, "--processes"), "evaluate", arguments):
        return
    options: Command = parse(Command, arguments, "evaluate", HELP)
    if options.protocol is not None and world_of_environment().size > 1:
        raise VitkitError("--protocol is scored by one process: leave --processes out, or torchrun.")
    require_checkpoints(options.path)
    require_images(options.data, options.labels, options.wnids)
    with importing():
        from vitkit.cli.console import download
        from vitkit.jobs.evaluate import keep_evaluation, run_evaluate, run_protocol

    download(options.path)
    if options.protocol is not None:
        result, rejects = run_protocol(ProtocolOptions(**as_arguments(ProtocolOptions, options)))
        if options.json_output:
            console.print_json({"rejects": rejects, **result.to_json()})
        else:
            _print_protocol(result, rejects)
        return
    found = run_evaluate(options)
    kept = keep_evaluation(options, found)
    if options.json_output:
        console.print_json({"split": found.split, "rejects": found.rejects, **found.result.to_json()})
        return
    _print(found)
    model = shlex.quote(str(options.path))
    if kept is not None:
        following = f"Kept in {kept}. Next: vitkit report {model}"
    else:
        following = f"Next: vitkit predict {model} IMAGE_OR_FOLDER"
    console.out.print(following, markup=False, soft_wrap=True)


def compute_part(arguments: list[str]) -> None:
    """Compute a part of the evaluation that process 0 prints."""
    from vitkit.jobs.evaluate import run_evaluate

    run_evaluate(parse(Command, arguments, "evaluate", HELP))


def _print(found: "Evaluation") -> None:
    """Print the numbers in a sentence, and the first files that could not be read."""
    split = "" if found.whole else f"{found.split} "
    figure, rest = found.answering.summary(found.result, f"{split}images of {found.data.name}")
    console.out.print(f"[bold]{escape(figure)}[/]{escape(rest)}")
    details = found.answering.details(found.result)
    if details is not None:
        _print_table(details)
    console.print_rejects(found.rejects, "count for nothing")


def _print_protocol(result: "ProtocolResult", rejects: dict[str, str]) -> None:
    """Print the accuracy by a protocol in a sentence, what was left out, and the worst classes."""
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
    console.out.print(f"The {result.note}.", markup=False, soft_wrap=True)
    table = Table("worst classes", "right", "images", box=None, pad_edge=False)
    for score in result.per_class[:WORST_SHOWN]:
        table.add_row(escape(visible(score.name)), f"{score.accuracy:.1%}", f"{score.count:,}")
    console.out.print(table)
    console.out.print("Next: the same command with --json   (every class)")


def _print_table(details: "TaskTable") -> None:
    """Print the first rows of a task's table."""
    from vitkit.tasks.page import Number

    table = Table(box=None, pad_edge=False)
    for column, heading in enumerate(details.headings):
        numbers = all(isinstance(row[column], Number) for row in details.rows)
        table.add_column(escape(heading), justify="right" if numbers else "left")
    for row in details.rows[:ROWS_SHOWN]:
        table.add_row(*(escape(visible(cell if isinstance(cell, str) else cell.text)) for cell in row))
    console.out.print(table)
    if len(details.rows) > ROWS_SHOWN:
        console.out.print(f"... and {len(details.rows) - ROWS_SHOWN:,} more; --json and the report have all.")

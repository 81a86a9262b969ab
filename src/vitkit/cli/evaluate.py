"""`vitkit evaluate`: how good a model is on images it was not trained on."""

import shlex
from typing import Annotated

import tyro
from rich.markup import escape

from vitkit.cli import console
from vitkit.cli.download import download
from vitkit.cli.listener import TerminalListener
from vitkit.cli.options import parse
from vitkit.jobs.evaluate import EvaluateOptions, Evaluation, keep_evaluation, run_evaluation

REJECTS_SHOWN = 10


def main(arguments: list[str]) -> None:
    parse(_evaluate, arguments, "evaluate")


def _evaluate(
    options: Annotated[EvaluateOptions, tyro.conf.arg(name="")],
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """Evaluate a model on images it was not trained on.

    Args:
        options: of the job.
        json_output: print all numbers as JSON.
    """
    download(options.model)
    listener = TerminalListener()
    found = run_evaluation(options, listener)
    kept = keep_evaluation(options, found, listener)
    if json_output:
        console.print_json({"split": found.split, "rejects": found.rejects, **found.result.to_json()})
        return
    _print(found)
    model = shlex.quote(options.model)
    if kept is not None:
        following = f"Kept in {kept}. Next: vitkit report {model}"
    else:
        following = f"Next: vitkit predict {model} IMAGE_OR_FOLDER"
    console.out.print(following, markup=False, soft_wrap=True)


def _print(found: Evaluation) -> None:
    """Print the numbers in a sentence, and the first files that could not be read."""
    split = "" if found.whole else f"{found.split} "
    figure, rest = found.task.summary(found.result, f"{split}images of {found.data.name}")
    console.out.print(f"[bold]{escape(figure)}[/]{escape(rest)}")
    if found.rejects:
        console.out.print(f"{len(found.rejects)} images could not be read and count for nothing:")
        for key, reason in list(found.rejects.items())[:REJECTS_SHOWN]:
            console.out.print(f"  {key}: {reason}", markup=False)

"""`vitkit finetune`: `vitkit train` from weights or on images that are named first."""

import shlex

from vitkit.cli import train
from vitkit.cli.help import ASKING
from vitkit.cli.mistakes import WrongCommandLine
from vitkit.jobs.finetune_options import sort_out

BESIDE_START = ("--data", "--resume", *ASKING)
"""Options beside which the first argument is the start: the images are given, or not needed."""


def main(arguments: list[str]) -> None:
    """Parse the command line and fine-tune: the first argument is the start or the images, the others are as
    for train."""
    if arguments and not arguments[0].startswith("-"):
        first, *others = arguments
        if others and not others[0].startswith("-"):
            start, data = shlex.quote(first), shlex.quote(others[0])
            raise WrongCommandLine(
                f"The images are given with --data: vitkit finetune {start} --data {data}. The first "
                "argument is the weights to begin from; alone, it may be the images."
            )
        names = {argument.partition("=")[0] for argument in others}
        start, data = (first, "") if names & {*BESIDE_START} else sort_out(first)
        if "--start" in names:
            start, data = "", first
        arguments = ["--start", start, *others] if start else ["--data", data, *others]
    train.run_verb(arguments, "finetune")

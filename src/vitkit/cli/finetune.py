"""`vitkit finetune`: `vitkit train` from the weights that are named first."""

import shlex

from vitkit.cli import train
from vitkit.errors import VitkitError


def main(arguments: list[str]) -> None:
    """Parse the command line and fine-tune: the first argument is the start, the others are as for train."""
    if arguments and not arguments[0].startswith("-"):
        start, *others = map(shlex.quote, arguments)
        if others and not others[0].startswith("-"):
            raise VitkitError(
                f"The images are given with --data: vitkit finetune {start} --data {others[0]}. What stands "
                "first are the weights to begin from."
            )
        arguments = ["--start", *arguments]
    elif not any(one.partition("=")[0] in ("--start", "--resume", "--help", "-h") for one in arguments):
        raise VitkitError(
            "Which weights to begin from? Give a run folder, a file or an address first: vitkit finetune "
            "START --data PATH."
        )
    train.run_verb(arguments, "finetune")

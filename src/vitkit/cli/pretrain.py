"""`vitkit pretrain`: `vitkit train` on images without labels, which are named first."""

import re
import shlex

from vitkit.cli import train
from vitkit.cli.help import ASKING
from vitkit.errors import VitkitError


def main(arguments: list[str]) -> None:
    """Parse the command line and pre-train: the first argument is the data, the others are as for train."""
    arguments = [re.sub(r"^--objective(?=\Z|=)", "--task", argument) for argument in arguments]
    names = {argument.partition("=")[0] for argument in arguments}
    if arguments and not arguments[0].startswith("-"):
        data, *others = arguments
        if others and not others[0].startswith("-"):
            raise VitkitError(
                f"A start is given with --start: vitkit pretrain {shlex.quote(data)} --start "
                f"{shlex.quote(others[0])}. The images to learn from stand first."
            )
        arguments = ["--data", *arguments]
    elif not names & {"--data", "--resume", *ASKING}:
        raise VitkitError(
            "Which images to learn from? Give a folder or file first: vitkit pretrain PATH. They need no "
            "labels."
        )
    if not names & {"--task", "--recipe", "--resume"}:
        arguments = [*arguments, "--task", "masked-patches"]
    train.run_verb(arguments, "pretrain")

"""`vitkit finetune`: `vitkit train` from the weights that are named first."""

import shlex
from pathlib import Path

from vitkit.cli import train
from vitkit.cli.help import ASKING
from vitkit.errors import VitkitError

IMAGES = (".csv", ".parquet")
"""Files that list images."""
WEIGHTS = (".json", ".safetensors", ".npz", ".pth", ".pt", ".bin", ".ckpt", ".tar")
"""Files by which a folder of weights, of a run or of a series is known."""


def main(arguments: list[str]) -> None:
    """Parse the command line and fine-tune: the first argument is the start, the others are as for train."""
    if arguments and not arguments[0].startswith("-"):
        start, *others = map(shlex.quote, arguments)
        if others and not others[0].startswith("-"):
            raise VitkitError(
                f"The images are given with --data: vitkit finetune {start} --data {others[0]}. What stands "
                "first are the weights to begin from."
            )
        if not any(one.partition("=")[0] in ("--data", "--resume", *ASKING) for one in others):
            _refuse_images(arguments[0])
        arguments = ["--start", *arguments]
    elif not any(one.partition("=")[0] in ("--start", "--resume", *ASKING) for one in arguments):
        raise VitkitError(
            "Which weights to begin from? Give a run folder, a file or an address first: vitkit finetune "
            "START --data PATH."
        )
    train.run_verb(arguments, "finetune")


def _refuse_images(start: str) -> None:
    """Refuse images in the place of the weights, where no images are given besides.

    Raises:
        VitkitError: it is the built-in data set, a table, or a folder without weights.
    """
    path = Path(start)
    of_images = start == "digits" or path.suffix.lower() in IMAGES
    if of_images or (path.is_dir() and not any(one.suffix in WEIGHTS for one in path.iterdir())):
        raise VitkitError(
            f"START is missing: expected the weights to begin from first, found {start}, which holds none. "
            f"Give them before the images: vitkit finetune START --data {shlex.quote(start)}. vitkit starts "
            "lists published ones."
        )

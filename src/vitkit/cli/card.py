"""`vitkit card`: what a checkpoint is and how it computes."""

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints
from vitkit.cli.help import HelpPage
from vitkit.cli.listener import TerminalListener
from vitkit.cli.options import importing, parse
from vitkit.jobs.options import CardOptions

if TYPE_CHECKING:
    from vitkit.weights import Identity


@dataclass(frozen=True)
class Command(CardOptions):
    """Describe a checkpoint: architecture, numerics, preprocessing, class names, origin."""

    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """print everything as JSON."""


HELP = HelpPage(
    "CHECKPOINT [OPTIONS]",
    (
        "--image-size",
        "--num-heads",
        "--json",
    ),
    (
        "vitkit card runs/digits-ViT-96x6x3-4",
        "vitkit card vit-ti16-augreg-in21k --json",
    ),
)


def main(arguments: list[str]) -> None:
    """Parse the command line and print the card of a checkpoint."""
    options: Command = parse(Command, arguments, "card", HELP)
    require_checkpoints(options.source)
    with importing():
        from vitkit.cli.console import download
        from vitkit.jobs.card import read_card, record

    download(options.source)
    identity = read_card(options)
    if options.json_output:
        console.print_json(record(identity))
    else:
        print_card(identity, str(options.source))


def print_card(identity: "Identity", file: str) -> None:
    """Print what a checkpoint is, and which commands can follow.

    Args:
        identity: what it is.
        file: how it was named on the command line.
    """
    from vitkit.jobs.card import summary
    from vitkit.tasks import answers

    TerminalListener().show(summary(identity))
    checkpoint = shlex.quote(file)
    following = [f"vitkit inspect {checkpoint}", f"vitkit convert {checkpoint} OUT"]
    if answers(identity.card, identity.config):
        following = [f"vitkit predict {checkpoint} IMAGE", *following]
    console.out.print("\nNext: " + "\n      ".join(following), markup=False, soft_wrap=True)

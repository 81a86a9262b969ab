"""`vitkit card`: what a checkpoint is and how it computes."""

import shlex
from dataclasses import dataclass

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints
from vitkit.cli.console import TerminalListener
from vitkit.cli.options import JsonOption, importing, parse
from vitkit.jobs.options import CardOptions


@dataclass(frozen=True, kw_only=True)
class Command(JsonOption, CardOptions):
    """Describe a checkpoint: architecture, numerics, preprocessing, class names, origin."""


def main(arguments: list[str]) -> None:
    """Parse the command line and print the card of a checkpoint."""
    options = parse(Command, arguments, "card")
    require_checkpoints(options.source)
    with importing():
        from vitkit.jobs.card import read_card, record, summary
        from vitkit.tasks import answers

    console.download(options.source)
    identity = read_card(options)
    if options.json:
        console.print_json(record(identity))
        return
    TerminalListener().show(summary(identity))
    checkpoint = shlex.quote(str(options.source))
    following = [f"vitkit inspect {checkpoint}", f"vitkit convert {checkpoint} OUT"]
    if answers(identity.card, identity.config):
        following = [f"vitkit predict {checkpoint} IMAGE", *following]
    console.print_next(*following)

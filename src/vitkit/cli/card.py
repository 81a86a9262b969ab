"""`vitkit card`: what a checkpoint is and how it computes."""

import shlex

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints
from vitkit.cli.console import TerminalListener
from vitkit.cli.options import call, importing, parse_given
from vitkit.cli.verb_options import JSON, describe
from vitkit.jobs.functions import read_signature

SIGNATURE = read_signature("vitkit.jobs.card", "read_card")
OPTIONS = (*describe(SIGNATURE), JSON)


def main(arguments: list[str]) -> None:
    """Parse the command line and print the card of a checkpoint."""
    given = parse_given(SIGNATURE, OPTIONS, arguments, "card")
    source = given["source"]
    require_checkpoints(source)
    with importing():
        from vitkit.jobs.card import read_card, record, summary
        from vitkit.tasks import answers

    console.download(source)
    identity = call(read_card, given, OPTIONS)
    if given.get("json"):
        console.print_json(record(identity))
        return
    TerminalListener().show(summary(identity))
    checkpoint = shlex.quote(source)
    following = [f"vitkit inspect {checkpoint}", f"vitkit convert {checkpoint} OUT"]
    if answers(identity.card, identity.config):
        following = [f"vitkit predict {checkpoint} IMAGE", *following]
    console.print_next(*following)

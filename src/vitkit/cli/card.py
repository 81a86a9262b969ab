"""`vitkit card`: what a checkpoint is and how it computes."""

import shlex

from vitkit.cli import console
from vitkit.cli.console import TerminalListener
from vitkit.cli.options import Verb
from vitkit.cli.verb_options import JSON

VERB = Verb("card", "vitkit.jobs.card", "read_card", JSON)


def main(arguments: list[str]) -> None:
    """Parse the command line and print the card of a checkpoint."""
    given = VERB.parse(arguments)
    identity, source = VERB.call(given), given["source"]
    from vitkit.jobs.card import record, summary
    from vitkit.tasks import answers

    if given.get("json"):
        console.print_json(record(identity))
        return
    TerminalListener().show(summary(identity))
    checkpoint = shlex.quote(source)
    following = [f"vitkit inspect {checkpoint}", f"vitkit convert {checkpoint} OUT"]
    if answers(identity.card, identity.config):
        following = [f"vitkit predict {checkpoint} IMAGE", *following]
    console.print_next(*following)

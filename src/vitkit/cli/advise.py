"""`vitkit advise`: what starts tell of images and what they cost, before anyone waits for a run."""

import shlex

from vitkit.cli import console
from vitkit.cli.options import Verb
from vitkit.cli.verb_options import JSON, Option

GO = Option("--go", "go", "", "train as advised.", False)
FOLLOW = Verb("advise", "vitkit.jobs.advise", "follow")
VERB = Verb("advise", "vitkit.jobs.advise", "advise", GO, *FOLLOW.only("out"), JSON)


def main(arguments: list[str]) -> None:
    """Parse the command line, give advice, and follow it with --go."""
    given = VERB.parse(arguments)
    advice = VERB.call(given)
    if not given.get("go"):
        console.print_result(advice, bool(given.get("json")))
        return
    if given.get("json"):
        console.print_json(advice.to_json())
    else:
        console.print_blocks(advice.blocks())
    line = shlex.join(["vitkit", "advise", *arguments])
    folder = FOLLOW.call(given, advice, command=line)
    console.print_next(f"open {folder / 'report.html'} in a browser")

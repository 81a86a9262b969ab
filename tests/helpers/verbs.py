"""The options and the help of every verb."""

from collections.abc import Iterator

from vitkit.cli.help import PAGES, VERBS, HelpPage
from vitkit.cli.options import Verb, home_of
from vitkit.cli.train import FIRST, describe_training
from vitkit.cli.verb_options import Option


def commands() -> Iterator[tuple[str, tuple[Option, ...] | None, HelpPage]]:
    """Yield each verb with the table of its options, unless it trains, and the page of its help."""
    for verb in VERBS:
        home = home_of(verb)
        if verb in FIRST:
            yield verb, None, PAGES[verb]
        else:
            named = "data check" if verb == "data" else verb
            job = getattr(home, "VERB", home)
            yield named, job.options if isinstance(job, Verb) else home.OPTIONS, PAGES[named]


COMMANDS = {verb: (command, page) for verb, command, page in commands()}


def options_of(verb: str) -> tuple[Option, ...]:
    """Describe the options of a verb, of training too where it trains one run by them."""
    command, _ = COMMANDS[verb]
    if verb not in FIRST:
        assert command is not None
        return command
    return describe_training(verb)

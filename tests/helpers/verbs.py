"""The options and the help of every verb."""

from vitkit.cli.help import PAGES, VERBS
from vitkit.cli.options import home_of
from vitkit.cli.train import FIRST, describe_training
from vitkit.cli.verb_options import Option

COMMANDS = {verb: PAGES[verb] for verb in (name.replace("data", "data check") for name in VERBS)}
"""The page of the help of each verb."""


def options_of(verb: str) -> tuple[Option, ...]:
    """Describe the options of a verb, of training too where it trains one run by them."""
    if verb in FIRST:
        return describe_training(verb)
    options: tuple[Option, ...] = home_of(verb.split()[0]).options
    return options

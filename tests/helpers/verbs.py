"""The options and the help of every verb."""

import importlib
from collections.abc import Iterator
from typing import Any

from vitkit.cli.help_pages import PAGES, HelpPage
from vitkit.cli.main import VERBS
from vitkit.cli.training_options import TRAINING_PAGES, PretrainCommand
from vitkit.cli.training_options import Command as TrainCommand


def commands() -> Iterator[tuple[str, type[Any], HelpPage]]:
    """Yield each verb with the dataclass of its options and the page of its help."""
    for verb, (_, name) in VERBS.items():
        module = importlib.import_module(name)
        if verb in TRAINING_PAGES:
            yield (
                verb,
                PretrainCommand if verb == "pretrain" else TrainCommand,
                TRAINING_PAGES[verb],
            )
        else:
            named = "data check" if verb == "data" else verb
            yield named, module.Command, PAGES[named]


COMMANDS = {verb: (command, page) for verb, command, page in commands()}

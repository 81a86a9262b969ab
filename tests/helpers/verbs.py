"""The options and the help of every verb."""

import importlib
from collections.abc import Iterator
from typing import Any

from vitkit.cli.help import HelpPage
from vitkit.cli.main import VERBS
from vitkit.cli.training_options import PAGES, PretrainCommand
from vitkit.cli.training_options import Command as TrainCommand


def commands() -> Iterator[tuple[str, type[Any], HelpPage]]:
    """Yield each verb with the dataclass of its options and the page of its help."""
    for verb, (_, name) in VERBS.items():
        module = importlib.import_module(name)
        if verb in PAGES:
            yield (
                verb,
                PretrainCommand if verb == "pretrain" else TrainCommand,
                PAGES[verb],
            )
        else:
            yield "data check" if verb == "data" else verb, module.Command, module.HELP


COMMANDS = {verb: (command, page) for verb, command, page in commands()}

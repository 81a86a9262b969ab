"""The exceptions whose messages are written for the user."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

_OPTION = re.compile(
    r"vitkit [a-z]+(?:(?![.:;,)](?:\s|$)).)*"  # a command, which stays as it is typed
    r"|(?<![\w/.-])--(?P<name>[a-z][a-z0-9]*(?:[.-][a-z0-9]+)*)"
)


def in_python(message: str) -> str:
    """Name parameters where a message names options: "--splits.val-fraction" is `splits_val_fraction`."""
    return _OPTION.sub(lambda match: re.sub("[.-]", "_", match["name"] or "") or match[0], message)


@contextmanager
def in_shell() -> Iterator[None]:
    """Have errors name options as they are typed, while a command runs."""
    before, VitkitError.names_options = VitkitError.names_options, True
    try:
        yield
    finally:
        VitkitError.names_options = before


class VitkitError(Exception):
    """A mistake that the caller can correct: the message says what was expected, what was found, what to do.

    It is written with the names of options (--out), and a Python program reads those of parameters (out). The
    command line prints the message alone and exits with `exit_code`; any other exception is a bug and keeps
    its traceback.
    """

    exit_code = 1
    names_options = False
    """Whether messages name options of the command line, and not parameters in Python."""

    def __str__(self) -> str:
        message = super().__str__()
        return message if VitkitError.names_options else in_python(message)


class NonFiniteError(VitkitError):
    """Loss, gradients, weights or logits are infinite or not a number: training has diverged."""


class DecodeError(VitkitError):
    """A file cannot be decoded to pixels. The message is the reason alone: the caller knows the file."""


class WrongCommandLine(VitkitError):  # noqa: N818 (it is the command line that is wrong)
    """A command line that cannot be read: an unknown option, a missing argument, a value of another type."""

    exit_code = 2

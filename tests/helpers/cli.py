"""A command line that is run in this process, and what it prints."""

from collections.abc import Callable
from typing import NamedTuple

import pytest


class Printed(NamedTuple):
    """Holds what a command has written, and nothing that was written before it."""

    out: str
    err: str

    @property
    def text(self) -> str:
        """All of it, each run of blanks and ends of lines as one blank."""
        return " ".join(f"{self.out} {self.err}".split())


Cli = Callable[..., Printed]
"""Runs words of a command line, and holds that it ends with 0 or the code that is given behind them."""

Capture = pytest.CaptureFixture[str]

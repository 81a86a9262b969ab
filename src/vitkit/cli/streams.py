"""Standard input, output and error as a shell may hand them over: closed, full, of any encoding."""

import contextlib
import os
import sys
from typing import TextIO


def prepare() -> None:
    """Prepare the three streams so that writing fails only where a disk or a pipe fails.

    A closed stream (`>&-`) drops everything that is written, and its descriptor is held, so that no file is
    opened in its place. Characters that an encoding lacks are written as backslash escapes.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # open as long as the process
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        # Not an ordinary stream in a notebook or a test.
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person may be looking at a stream."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def discard(stream: TextIO | None) -> None:
    """Drop the text that a failing stream still holds: Python would try again at exit, and complain."""
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)

"""A disk whose calls fail one after the other, for tests of what is written and read."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

CALLS = ("open", "write", "fsync", "close", "mkdir", "makedirs", "rename", "replace", "unlink", "rmdir")
"""Everything of `os` that a save may change the disk with."""
READING = ("open", "read", "close", "stat", "fstat", "lstat", "scandir", "rename", "fsync", "unlink", "rmdir")
"""Everything of `os` that looking for a checkpoint and resuming from it may meet the disk with."""


class Fault(BaseException):
    """Stands for the end of the process: no handler of ours may catch it."""


@contextmanager
def failing(number: int, error: BaseException, calls: tuple[str, ...] = CALLS) -> Iterator[list[str]]:
    """Let the filesystem call with this number fail; yields the names of the calls made."""
    made: list[str] = []
    originals: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in calls}

    def guarded(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            made.append(name)
            if len(made) - 1 == number:
                if name == "close":
                    originals["close"](*arguments)  # a failed close leaves nothing open
                raise error
            return originals[name](*arguments, **options)

        return call

    for name in calls:
        setattr(os, name, guarded(name))
    try:
        yield made
    finally:
        for name, original in originals.items():
            setattr(os, name, original)

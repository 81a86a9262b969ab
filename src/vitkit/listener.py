"""Listeners, which hear how a job goes. Jobs print nothing: they tell a listener, which is handed in."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol


class Progress(Protocol):
    """A function that is told how far a loop is."""

    def __call__(
        self, done: int, total: int | None = None, *, detail: str = "", milestone: bool = False
    ) -> None:
        """Take note that `done` of `total` units are done.

        Args:
            done: so far, in images, steps or bytes.
            total: of all; None if nobody knows, or as it was.
            detail: what else is worth a look, in a few words.
            milestone: whether this moment is worth a line of its own in a log, as a validation is.
        """


Measured = Callable[[Mapping[str, Any]], None]
"""A function that is told a line of metrics.jsonl: `kind` ("train", "validation", or "evaluation" with the
name of its `evaluator`), the number `step`, the passes over the images `epoch`, and others by name, such as
`loss` and `accuracy`."""


def added_up(progress: Progress) -> Callable[[int], None]:
    """Return a function that is told the size of each batch, and tells `progress` the sum of them."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done)

    return advance


class Listener:
    """Hears how a job goes. This one is deaf: one of your own overrides the methods that it cares for.

    `vitkit.cli.listener.TerminalListener` shows bars and prints sentences, `vitkit.notebook.NotebookListener`
    does so in a notebook.
    """

    def note(self, sentence: str) -> None:
        """Hear something that a person should know and that is no error."""

    def warn(self, sentence: str) -> None:
        """Hear something that is probably not meant."""

    def show(self, rows: list[tuple[str, list[str]]]) -> None:
        """Hear a summary: headings, each with its lines."""

    @contextmanager
    def progress(self, what: str, total: int | None = None, *, unit: str = "") -> Iterator[Progress]:
        """Hear the progress of a loop while the block lasts.

        Args:
            what: is done, "reading images" say.
            total: units of it; None if nobody knows yet.
            unit: "bytes" for downloads; else units are counted.
        """
        yield _unheard

    @contextmanager
    def run(self, folder: Path, step: int, total: int) -> Iterator[Measured]:
        """Hear the numbers of a training run while the block lasts.

        A run that was killed makes the steps after its last checkpoint again, to the same numbers, so that
        whoever keeps a log of its own may have heard some of them before.

        Args:
            folder: of the run, which holds `config.json` and `metrics.jsonl`.
            step: the steps that were made before; 0 where the run begins.
            total: the steps of the whole run.
        """
        yield _unmeasured


def _unmeasured(line: Mapping[str, Any]) -> None:
    """Hear nothing."""


def _unheard(done: int, total: int | None = None, *, detail: str = "", milestone: bool = False) -> None:
    """Hear nothing."""


SILENT = Listener()


class RelayingListener(Listener):
    """Hands everything on to a listener; whoever extends it overrides what it changes."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    @property
    def listener(self) -> Listener:
        """The listener that hears everything."""
        return self._listener

    def note(self, sentence: str) -> None:
        self.listener.note(sentence)

    def warn(self, sentence: str) -> None:
        self.listener.warn(sentence)

    def show(self, rows: list[tuple[str, list[str]]]) -> None:
        self.listener.show(rows)

    @contextmanager
    def progress(self, what: str, total: int | None = None, *, unit: str = "") -> Iterator[Progress]:
        with self.listener.progress(what, total, unit=unit) as progress:
            yield progress

    @contextmanager
    def run(self, folder: Path, step: int, total: int) -> Iterator[Measured]:
        with self.listener.run(folder, step, total) as measured:
            yield measured


class WarningsAlone(Listener):
    """Hands warnings on to a listener, and nothing else."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    def warn(self, sentence: str) -> None:
        self.listener.warn(sentence)


def hushed(listener: Listener, quiet: bool) -> Listener:
    """Return a listener; where quiet is asked for, one that hands on its warnings alone."""
    return WarningsAlone(listener) if quiet else listener

"""Listeners, to which jobs report their notes, warnings and progress. Jobs themselves print nothing."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol


class Progress(Protocol):
    """A function that is called with the progress of a loop."""

    def __call__(
        self, done: int, total: int | None = None, *, detail: str = "", milestone: bool = False
    ) -> None:
        """Take note that `done` of `total` units are done.

        Args:
            done: images, steps or bytes so far.
            total: images, steps or bytes in all; None if unknown, or unchanged.
            detail: further figures to show, in a few words.
            milestone: whether this moment is worth a line of its own in a log, as a validation is.
        """


Measured = Callable[[Mapping[str, Any]], None]
"""A function that is called with each line of metrics.jsonl: `kind` ("train", "validation", or "evaluation"
with the name of its `evaluator`), the number `step`, the passes over the images `epoch`, and further numbers
by name, such as `loss` and `accuracy`."""


def added_up(progress: Progress) -> Callable[[int], None]:
    """Return a function to call with the size of each batch, which reports their sum to `progress`."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done)

    return advance


class Listener:
    """Hears how a job goes. This class does nothing: a subclass overrides the methods that it needs.

    `vitkit.cli.console.TerminalListener` shows bars and prints sentences, `vitkit.notebook.NotebookListener`
    does so in a notebook.
    """

    def note(self, sentence: str) -> None:
        """Hear a sentence that a person should read and that is no error."""

    def warn(self, sentence: str) -> None:
        """Hear of a probable mistake."""

    def show(self, rows: list[tuple[str, list[str]]]) -> None:
        """Hear a summary: headings, each with its lines."""

    def progress(
        self, what: str, total: int | None = None, *, unit: str = ""
    ) -> AbstractContextManager[Progress]:
        """Hear the progress of a loop while the block lasts.

        Args:
            what: the name of the work, such as "reading images".
            total: its units; None if unknown.
            unit: "bytes" for downloads; left out for anything that is counted.
        """
        return nullcontext(lambda *_, **__: None)

    def run(self, folder: Path, step: int, total: int) -> AbstractContextManager[Measured]:
        """Hear the numbers of a training run while the block lasts.

        A run that was killed makes the steps after its last checkpoint again, to the same numbers, so that a
        listener with a log of its own may hear numbers that it has logged already.

        Args:
            folder: of the run, which holds `config.json` and `metrics.jsonl`.
            step: the steps made before; 0 where the run begins.
            total: the steps of the whole run.
        """
        return nullcontext(lambda line: None)


SILENT = Listener()


class RelayingListener(Listener):
    """Passes everything on to a listener; a subclass overrides the methods that it changes."""

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

    def progress(
        self, what: str, total: int | None = None, *, unit: str = ""
    ) -> AbstractContextManager[Progress]:
        return self.listener.progress(what, total, unit=unit)

    def run(self, folder: Path, step: int, total: int) -> AbstractContextManager[Measured]:
        return self.listener.run(folder, step, total)


class WarningsAlone(Listener):
    """Passes warnings alone on to a listener: a silent mistake helps nobody."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    def warn(self, sentence: str) -> None:
        self.listener.warn(sentence)


def hushed(listener: Listener, quiet: bool) -> Listener:
    """Return the listener; with `quiet` one that passes on warnings alone."""
    return WarningsAlone(listener) if quiet else listener

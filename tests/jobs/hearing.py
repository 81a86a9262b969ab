"""Listeners for tests: one remembers what a job tells, one interrupts it."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitkit.listener import Listener, Measured, Progress


class Hearing(Listener):
    """Remembers everything that it hears."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self.rows: list[tuple[str, list[str]]] = []
        self.loops: list[str] = []
        self.milestones: list[tuple[str, int, str]] = []
        """Loop, units that were done, and the details, of each moment worth a line."""
        self.done: dict[str, int] = {}
        """Units that a loop had done when it last said so."""
        self.steps: dict[str, list[tuple[int, int | None]]] = {}
        """By loop, the units that were done and their number, each time that it said so."""
        self.details: dict[tuple[str, int], str] = {}
        """Details by loop and units that were done."""
        self.runs: list[tuple[Path, int, int]] = []
        """Folder, steps made before, and all steps, of each run that was trained."""
        self.measured: list[Mapping[str, Any]] = []
        """Return the numbers that the runs measured."""

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)

    def warn(self, sentence: str) -> None:
        self.warnings.append(sentence)

    def show(self, rows: list[tuple[str, list[str]]]) -> None:
        self.rows += rows

    @contextmanager
    def progress(self, what: str, total: int | None = None, *, unit: str = "") -> Iterator[Progress]:
        self.loops.append(what)
        steps, first = self.steps.setdefault(what, []), total

        def progress(
            done: int, total: int | None = None, *, detail: str = "", milestone: bool = False
        ) -> None:
            self.done[what] = done
            steps.append((done, first if total is None else total))
            self.details[what, done] = detail
            if milestone:
                self.milestones.append((what, done, detail))

        yield progress

    @contextmanager
    def run(self, folder: Path, step: int, total: int) -> Iterator[Measured]:
        self.runs.append((folder, step, total))
        yield self.measured.append


class Interrupting(Listener):
    """Stops a run once the step after the given one is committed, as Ctrl-C does."""

    def __init__(self, step: int) -> None:
        self.step = step

    @contextmanager
    def progress(self, what: str, total: int | None = None, *, unit: str = "") -> Iterator[Progress]:
        def progress(
            done: int, total: int | None = None, *, detail: str = "", milestone: bool = False
        ) -> None:
            if what == "training" and done == self.step:
                os.kill(os.getpid(), 2)

        yield progress

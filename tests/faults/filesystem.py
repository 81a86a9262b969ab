"""A disk that fails, and a process that is killed, at the n-th filesystem call of a training run.

Python tells an audit hook of every file that is opened, renamed or removed; writing, flushing and closing are
wrapped. Only calls on the run folder count: those are what the promise is about.
"""

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Literal

from tests.faults.commands import forked, judge
from tests.faults.entry import without_pictures
from tests.faults.harness import Kind, Outcome
from tests.faults.small_runs import differences, ended_with, newest_step, training

Fault = Literal["kill", "ENOSPC", "EIO", "EMFILE"]
FAULTS: tuple[Fault, ...] = ("kill", "ENOSPC", "EIO", "EMFILE")
AUDITED = frozenset(
    (
        *("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"),
        *("os.truncate", "os.scandir", "os.listdir", "os.link"),
    )
)
WRAPPED = ("write", "fsync", "close", "ftruncate")
OPENING = ("open", "os.scandir", "os.listdir")
"""What needs a free file descriptor."""


class FailingCalls:
    """Counts the filesystem calls on a folder in this process and lets one of them fail."""

    def __init__(self, folder: Path, number: int | None, fault: Fault, record: Path | None = None) -> None:
        self.folder, self.number, self.fault = f"{folder}{os.sep}", number, fault
        self.made: list[tuple[str, str]] = []
        self.record = record
        self.process = os.getpid()
        self.busy = False

    def install(self) -> None:
        """Begin to count; there is no end to it but that of the process."""
        if self.number is not None and self.number % 8:
            without_pictures()
        sys.addaudithook(self._audited)
        for name in WRAPPED:
            setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _audited(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in AUDITED and not self.busy and os.getpid() == self.process:
            self._counted(event, self._path(arguments[0], arguments[-1]))

    def _wrapped(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(descriptor: int, *arguments: Any) -> Any:
            try:
                self._counted(name, self._path(descriptor, None))
            except OSError:
                if name == "close":
                    original(descriptor)  # a failed close leaves nothing open
                raise
            return original(descriptor, *arguments)

        return call

    def _path(self, target: Any, directory: Any) -> str:
        self.busy = True
        try:
            if isinstance(target, int):
                return os.readlink(f"/proc/self/fd/{target}")
            path = os.fsdecode(target)
            if isinstance(directory, int) and directory >= 0 and not os.path.isabs(path):
                return os.path.join(os.readlink(f"/proc/self/fd/{directory}"), path)
            return os.path.abspath(path)
        except (OSError, TypeError, ValueError):
            return ""
        finally:
            self.busy = False

    def _counted(self, name: str, path: str) -> None:
        if not f"{path}{os.sep}".startswith(self.folder):
            return
        self.made.append((name, path.removeprefix(self.folder)))
        if self.record is not None:
            self.busy = True
            with self.record.open("a") as file:
                file.write(json.dumps(self.made[-1]) + "\n")
            self.busy = False
        if len(self.made) - 1 == self.number:
            if self.fault == "kill":
                os._exit(137)
            code = getattr(errno, self.fault)
            raise OSError(code, os.strerror(code), path)


class Filesystem(Kind):
    """Every call of one checkpoint's save with every fault, then a sample of the other calls of the run.

    The same command again must end with the same bytes, from a checkpoint no older than the newest there was.
    """

    name, count, limit = "filesystem", 700, 120.0
    sample = (0, 5, 10, 15)
    forks_commands = True
    per_process = 50

    def prepare(self, folder: Path) -> None:
        run = folder / "run"
        trace = folder / "trace"
        calls = FailingCalls(run, None, "kill", trace)
        ended = forked(training(run), folder, first=calls.install)
        assert ended.code == 0, ended.err
        (folder / "expected.json").write_text(json.dumps(ended_with(run)))

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        trace = read_trace(shared / "trace")
        call, fault = _plan(trace)[number]
        run = folder / "run"
        where = f"{fault} at call {call}, {trace[call][0]} {trace[call][1]}"
        first = forked(training(run), folder, first=FailingCalls(run, call, fault).install)
        outcome = judge(first, 137)
        if fault == "kill" and first.code == 137:
            outcome = Outcome("words")
        if outcome.verdict not in ("right", "words"):
            return Outcome(outcome.verdict, f"{where}: {outcome.detail}")
        committed, newest = _committed(trace[:call]), newest_step(run)
        if newest < committed:
            return Outcome("lost", f"{where}: step {committed} was committed, {newest} is the newest")
        again = forked(training(run), folder, first=without_pictures)
        if again.code != 0:
            outcome = judge(again)
            verdict = outcome.verdict if outcome.verdict in ("traceback", "hang") else "wrong"
            return Outcome(verdict, f"{where}, then resumed: {outcome.detail or again.code}")
        other = differences(run, json.loads((shared / "expected.json").read_text()))
        if other:
            return Outcome("wrong", f"{where}: the resumed run ends with other {', '.join(sorted(other))}")
        return Outcome("words" if first.code else "right")

    def total(self, shared: Path) -> int:
        return len(_plan(read_trace(shared / "trace")))


def read_trace(path: Path) -> list[tuple[str, str]]:
    """Read the calls that were made: their names and paths."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def _plan(trace: list[tuple[str, str]]) -> list[tuple[int, Fault]]:
    """Which call fails in which way: first those of the second checkpoint's save, then every other one."""
    of_save = [i for i, (_, name) in enumerate(trace) if "step-00000020" in name]
    save = list(range(of_save[0], of_save[-1] + 1)) if of_save else []
    rest = [i for i in range(len(trace)) if i not in {*save}]
    Random(0).shuffle(rest)
    return [
        (call, fault)
        for call in (*_spread(save), *rest)
        for fault in FAULTS
        if fault != "EMFILE" or trace[call][0] in OPENING
    ]


def _spread(calls: list[int]) -> list[int]:
    """The same in an order in which a small sample already meets all parts of the save."""
    return [call for start in range(7) for call in calls[start::7]]


def _committed(trace: list[tuple[str, str]]) -> int:
    """The newest step whose COMMIT had been written and flushed by these calls, -1 if there is none."""
    steps = [
        int(Path(name).parent.name.removeprefix("step-"))
        for event, name in trace
        if event == "close" and Path(name).name == "COMMIT" and Path(name).parent.name.startswith("step-")
    ]
    return max(steps, default=-1)

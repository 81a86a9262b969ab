"""Runs commands of vitkit in processes of their own that begin with everything imported: forks of this one.

One line of JSON asks for a run, one answers. A run can send itself, or its whole process group, signals from
a moment in its own course, which no clock could hit so surely.
"""

import atexit
import fcntl
import importlib
import itertools
import json
import multiprocessing
import os
import pkgutil
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import vitkit.cli.main
import vitkit.signals
from tests.faults.failing_calls import FailingCalls


@dataclass(frozen=True)
class Case:
    """A run and what happens to it."""

    arguments: list[str]
    signals: tuple[int, ...] = ()
    """Sent at the moment, one after another."""
    moment: str = "step"
    """A name of MOMENTS, or the full name of a function: they are sent when it is called."""
    group: bool = False
    """Whether the whole process group gets the signals, workers and all."""
    again: bool = False
    """Whether they are sent a second time while the checkpoint is written."""
    ignored: tuple[int, ...] = ()
    """Signals that are ignored when the process begins."""
    same_seconds: float | None = None
    """In place of `vitkit.signals.SAME_SECONDS`."""
    lost_terminal: bool = False
    """Whether it runs in a terminal that goes away at the moment."""
    worker_signal: int | None = None
    """Sent to one of the worker processes at the moment."""
    failing: tuple[str, int, str] | None = None
    """A folder, the number of a filesystem call on it, and how that call fails: `FailingCalls`."""


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str
    survivors: bool
    """Whether a process of its group outlived it."""
    shared_memory: list[str]
    """What it left in /dev/shm."""
    workers: int
    """How many processes loaded images at the moment."""


@contextmanager
def fork_server() -> Iterator[Callable[[Case], Outcome]]:
    """A process that has imported everything; call it with a case."""
    line, root = [sys.executable, "-m", "tests.jobs.forked_runs"], Path(__file__).parents[2]
    pipe = subprocess.PIPE
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, text=True, cwd=root) as server:
        assert server.stdin is not None and server.stdout is not None
        answers, questions = server.stdout, server.stdin

        def ask(case: Case) -> Outcome:
            questions.write(json.dumps(asdict(case)) + "\n")
            questions.flush()
            return Outcome(**json.loads(answers.readline()))

        yield ask


def serve() -> None:
    torch.set_num_threads(1)
    for module in {path.rsplit(".", 1)[0] for path in MOMENTS.values()}:
        with suppress(ModuleNotFoundError):  # a class
            importlib.import_module(module)
    for line in sys.stdin:
        print(json.dumps(asdict(run_forked(Case(**json.loads(line))))), flush=True)


def run_forked(case: Case) -> Outcome:
    master, terminal = os.openpty() if case.lost_terminal else (-1, -1)
    life, held_by_all = os.pipe()  # its end is closed when the last process of the run has ended
    folder = Path(tempfile.mkdtemp())
    pid = os.fork()
    if not pid:
        try:
            _prepare(case, folder, terminal)
            if case.lost_terminal:
                os.close(master)  # the other is the last
            _run(case, folder)
        except BaseException:
            traceback.print_exc()
            os._exit(99)
    for descriptor in {held_by_all, terminal} - {-1}:
        os.close(descriptor)
    if case.lost_terminal:
        while not (folder / "seen").exists() or not (folder / "seen").stat().st_size:
            time.sleep(0.01)
        os.close(master)
    _, status = os.waitpid(pid, 0)
    survivors = not select.select([life], [], [], 30)[0]
    if survivors:
        os.killpg(pid, signal.SIGKILL)
    os.close(life)
    out, err, seen = ((folder / name).read_text() for name in ("out", "err", "seen"))
    shutil.rmtree(folder)
    workers = {*seen.split()}
    left = [
        path.name
        for path in Path("/dev/shm").glob("*")
        if {*path.name.replace("-", "_").split("_")} & {str(pid), *workers}
    ]
    return Outcome(os.waitstatus_to_exitcode(status), out, err, survivors, left, len(workers))


def _prepare(case: Case, folder: Path, terminal: int) -> None:
    """Make this process one that a shell could have started."""
    os.setsid()  # a group, and a session, of its own
    (folder / "seen").touch()
    for descriptor, name in ((1, "out"), (2, "err")):
        file = os.open(folder / name, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, descriptor)
        os.close(file)
    if case.lost_terminal:
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        os.dup2(terminal, 1)
        os.dup2(terminal, 2)
        os.close(terminal)
    for number in case.ignored:
        signal.signal(number, signal.SIG_IGN)


def _run(case: Case, folder: Path) -> None:
    def send() -> None:
        children = [process.pid or 0 for process in multiprocessing.active_children()]
        with (folder / "seen").open("a") as file:
            file.writelines(f"{pid}\n" for pid in children)
        while case.lost_terminal and os.isatty(1):  # until the parent closes it
            time.sleep(0.01)
        if case.worker_signal is not None:
            os.kill(children[0], case.worker_signal)
        for number in case.signals:
            (os.killpg if case.group else os.kill)(os.getpid(), number)

    if case.same_seconds is not None:
        vitkit.signals.SAME_SECONDS = case.same_seconds
    _patch(case, send)
    if case.failing is not None:
        FailingCalls(*case.failing)
    code = vitkit.cli.main.run(case.arguments)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # what Python still does is the same for everyone, and slow


MOMENTS = {
    "listing": "vitkit.data.sources.open_data",
    "building": "vitkit.runs.build.build_model",
    "reading": "vitkit.data.sources.keep_in_memory",
    "step": "vitkit.training.trainer.Trainer.launch",
    "validation": "vitkit.runs.build.evaluation_batches",
    "save": "vitkit.training.checkpoint.commit",
    "evaluation": "vitkit.runs.steps.evaluation_batches",
    "report": "vitkit.report.page.render_report",
}
"""In the order in which a run meets them; the signals are sent when the function is called for the second
time where it is "step", for the first time elsewhere, and never where the moment is "nowhere"."""


def _patch(case: Case, send: Callable[[], None]) -> None:
    calls = itertools.count(1)
    moment = MOMENTS.get(case.moment, case.moment)

    def send_once() -> None:
        if next(calls) == (2 if case.moment == "step" else 1):
            send()

    def with_workers_at_work(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **others: Any) -> Any:
            batches = original(*arguments, **others)
            first = next(batches)
            send_once()
            return itertools.chain([first], batches)

        return wrapper

    if case.moment in ("validation", "evaluation"):
        _replace(moment, with_workers_at_work)
    elif case.moment != "nowhere":
        _replace(moment, partial(_before, send_once))
    if case.again:
        _replace(MOMENTS["save"], partial(_before, send))
    if case.moment != "report":  # drawing takes longer than all the rest
        _replace(MOMENTS["report"], lambda original: lambda *_: "a report")


def _before(action: Callable[[], None], original: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*arguments: Any, **others: Any) -> Any:
        action()
        return original(*arguments, **others)

    return wrapper


def _replace(path: str, change: Callable[[Any], Any]) -> None:
    owner, _, name = path.rpartition(".")
    target = pkgutil.resolve_name(owner)
    setattr(target, name, change(getattr(target, name)))


if __name__ == "__main__":
    serve()

"""Runs tests of a copy of the tree in a fork of this process, which has PyTorch imported already.

Importing PyTorch takes longer than most tests. This process never imports vitkit, so that each fork imports
the copy's, as it stands at that moment.
"""

import contextlib
import ctypes
import importlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.guard.watch_files import TEMPORARY


def end_with_parent() -> None:
    """Let this process be killed when the one that started it ends, however that ends (Linux)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def run_forked(action: Callable[[], int], out: Path, err: Path, limit: float) -> tuple[int | None, float]:
    """Run a function in a new process, in a group of its own, and kill what is left of the group at its end.

    Args:
        action: gives the exit code.
        out: the file of what it prints.
        err: that of its errors; may be the same.
        limit: seconds after which it is killed.

    Returns:
        The exit code, -n after signal n, None if it did not end in time; and its seconds.
    """
    sys.stdout.flush()
    start = time.monotonic()
    process = os.fork()
    if not process:
        code = 1
        try:
            os.setsid()
            end_with_parent()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for descriptor, path in ((1, out), (2, err)):
                path.write_bytes(b"")
                os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), descriptor)
            code = action()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    status = None
    while status is None and time.monotonic() - start < limit:
        done, wait_status = os.waitpid(process, os.WNOHANG)
        if done:
            status = os.waitstatus_to_exitcode(wait_status)
        else:
            time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    if status is None:
        os.waitpid(process, 0)
    return status, time.monotonic() - start


WARM = ("torch", "numpy", "PIL.Image", "pyarrow.parquet", "sklearn.linear_model", "matplotlib.figure")
"""Modules that take long to import and that know nothing of vitkit."""
ARGUMENTS = ("-q", "-n", "0", "-p", "no:cacheprovider", "-p", "no:randomly", "--timeout=0")


@dataclass(frozen=True)
class Ended:
    """How tests ended."""

    failed: str
    """The first that failed, or the one that was running when the process died or was stopped; else empty."""
    passed: tuple[str, ...]
    out_of_time: bool
    seconds: float
    output: str
    how: str = "test"
    """By what it was noticed: a failed "test", a "crash" of the process, or "import" of the test file."""


def warm_up() -> None:
    """Import what every fork would import."""
    os.environ["OMP_NUM_THREADS"] = "1"  # a process that has started threads cannot be forked safely
    for name in WARM:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def run_tests(tree: Path, scratch: Path, tests: Sequence[str], seconds: float, *, keep_code: bool) -> Ended:
    """Run tests in the given order until one fails.

    Args:
        tree: the copy.
        scratch: an empty folder is made of it; the tests' files go there.
        tests: names of tests as pytest has them, or test files.
        seconds: after which they are stopped.
        keep_code: whether compiled code may be kept beside the sources; not where those are mutated.
    """
    watching = _Watching(scratch / "report.jsonl", [test for test in tests if "::" in test])
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    code, taken = _forked(tree, scratch, ["-x", *files], watching, seconds, keep_code)
    events = [json.loads(line) for line in _lines(scratch / "report.jsonl")]
    passed = tuple(name for event, name in events if event == "passed")
    running = [name for event, name in events if event == "began"]
    failures = [(name, how) for how, name in events if how in ("test", "import")]
    if not failures and code is not None and code < 0:
        failures = [(running[-1] if running else "before the first test", "crash")]
    failed, how = failures[0] if failures else ("", "test")
    return Ended(failed, passed, code is None, taken, (scratch / "output").read_text(errors="replace"), how)


def _lines(path: Path) -> list[str]:
    """Read whole lines: a process that was killed may have written half of the last one."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def _forked(
    tree: Path, scratch: Path, arguments: Sequence[str], plugin: object, seconds: float, keep_code: bool
) -> tuple[int | None, float]:
    """Run pytest in a fork, which imports from the copy; returns as `run_forked` does."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)

    def act() -> int:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(tree)
        here = [str(tree / "src"), str(tree)]
        sys.path[:] = here + [
            path for path in sys.path if path and not (Path(path) / "tests/mutants").is_dir()
        ]
        for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "vitkit")]:
            del sys.modules[name]
        if not keep_code:
            sys.dont_write_bytecode = True
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        os.environ |= {
            "TMPDIR": str(scratch),  # whatever tests that are killed leave is removed with it
            "PYTHONPATH": os.pathsep.join(here),
            # Each test would fail by what is recorded of it.
            TEMPORARY: os.pathsep.join(filter(None, [os.environ.get(TEMPORARY), str(scratch)])),
        }
        return int(pytest.main([*ARGUMENTS, f"--basetemp={scratch / 'tests'}", *arguments], [plugin]))

    return run_forked(act, scratch / "output", scratch / "output", seconds)


class _Watching:
    """A pytest plugin that runs the chosen tests in their order and tells of each as it ends."""

    def __init__(self, report: Path, chosen: Sequence[str]) -> None:
        self.report, self.place = report, {name: number for number, name in enumerate(chosen)}

    def tell(self, event: str, name: str) -> None:
        with self.report.open("a") as file:
            file.write(json.dumps((event, name)) + "\n")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.place:
            chosen = [item for item in items if item.nodeid in self.place]
            items[:] = sorted(chosen, key=lambda item: self.place[item.nodeid])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.tell("import", report.nodeid)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.tell("began", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or (report.when == "call" and report.passed):
            self.tell("test" if report.failed else "passed", report.nodeid)

"""What every test starts from: one thread, a home and a working folder, nothing of the caller's settings.

`scripts/test-processors` asks for two threads: sums that are split over threads round differently.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# Settings of the caller that change what commands print, compute or read. The processes of pytest-xdist
# inherit what the first one settles here, and so does every process that a test starts.
for _name in [name for name in os.environ if name.startswith(("LC_", "HF_", "VITKIT_CACHE", "HYPOTHESIS_"))]:
    del os.environ[_name]
for _name in (
    *("COLUMNS", "LINES", "LANG", "LANGUAGE", "NO_COLOR", "FORCE_COLOR"),
    *("CC", "CFLAGS", "RANK", "WORLD_SIZE"),
):
    os.environ.pop(_name, None)
os.environ |= {"LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONUTF8": "1"}
time.tzset()

# One thread for every test process: pytest-xdist uses the cores, and small models gain nothing from two.
# OMP_NUM_THREADS is for the processes that tests start, too.
os.environ["OMP_NUM_THREADS"] = os.environ.get("VITKIT_TEST_THREADS", "1")

from tests.helpers.ignored_signals import heed_ignored_signals

heed_ignored_signals()

import pytest
import torch

from tests.helpers.cli import Cli, Printed
from tests.helpers.guard import watch_files
from vitkit.cli.main import run
from vitkit.signals import STOP_SIGNALS

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

SESSION = "VITKIT_TEST_SESSION"
"""The environment variable that names the folder of a test session, which all of its processes share."""


def pytest_configure(config: pytest.Config) -> None:
    """Give the session a home, a cache and a temporary folder, before pytest-xdist starts its processes."""
    if hasattr(config, "workerinput"):
        return
    os.environ.setdefault(
        "PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir()
    )  # the folders of tests stay for a look
    session = Path(os.path.realpath(tempfile.mkdtemp(prefix="vitkit-tests-")))
    for name in ("home", "cache", "tmp", "elsewhere"):
        (session / name).mkdir()
    checkout = Path(__file__).resolve().parents[1]
    guard = str(Path(watch_files.__file__).parent)
    os.environ |= {
        SESSION: str(session),
        "HOME": str(session / "home"),
        "XDG_CACHE_HOME": str(session / "cache"),
        "MPLCONFIGDIR": str(session / "cache" / "matplotlib"),
        "TMPDIR": str(session / "tmp"),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(checkout / ".hypothesis"),
        "PYTHONPATH": os.pathsep.join([guard, *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    tempfile.tempdir = None  # read from TMPDIR again


LONG = (
    "tests/jobs/test_unkillable.py",
    "tests/cli/test_series.py",
    "tests/training/test_checkpoint_faults.py",
    "tests/jobs/test_signals.py",
    "tests/jobs/test_train.py",
)
"""Files whose tests take long. Begun last, they would keep one process busy after the others have ended."""


FAST = ("analysis", "data", "evaluation", "kernels", "models", "weights")
"""Rooms whose tests start no process and train nothing, but for these files."""
SLOWER = {
    "test_every_field.py",
    "test_figure_layout.py",
    "test_large.py",
    "test_measure.py",
    "test_power_law.py",
    "test_round_trips.py",
    "test_workers.py",
}


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that take long, and mark those of which `make check` runs all within a minute."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
    for item in items:
        room = item.path.relative_to(Path(__file__).parent).parts[0]
        if room in FAST and item.path.name not in SLOWER and not item.get_closest_marker("slow"):
            item.add_marker("fast")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ[SESSION], ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def offences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stand in an empty folder, and watch which files this process and those it starts touch.

    Returns:
        The file in which offences are written down.
    """
    session = Path(os.environ[SESSION])
    os.chdir(session / "elsewhere")
    writable = [session / name for name in ("home", "cache", "tmp")]
    record = session / "tmp" / f"offences-{os.getpid()}"
    # A program that runs tests by itself (tests/mutants) names the folder of its own records.
    given = filter(None, [os.environ.get(watch_files.TEMPORARY)])
    own = os.pathsep.join([*map(str, (*writable, tmp_path_factory.getbasetemp())), *given])
    os.environ |= {watch_files.TEMPORARY: own, watch_files.OFFENCES: str(record)}
    if "sitecustomize" not in sys.modules or not hasattr(sys.modules["sitecustomize"], "watch_files"):
        watch_files.install()  # a process of pytest-xdist has the watch from its start
    return record


@pytest.fixture(autouse=True)
def _answers_signals_as_before() -> Iterator[None]:
    """Restore how this process answers signals: a command that was stopped ignores them until the end."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _stays_in_its_folder(offences: Path) -> Iterator[None]:
    """Fail a test that reads or writes outside of the temporary folders, or a process of which does."""
    yield
    if offences.exists():
        text = offences.read_text(encoding="utf-8", errors="replace")
        offences.unlink()
        pytest.fail(f"outside the test's temporary folder:\n{text}", pytrace=False)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(arguments: Sequence[str], code: int = 0) -> Printed:
        capsys.readouterr()
        assert run([*arguments]) == code, arguments
        return Printed(*capsys.readouterr())

    return call


@pytest.fixture
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def without_report() -> Iterator[None]:
    """Write a word in place of a run's report while a module's tests last: its pictures take seconds."""

    def write_report(folder: Path, **_options: Any) -> Path:
        (folder / "report.html").write_text("a report")
        return folder / "report.html"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitkit.jobs.train_run.write_report", write_report)
        yield

"""Worker processes: what kills or holds them up is said, and none outlives its loader."""

import errno
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from tests.helpers.noise_samples import PREPROCESSING, Noise, train_loader
from tests.helpers.refusals import refused
from vitkit.data.stream import loader as workers
from vitkit.data.stream.loader import evaluation_batches
from vitkit.errors import VitkitError
from vitkit.signals import STOP_SIGNALS

# Of Python 3.12 about forking beside threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


def _close_and_die() -> None:
    os.closerange(3, 1024)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_signal_is_named_where_connections_end_before_the_process() -> None:
    """The kernel closes the files of a process that is killed before it has an exit code."""
    process = multiprocessing.get_context("fork").Process(target=_close_and_die)
    process.start()
    pool = object.__new__(workers._Pool)
    pool.processes = [process]
    said = pool._death(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), 2)
    assert said is not None and f"({process.pid} by SIGKILL)" in said


class Acting(Noise):
    """Samples of which something else is done before one is decoded."""

    def __init__(self, act: Callable[[int], object], count: int = 10) -> None:
        super().__init__(count)
        self.act = act

    def decode(self, index: int) -> NDArray[np.uint8]:
        self.act(index)
        return super().decode(index)


@pytest.mark.skipif(not Path("/dev/shm").exists(), reason="this system keeps shared memory elsewhere")
def test_a_killed_worker_is_named_and_leaves_no_shared_memory() -> None:
    def leave(index: int) -> None:  # where PyTorch has opened a batch's memory and not yet unlinked it
        (Path("/dev/shm") / f"torch_{os.getpid()}_{index}_0").touch()
        os.kill(os.getpid(), signal.SIGKILL)

    message = refused(".", next, train_loader(Acting(leave), batch_size=5, workers=1).batches(0, 2))
    said = r"process died while batch \d+ was awaited.*DataLoader.*\((\d+) by SIGKILL.*workers"
    pid = re.search(said, message)
    assert pid is not None, message
    assert not list(Path("/dev/shm").glob(f"torch_{pid[1]}_*"))


def test_a_worker_that_dies_during_other_work_is_named_at_the_next_batch() -> None:
    batches = train_loader(Noise(10), batch_size=5, workers=1).batches(0, 100)
    next(batches)
    (worker,) = multiprocessing.active_children()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    # A training step: no signal handler may raise here. Waiting for the worker would bury it too early.
    time.sleep(0.5)
    refused("data loading process died", list, batches)


def test_workers_leave_it_to_their_parent_to_answer_signals() -> None:
    batches = train_loader(Noise(10), batch_size=5, workers=2).batches(0, 40)
    next(batches)
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    for worker in workers:
        assert worker.pid is not None
        for number in STOP_SIGNALS:
            os.kill(worker.pid, number)
    assert len(list(batches)) == 39
    assert not multiprocessing.active_children()


def endless(index: int) -> None:
    """Sample 5 is on a disk that does not answer: far longer than anybody waits, and no test hangs for it."""
    time.sleep(30 * (index == 5))


def test_a_hanging_worker_and_its_image_are_named() -> None:
    batches = evaluation_batches(Acting(endless), PREPROCESSING, 2, workers=2, worker_timeout=2)
    said = r"Batch 2 did not come within .* process \d+ .* image noise 5\. .*worker_timeout"
    refused(said, list, batches)
    assert not multiprocessing.active_children()


def test_a_stopped_worker_is_named_where_the_others_wait_for_it() -> None:
    """A worker that is stopped while it hands over a batch holds a lock that the others wait for."""
    stopped = multiprocessing.RawValue("q", 0)

    def lock(index: int) -> None:
        worker = get_worker_info()
        assert worker is not None
        if index >= 10:  # after a batch of each worker, so that both are there when the time is counted
            if worker.id == 1:
                time.sleep(0.5)  # its thread that sends has sent the batch before
                stopped.value = os.getpid()
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(600)  # the first worker makes the batch that is awaited

    batches = evaluation_batches(Acting(lock, 20), PREPROCESSING, 5, workers=2, worker_timeout=2)
    said = refused(r"Batch [12] did not come", list, batches)
    assert f"process {stopped.value} hangs" in said


def test_without_a_limit_a_batch_is_waited_for() -> None:
    late = Acting(lambda _: time.sleep(0.2), 5)
    batches = evaluation_batches(late, PREPROCESSING, 5, workers=1, worker_timeout=0)
    assert [len(batch) for batch in batches] == [5]


def test_no_process_outlives_its_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one that computes for ever, nor any where no memory is left for the thread that ends them."""
    monkeypatch.setattr("vitkit.data.stream.loader.GRACE_SECONDS", 0.2)
    batches = evaluation_batches(Acting(endless), PREPROCESSING, 2, workers=2)
    next(batches)
    del batches
    assert not multiprocessing.active_children()
    batches = evaluation_batches(Noise(10), PREPROCESSING, 2, workers=2)
    next(batches)
    monkeypatch.setattr(threading.Timer, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    del batches
    assert not multiprocessing.active_children()


PROGRAM = """
import time
from tests.helpers.noise_samples import PREPROCESSING, Noise
from vitkit.data.stream import loader as workers
from vitkit.data.stream.loader import evaluation_batches
from vitkit.errors import VitkitError
"""


def in_process(script: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM + textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        start_new_session=True,
    )


def test_keeping_labels_keeps_no_file_open() -> None:
    """And keeping images, each of which is one, ends in words; and a loader that still lives at the end of
    the program does not keep it from ending."""
    process = in_process("""
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
        kept = []
        for batch in evaluation_batches(Noise(200), PREPROCESSING, 1, workers=2):
            kept += [batch.labels, batch.ids, batch.mask]
        assert len(kept) == 600
        batches = evaluation_batches(Noise(200), PREPROCESSING, 1, workers=2)
        try:
            kept += [batch.images for batch in batches]
        except VitkitError as error:
            print(error)
        kept.clear()
        living = evaluation_batches(Noise(200), PREPROCESSING, 1, workers=2)
        next(living)
        """)
    out, errors = process.communicate(timeout=1800)
    assert process.returncode == 0, errors
    assert "the limit of open files is reached. Raise it (`ulimit -n 4096`" in out
    assert "Traceback" not in errors


def test_the_time_that_the_whole_program_was_stopped_does_not_count() -> None:
    process = in_process("""
        class Slow(Noise):
            def decode(self, index):
                print("reading", flush=True)
                time.sleep(1.5)
                return super().decode(index)

        list(evaluation_batches(Slow(1), PREPROCESSING, 1, workers=1, worker_timeout=2.5))
        """)
    assert process.stdout is not None
    assert process.stdout.readline() == "reading\n"
    time.sleep(0.8)  # the wait is under way
    os.killpg(process.pid, signal.SIGSTOP)
    time.sleep(2.8)
    os.killpg(process.pid, signal.SIGCONT)
    _, errors = process.communicate()
    assert process.returncode == 0, errors


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "limit of open files"),
        (RuntimeError("unable to open shared memory object </torch_1_2_3> in read-write mode"), "/dev/shm"),
        (RuntimeError("unable to mmap 19267584 bytes from </torch_1>: Cannot allocate memory"), "memory"),
        (OSError(errno.ENOSPC, "No space left on device"), "/dev/shm"),
        (MemoryError(), "not enough memory"),
        (VitkitError("exactly this"), "exactly this"),
        (RuntimeError("a bug"), "a bug"),  # which is not hidden
    ],
)
def test_what_workers_lack_is_told_in_words(error: Exception, message: str) -> None:
    is_bug = error.args == ("a bug",)
    lacking = Acting(Mock(side_effect=error))
    with pytest.raises(RuntimeError if is_bug else VitkitError, match=message) as caught:
        list(train_loader(lacking, workers=1).batches(0, 1))
    assert is_bug or not re.search("Traceback|Caught", str(caught.value))

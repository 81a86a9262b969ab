"""Work done ahead of time by worker processes, whose end is told in words whatever it was.

Workers ignore the signals that ask the program to stop: their parent answers for them. They end with their
parent: PyTorch's workers look every 5 s whether it still lives. The kernel could end them at once
(PR_SET_PDEATHSIG), but it takes the end of the thread that started them for the end of the parent.
"""

import atexit
import errno
import multiprocessing
import multiprocessing.connection
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from vitkit.errors import VitkitError
from vitkit.signals import ignore_stop_signals, stop_signals_blocked

Result = tuple[Tensor, dict[int, str]]
"""Pixels of a batch (B, 3, H, W) uint8, and the reason for each slot whose file could not be read."""

Reading = Callable[[int], None]
"""Is called with the index of each sample before it is read."""

POLL_SECONDS = 1.0
"""Who waits for a batch looks this often whether the workers still live."""
GRACE_SECONDS = 5.0
"""So long a worker may still work at its batch when no more are wanted."""

_NO_MEMORY = (
    "there is not enough memory for what they read at a time. Use fewer --workers (0 works without any) or "
    "smaller batches."
)
# Words in an error's message, and what such an error means.
_SHORTAGES = (
    (
        ("Too many open files", "received 0 items of ancdata"),
        "the limit of open files is reached. Raise it (`ulimit -n 4096` in the shell), or use fewer "
        "--workers (0 works without any).",
    ),
    (
        ("shared memory", "unable to mmap", "torch_shm", "No space left on device"),
        "shared memory (/dev/shm), by which batches arrive, is full or too small. Make it larger (in a "
        "container: --shm-size 2g), or use fewer --workers (0 works without any) or smaller batches.",
    ),
    (("Cannot allocate memory", "can't allocate memory", "not enough memory"), _NO_MEMORY),
)


class Work(Protocol):
    """What workers do."""

    def compute(self, number: int, reading: Reading) -> Result:
        """Batch `number`, a pure function of it."""

    def key(self, sample: int) -> str:
        """The name of a sample, for messages."""


def compute_ahead(work: Work, numbers: range, workers: int, seconds: float) -> Generator[Result, None, None]:
    """The batches of `numbers`, in order, computed ahead of time by at most `workers` processes.

    Args:
        work: what computes one batch.
        numbers: of the batches; at least one.
        workers: at least 1.
        seconds: how long a batch is waited for before its worker is taken to hang; 0 waits for ever. The time
            during which this process itself was stopped does not count.

    Raises:
        VitkitError: a worker died, hangs, or lacks memory, shared memory or open files.
    """
    with _workers(work, numbers, min(workers, len(numbers)), seconds) as pool:
        for number in numbers:
            yield pool.result(number)


@dataclass(frozen=True)
class _Task(Dataset["Result | str"]):
    """What a worker is asked for by number; a string tells, in words, why there is no result."""

    work: Work
    board: Any  # shared memory: (2 * workers,) int64

    def __getitem__(self, number: int) -> Result | str:
        worker = get_worker_info()
        assert worker is not None
        row = _rows(self.board)[worker.id]

        def reading(sample: int) -> None:
            row[1] = sample

        row[:] = number, -1
        try:
            pixels, bad = self.work.compute(number, reading)
            # Shared here and not when it is sent, which another thread does whose errors nobody hears of.
            # Pixels are all that is shared: each shared tensor is an open file of whoever keeps it.
            return pixels.share_memory_(), bad  # type: ignore[no-untyped-call]
        except VitkitError as error:
            return str(error)
        except (OSError, MemoryError, RuntimeError) as error:
            words = _shortage(error, number)
            if words is None:
                raise
            return words


def _begin(worker: int) -> None:
    ignore_stop_signals()


@contextmanager
def _workers(work: Work, numbers: range, workers: int, seconds: float) -> Iterator["_Pool"]:
    """Worker processes and what arrives from them; they have ended when the block ends."""
    try:
        board = multiprocessing.RawArray("q", 2 * workers)
        # A worker makes whole batches, so that it sends one message a batch and not one an image.
        loader = DataLoader(
            _Task(work, board),
            batch_size=None,
            sampler=numbers,
            num_workers=workers,
            collate_fn=_as_it_is,
            worker_init_fn=_begin,
            timeout=POLL_SECONDS,
        )
        with _former_child_handler(), stop_signals_blocked():
            arriving: Any = iter(loader)
    except OSError as error:
        raise VitkitError(
            f"The {workers} processes that load images could not be started: {error.strerror or error}. "
            "Use fewer --workers (0 works without any)."
        ) from error
    processes = list(arriving._workers)  # PyTorch has no public name for them
    exiting = threading.Event()

    def end_at_exit() -> None:
        exiting.set()
        _kill(processes)

    # At its end Python would ask them by SIGTERM, which they ignore, and wait for ever.
    atexit.register(end_at_exit)
    watch = _Watch(processes, seconds)
    try:
        yield _Pool(work, board, numbers, arriving, processes, watch)
    finally:
        watch.end()
        if not exiting.is_set():  # else this may run when no thread can be started any more
            atexit.unregister(end_at_exit)
            _end(arriving, processes)


def _end(arriving: Any, processes: Sequence[multiprocessing.Process]) -> None:
    """Let each worker end its batch, and kill those that do not."""
    patience = threading.Timer(GRACE_SECONDS, _kill, [processes])
    patience.daemon = True
    patience.start()
    try:
        arriving._shutdown_workers()  # would try SIGTERM in the end
    finally:
        patience.cancel()
        _kill(processes)
        for process in processes:
            process.join(GRACE_SECONDS)


def _kill(processes: Sequence[multiprocessing.Process]) -> None:
    for process in processes:
        if process.is_alive():
            process.kill()


@contextmanager
def _former_child_handler() -> Iterator[None]:
    """Tell the death of a worker where a batch is awaited and nowhere else.

    PyTorch also raises it from a signal handler, in whatever line of the program runs at that moment. With
    the former handler back, the check that it makes while it waits is the one that speaks.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGCHLD"):
        yield  # signal handlers belong to the main thread
        return
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)


class _Watch:
    """Kills the workers when a batch is waited for too long, which frees whoever waits for them.

    It counts its own short sleeps and looks at no clock, so that a program that was stopped for a night does
    not find, in the morning, that its workers took too long.
    """

    def __init__(self, processes: Sequence[multiprocessing.Process], seconds: float) -> None:
        self.processes, self.seconds = processes, seconds
        self.awaited: int | None = None
        self.waited = 0.0
        self.expired = False
        self._over = threading.Event()
        if seconds:
            threading.Thread(target=self._watch, name="vitkit-worker-watch", daemon=True).start()

    def _watch(self) -> None:
        interval = min(POLL_SECONDS, self.seconds)
        before = None
        while not self._over.wait(interval):
            awaited = self.awaited
            self.waited = self.waited + interval if awaited is not None and awaited == before else 0.0
            before = awaited
            if self.waited >= self.seconds:
                self.expired = True
                _kill(self.processes)
                return

    def end(self) -> None:
        self._over.set()


@dataclass
class _Pool:
    work: Work
    board: Any
    numbers: range
    arriving: Iterator[Result | str]
    processes: Sequence[multiprocessing.Process]
    watch: _Watch

    def result(self, number: int) -> Result:
        """What a worker made of the next number; they must be asked for in order."""
        self.watch.awaited = number
        try:
            result = self._arrived(number)
        finally:
            self.watch.awaited = None
        if isinstance(result, str):
            raise VitkitError(result)
        return result

    def _arrived(self, number: int) -> Result | str:
        while True:
            try:
                return next(self.arriving)
            except (RuntimeError, OSError, EOFError) as error:
                if self.watch.expired:
                    raise VitkitError(self._hanging(number)) from error
                if str(error).startswith("DataLoader timed out"):
                    continue
                words = _shortage(error, number) or self._death(error, number)
                if words is None:
                    raise
                raise VitkitError(words) from error

    def _hanging(self, number: int) -> str:
        """Which process does not answer, and over which image."""
        rows = _rows(self.board)
        (makers,) = np.nonzero((rows[:, 0] == number) & (rows[:, 1] >= 0))
        # One that has not begun yet: batches are given to workers in turn.
        worker = int(makers[0]) if len(makers) else self.numbers.index(number) % len(self.processes)
        at, sample = rows[worker].tolist()
        image = f", last at the image {self.work.key(sample)}" if len(makers) and at == number else ""
        return (
            f"Batch {number} did not come within {self.watch.waited:g} s: the data loading process "
            f"{self.processes[worker].pid} that makes it hangs{image}. Mostly this is a disk or network "
            "share that does not answer, or a process that was stopped (SIGSTOP). See whether the images can "
            "be read, then run the same command again. If batches do take that long, allow more seconds by "
            "--worker-timeout (0 waits for ever)."
        )

    def _death(self, error: Exception, number: int) -> str | None:
        """That a worker died, if the error is what its death looks like from here."""
        gone = (None, errno.EPIPE, errno.ECONNRESET, errno.ECONNREFUSED, errno.ENOENT)
        message = str(error)
        if isinstance(error, RuntimeError):
            if not message.startswith("DataLoader worker"):
                return None
        elif message.startswith("Caught ") or getattr(error, "errno", None) not in gone:
            return None  # an error of the worker's own work
        # The broken connection may be seen a moment before the end of the process that broke it.
        multiprocessing.connection.wait([process.sentinel for process in self.processes], timeout=1.0)
        codes = ((process.pid, process.exitcode) for process in self.processes)
        ends = [f"{pid} by {signal.Signals(-code).name}" for pid, code in codes if code and code < 0]
        return (
            f"A data loading process died while batch {number} was awaited: {message}"
            f"{' (' + ', '.join(ends) + ')' if ends else ''}. "
            "Mostly this is memory that ran out, or a /dev/shm too small for the batches. "
            "Use fewer --workers (0 works without any) or smaller batches."
        )


def _shortage(error: Exception, number: int) -> str | None:
    """What is lacking, in words; None if it is something else that failed."""
    message = str(error)
    if message.startswith("Caught "):
        return None  # a bug in a worker; `_Task` has told what it could
    meaning = _NO_MEMORY if isinstance(error, MemoryError) else None
    for words, explanation in _SHORTAGES:
        if any(word in message for word in words):
            meaning = explanation
    if meaning is None:
        return None
    return f"Batch {number} could not be loaded by worker processes: {meaning}"


def _rows(board: Any) -> NDArray[np.int64]:
    """For each worker the number of its batch and the index of the sample it reads, -1 before the first."""
    return np.frombuffer(board, dtype=np.int64).reshape(-1, 2)


_T = TypeVar("_T")


def _as_it_is(value: _T) -> _T:
    return value

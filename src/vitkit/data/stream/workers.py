"""Compute batches ahead of time in worker processes, and explain it when a process dies or hangs.

Workers ignore the signals that ask the program to stop, because Ctrl-C reaches all processes of a terminal,
and their parent still needs batches to finish a step. They end with their parent: PyTorch's workers check
every 5 s whether it is alive. The kernel could end them at once (PR_SET_PDEATHSIG), but would do so when the
thread that started them ends.
"""

import atexit
import errno
import multiprocessing
import multiprocessing.connection
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from vitkit.data.sources import Samples
from vitkit.errors import VitkitError
from vitkit.signals import ignore_stop_signals, stop_signals_blocked

Result = tuple[Tensor, dict[int, str]]
"""Pixels of a batch (B, C, H, W) uint8, and the reason for each slot whose file could not be read."""

Reading = Callable[[int], None]
"""Called with the index of each sample before it is read, so that a hanging read can be named."""

POLL_SECONDS = 1.0
"""Seconds between two checks whether the workers are alive, while a batch is awaited."""
GRACE_SECONDS = 5.0
"""Seconds that a worker has to end its batch when no more batches are needed."""

_NO_MEMORY = (
    "there is not enough memory for the images that they decode at a time. Use fewer --workers (0 works "
    "without any) or smaller batches."
)
# Phrases in the message of an error, and the meaning of such an error. PyTorch and the system raise OSError,
# RuntimeError and others for these, which have only the message in common.
_SHORTAGES = (
    (
        ("Too many open files", "received 0 items of ancdata"),
        "the limit of open files is reached. Raise it (`ulimit -n 4096` in the shell), or use fewer "
        "--workers (0 works without any).",
    ),
    (
        ("shared memory", "unable to mmap", "torch_shm", "No space left on device"),
        "shared memory (/dev/shm), through which batches come, is full or too small. Make it larger (in a "
        "container: --shm-size 2g), or use fewer --workers (0 works without any) or smaller batches.",
    ),
    (("Cannot allocate memory", "can't allocate memory", "not enough memory"), _NO_MEMORY),
)


class Work(Protocol):
    """The work that is divided among workers, batch by batch."""

    @property
    def samples(self) -> Samples:
        """The samples that are read."""

    def compute(self, number: int, reading: Reading) -> Result:
        """Compute batch `number`, a pure function of that number."""


def compute_ahead(work: Work, numbers: range, workers: int, seconds: float) -> Generator[Result, None, None]:
    """Yield the batches of `numbers`, in order, computed ahead of time by at most `workers` processes.

    Args:
        work: computes one batch; it is copied into each worker.
        numbers: numbers of the batches; at least one.
        workers: number of processes, at least 1.
        seconds: time to wait for a batch before its worker is considered stuck; 0 waits for ever. The time
            during which this process itself was stopped does not count.

    Raises:
        VitkitError: a worker died, hangs, or lacks memory, shared memory or open files.
    """
    pool = _Pool(work, numbers, min(workers, len(numbers)), seconds)
    try:
        for number in numbers:
            yield pool.result(number)
    finally:
        pool.end()


@dataclass(frozen=True)
class _Task(Dataset["Result | str"]):
    """The data set of PyTorch's DataLoader whose items are whole batches.

    An item is a sentence where there is no result: the message of an exception would reach the parent with
    the worker's traceback in it.
    """

    work: Work
    board: Any  # shared memory: for each worker its batch and the sample it reads, (2 * workers,) int64

    def __getitem__(self, number: int) -> Result | str:
        worker = get_worker_info()
        assert worker is not None
        row = _rows(self.board)[worker.id]

        def reading(sample: int) -> None:
            row[1] = sample

        row[:] = number, -1
        try:
            pixels, bad = self.work.compute(number, reading)
            # Moved to shared memory here and not when the batch is sent: another thread sends it, and an
            # error there (shared memory full) would be lost. Only the pixels are in shared memory, because
            # each tensor there is an open file in the process that has it.
            return pixels.share_memory_(), bad  # type: ignore[no-untyped-call]
        except VitkitError as error:
            return str(error)
        except (OSError, MemoryError, RuntimeError) as error:
            if (sentence := _shortage(error, number)) is None:
                raise
            return sentence


def _begin(worker: int) -> None:
    """Prepare a worker process; DataLoader calls it first, with the worker's number."""
    ignore_stop_signals()


@contextmanager
def _former_child_handler() -> Iterator[None]:
    """Start the loader so that a dead worker raises only while we wait for a batch.

    PyTorch installs a SIGCHLD handler that raises in whatever line of the program runs at that moment. It is
    replaced by the former handler; the check that PyTorch makes while it waits for a batch then raises.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGCHLD"):
        yield  # signal handlers belong to the main thread
        return
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)


def _is_stopped(process: multiprocessing.process.BaseProcess) -> bool:
    """Whether a process is stopped (SIGSTOP) or traced, which only Linux tells."""
    try:
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in "Tt"


class _Pool:
    """Worker processes, from which batches are taken in order.

    A thread kills them when a batch takes too long, so that waiting for it fails. It counts its own short
    sleeps and looks at no clock, so that a program that was stopped for a night does not find, in the
    morning, that its workers took too long.
    """

    def __init__(self, work: Work, numbers: range, workers: int, seconds: float) -> None:
        self.work, self.numbers, self.seconds = work, numbers, seconds
        self.awaited: int | None = None  # number of the batch that is waited for
        self.waited = 0.0  # seconds so far, for the same batch
        self.expired = False  # whether the workers were killed for it
        self.stopped: list[int] = []  # numbers of the workers that were stopped (SIGSTOP) when it expired
        self.over, self.exiting = threading.Event(), threading.Event()
        try:
            self.board = multiprocessing.RawArray("q", 2 * workers)
            with warnings.catch_warnings():
                # More workers than cores are the user's choice; PyTorch's warning would show its code.
                warnings.filterwarnings("ignore", message="This DataLoader will create")
                # batch_size=None: an item of the data set is a whole batch, so that a worker sends one
                # message a batch and not one an image. The sampler gives the numbers, in order, to the
                # workers in turn.
                loader = DataLoader(
                    _Task(work, self.board),
                    batch_size=None,
                    sampler=numbers,
                    num_workers=workers,
                    worker_init_fn=_begin,
                    timeout=POLL_SECONDS,  # `result` waits again until the workers are killed
                )
                # Blocked signals are inherited: a Ctrl-C before `_begin` would kill a worker that just
                # started.
                with _former_child_handler(), stop_signals_blocked():
                    arriving: Any = iter(loader)
        except OSError as error:
            raise VitkitError(
                f"The {workers} processes that load images could not be started: {error.strerror or error}. "
                "Use fewer --workers (0 works without any)."
            ) from error
        self.arriving = arriving
        # PyTorch has no public name for them.
        self.processes: list[multiprocessing.process.BaseProcess] = list(arriving._workers)
        # At exit Python sends its child processes SIGTERM, which workers ignore, and would wait for ever.
        atexit.register(self._end_at_exit)
        if seconds:
            threading.Thread(target=self._watch, name="vitkit-worker-watch", daemon=True).start()

    def _watch(self) -> None:
        interval = min(POLL_SECONDS, self.seconds)
        before = None
        while not self.over.wait(interval):
            awaited = self.awaited
            self.waited = self.waited + interval if awaited is not None and awaited == before else 0.0
            before = awaited
            if self.waited >= self.seconds:
                self.stopped = [i for i, process in enumerate(self.processes) if _is_stopped(process)]
                self.expired = True
                self._kill()
                return

    def _kill(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()

    def _end_at_exit(self) -> None:
        self.exiting.set()
        self._kill()

    def end(self) -> None:
        """Let each worker end its batch, and kill those that do not."""
        self.over.set()
        # At the end of the interpreter no thread can be started, and `_end_at_exit` has killed the workers.
        if self.exiting.is_set():
            return
        atexit.unregister(self._end_at_exit)
        patience = threading.Timer(GRACE_SECONDS, self._kill)
        patience.daemon = True
        patience.start()
        try:
            self.arriving._shutdown_workers()  # waits 5 s for each, then sends SIGTERM, which they ignore
        finally:
            patience.cancel()
            self._kill()
            for process in self.processes:
                process.join(GRACE_SECONDS)
                # PyTorch unlinks a batch's memory as soon as it has opened it; a worker that was killed in
                # between has left it behind.
                for left in Path("/dev/shm").glob(f"torch_{process.pid}_*"):
                    left.unlink(missing_ok=True)

    def result(self, number: int) -> Result:
        """Return batch `number`, which must be the next one of `numbers`."""
        self.awaited, result = number, None
        while result is None:
            try:
                result = next(self.arriving)
            except (RuntimeError, OSError, EOFError) as error:
                # Checked first: workers that the watch killed look like workers that died.
                if self.expired:
                    raise VitkitError(self._hanging(number)) from error
                if str(error).startswith("DataLoader timed out"):
                    continue
                sentence = _shortage(error, number) or self._death(error, number)
                if sentence is None:
                    raise
                raise VitkitError(sentence) from error
        self.awaited = None
        if isinstance(result, str):
            raise VitkitError(result)
        pixels, reasons = result  # DataLoader makes a list of the tuple
        return pixels, reasons

    def _hanging(self, number: int) -> str:
        """Say which process hangs, and which image it was reading."""
        rows = _rows(self.board)
        (readers,) = np.nonzero((rows[:, 0] == number) & (rows[:, 1] >= 0))
        # A worker that has not begun the batch has not written its number on the board, but DataLoader gives
        # batches to workers in turn.
        worker = int(readers[0]) if len(readers) else self.numbers.index(number) % len(self.processes)
        # Workers send their batches through one queue: a worker that is stopped while it sends holds up the
        # others, of which one may have the missing batch.
        worker = next(iter(self.stopped), worker)
        at, sample = rows[worker].tolist()
        image = f", last at the image {self.work.samples.key(sample)}" if at == number and sample >= 0 else ""
        return (
            f"Batch {number} did not come within {self.waited:g} s: the data loading process "
            f"{self.processes[worker].pid} hangs{image}. Mostly this is a disk or network "
            "drive that does not answer, or a process that was stopped (SIGSTOP). Check whether the images "
            "can be read, then run the same command again. If batches do take that long, allow more seconds "
            "by --worker-timeout (0 waits for ever)."
        )

    def _death(self, error: Exception, number: int) -> str | None:
        """Say that a worker died, if its death causes such an error in this process; else return None."""
        gone = (None, errno.EPIPE, errno.ECONNRESET, errno.ECONNREFUSED, errno.ENOENT)
        message = str(error)
        if isinstance(error, RuntimeError):
            if not message.startswith("DataLoader worker"):
                return None
        elif message.startswith("Caught ") or getattr(error, "errno", None) not in gone:
            return None  # an exception that the worker raised and sent: a bug, not its death
        # A process that ends closes its connections and its sentinel first and has an exit code a moment
        # later, for which only `join` waits.
        ended = multiprocessing.connection.wait(
            [process.sentinel for process in self.processes], timeout=10.0
        )
        for process in self.processes:
            if process.sentinel in ended:
                process.join(timeout=10.0)
        codes = ((process.pid, process.exitcode) for process in self.processes)
        ends = [f"{pid} by {signal.Signals(-code).name}" for pid, code in codes if code and code < 0]
        return (
            f"A data loading process died while batch {number} was awaited: {message}"
            f"{' (' + ', '.join(ends) + ')' if ends else ''}. "
            "Mostly this is memory that ran out, or a /dev/shm too small for the batches. "
            "Use fewer --workers (0 works without any) or smaller batches."
        )


def _shortage(error: Exception, number: int) -> str | None:
    """Say which resource is exhausted; None if something else failed."""
    if (message := str(error)).startswith("Caught "):
        return None  # a bug in a worker: `_Task` returns strings for the failures that are expected
    meaning = _NO_MEMORY if isinstance(error, MemoryError) else None
    for phrases, explanation in _SHORTAGES:
        if any(phrase in message for phrase in phrases):
            meaning = explanation
    if meaning is None:
        return None
    return f"Batch {number} could not be loaded by worker processes: {meaning}"


def _rows(board: Any) -> NDArray[np.int64]:
    """View the board as (workers, 2): each worker's batch and the sample it reads, -1 before the first."""
    return np.frombuffer(board, dtype=np.int64).reshape(-1, 2)

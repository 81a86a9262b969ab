"""Make batches of samples: in training an endless stream, in evaluation every sample exactly once.

A batch is a pure function of its number, computed by the process itself or by any of its workers, in a run
that begins or that is resumed. A file that cannot be read has its slot in the batch, masked, and is reported
by name.

The order of training samples is a pure function of (seed, position): one endless stream that repeats the data
set and shuffles it anew in each epoch (`repeat -> shuffle`,
vision_transformer/vit_jax/input_pipeline.py:218-224). Nothing is stored and no list is shuffled, so a resumed
run, another number of workers or other ranks meet the same samples at the same positions.

Worker processes compute batches ahead of time, and it is explained when one dies or hangs. They ignore the
signals that ask the program to stop, because Ctrl-C reaches all processes of a terminal, and their parent
still needs batches to finish a step. They end with their parent: PyTorch's workers check every 5 s whether it
is alive. The kernel could end them at once (PR_SET_PDEATHSIG), but would do so when the thread that started
them ends.
"""

import atexit
import errno
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from vitkit.data import check, transforms
from vitkit.data.config import WORKER_TIMEOUT, Augmentation, Loading, Preprocessing
from vitkit.data.decode.image import decode
from vitkit.data.listing import LABELS, Integers
from vitkit.data.sources import Samples
from vitkit.errors import DecodeError, VitkitError
from vitkit.kernels.resample import prepare_resampling
from vitkit.signals import ignore_stop_signals, stop_signals_blocked
from vitkit.world import ALONE, World

_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, the increment of SplitMix64
_ROUND_STEP = 0xD1B54A32D192ED03  # odd, with random-looking bits: rounds must not hash overlapping numbers
_ROUNDS = 12  # with 8 the orders of 5 samples are measurably uneven
_AUGMENTATION = 0x617567  # "aug" in ASCII: the stream of `sample_rng` is no other stream of the same seed

Decoded = tuple[Tensor, dict[int, str]]
"""Pixels of a batch (B, C, H, W) uint8, and the reason for each slot whose file could not be read."""
Reading = Callable[[int], None]
"""Called with the index of each sample before it is read, so that a hanging read can be named."""


def sample_at(positions: Integers, num_samples: int, seed: int) -> tuple[Integers, Integers]:
    """Compute the epochs and sample ids at positions of the stream, both of the shape of `positions`.

    Positions count from 0, and there is at least one sample. Position p belongs to epoch p // num_samples;
    the ids of one epoch are a permutation of 0..num_samples-1.
    The cost of a position depends neither on its size nor on num_samples.
    """
    positions = np.asarray(positions, dtype=np.int64)
    # The position within the epoch is permuted by a key of the epoch and the seed. Both are hashed, so that
    # epoch 1 of seed 0 and epoch 0 of seed 1 have unrelated orders.
    epochs, places = np.divmod(positions.reshape(-1), num_samples)
    keys = _mix(epochs.astype(np.uint64) * np.uint64(_GOLDEN) + _mix(np.array([seed], dtype=np.uint64)))
    ids = _permute(places.astype(np.uint64), keys, num_samples).astype(np.int64)
    return epochs.reshape(positions.shape), ids.reshape(positions.shape)


def sample_rng(seed: int, epoch: int, sample_id: int) -> np.random.Generator:
    """Make the generator for one sample in one epoch: the same in any worker, on any rank, after any restart.

    Philox is counter-based: the seed is its key, epoch and sample are the upper half of its 256-bit counter,
    so that no two samples can meet in one stream of less than 2^128 numbers.
    """
    counter = np.array((0, 0, sample_id, epoch), np.uint64)  # a Python integer takes twice as long
    return np.random.Generator(np.random.Philox(_key(seed), counter=counter))  # type: ignore[arg-type]


class _Key(ISeedSequence):
    """The key of Philox, given as a seed sequence.

    `Philox(key=...)` would first read random bytes from the system and not use them, three times as slow.
    """

    def __init__(self, seed: int) -> None:
        self.state = np.array([seed, _AUGMENTATION], dtype=np.uint64)

    def generate_state(self, n_words: int, dtype: object = np.uint64) -> NDArray[np.uint64]:
        return self.state


_key = cache(_Key)  # a run has one seed


def _permute(places: NDArray[np.uint64], keys: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    """Permute 0..size-1 by a key and return the values at `places`, each of which has a key of its own.

    This is a Feistel network on a grid of rows x columns >= size. Each round shifts one coordinate, modulo
    its side, by a hash of the other, which can be undone and so is a bijection of the grid. A place that
    lands outside 0..size-1 is permuted again until it is inside (cycle walking; Black and Rogaway, "Ciphers
    with Arbitrary Finite Domains", 2002, sections 3 and 4). The grid exceeds `size` by less than one side, so
    few places are permuted again.
    """
    side = int(np.ceil(np.sqrt(size)))  # of the smallest square that holds `size`
    rows, columns = np.uint64(side), np.uint64(-(-size // side))
    # Unsigned 64-bit numbers throughout: hashes wrap around modulo 2^64, as in the reference implementation.
    out = places.copy()
    walking = np.arange(len(places))
    while len(walking):
        row, column = np.divmod(out[walking], columns)
        key = keys[walking]
        for number in range(_ROUNDS):
            key = key + np.uint64(_ROUND_STEP)  # another hash in each round
            if number % 2:
                column = (column + _mix(row + key) % columns) % columns
            else:
                row = (row + _mix(column + key) % rows) % rows
        out[walking] = row * columns + column
        walking = walking[out[walking] >= size]
    return out


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash by the output function of SplitMix64 (Steele, Lea, Flood, 2014).

    The shifts and factors are that function's. Every input bit changes every output bit with a probability of
    about one half.
    """
    values = values * np.uint64(_GOLDEN)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@dataclass(frozen=True)
class Batch:
    """Some images of a split with their targets."""

    images: Tensor
    """(B, C, H, W) uint8, C = 3 for RGB; zeros where the mask is False."""
    targets: Mapping[str, Tensor]
    """(B, ...) each, by name: "labels" where images have some."""
    mask: Tensor
    """(B,) bool; False where the file could not be read: the image is excluded."""
    ids: Tensor
    """(B,) int64, index into the split."""
    before: "Batch | None" = None
    """The image before the first, where this is a part of a batch in which each image is mixed with the one
    before it; None: the first is mixed with the last."""

    def __len__(self) -> int:
        return len(self.images)

    @property
    def labels(self) -> Tensor:
        """The target "labels": (B,) int64; (B, K) bool where an image has several labels, or none."""
        return self.targets[LABELS]

    def tensors(self) -> tuple[Tensor, ...]:
        """List all tensors of the batch."""
        before = () if self.before is None else self.before.tensors()
        return (self.images, *self.targets.values(), self.mask, self.ids, *before)

    def to(self, device: torch.device | str) -> "Batch":
        """Copy the batch to a device; to a GPU without waiting for the copy to end."""
        device = torch.device(device)

        def move(tensor: Tensor) -> Tensor:
            if device.type == "cuda" and tensor.device.type == "cpu":
                # Only from pinned memory can the GPU copy while this process goes on.
                pinned = tensor if tensor.is_pinned() else tensor.pin_memory()
                return pinned.to(device, non_blocking=True)
            return tensor.to(device)

        return self._each(move)

    def slice(self, start: int, stop: int, before: int | None = None) -> "Batch":
        """Return samples start..stop-1 of the batch, as views of its memory.

        Args:
            start, stop: of the samples.
            before: the sample with which the first is mixed; None: the last of the slice.
        """
        part = replace(self, before=None)._each(lambda tensor: tensor[start:stop])
        return part if before is None else replace(part, before=self.slice(before, before + 1))

    def blank(self) -> "Batch":
        """Return a batch of one black image, masked."""
        return replace(self, before=None)._each(lambda tensor: tensor.new_zeros(1, *tensor.shape[1:]))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        targets = {name: change(target) for name, target in self.targets.items()}
        before = None if self.before is None else self.before._each(change)
        return Batch(change(self.images), targets, change(self.mask), change(self.ids), before)


def worker_count(samples: Samples, loading: Loading, world: World = ALONE) -> int:
    """Count the worker processes that decode a split: none where its pixels are in memory.

    The processors of a machine are divided among the processes that train together on it.
    """
    if samples.held is not None:
        return 0
    if loading.workers is not None:
        return loading.workers
    return max(1, (os.cpu_count() or 1) // world.on_machine)


@dataclass
class TrainLoader:
    """The endless training stream of one split, batch by batch."""

    samples: Samples
    """The training split."""
    preprocessing: Preprocessing
    """The way in which images are brought to the model's size."""
    augmentation: Augmentation | None
    """The random changes; None trains on images as evaluation sees them."""
    _: KW_ONLY
    batch_size: int
    """Images per step, of all processes together."""
    seed: int
    """Decides the order of the samples and their augmentation."""
    workers: int = 0
    """Processes that prepare batches; 0 prepares them in this one. The batches are the same bits."""
    bad_quota: float = 0.05
    """Fraction of the files that may be unreadable before training stops."""
    places: Integers | None = None
    """The places of the batch that this process reads, each from 0 to `batch_size` - 1, in the order in which
    it yields their images; None: the whole batch."""
    worker_timeout: float = WORKER_TIMEOUT
    """Seconds to wait for a batch before its worker is considered stuck; 0 waits for ever."""
    pinned: bool = False
    """Whether what workers prepare is copied to pinned memory, for a GPU, beside the training thread."""
    rejects: dict[str, str] = field(default_factory=dict)
    """The reason, by key, of every file so far that could not be read."""

    def __post_init__(self) -> None:
        if not len(self.samples):
            raise VitkitError("There is nothing to train on: the training split has no images.")

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        """Yield the batches of steps start..stop-1.

        Batch b holds positions b * batch_size to (b + 1) * batch_size - 1 of the stream of samples, across
        the ends of epochs, and is always full.

        Raises:
            VitkitError: more files are unreadable than the quota allows, or a worker dies or hangs.
        """
        allowed = check.bad_files_allowed(len(self.samples), self.bad_quota)
        places = np.arange(self.batch_size) if self.places is None else self.places
        rule, changes = self.preprocessing, self.augmentation
        batches = _Batches(self.samples, rule, self.batch_size, None, places, changes, self.seed)
        for batch, bad in _computed(
            batches, range(start, stop), self.workers, self.worker_timeout, self.pinned
        ):
            # Checked before the batch is yielded, so that no step trains on data beyond the quota.
            self.rejects.update(bad)
            if len(self.rejects) > allowed:
                # Five show the kind of damage; `vitkit data check` lists all.
                first = "\n".join(f"  {key}: {reason}" for key, reason in list(self.rejects.items())[:5])
                raise VitkitError(
                    f"{len(self.rejects)} of {len(self.samples)} training files cannot be read so far, more "
                    f"than the {allowed} allowed. The first:\n{first}\nRun `vitkit data check` for the whole "
                    "list, then repair or remove them, or raise --bad-quota."
                )
            yield batch


def evaluation_batches(
    samples: Samples,
    preprocessing: Preprocessing,
    batch_size: int,
    workers: int = 0,
    rejects: dict[str, str] | None = None,
    indices: Sequence[int] | Integers | None = None,
    worker_timeout: float = WORKER_TIMEOUT,
    world: World = ALONE,
) -> Iterator[Batch]:
    """Yield every sample of the split, or of `indices`, once and in order; the last batch may be short.

    Several processes take turns: each yields every `world.size`-th batch, and `run_model` of
    `vitkit.evaluation` puts their results in order.

    Unreadable files are masked, never replaced; their keys and reasons are added to `rejects`.

    Raises:
        VitkitError: a worker takes more than `worker_timeout` seconds for a batch; 0 waits for ever. Or one
            of these numbers is too low.
    """
    limits = {"batch_size": (batch_size, 1), "workers": (workers, 0), "worker_timeout": (worker_timeout, 0)}
    for name, (value, least) in limits.items():
        if not least <= value < math.inf:
            raise VitkitError(f"{name} is at least {least}, found {value:g}.")
    ids = np.arange(len(samples)) if indices is None else np.asarray(indices, dtype=np.int64)
    batches = _Batches(samples, preprocessing, batch_size, ids)
    count = -(-len(ids) // batch_size)  # rounded up
    own = range(world.rank, count, world.size)
    for batch, bad in _computed(batches, own, workers, worker_timeout):
        if rejects is not None:
            rejects.update(bad)
        yield batch


BATCHES_TOGETHER = 16
"""Batches whose samples are computed at a time."""


@lru_cache(maxsize=2)  # a loader goes through them in order
def _part_of_stream(part: int, length: int, num_samples: int, seed: int) -> tuple[Integers, Integers]:
    return sample_at(np.arange(part * length, (part + 1) * length), num_samples, seed)


@dataclass(frozen=True)
class _Batches:
    """The batches of a loader: the pixels of each are a pure function of its number."""

    samples: Samples
    preprocessing: Preprocessing
    batch_size: int
    indices: Integers | None = None
    """(N,) of the samples, in order; None: the stream of training."""
    places: Integers = field(default_factory=lambda: np.arange(0))
    """The places of a batch of that stream that are read."""
    augmentation: Augmentation | None = None
    seed: int = 0

    def epochs_and_ids(self, number: int) -> tuple[Integers, Integers]:
        if self.indices is not None:
            start = number * self.batch_size
            ids = self.indices[start : start + self.batch_size]
            return np.zeros_like(ids), ids
        # Of some batches together, because for one most of the time would be numpy's for each call.
        group, place = divmod(number, BATCHES_TOGETHER)
        stream = _part_of_stream(group, self.batch_size * BATCHES_TOGETHER, len(self.samples), self.seed)
        epochs, ids = (numbers[place * self.batch_size + self.places] for numbers in stream)
        return epochs, ids

    def compute(self, epochs: Integers, ids: Integers, reading: Reading = lambda index: None) -> Decoded:
        """Compute the pixels of a batch (B, C, H, W), and the reasons of the slots that could not be read.

        Args:
            epochs, ids: of the samples, `(B,)` each, by `epochs_and_ids`.
            reading: called with the index of each sample before it is read.
        """
        rule, bad = self.preprocessing, dict[int, str]()
        # Zeros stay where a file cannot be read: every batch has the same shape, and the slot is masked.
        pixels = np.zeros((len(ids), rule.decode.channels, *rule.image_size), dtype=np.uint8)
        if views := self._views(epochs, ids):
            transforms.make_batch(views, rule, pixels)
            return torch.from_numpy(pixels), bad
        for slot, (epoch, index) in enumerate(zip(epochs.tolist(), ids.tolist(), strict=True)):
            reading(index)
            out = pixels[slot].transpose(1, 2, 0)
            try:
                if self.augmentation is None:
                    transforms.preprocess(self.samples.decode(index), rule, out)
                else:
                    self._augment(self.augmentation, epoch, index, out)
            except DecodeError as error:
                bad[slot] = str(error)
        return torch.from_numpy(pixels), bad

    @cached_property
    def _makes_batches(self) -> bool:
        return self.augmentation is not None and transforms.can_make_batches(
            self.preprocessing, self.augmentation
        )

    def _views(self, epochs: Integers, ids: Integers) -> list[transforms.Placed]:
        """Draw the views of a batch of images in memory that can be made together; none where they cannot."""
        rule, augmentation = self.preprocessing, self.augmentation
        if augmentation is None or (held := self.samples.held) is None or not self._makes_batches:
            return []
        views = list[transforms.Placed]()
        for epoch, index in zip(epochs.tolist(), ids.tolist(), strict=True):
            if index in held.bad:
                return []
            view = transforms.RandomView(rule, augmentation, sample_rng(self.seed, epoch, index))
            view.draw(*held.size(index))
            views.append(view.place(held.image(index)))
        return views

    def _augment(self, augmentation: Augmentation, epoch: int, index: int, out: NDArray[np.uint8]) -> None:
        # A generator of its own for each sample and epoch: carried from image to image, it would make the
        # pixels depend on which process computed the images before.
        view = transforms.RandomView(self.preprocessing, augmentation, sample_rng(self.seed, epoch, index))
        samples, scaled = self.samples, augmentation.jpeg_scaling
        if scaled and samples.held is not None:
            scaled = view.draw(*samples.held.size(index)) != 1
        if scaled:  # where the view allows it
            image = decode(samples.file(index), self.preprocessing.decode, view.draw)
        else:
            image = samples.decode(index)
        if view.size is None:
            view.draw(*image.shape[:2])
        transforms.write_to(view.pixels(image, out), out)


def _computed(
    batches: _Batches, numbers: range, workers: int, worker_timeout: float, pinned: bool = False
) -> Iterator[tuple[Batch, dict[str, str]]]:
    """Yield batch n for every n of `numbers`, in order, computed here or ahead of time by worker processes;
    beside it key and reason of the files in it that could not be read.

    Only pixels and reasons come from workers. Targets, mask and ids follow from the number alone and are made
    here, in memory of their own: each tensor from a worker holds an open file, and a caller that collects the
    targets of many batches would reach the limit of open files.
    """
    prepare_resampling()
    with ExitStack() as stack:
        pool = None
        if workers and len(numbers):
            pool = _Pool(batches, numbers, min(workers, len(numbers)), worker_timeout, pinned)
            stack.callback(pool.end)  # at once when the caller stops early
        for number in numbers:
            epochs, ids = batches.epochs_and_ids(number)
            pixels, bad = pool.result(number) if pool else batches.compute(epochs, ids)
            ids = ids.copy()
            mask = np.ones(len(ids), dtype=bool)
            mask[list(bad)] = False
            targets = {name: torch.from_numpy(rows[ids]) for name, rows in batches.samples.targets.items()}
            batch = Batch(pixels, targets, torch.from_numpy(mask), torch.from_numpy(ids))
            yield batch, {batches.samples.key(int(ids[slot])): reason for slot, reason in bad.items()}


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


@dataclass(frozen=True)
class _Task(Dataset["Decoded | str"]):
    """The data set of PyTorch's DataLoader whose items are whole batches.

    An item is a sentence where there is no result: the message of an exception would reach the parent with
    the worker's traceback in it.
    """

    batches: _Batches
    board: Any  # shared memory: for each worker its batch and the sample it reads, (2 * workers,) int64

    def __getitem__(self, number: int) -> Decoded | str:
        worker = get_worker_info()
        assert worker is not None
        row = _rows(self.board)[worker.id]

        def reading(sample: int) -> None:
            row[1] = sample

        row[:] = number, -1
        try:
            pixels, bad = self.batches.compute(*self.batches.epochs_and_ids(number), reading)
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

    def __init__(
        self, batches: _Batches, numbers: range, workers: int, seconds: float, pinned: bool = False
    ) -> None:
        self.batches, self.numbers, self.seconds = batches, numbers, seconds
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
                    _Task(batches, self.board),
                    batch_size=None,
                    sampler=numbers,
                    num_workers=workers,
                    pin_memory=pinned,
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
        try:
            patience.start()
        except RuntimeError:  # no memory is left for a thread
            self._kill()
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

    def result(self, number: int) -> Decoded:
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
        image = (
            f", last at the image {self.batches.samples.key(sample)}" if at == number and sample >= 0 else ""
        )
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
        sentinels = [process.sentinel for process in self.processes]
        ended = multiprocessing.connection.wait(sentinels, timeout=10.0)
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


def _rows(board: Any) -> Integers:
    """View the board as (workers, 2): each worker's batch and the sample it reads, -1 before the first."""
    return np.frombuffer(board, dtype=np.int64).reshape(-1, 2)

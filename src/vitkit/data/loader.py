"""Samples to batches: in training an endless stream, in evaluation every sample exactly once.

A batch is a pure function of its number, whoever computes it: the process itself or any of its workers, in
the first run or a resumed one. A file that cannot be read keeps its slot, masked, and is reported by name.
"""

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.data.check import bad_files_allowed
from vitkit.data.decode import DecodeError, Header, decode
from vitkit.data.listing import Labels
from vitkit.data.loader_config import WORKER_TIMEOUT, Loading
from vitkit.data.order import sample_at, sample_rng, share
from vitkit.data.sources import Samples
from vitkit.data.transforms import RandomView, preprocess
from vitkit.data.transforms_config import Augmentation, Preprocessing
from vitkit.data.workers import Reading, Result, computed_ahead
from vitkit.errors import VitkitError
from vitkit.kernels.resample import prepare_resampling


@dataclass(frozen=True)
class Batch:
    images: Tensor
    """(B, 3, H, W) uint8; zeros where the mask is False."""
    labels: Tensor
    """(B,) int64; (B, K) bool where an image has several labels, or none."""
    mask: Tensor
    """(B,) bool. False: the file could not be read, it counts for nothing."""
    ids: Tensor
    """(B,) int64, index into the split."""

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Batch":
        """The batch on a device; to a GPU without waiting for the copy to end."""
        device = torch.device(device)

        def move(tensor: Tensor) -> Tensor:
            if device.type == "cuda" and tensor.device.type == "cpu":
                return tensor.pin_memory().to(device, non_blocking=True)
            return tensor.to(device)

        return Batch(move(self.images), move(self.labels), move(self.mask), move(self.ids))

    def slice(self, start: int, stop: int) -> "Batch":
        """Samples start..stop-1 of the batch, sharing its memory."""
        part = slice(start, stop)
        return Batch(self.images[part], self.labels[part], self.mask[part], self.ids[part])


class MemorySamples:
    """A split with every image decoded once and kept as pixels, all in one array; files that gave none keep
    their reason and raise it again whenever they are asked for."""

    def __init__(
        self,
        samples: Samples,
        pixels: NDArray[np.uint8],
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        bad: dict[int, str],
    ) -> None:
        self.samples = samples
        self.pixels = pixels  # (sum of H * W * 3,)
        self.starts = starts  # (N,)
        self.sizes = sizes  # (N, 2)
        self.bad = bad

    @property
    def labels(self) -> Labels:
        return self.samples.labels

    def __len__(self) -> int:
        return len(self.samples)

    def key(self, index: int) -> str:
        return self.samples.key(index)

    def file(self, index: int) -> bytes | Path:
        return self.samples.file(index)

    def decode(self, index: int) -> NDArray[np.uint8]:
        height, width = self.size(index)
        start = int(self.starts[index])
        return self.pixels[start : start + height * width * 3].reshape(height, width, 3)

    def header(self, index: int) -> Header:
        return self.samples.header(index)

    def size(self, index: int) -> tuple[int, int]:
        if index in self.bad:
            raise DecodeError(self.bad[index])
        height, width = self.sizes[index].tolist()
        return height, width


def worker_count(samples: Samples, loading: Loading) -> int:
    """Count the processes that decode a split: none where its pixels are in memory."""
    if isinstance(samples, MemorySamples):
        return 0
    return os.cpu_count() or 1 if loading.workers is None else loading.workers


def keep_in_memory(
    samples: Samples,
    limit_bytes: int,
    progress: Callable[[int, int], None] | None = None,
    header_progress: Callable[[int, int], None] | None = None,
) -> Samples:
    """The split with its pixels in memory if they fit into `limit_bytes`, else the split as given.

    The headers decide before anything is decoded. header_progress(done, total) is called after each header
    that was read, then progress(done, total) after each decoded image.
    A file whose pixels are of another size than its header said a moment ago is a bad file.

    Raises VitkitError if this machine does not have that memory.
    """
    total = len(samples)
    sizes = np.zeros((total, 2), dtype=np.int64)
    bad: dict[int, str] = {}
    needed = 0
    for index in range(total):
        try:
            sizes[index] = samples.size(index)
        except DecodeError as error:
            bad[index] = str(error)
        if header_progress is not None:
            header_progress(index + 1, total)
        needed += 3 * int(sizes[index].prod())
        if needed > limit_bytes:
            return samples
    starts = np.cumsum(3 * sizes.prod(axis=1)) - 3 * sizes.prod(axis=1)
    try:
        pixels = np.empty(needed, dtype=np.uint8)
    except MemoryError as error:
        raise VitkitError(
            f"There is not enough memory for {needed / 1e6:,.0f} MB of decoded images. Give a lower "
            "--memory-gib: with 0 they are read as they are needed."
        ) from error
    for index in range(total):
        if index not in bad:
            try:
                image = samples.decode(index)
                height, width = sizes[index].tolist()
                if image.shape[:2] != (height, width):
                    raise DecodeError(
                        f"the file changed while it was read: its header said {height} x {width} pixels "
                        f"(height x width), its image has {image.shape[0]} x {image.shape[1]}"
                    )
                pixels[starts[index] : starts[index] + image.size] = image.reshape(-1)
            except DecodeError as error:
                bad[index] = str(error)
        if progress is not None:
            progress(index + 1, total)
    return MemorySamples(samples, pixels, starts, sizes, bad)


def largest_decoding(samples: Samples, look_at: int = 200) -> int:
    """Bytes of memory that decoding the most demanding image takes, by the headers of evenly spread files."""
    numbers = np.unique(np.linspace(0, len(samples) - 1, look_at).astype(np.int64)) if len(samples) else ()
    largest = 0
    for index in numbers:
        with suppress(DecodeError):
            largest = max(largest, samples.header(int(index)).decoding_bytes)
    return largest


def check_decode_memory(largest: int, workers: int, available: int | None) -> str | None:
    """A warning, if so many workers may need more memory for decoding than there is.

    Args:
        largest: bytes that one image may take, as `largest_decoding` finds it.
        workers: processes that decode at the same time; 0 is this one.
        available: bytes that the machine can still give; None if that is not known.
    """
    together = largest * max(1, workers)
    if available is None or together <= available:
        return None
    return (
        f"Decoding may take {together / 1e6:,.0f} MB of memory at a time ({max(1, workers)} x "
        f"{largest / 1e6:,.0f} MB for the largest images), but {available / 1e6:,.0f} MB are free. "
        "Give fewer --workers, or leave the largest images out with --max-pixels."
    )


class TrainLoader:
    """The endless training stream of one split, batch by batch.

    batch_size: of the whole job; with `world_size` processes each gets its share, in the order of ranks.
    augmentation: None trains on images as evaluation sees them.
    workers: processes that prepare batches; 0 prepares them in this one. The batches are the same bits.
    bad_quota: part of the files that may be unreadable before training stops.
    worker_timeout: seconds that a batch is waited for before its worker is taken to hang; 0 waits for ever.
    """

    rejects: dict[str, str]
    """Key -> reason of every file met so far that could not be read."""

    def __init__(
        self,
        samples: Samples,
        preprocessing: Preprocessing,
        augmentation: Augmentation | None,
        *,
        batch_size: int,
        seed: int,
        workers: int = 0,
        bad_quota: float = 0.05,
        rank: int = 0,
        world_size: int = 1,
        worker_timeout: float = WORKER_TIMEOUT,
    ) -> None:
        if not len(samples):
            raise VitkitError("There is nothing to train on: the training split has no images.")
        if batch_size < 1 or workers < 0:
            raise VitkitError(
                f"batch_size must be at least 1 and workers at least 0, found {batch_size} and {workers}."
            )
        if not 0 <= bad_quota <= 1:
            raise VitkitError(f"bad_quota is a part of the files, from 0 to 1, found {bad_quota}.")
        share(
            np.arange(batch_size), rank, world_size
        )  # refuses a batch that cannot be shared, before any work
        self.samples = samples
        self.bad_quota = bad_quota
        self.workers = workers
        self.worker_timeout = worker_timeout
        self.rejects = {}
        self._batches = _TrainBatches(
            samples, preprocessing, augmentation, batch_size, seed, rank, world_size
        )

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        """The batches of steps start..stop-1. Batch b holds positions b * batch_size and following of the
        stream, across the ends of epochs, and is always full.

        Raises VitkitError when more files are unreadable than the quota allows, or a worker dies or hangs.
        """
        for batch, bad in _computed(self._batches, range(start, stop), self.workers, self.worker_timeout):
            self.rejects.update(bad)
            self._check_quota()
            yield batch

    def _check_quota(self) -> None:
        allowed = bad_files_allowed(len(self.samples), self.bad_quota)
        if len(self.rejects) <= allowed:
            return
        first = "\n".join(f"  {key}: {reason}" for key, reason in list(self.rejects.items())[:5])
        raise VitkitError(
            f"{len(self.rejects)} of {len(self.samples)} training files met so far cannot be read, more than "
            f"the {allowed} allowed. The first:\n{first}\n"
            "Run `vitkit data check` for the whole list, then mend or remove them, or raise --bad-quota."
        )


def evaluation_batches(
    samples: Samples,
    preprocessing: Preprocessing,
    batch_size: int,
    workers: int = 0,
    rejects: dict[str, str] | None = None,
    indices: Sequence[int] | NDArray[np.int64] | None = None,
    worker_timeout: float = WORKER_TIMEOUT,
) -> Iterator[Batch]:
    """Every sample of the split, or of `indices`, exactly once and in order; the last batch may be short.

    Unreadable files are masked, never replaced; their keys and reasons are added to `rejects`. A batch that a
    worker does not bring in `worker_timeout` seconds ends it with a VitkitError; 0 waits for ever.
    """
    if batch_size < 1:
        raise VitkitError(f"batch_size must be at least 1, found {batch_size}.")
    ids = np.arange(len(samples)) if indices is None else np.asarray(indices, dtype=np.int64)
    batches = _EvaluationBatches(samples, preprocessing, batch_size, ids)
    for batch, bad in _computed(batches, range(-(-len(ids) // batch_size)), workers, worker_timeout):
        if rejects is not None:
            rejects.update(bad)
        yield batch


# A batch, and (key, reason) of the files in it that could not be read.
_Computed = tuple[Batch, dict[str, str]]


@dataclass(frozen=True)
class _TrainBatches:
    samples: Samples
    preprocessing: Preprocessing
    augmentation: Augmentation | None
    batch_size: int
    seed: int
    rank: int
    world_size: int

    def ids(self, number: int) -> NDArray[np.int64]:
        return self._epochs_and_ids(number)[1]

    def compute(self, number: int, reading: Reading) -> Result:
        epochs, ids = self._epochs_and_ids(number)

        def view(index: int, slot: int, out: NDArray[np.uint8]) -> None:
            if self.augmentation is None:
                preprocess(self.samples.decode(index), self.preprocessing, out)
                return
            drawn = RandomView(
                self.preprocessing, self.augmentation, sample_rng(self.seed, int(epochs[slot]), index)
            )
            image = self._image(index, drawn)
            drawn.pixels(image, out)

        return _pixels(ids, self.preprocessing.image_size, view, reading)

    def key(self, sample: int) -> str:
        return self.samples.key(sample)

    def _image(self, index: int, drawn: RandomView) -> NDArray[np.uint8]:
        """The image that a view is drawn of; smaller where the view allows it, in memory or not."""
        assert self.augmentation is not None
        kept = isinstance(self.samples, MemorySamples)
        if not self.augmentation.jpeg_scaling or (kept and drawn.draw(*self.samples.size(index)) == 1):
            image = self.samples.decode(index)
        else:
            image = decode(self.samples.file(index), self.preprocessing.decode, drawn.draw)
        if drawn.size is None:
            drawn.draw(*image.shape[:2])
        return image

    def _epochs_and_ids(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        positions = np.arange(number * self.batch_size, (number + 1) * self.batch_size)
        positions = share(positions, self.rank, self.world_size)
        return sample_at(positions, len(self.samples), self.seed)


@dataclass(frozen=True)
class _EvaluationBatches:
    samples: Samples
    preprocessing: Preprocessing
    batch_size: int
    indices: NDArray[np.int64]

    def ids(self, number: int) -> NDArray[np.int64]:
        return self.indices[number * self.batch_size : (number + 1) * self.batch_size]

    def compute(self, number: int, reading: Reading) -> Result:
        def view(index: int, slot: int, out: NDArray[np.uint8]) -> None:
            preprocess(self.samples.decode(index), self.preprocessing, out)

        return _pixels(self.ids(number), self.preprocessing.image_size, view, reading)

    def key(self, sample: int) -> str:
        return self.samples.key(sample)


def _pixels(
    ids: NDArray[np.int64],
    size: tuple[int, int],
    view: Callable[[int, int, NDArray[np.uint8]], None],
    reading: Reading,
) -> Result:
    """The pixels of one batch (B, 3, H, W), and the reason for each slot whose file could not be read.

    `view` makes the model's pixels of a sample, given its index, its slot in the batch and where they are
    written.
    """
    pixels = np.zeros((len(ids), 3, *size), dtype=np.uint8)
    bad: dict[int, str] = {}
    for slot, index in enumerate(ids.tolist()):
        reading(index)
        try:
            view(index, slot, pixels[slot].transpose(1, 2, 0))
        except DecodeError as error:
            bad[slot] = str(error)
    return torch.from_numpy(pixels), bad


def _computed(
    batches: _TrainBatches | _EvaluationBatches, numbers: range, workers: int, worker_timeout: float
) -> Iterator[_Computed]:
    """Batch n for every n of `numbers`, in order, computed here or ahead of time in worker processes.

    Only pixels and reasons come from workers. What follows from the number alone is made here, in memory of
    its own, so that whoever keeps the labels of many batches keeps nothing that workers share.
    """
    prepare_resampling()
    results: Generator[Result, None, None]
    if workers and len(numbers):
        results = computed_ahead(batches, numbers, workers, worker_timeout)
    else:
        results = (batches.compute(number, _unwatched) for number in numbers)
    with closing(results):
        for number, (pixels, bad) in zip(numbers, results, strict=True):
            ids = batches.ids(number).copy()
            mask = np.ones(len(ids), dtype=bool)
            mask[list(bad)] = False
            labels = torch.from_numpy(batches.samples.labels[ids])
            batch = Batch(pixels, labels, torch.from_numpy(mask), torch.from_numpy(ids))
            yield batch, {batches.key(int(ids[slot])): reason for slot, reason in bad.items()}


def _unwatched(sample: int) -> None:
    """Nobody watches whom he works for himself."""

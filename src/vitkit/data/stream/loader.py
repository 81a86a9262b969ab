"""Make batches of samples: in training an endless stream, in evaluation every sample exactly once.

A batch is a pure function of its number, computed by the process itself or by any of its workers, in a run
that begins or that is resumed. A file that cannot be read has its slot in the batch, masked, and is reported
by name.
"""

import math
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.data.augment import RandomView
from vitkit.data.check import bad_files_allowed
from vitkit.data.config import WORKER_TIMEOUT, Augmentation, Loading, Preprocessing
from vitkit.data.decode.image import decode
from vitkit.data.sources import Samples
from vitkit.data.stream.batch import Batch
from vitkit.data.stream.order import sample_at, sample_rng
from vitkit.data.stream.workers import Reading, Result, compute_ahead
from vitkit.data.transforms import preprocess, write_to
from vitkit.errors import DecodeError, VitkitError
from vitkit.kernels.resample import prepare_resampling
from vitkit.world import ALONE, World


def worker_count(samples: Samples, loading: Loading, world: World = ALONE) -> int:
    """Count the worker processes that decode a split: none where its pixels are in memory.

    The processors of a machine are divided among the processes that train together on it.
    """
    if samples.held is not None:
        return 0
    if loading.workers is not None:
        return loading.workers
    return max(1, (os.cpu_count() or 1) // world.on_machine)


class TrainLoader:
    """The endless training stream of one split, batch by batch.

    Args:
        samples: the training split.
        preprocessing: how images are brought to the model's size.
        augmentation: the random changes; None trains on images as evaluation sees them.
        batch_size: images per step, of all processes together.
        places: the places of the batch that this process reads, each from 0 to `batch_size` - 1, in the order
            in which it yields their images; None: the whole batch.
        seed: decides the order of the samples and their augmentation.
        workers: processes that prepare batches; 0 prepares them in this one. The batches are the same bits.
        bad_quota: fraction of the files that may be unreadable before training stops.
        worker_timeout: seconds to wait for a batch before its worker is considered stuck; 0 waits for ever.
    """

    rejects: dict[str, str]
    """The reason, by key, of every file so far that could not be read."""

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
        places: NDArray[np.int64] | None = None,
        worker_timeout: float = WORKER_TIMEOUT,
    ) -> None:
        if not len(samples):
            raise VitkitError("There is nothing to train on: the training split has no images.")
        if batch_size < 1 or workers < 0:
            raise VitkitError(
                f"batch_size must be at least 1 and workers at least 0, found {batch_size} and {workers}."
            )
        if not 0 <= seed < 2**63:
            raise VitkitError(f"The seed is from 0 to 2^63 - 1, found {seed}.")
        if not 0 <= bad_quota <= 1:
            raise VitkitError(f"bad_quota is a fraction of the files, from 0 to 1, found {bad_quota}.")
        self.samples = samples
        self.bad_quota = bad_quota
        self.workers = workers
        self.worker_timeout = worker_timeout
        self.rejects = {}
        read = np.arange(batch_size) if places is None else places
        self._batches = _TrainBatches(samples, preprocessing, augmentation, batch_size, seed, read)

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        """Yield the batches of steps start..stop-1.

        Batch b holds positions b * batch_size to (b + 1) * batch_size - 1 of the stream of samples, across
        the ends of epochs, and is always full.

        Raises:
            VitkitError: more files are unreadable than the quota allows, or a worker dies or hangs.
        """
        if start < 0:
            raise VitkitError(f"Batches count from 0, found {start}.")
        allowed = bad_files_allowed(len(self.samples), self.bad_quota)
        for batch, bad in _computed(self._batches, range(start, stop), self.workers, self.worker_timeout):
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
    indices: Sequence[int] | NDArray[np.int64] | None = None,
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
    if batch_size < 1:
        raise VitkitError(f"batch_size is at least 1, found {batch_size}.")
    if workers < 0:
        raise VitkitError(f"workers is at least 0, found {workers}.")
    if not 0 <= worker_timeout < math.inf:
        raise VitkitError(f"worker_timeout is 0 seconds (no limit) or more, found {worker_timeout}.")
    ids = np.arange(len(samples)) if indices is None else np.asarray(indices, dtype=np.int64)
    batches = _EvaluationBatches(samples, preprocessing, batch_size, ids)
    count = -(-len(ids) // batch_size)  # rounded up
    own = range(world.rank, count, world.size)
    for batch, bad in _computed(batches, own, workers, worker_timeout):
        if rejects is not None:
            rejects.update(bad)
        yield batch


# A batch, and (key, reason) of the files in it that could not be read.
_Computed = tuple[Batch, dict[str, str]]


@dataclass(frozen=True)
class _TrainBatches:
    """The work of a training worker: batch `number` as a pure function of its number (`workers.Work`)."""

    samples: Samples
    preprocessing: Preprocessing
    augmentation: Augmentation | None
    batch_size: int
    seed: int
    places: NDArray[np.int64]

    def ids(self, number: int) -> NDArray[np.int64]:
        return self.epochs_and_ids(number)[1]

    def epochs_and_ids(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return sample_at(number * self.batch_size + self.places, len(self.samples), self.seed)

    def compute(self, number: int, reading: Reading) -> Result:
        epochs, ids = self.epochs_and_ids(number)

        def view(index: int, slot: int, out: NDArray[np.uint8]) -> None:
            if self.augmentation is None:
                preprocess(self.samples.decode(index), self.preprocessing, out)
                return
            # A generator of its own for each sample and epoch: carried from image to image, it would make the
            # pixels depend on which process computed the images before.
            drawn = RandomView(
                self.preprocessing, self.augmentation, sample_rng(self.seed, int(epochs[slot]), index)
            )
            samples, scaled = self.samples, self.augmentation.jpeg_scaling
            if scaled and samples.held is not None:
                scaled = drawn.draw(*samples.held.size(index)) != 1
            if scaled:  # where the view allows it
                image = decode(samples.file(index), self.preprocessing.decode, drawn.draw)
            else:
                image = samples.decode(index)
            if drawn.size is None:
                drawn.draw(*image.shape[:2])
            write_to(drawn.pixels(image, out), out)

        return _pixels(ids, self.preprocessing, view, reading)

    def key(self, sample: int) -> str:
        return self.samples.key(sample)


@dataclass(frozen=True)
class _EvaluationBatches:
    """The work of an evaluation worker: batch `number` of the samples at `indices` (`workers.Work`)."""

    samples: Samples
    preprocessing: Preprocessing
    batch_size: int
    indices: NDArray[np.int64]

    def ids(self, number: int) -> NDArray[np.int64]:
        return self.indices[number * self.batch_size : (number + 1) * self.batch_size]

    def compute(self, number: int, reading: Reading) -> Result:
        def view(index: int, slot: int, out: NDArray[np.uint8]) -> None:
            preprocess(self.samples.decode(index), self.preprocessing, out)

        return _pixels(self.ids(number), self.preprocessing, view, reading)

    def key(self, sample: int) -> str:
        return self.samples.key(sample)


def _pixels(
    ids: NDArray[np.int64],
    rule: Preprocessing,
    view: Callable[[int, int, NDArray[np.uint8]], None],
    reading: Reading,
) -> Result:
    """Compute the pixels of one batch (B, C, H, W), and the reasons of the slots that could not be read.

    Args:
        ids: the samples of the batch.
        rule: says the height, width and channels of the model's input.
        view: makes the model's pixels of a sample, given its index and its slot in the batch, and writes them
            into an array (H, W, C).
        reading: called with the index of each sample before it is read.
    """
    # Zeros stay where a file cannot be read: every batch has the same shape, and the slot is masked.
    pixels = np.zeros((len(ids), rule.decode.channels, *rule.image_size), dtype=np.uint8)
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
    """Yield batch n for every n of `numbers`, in order, computed here or ahead of time by worker processes.

    Only pixels and reasons come from workers. Targets, mask and ids follow from the number alone and are made
    here, in memory of their own: each tensor from a worker holds an open file, and a caller that collects the
    targets of many batches would reach the limit of open files.
    """
    prepare_resampling()
    results: Generator[Result, None, None]
    if workers and len(numbers):
        results = compute_ahead(batches, numbers, workers, worker_timeout)
    else:
        # The index of the sample serves to name the image at which a worker hangs; there is no worker here.
        results = (batches.compute(number, lambda sample: None) for number in numbers)
    with closing(results):  # ends the workers at once when the caller stops early
        for number, (pixels, bad) in zip(numbers, results, strict=True):
            ids = batches.ids(number).copy()
            mask = np.ones(len(ids), dtype=bool)
            mask[list(bad)] = False
            targets = {name: torch.from_numpy(rows[ids]) for name, rows in batches.samples.targets.items()}
            batch = Batch(pixels, targets, torch.from_numpy(mask), torch.from_numpy(ids))
            yield batch, {batches.key(int(ids[slot])): reason for slot, reason in bad.items()}

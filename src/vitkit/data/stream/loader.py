"""Make batches of samples: in training an endless stream, in evaluation every sample exactly once.

A batch is a pure function of its number, computed by the process itself or by any of its workers, in a run
that begins or that is resumed. A file that cannot be read has its slot in the batch, masked, and is reported
by name.

The order of training samples is a pure function of (seed, position): one endless stream that repeats the data
set and shuffles it anew in each epoch (`repeat -> shuffle`,
vision_transformer/vit_jax/input_pipeline.py:218-224). Nothing is stored and no list is shuffled, so a resumed
run, another number of workers or other ranks meet the same samples at the same positions.
"""

import math
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray
from torch import Tensor

from vitkit.data import check, transforms
from vitkit.data.config import WORKER_TIMEOUT, Augmentation, Loading, Preprocessing
from vitkit.data.decode.image import decode
from vitkit.data.listing import LABELS
from vitkit.data.sources import Samples
from vitkit.data.stream.workers import Reading, Result, compute_ahead
from vitkit.errors import DecodeError, VitkitError
from vitkit.kernels.resample import prepare_resampling
from vitkit.world import ALONE, World

_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, the increment of SplitMix64
_ROUND_STEP = 0xD1B54A32D192ED03  # odd, with random-looking bits: rounds must not hash overlapping numbers
_ROUNDS = 12  # with 8 the orders of 5 samples are measurably uneven
_AUGMENTATION = 0x617567  # "aug" in ASCII: the stream of `sample_rng` is no other stream of the same seed


def sample_at(
    positions: NDArray[np.int64], num_samples: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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
    counter = (sample_id << 128) | (epoch << 192)
    return np.random.Generator(np.random.Philox(_Key(seed), counter=counter))  # type: ignore[arg-type]


class _Key(ISeedSequence):
    """The key of Philox, given as a seed sequence.

    `Philox(key=...)` would first read random bytes from the system and not use them, three times as slow.
    """

    def __init__(self, seed: int) -> None:
        self.state = np.array([seed, _AUGMENTATION], dtype=np.uint64)

    def generate_state(self, n_words: int, dtype: object = np.uint64) -> NDArray[np.uint64]:
        return self.state


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
    """(B,) bool; False where the file could not be read, so that the image counts for nothing."""
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
                return tensor.pin_memory().to(device, non_blocking=True)
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
        """Return a batch of one black image that counts for nothing."""
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
        self.samples = samples
        self.bad_quota = bad_quota
        self.workers = workers
        self.worker_timeout = worker_timeout
        self.rejects = {}
        read = np.arange(batch_size) if places is None else places
        self._batches = _Batches(samples, preprocessing, batch_size, None, read, augmentation, seed)

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        """Yield the batches of steps start..stop-1.

        Batch b holds positions b * batch_size to (b + 1) * batch_size - 1 of the stream of samples, across
        the ends of epochs, and is always full.

        Raises:
            VitkitError: more files are unreadable than the quota allows, or a worker dies or hangs.
        """
        allowed = check.bad_files_allowed(len(self.samples), self.bad_quota)
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


@dataclass(frozen=True)
class _Batches:
    """The batches of a loader: the pixels of each are a pure function of its number (`workers.Work`)."""

    samples: Samples
    preprocessing: Preprocessing
    batch_size: int
    indices: NDArray[np.int64] | None = None
    """(N,) of the samples, in order; None: the stream of training."""
    places: NDArray[np.int64] = field(default_factory=lambda: np.arange(0))
    """The places of a batch of that stream that are read."""
    augmentation: Augmentation | None = None
    seed: int = 0

    def epochs_and_ids(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        start = number * self.batch_size
        if self.indices is not None:
            ids = self.indices[start : start + self.batch_size]
            return np.zeros_like(ids), ids
        return sample_at(start + self.places, len(self.samples), self.seed)

    def compute(self, number: int, reading: Reading) -> Result:
        """Compute the pixels of a batch (B, C, H, W), and the reasons of the slots that could not be read.

        Args:
            number: of the batch.
            reading: called with the index of each sample before it is read.
        """
        epochs, ids = self.epochs_and_ids(number)
        rule, bad = self.preprocessing, dict[int, str]()
        # Zeros stay where a file cannot be read: every batch has the same shape, and the slot is masked.
        pixels = np.zeros((len(ids), rule.decode.channels, *rule.image_size), dtype=np.uint8)
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
    batches: _Batches, numbers: range, workers: int, worker_timeout: float
) -> Iterator[tuple[Batch, dict[str, str]]]:
    """Yield batch n for every n of `numbers`, in order, computed here or ahead of time by worker processes;
    beside it key and reason of the files in it that could not be read.

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
            ids = batches.epochs_and_ids(number)[1].copy()
            mask = np.ones(len(ids), dtype=bool)
            mask[list(bad)] = False
            targets = {name: torch.from_numpy(rows[ids]) for name, rows in batches.samples.targets.items()}
            batch = Batch(pixels, targets, torch.from_numpy(mask), torch.from_numpy(ids))
            yield batch, {batches.samples.key(int(ids[slot])): reason for slot, reason in bad.items()}

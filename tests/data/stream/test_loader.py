"""Batches: the same whoever makes them, evaluation exactly once, bad files masked and counted."""

import dataclasses
import itertools
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.helpers.augmenting import augment
from tests.helpers.noise_samples import AUGMENTATION, PREPROCESSING, Noise, assert_equal, train_loader
from tests.helpers.refusals import refused, undecodable
from vitkit.data import transforms
from vitkit.data.config import Augmentation, Preprocessing
from vitkit.data.decode.image import Header
from vitkit.data.sources import check_decode_memory, keep_in_memory, largest_decoding
from vitkit.data.stream.loader import TrainLoader, evaluation_batches, sample_at, sample_rng
from vitkit.kernels.resample import prepare_resampling

# Of Python 3.12 about forking beside threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


def test_a_batch_is_what_order_and_augmentation_say() -> None:
    samples = Noise(10)
    (batch,) = train_loader(samples, batch_size=16).batches(2, 3)
    epochs, ids = sample_at(np.arange(32, 48), 10, 3)
    assert batch.ids.tolist() == ids.tolist()
    assert batch.labels.tolist() == samples.labels[ids].tolist()
    assert batch.targets["places"].tolist() == samples.targets["places"][ids].tolist()
    assert batch.mask.all()
    assert (batch.images.dtype, batch.labels.dtype) == (torch.uint8, torch.int64)
    assert (batch.mask.dtype, batch.ids.dtype) == (torch.bool, torch.int64)
    assert batch.images.shape == (16, 3, 8, 8) and batch.images.is_contiguous()
    for slot in range(16):
        rng = sample_rng(3, int(epochs[slot]), int(ids[slot]))
        expected = augment(samples.decode(int(ids[slot])), PREPROCESSING, AUGMENTATION, rng)
        np.testing.assert_array_equal(batch.images[slot].permute(1, 2, 0).numpy(), expected)


@given(st.integers(1, 40), st.integers(1, 20), st.integers(0, 30), st.integers(1, 4))
@settings(deadline=None, max_examples=30)
def test_resumed_at_any_step_the_batches_are_the_same(
    size: int, batch_size: int, start: int, count: int
) -> None:
    whole = list(train_loader(Noise(size), batch_size).batches(0, start + count))
    resumed = list(train_loader(Noise(size), batch_size).batches(start, start + count))
    assert_equal(whole[start:], resumed)


def test_workers_change_nothing() -> None:
    samples = Noise(50, bad=frozenset({3, 30}))
    alone, helped = train_loader(samples), train_loader(samples, workers=2)
    assert_equal(list(alone.batches(3, 9)), list(helped.batches(3, 9)))
    assert alone.rejects == helped.rejects != {}
    rejects: tuple[dict[str, str], dict[str, str]] = ({}, {})
    ways = zip((0, 2), rejects, strict=True)
    mine, theirs = (evaluation_batches(samples, PREPROCESSING, 16, n, rejects=each) for n, each in ways)
    assert_equal(list(mine), list(theirs))
    assert rejects[0] == rejects[1] and len(rejects[0]) == 2


def test_places_of_the_batch_alone_are_read() -> None:
    samples = Noise(20)
    (whole,) = train_loader(samples, 12).batches(1, 2)
    places = np.array([11, 4, 5, 6])
    loader = TrainLoader(samples, PREPROCESSING, AUGMENTATION, batch_size=12, seed=3, places=places)
    (part,) = loader.batches(1, 2)
    for mine, theirs in zip(part.tensors(), whole.tensors(), strict=True):
        assert torch.equal(mine, theirs[places])
    nothing = TrainLoader(samples, PREPROCESSING, None, batch_size=12, seed=3, places=places[:0])
    assert [len(batch) for batch in nothing.batches(0, 2)] == [0, 0]


@pytest.mark.parametrize("memory", [False, True])
def test_bad_files_are_masked_and_counted_exactly(memory: bool) -> None:
    noise = Noise(40, bad=frozenset({0, 7}), late=frozenset({21}))
    samples = keep_in_memory(noise, 10**9) if memory else noise
    assert (samples.held is not None) == memory
    loader = TrainLoader(samples, PREPROCESSING, AUGMENTATION, batch_size=10, seed=0, bad_quota=0.1)
    batches = list(loader.batches(0, 8))  # two epochs
    ids, mask = torch.cat([b.ids for b in batches]), torch.cat([b.mask for b in batches])
    assert sorted(ids[~mask].tolist()) == [0, 0, 7, 7, 21, 21]
    purpose = "broken on purpose"
    assert loader.rejects == {"noise 0": purpose, "noise 7": purpose, "noise 21": "broken late"}
    for batch in batches:
        assert not batch.images[~batch.mask].any()
        assert batch.images[batch.mask].flatten(1).any(dim=1).all()
    rejects: dict[str, str] = {}
    evaluated = list(evaluation_batches(samples, PREPROCESSING, 16, rejects=rejects))
    assert sum(int((~batch.mask).sum()) for batch in evaluated) == 3
    assert rejects == loader.rejects


def test_the_quota_of_bad_files() -> None:
    bad = frozenset(range(3))
    list(train_loader(Noise(40, bad=bad), quota=0.06).batches(0, 5))  # ceil(2.4) = 3 are allowed
    batches = train_loader(Noise(40, bad=bad), quota=0.05).batches(0, 5)
    said = refused(r"3 of 40 training files .* 2 allowed", list, batches)
    for part in ("noise 1: broken on purpose", "vitkit data check", "bad_quota"):
        assert part in said
    batches = train_loader(Noise(40, bad=frozenset(range(20))), 40, quota=0).batches(0, 1)
    assert refused(".", list, batches).count("broken on purpose") == 5
    (batch,) = train_loader(Noise(4, bad=frozenset(range(4))), 4).batches(0, 1)  # of bad files alone
    assert not batch.mask.any() and not batch.images.any()


def test_evaluation_meets_every_sample_exactly_once_or_those_that_are_chosen() -> None:
    for size, batch_size in itertools.product([1, 2, 63, 64, 65, 100], [1, 3, 64]):
        samples = Noise(size)
        batches = list(evaluation_batches(samples, PREPROCESSING, batch_size))
        assert torch.cat([batch.ids for batch in batches]).tolist() == list(range(size))
        assert torch.cat([batch.labels for batch in batches]).tolist() == samples.labels.tolist()
        assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
        assert len(batches) == -(-size // batch_size)
    chosen = list(evaluation_batches(Noise(20), PREPROCESSING, 2, indices=[5, 3, 19]))
    assert [batch.ids.tolist() for batch in chosen] == [[5, 3], [19]]
    assert list(evaluation_batches(Noise(20), PREPROCESSING, 2, workers=2, indices=[])) == []
    (train,) = TrainLoader(samples, PREPROCESSING, None, batch_size=6, seed=0).batches(0, 1)
    (evaluation,) = evaluation_batches(samples, PREPROCESSING, 100)
    assert torch.equal(train.images, evaluation.images[train.ids])  # without augmentation
    refused("no images", train_loader, Noise(0))
    refused("batch_size", list, evaluation_batches(Noise(5), PREPROCESSING, 0))


def test_batches_can_be_cut_and_moved() -> None:
    (batch,) = evaluation_batches(Noise(6), PREPROCESSING, 6)
    part = batch.slice(2, 5)
    assert part.ids.tolist() == [2, 3, 4] and len(part) == 3
    assert torch.equal(part.images, batch.images[2:5])
    moved = batch.to("meta")
    assert {tensor.device.type for tensor in moved.tensors()} == {"meta"}
    assert_equal([batch.to(torch.device("cpu"))], [batch])


# The order of samples is a pure function, a permutation in every epoch, and stays what it is

SEEDS = st.integers(0, 2**63 - 1)


@given(st.integers(1, 4000), SEEDS, st.integers(0, 10**6))
@settings(deadline=None)
def test_every_epoch_is_a_permutation(size: int, seed: int, epoch: int) -> None:
    epochs, ids = sample_at(np.arange(epoch * size, (epoch + 1) * size), size, seed)
    assert (epochs == epoch).all()
    np.testing.assert_array_equal(np.sort(ids), np.arange(size))


@given(st.integers(1, 3000), SEEDS, st.lists(st.integers(0, 10**15), min_size=1, max_size=50))
@settings(deadline=None)
def test_a_position_needs_nothing_but_itself(size: int, seed: int, positions: list[int]) -> None:
    epochs, ids = sample_at(np.array(positions), size, seed)
    for position, epoch, sample in zip(positions, epochs, ids, strict=True):
        assert epoch == position // size
        assert sample_at(np.array([position]), size, seed)[1] == [sample]


def test_the_order_of_released_versions() -> None:
    """A change here breaks the resumption of every run in the world: it needs a new major version."""
    epochs, ids = sample_at(np.arange(12), 5, 42)
    assert epochs.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2]
    assert ids.tolist() == [1, 2, 0, 3, 4, 0, 3, 2, 4, 1, 4, 2]
    in_rows = sample_at(np.arange(12).reshape(3, 4), 5, 42)
    assert in_rows[0].tolist() == epochs.reshape(3, 4).tolist()
    assert in_rows[1].tolist() == ids.reshape(3, 4).tolist()
    assert sample_at(np.array([], dtype=np.int64), 5, 0)[1].shape == (0,)
    epochs, ids = sample_at(np.arange(10**12, 10**12 + 100_000), 10**7, 7)
    assert ids[:6].tolist() == [1727424, 1560781, 3481208, 1077846, 6335803, 6618937]
    assert (epochs == 10**5).all() and len(np.unique(ids)) == 100_000
    assert ids.min() >= 0 and ids.max() < 10**7
    random = sample_rng(1, 2, 3).random(3).tolist()
    assert random == [0.4558481954955498, 0.4458645851843259, 0.6936051880904791]


# Splits that are held in memory, and the memory that decoding takes


def test_memory_holds_the_same_pixels() -> None:
    noise = Noise(10)
    decoded: list[tuple[int, int]] = []
    headers: list[tuple[int, int]] = []
    in_memory = keep_in_memory(
        noise, 10**6, lambda *done: decoded.append(done), lambda *done: headers.append(done)
    )
    assert in_memory.held is not None and noise.held is None
    assert decoded == headers == [(done, 10) for done in range(1, 11)]
    for index in range(10):
        np.testing.assert_array_equal(in_memory.decode(index), noise.decode(index))
        assert in_memory.held.size(index) == noise.size(index)
        assert (in_memory.key(index), in_memory.header(index)) == (f"noise {index}", noise.header(index))
    assert in_memory.labels is noise.labels and len(in_memory) == 10


@pytest.mark.parametrize("size", [(8, 8), (19, 5)])
def test_images_in_memory_are_changed_together_to_the_same_pixels(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_batch = Mock(wraps=transforms.make_batch)
    monkeypatch.setattr(transforms, "make_batch", make_batch)
    has_kernel = prepare_resampling()
    changes: tuple[dict[str, Any], ...] = (
        {"flip": True},
        {"flip": False, "rotate": 30.0, "crop_area": (0.5, 1.0)},
        {"shift": 3},
        {"rotate": 12.0, "shift": 20, "crop_aspect": None},
        {"crop_area": None, "shift": 1},
        {"rand_augment": 1},
    )
    for number, change in enumerate(changes):
        for interpolation, bad in itertools.product(("bicubic", "lanczos", "hamming", "nearest"), ((), (3,))):
            rule = Preprocessing(size, interpolation=interpolation)  # type: ignore[arg-type]
            noise = Noise(9, bad=frozenset(bad))
            in_memory = keep_in_memory(noise, 10**6)
            of_files, of_memory = (
                TrainLoader(samples, rule, Augmentation(**change), batch_size=16, seed=number, bad_quota=1)
                for samples in (noise, in_memory)
            )
            make_batch.reset_mock()
            assert_equal(list(of_files.batches(0, 2)), list(of_memory.batches(0, 2)))
            assert of_files.rejects == of_memory.rejects
            together = has_kernel and interpolation != "nearest" and not bad and number < 4
            assert make_batch.call_count == 2 * together


class Growing(Noise):
    """Sample 1 has another size when its pixels are read than its header said a moment ago."""

    def __init__(self, count: int, size: tuple[int, int]) -> None:
        super().__init__(count)
        self.new_size = size

    def made(self, index: int) -> NDArray[np.uint8]:
        return np.full((*self.new_size, 3), 77, dtype=np.uint8) if index == 1 else super().made(index)


@pytest.mark.parametrize("size", [(20, 30), (2, 2), (8, 9), (9, 9)])
@pytest.mark.parametrize("count", [2, 4])
def test_an_image_that_changes_its_size_leaves_its_neighbours_alone(
    count: int, size: tuple[int, int]
) -> None:
    samples = keep_in_memory(Growing(count, size), 10**6)
    assert samples.held is not None
    for index in range(count):
        if index != 1:
            np.testing.assert_array_equal(samples.decode(index), Noise(count).decode(index))
    if size == (9, 9):  # as the header said
        assert (samples.decode(1) == 77).all()
    else:
        reason = rf"changed while it was read: its header said 9 x 9 .* has {size[0]} x {size[1]}"
        undecodable(reason, samples.decode, 1)


class Demanding(Noise):
    def header(self, index: int) -> Header:
        return dataclasses.replace(super().header(index), decoding_bytes=index * 10**6)


def test_memory_of_all_workers_is_checked() -> None:
    largest = largest_decoding(Demanding(1000, bad=frozenset({0, 999})))
    assert 990 * 10**6 < largest <= 998 * 10**6
    assert largest_decoding(Demanding(1)) == 0
    assert largest_decoding(Noise(0)) == 0
    assert check_decode_memory(10**8, 4, None) is None
    assert check_decode_memory(10**8, 4, 4 * 10**8) is None
    assert check_decode_memory(10**8, 0, 10**8) is None
    warning = check_decode_memory(10**8, 4, 3 * 10**8)
    assert warning is not None
    assert "400 MB of memory at a time (4 x 100 MB" in warning and "300 MB are free" in warning
    assert "--workers" in warning and "--max-pixels" in warning


def test_memory_has_a_limit() -> None:
    needed = sum((8 + index % 3) * 9 * 3 for index in range(10))
    noise = Noise(10)
    assert keep_in_memory(noise, needed).held is not None
    assert keep_in_memory(noise, needed - 1) is noise
    noise.header = lambda index: Header("PNG", "RGB", (10**8, 10**8))  # type: ignore[method-assign]
    refused(r"not enough memory for .* Give a lower memory_gib", keep_in_memory, noise, 10**18)

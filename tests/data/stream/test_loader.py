"""Batches: the same whoever makes them, evaluation exactly once, bad files masked and counted."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.augmenting import augment
from tests.helpers.noise_samples import AUGMENTATION, PREPROCESSING, Noise, assert_equal, train_loader
from vitkit.data.sources import keep_in_memory
from vitkit.data.stream.loader import TrainLoader, evaluation_batches, sample_at, sample_rng
from vitkit.errors import VitkitError

# Of torch, on machines with a single core, and of Python 3.12 about forking beside threads.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]


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
    with pytest.raises(VitkitError, match=r"3 of 40 training files .* 2 allowed") as caught:
        list(train_loader(Noise(40, bad=bad), quota=0.05).batches(0, 5))
    assert "noise 1: broken on purpose" in str(caught.value)
    assert "vitkit data check" in str(caught.value) and "bad_quota" in str(caught.value)
    with pytest.raises(VitkitError) as caught:
        list(train_loader(Noise(40, bad=frozenset(range(20))), 40, quota=0).batches(0, 1))
    assert str(caught.value).count("broken on purpose") == 5
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
    with pytest.raises(VitkitError, match="no images"):
        train_loader(Noise(0))
    with pytest.raises(VitkitError, match="batch_size"):
        list(evaluation_batches(Noise(5), PREPROCESSING, 0))


def test_batches_can_be_cut_and_moved() -> None:
    (batch,) = evaluation_batches(Noise(6), PREPROCESSING, 6)
    part = batch.slice(2, 5)
    assert part.ids.tolist() == [2, 3, 4] and len(part) == 3
    assert torch.equal(part.images, batch.images[2:5])
    moved = batch.to("meta")
    assert {tensor.device.type for tensor in moved.tensors()} == {"meta"}
    assert_equal([batch.to(torch.device("cpu"))], [batch])

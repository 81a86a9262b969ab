"""The order of samples is a pure function, a permutation in every epoch, and stays what it is."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitkit.data.stream.loader import sample_at, sample_rng

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


def test_epochs_and_seeds_differ() -> None:
    keys = itertools.product(range(3), range(4))
    orders = [sample_at(500 * epoch + np.arange(500), 500, seed)[1] for seed, epoch in keys]
    for number, first in enumerate(orders):
        for second in orders[:number]:
            assert (first == second).sum() < 15  # a random permutation keeps one place on average


@pytest.mark.parametrize("size", [5, 16])
def test_every_sample_is_equally_likely_everywhere(size: int) -> None:
    """Chi-square of (place, sample) over many epochs: 4.5 standard deviations of the statistic allowed."""
    epochs = 4000
    ids = sample_at(np.arange(size * epochs), size, 11)[1].reshape(epochs, size)
    counts = np.stack([np.bincount(ids[:, place], minlength=size) for place in range(size)])
    expected = epochs / size
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = (size - 1) ** 2
    assert abs(statistic - freedom) < 4.5 * np.sqrt(2 * freedom)


def test_neighbours_are_not_kept_together() -> None:
    ids = sample_at(np.arange(100_000), 100_000, 3)[1]
    assert abs(np.corrcoef(ids[:-1], ids[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(ids, np.arange(100_000))[0, 1]) < 0.02


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


def test_random_numbers_depend_on_all_three() -> None:
    draws = {
        tuple(sample_rng(*key).random(2))
        for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1), (0, 2**40, 5), (0, 5, 2**40)]
    }
    assert len(draws) == 7
    assert sample_rng(3, 4, 5).random() == sample_rng(3, 4, 5).random()

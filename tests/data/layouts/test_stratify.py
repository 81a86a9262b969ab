"""Stratified cuts, which never change: they are the splits of everybody's data."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vitkit.data.layouts.cutting import stratify
from vitkit.data.sources import open_data


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.floats(0.01, 0.9), st.integers(0, 2**62))
@settings(deadline=None)
def test_stratified_cut(sizes: list[int], fraction: float, seed: int) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    count = int(np.ceil(fraction * len(labels)))
    cut = stratify(labels, count, seed, 2)
    taken = np.bincount(labels[cut], minlength=len(sizes))
    assert taken.sum() == min(count, len(labels) - len(sizes))
    assert (taken < sizes).all()
    if taken.sum() == count and (taken < np.array(sizes) - 1).all():
        assert np.abs(taken - count * np.array(sizes) / len(labels)).max() < 1
    np.testing.assert_array_equal(cut, stratify(labels, count, seed, 2))


def test_the_cut_of_released_versions() -> None:
    """A change here moves images between the splits of everybody's data."""
    labels = np.arange(20) % 2
    assert np.flatnonzero(stratify(labels, 6, 3, 2)).tolist() == [8, 11, 14, 17, 18, 19]
    assert open_data("digits").fingerprint() == GOLDEN_DIGITS


GOLDEN_DIGITS = "1ff020ce47c21c4674205dc447444a75fe40b3d5fcda576db344a9e3a1c25d02"

"""Folds: every class is dealt round them, groups stay whole, and what cannot be tested is said or
refused; and stratified cuts, which never change: they are the splits of everybody's data."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from tests.helpers.image_folders import keys
from vitkit.data.config import Splits
from vitkit.data.layouts.cutting import deal_folds, stratify
from vitkit.data.listing import Labels
from vitkit.data.sources import ImageData, open_data
from vitkit.errors import VitkitError


def counts_by_fold(labels: Labels, fold_of: NDArray[np.int64], folds: int) -> NDArray[np.int64]:
    """Count the images of each class in each fold, (F, K)."""
    one_hot = labels if labels.ndim == 2 else np.eye(int(labels.max()) + 1, dtype=bool)[labels]
    return np.array([one_hot[fold_of == fold].sum(0) for fold in range(folds)])


def check_random_folds(number: int) -> bool:
    """Deal a data set of classes of 1 to 30 images, with or without groups and several labels an image.

    Returns:
        Whether there are as many groups as folds.
    """
    draw = np.random.default_rng(number)
    sizes = draw.integers(1, 31, int(draw.integers(2, 9)))
    labels: Labels = draw.permutation(np.repeat(np.arange(len(sizes)), sizes))
    if number % 4 >= 2:
        labels = draw.random((len(labels), len(sizes))) < draw.uniform(0.02, 0.5, len(sizes))
    groups = draw.integers(0, max(2, len(labels) // int(draw.integers(1, 6))), len(labels))
    grouping, folds = groups if number % 2 else None, int(draw.integers(2, 11))
    group_sizes = np.unique(groups if number % 2 else np.arange(len(labels)), return_counts=True)[1]
    if len(group_sizes) < folds:
        return False
    fold_of = deal_folds(labels, grouping, folds, number, 3)
    counts = np.bincount(fold_of, minlength=folds)
    assert fold_of.shape == (len(labels),) and len(counts) == folds and counts.min() > 0
    assert np.ptp(counts) <= group_sizes.max()
    if grouping is not None:
        assert all(len(set(fold_of[grouping == group])) == 1 for group in np.unique(grouping))
    else:
        # Several labels an image need not allow one; two were never exceeded in a thousand data sets.
        apart = np.ptp(counts_by_fold(labels, fold_of, folds), axis=0).max()
        assert apart <= (1 if labels.ndim == 1 else 2)
    return True


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_folds_of_random_data_are_even_and_tear_no_group(first: int) -> None:
    """One kind of data each."""
    assert sum(check_random_folds(number) for number in range(first, 40, 4)) >= 8


def test_labels_of_several_an_image_are_evened_out_by_exchanges() -> None:
    """Without them labels of these sets differ by two between folds."""
    for number in (40, 41, 45, 47):
        draw = np.random.default_rng(number)
        labels = draw.random((60, 7)) < draw.uniform(0.05, 0.5, 7)
        fold_of = deal_folds(labels, None, 7, number, 3)
        assert np.ptp(counts_by_fold(labels, fold_of, 7), axis=0).max() <= 1
        assert np.ptp(np.bincount(fold_of)) <= 1


def test_the_same_seed_deals_the_same_folds() -> None:
    labels, groups = np.repeat([0, 1, 2], 12), np.arange(36) // 2
    for grouping in (None, groups):
        first, again, other = (deal_folds(labels, grouping, 4, seed, 3) for seed in (0, 0, 1))
        assert first.tolist() == again.tolist() != other.tolist()
    # Philox's numbers are fixed for good, so these folds are too.
    assert deal_folds(np.repeat([0, 1], 5), None, 3, 0, 3).tolist() == [1, 2, 0, 1, 0, 2, 0, 1, 0, 2]


def photos(root: Path, sizes: list[int]) -> Path:
    """Classes of so many pictures, each of another colour."""
    for label, size in enumerate(sizes):
        (root / f"class{label:02d}").mkdir(parents=True)
        for number in range(size):
            Image.new("RGB", (4, 4), (label, number, 0)).save(root / f"class{label:02d}/{number}.png")
    return root


def opened(root: Path, fold: int, folds: int) -> ImageData:
    return open_data(str(root), Splits(fold=fold, folds=folds))


def test_classes_of_fewer_images_than_folds_leave_none_empty(tmp_path: Path) -> None:
    root = photos(tmp_path, [3] * 20)
    cuts = [opened(root, fold, 5) for fold in range(5)]
    tested = [keys(cut, "test") for cut in cuts]
    assert [len(each) for each in tested] == [12] * 5
    assert len({key for each in tested for key in each}) == 60
    for cut in cuts:
        assert cut.fold_of is not None and np.bincount(cut.fold_of).tolist() == [12] * 5
        assert (np.bincount(cut.splits["train"].labels, minlength=20) > 0).all()


def test_a_class_that_no_fold_trains_on_and_tests_is_named(tmp_path: Path) -> None:
    assert any(
        note.endswith("in one fold, and no run both trains on such a class and tests it: class01, class03.")
        for note in opened(photos(tmp_path, [6, 1, 6, 1]), 0, 3).notes
    )
    assert not any("in one fold" in note for note in opened(photos(tmp_path / "more", [6, 2]), 0, 3).notes)


def test_more_folds_than_images_are_refused(tmp_path: Path) -> None:
    root = photos(tmp_path, [3, 2])
    assert len(opened(root, 4, 5).splits["test"]) == 1
    with pytest.raises(VitkitError, match=r"6 folds need as many images.* found 5\. Give fewer folds"):
        opened(root, 0, 6)
    Image.open(root / "class00/0.png").save(root / "class00/copy.png")
    with pytest.raises(VitkitError, match=r"6 folds need as many images or groups .* found 5\."):
        opened(root, 0, 6)


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
    digits = "1ff020ce47c21c4674205dc447444a75fe40b3d5fcda576db344a9e3a1c25d02"
    assert open_data("digits").fingerprint() == digits

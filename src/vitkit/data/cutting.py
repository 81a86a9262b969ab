"""Cut the splits that a data set lacks from its training images: by shares or folds, in whole groups."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitkit.data.groups import cut_images, deal_folds, joined
from vitkit.data.label_sets import count_labels
from vitkit.data.listing import SPLITS, Labels, Listing, SplitListing, join_names, pluralize
from vitkit.data.repeats import Images, find_repeats
from vitkit.data.sources_config import DEALT_RULE, FIRST_RULE, Splits
from vitkit.errors import VitkitError


@dataclass(frozen=True)
class Folds:
    """The folds that training images are cut into."""

    fold_of: NDArray[np.int64]
    """(N,) the fold of each image, from 0."""
    sizes: tuple[int, ...]
    """Images of each fold."""
    largest_group: int
    """Images of the largest group that stays together, 1 without groups."""

    @property
    def even(self) -> bool:
        """Whether each fold has an image, and no two differ by more than the largest group."""
        return min(self.sizes) > 0 and max(self.sizes) - min(self.sizes) <= self.largest_group


def with_missing_splits(
    found: Listing, splits: Splits, train: Images | None
) -> tuple[dict[str, SplitListing], list[str], Folds | None]:
    """Cut a test split, then a validation split, where the data has none.

    Args:
        found: the data set as it is listed.
        splits: how they are cut.
        train: its training images, by their position among them; None where it has none.

    Returns:
        The splits, sentences about how they were made, and the folds where such are cut.

    Raises:
        VitkitError: folds are asked for, and there is a test split already, or more folds than images.
    """
    listed = dict(found.splits)
    notes = _torn_groups(found)
    folds: Folds | None = None
    if train is None:
        return listed, notes, folds
    if splits.folds is not None and "test" in listed:
        raise VitkitError("The data has a test split of its own: leave out --splits.folds and --splits.fold.")
    wanted = {"test": splits.test_fraction, "val": splits.val_fraction}
    if splits.folds is not None:
        wanted["test"] = 1 / splits.folds
    wanted = {split: part for split, part in wanted.items() if part and split not in listed}
    numbers, labels = listed["train"]
    total, groups = len(labels), None
    stratified = "stratified, " if found.class_names else ""
    if wanted:
        groups, more = _kept_together(found, splits, train)
        notes += more
    for split, fraction in wanted.items():
        numbers, labels = listed["train"]
        if split == "test" and splits.folds is not None:
            folds = _cut_folds(labels, groups, splits)
            cut, how = folds.fold_of == splits.fold, f"fold {splits.fold} of {splits.folds}"
            notes += _untested(labels, folds, found.class_names)
        else:
            # The small subtraction keeps 0.1 * 30 = 3.0000000000000004 from being rounded up to 4.
            count = math.ceil(fraction * total - 1e-9)
            cut = cut_images(labels, groups, count, splits.seed, SPLITS.index(split))
            how = f"{100 * fraction:g} %"
        if not cut.any():
            each = "image" if groups is None else "image or group"
            notes.append(f"{split}: none; every class has a single training {each} left.")
            continue
        listed["train"] = (numbers[~cut], labels[~cut])
        listed[split] = (numbers[cut], labels[cut])
        groups = None if groups is None else groups[~cut]
        notes.append(
            f"{split}: {pluralize(int(cut.sum()), 'image')} cut from train, {stratified}seed {splits.seed} "
            f"({how})."
        )
    return listed, notes, folds


def _torn_groups(found: Listing) -> list[str]:
    """Say which groups the data's own splits tear apart."""
    if found.groups is None or len(found.splits) < 2:
        return []
    named = [set(found.groups[numbers].tolist()) for numbers, _ in found.splits.values()]
    torn = sum(sum(group in one for one in named) > 1 for group in set().union(*named))
    return (
        [f"{pluralize(torn, 'group is', 'groups are')} in several splits of the data's own."] if torn else []
    )


def _kept_together(
    found: Listing, splits: Splits, train: Images
) -> tuple[NDArray[np.int64] | None, list[str]]:
    """Return the group of each image to cut from, (N,), and notes for the user; None without groups."""
    groups, notes = None, []
    if found.groups is not None:
        groups = found.groups[found.splits["train"][0]]
        count = pluralize(len(np.unique(groups)), "group")
        notes.append(f"Splits keep groups together: {count} by {splits.group}.")
    if (splits.rule or 1) >= 2:
        same = find_repeats([train])
        if same is None:
            notes.append(f"{len(train):,} images are too many to look for repeated ones.")
        elif repeated := len(same) - len(np.unique(same)):
            is_kept = pluralize(repeated, "image repeats another one and is", "images repeat others and are")
            notes.append(f"{is_kept} kept in the same split.")
            groups = same if groups is None else joined(groups, same)
    return groups, notes


def _cut_folds(labels: Labels, groups: NDArray[np.int64] | None, splits: Splits) -> Folds:
    """Cut the images `(N,)` into folds.

    Raises:
        VitkitError: a fold would have no image to test on. Those of an earlier rule are left as they were.
    """
    assert splits.folds is not None
    sizes = np.ones(len(labels), np.int64) if groups is None else np.unique(groups, return_counts=True)[1]
    if (splits.rule or FIRST_RULE) < DEALT_RULE:
        fold_of = _cut_in_turn(labels, groups, splits.folds, splits.seed)
    elif len(sizes) < splits.folds:
        what = "images" if groups is None else "images or groups that stay together"
        raise VitkitError(
            f"{splits.folds} folds need as many {what}, so that each is tested on one, found {len(sizes)}. "
            "Give fewer folds."
        )
    else:
        fold_of = deal_folds(labels, groups, splits.folds, splits.seed, len(SPLITS))
    counts = np.bincount(fold_of, minlength=splits.folds)
    return Folds(fold_of, tuple(counts.tolist()), int(sizes.max()))


def _untested(labels: Labels, folds: Folds, names: Sequence[str]) -> list[str]:
    """Name the classes that no fold both trains on and tests: a single image or group has all of their
    images."""
    every = np.array(count_labels(labels, len(names)))
    inside = [count_labels(labels[folds.fold_of == fold], len(names)) for fold in range(len(folds.sizes))]
    whole = np.flatnonzero(((np.array(inside) == every) & (every > 0)).any(axis=0)).tolist()
    if not whole:
        return []
    count = pluralize(len(whole), "class has all its images", "classes have all their images")
    return [
        f"{count} in one fold, and no run both trains on such a class and tests it: "
        f"{join_names([names[number] for number in whole])}."
    ]


def _cut_in_turn(
    labels: Labels, groups: NDArray[np.int64] | None, folds: int, seed: int
) -> NDArray[np.int64]:
    """Cut folds one after the other from what is left, as the first two rules did; the fold of each image.

    Each cut leaves an image of every class, so that the last fold gets those and others starve.
    """
    fold_of = np.full(len(labels), folds - 1)  # the last fold is the rest
    left = np.arange(len(labels))
    for fold in range(folds - 1):
        count = round(len(left) / (folds - fold))
        part = None if groups is None else groups[left]
        inside = cut_images(labels[left], part, count, seed, len(SPLITS) + fold)
        fold_of[left[inside]] = fold
        left = left[~inside]
    return fold_of

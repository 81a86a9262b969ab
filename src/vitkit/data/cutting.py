"""Cut the splits that a data set lacks from its training images: by shares or folds, in whole groups."""

import math

import numpy as np
from numpy.typing import NDArray

from vitkit.data.groups import cut_images, joined
from vitkit.data.listing import SPLITS, Labels, Listing, SplitListing, pluralize
from vitkit.data.repeats import Images, find_repeats
from vitkit.data.sources_config import Splits
from vitkit.errors import VitkitError


def with_missing_splits(
    found: Listing, splits: Splits, train: Images | None
) -> tuple[dict[str, SplitListing], list[str]]:
    """Cut a test split, then a validation split, where the data has none.

    Args:
        found: the data set as it is listed.
        splits: how they are cut.
        train: its training images, by their position among them; None where it has none.

    Returns:
        The splits, and sentences about how they were made.

    Raises:
        VitkitError: folds are asked for, and there is a test split already.
    """
    listed = dict(found.splits)
    notes = _torn_groups(found)
    if train is None:
        return listed, notes
    if splits.folds is not None and "test" in listed:
        raise VitkitError("The data has a test split of its own: leave out --splits.folds and --splits.fold.")
    wanted = {"test": splits.test_fraction, "val": splits.val_fraction}
    if splits.folds is not None:
        wanted["test"] = 1 / splits.folds
    wanted = {split: part for split, part in wanted.items() if part and split not in listed}
    numbers, labels = listed["train"]
    total, groups = len(labels), None
    if wanted:
        groups, more = _kept_together(found, splits, train)
        notes += more
    for split, fraction in wanted.items():
        numbers, labels = listed["train"]
        if split == "test" and splits.folds is not None:
            cut, how = _fold(labels, groups, splits), f"fold {splits.fold} of {splits.folds}"
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
            f"{split}: {pluralize(int(cut.sum()), 'image')} cut from train, stratified, seed {splits.seed} "
            f"({how})."
        )
    return listed, notes


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


def _fold(labels: Labels, groups: NDArray[np.int64] | None, splits: Splits) -> NDArray[np.bool_]:
    """Return whether each image is in the fold, (N,). Folds are cut one after the other from what is left, so
    that each image is in one of them."""
    assert splits.folds is not None and splits.fold is not None
    left = np.arange(len(labels))
    for fold in range(splits.folds):
        inside = np.ones(len(left), dtype=bool)  # the last fold is the rest
        if fold < splits.folds - 1:
            count = round(len(left) / (splits.folds - fold))
            part = None if groups is None else groups[left]
            inside = cut_images(labels[left], part, count, splits.seed, len(SPLITS) + fold)
        if fold == splits.fold:
            break
        left = left[~inside]
    cut = np.zeros(len(labels), dtype=bool)
    cut[left[inside]] = True
    return cut

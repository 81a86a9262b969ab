"""Cut the splits that a data set lacks from its training images: by fractions or folds, in whole groups.

A group holds images that must stay in one split: of a patient, of a scene, copies of an image.
"""

import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.config import Splits
from vitkit.data.layouts.tables import count_labels
from vitkit.data.listing import SPLITS, Flags, Integers, Labels, Listing, SplitListing, number_groups
from vitkit.errors import VitkitError
from vitkit.text import join_names, pluralize

_TRIALS = 32
"""Orders in which groups are tried: the cut whose classes have the best fractions is taken."""
_DEALS = 8
"""Orders in which groups are dealt round folds; four times as many gave hardly better folds."""
_PAIRS = 500
"""Images of each of two folds that are considered for an exchange: a small table of 250,000 pairs."""
_LOOKS = 20_000
"""Placements of groups in all trials together, which take about a second: many groups get fewer trials."""


def with_missing_splits(
    listing: Listing, splits: Splits, search: Callable[[], Integers | None]
) -> tuple[dict[str, SplitListing], list[str], Integers | None, dict[str, Integers]]:
    """Cut a test split, then a validation split, where the data has none.

    Args:
        listing: of the data set.
        splits: how they are cut.
        search: gives equal training images equal numbers, as `find_repeats` does.

    Returns:
        The splits; sentences about how they were made; `(N,)`, the fold of each training image before any
        cut, from 0, or None where no folds are cut; and for each image of the splits that were compared, the
        position before any cut of the first training image of the same pixels.

    Raises:
        VitkitError: folds are given, and the data has a test split already, or fewer images than folds.
    """
    listed = dict(listing.splits)
    notes = list[str]()
    if listing.groups is not None and len(listed) > 1:
        by_split = [set(listing.groups[numbers].tolist()) for numbers, _ in listed.values()]
        torn = sum(sum(group in groups for groups in by_split) > 1 for group in set().union(*by_split))
        if torn:
            notes.append(f"{pluralize(torn, 'group is', 'groups are')} in several splits of the data's own.")
    fold_of: Integers | None = None
    if "train" not in listed:
        return listed, notes, fold_of, {}
    if splits.folds is not None and "test" in listed:
        raise VitkitError("The data has a test split of its own: leave out --splits.folds and --splits.fold.")
    fractions = {"test": splits.test_fraction, "val": splits.val_fraction}
    if splits.folds is not None:
        fractions["test"] = 1 / splits.folds
    fractions = {split: part for split, part in fractions.items() if part and split not in listed}
    numbers, labels = listed["train"]
    total, groups, same = len(labels), None, dict[str, Integers]()
    stratified = "stratified, " if listing.class_names else ""
    if fractions:
        if (compared := search()) is not None:
            same["train"] = compared
        groups, more = _groups_to_keep(listing, splits, compared)
        notes += more
    for split, fraction in fractions.items():
        numbers, labels = listed["train"]
        if split == "test" and splits.folds is not None:
            fold_of, more = _cut_folds(labels, groups, splits, splits.folds, listing.class_names)
            cut, how = fold_of == splits.fold, f"fold {splits.fold} of {splits.folds}"
            notes += more
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
        if same:
            same[split], same["train"] = same["train"][cut], same["train"][~cut]
        notes.append(
            f"{split}: {pluralize(int(cut.sum()), 'image')} cut from train, {stratified}seed {splits.seed} "
            f"({how})."
        )
    return listed, notes, fold_of, same


def _groups_to_keep(
    listing: Listing, splits: Splits, same: Integers | None
) -> tuple[Integers | None, list[str]]:
    """Return the group of each image to cut from, (N,), and notes for the user; None without groups.

    Args:
        listing, splits: as for `with_missing_splits`.
        same: `(N,)`, the position of the first equal training image; None where they were not compared.
    """
    (numbers, labels), groups, notes = listing.splits["train"], None, list[str]()
    if same is not None:
        differs = (labels != labels[same]).reshape(len(labels), -1).any(axis=1)
        groups_of = (numbers[same == first].tolist() for first in np.unique(same[differs]))
        contradictions = [" = ".join(map(listing.files.key, group)) for group in groups_of]
        if contradictions:
            images = pluralize(len(contradictions), "image has", "images have")
            notes.append(
                f"{images} different labels under several names, so that some are wrong: "
                f"{join_names(contradictions, 5)}."
            )
    if listing.groups is not None:
        groups = listing.groups[numbers]
        number = pluralize(len(np.unique(groups)), "group")
        notes.append(f"Splits keep groups together: {number} by {splits.group}.")
    if same is None:
        notes.append(f"{len(labels):,} images are too many to look for repeated ones.")
    elif repeated := len(same) - len(np.unique(same)):
        repeats = pluralize(repeated, "image repeats another one and is", "images repeat others and are")
        notes.append(f"{repeats} kept in the same split.")
        groups = same if groups is None else joined(groups, same)
    return groups, notes


def _cut_folds(
    labels: Labels, groups: Integers | None, splits: Splits, folds: int, names: Sequence[str]
) -> tuple[Integers, list[str]]:
    """Cut the images `(N,)` into folds; returns the fold of each, and notes for the user.

    Raises:
        VitkitError: a fold would have no image to test on.
    """
    movable = len(labels) if groups is None else len(np.unique(groups))
    if movable < folds:
        what = "images" if groups is None else "images or groups that stay together"
        raise VitkitError(
            f"{folds} folds need as many {what}, so that each is tested on one, found {movable}. "
            "Give fewer folds."
        )
    fold_of = deal_folds(labels, groups, folds, splits.seed, len(SPLITS))
    # Classes with all images in one fold: no run both trains on them and tests them.
    every = np.array(count_labels(labels, len(names)))
    inside = [count_labels(labels[fold_of == fold], len(names)) for fold in np.unique(fold_of)]
    if not (whole := np.flatnonzero(((np.array(inside) == every) & (every > 0)).any(axis=0)).tolist()):
        return fold_of, []
    count = pluralize(len(whole), "class has all its images", "classes have all their images")
    lost = join_names([names[number] for number in whole])
    return fold_of, [f"{count} in one fold, and no run both trains on such a class and tests it: {lost}."]


def cut_images(labels: Labels, groups: Integers | None, count: int, seed: int, stream: int) -> Flags:
    """Choose about `count` of the images `(N,)`, stratified, each group inside or outside as a whole.

    Images alone in their group are cut as if there were no groups. Of the images in groups, the same fraction
    is cut: groups are taken in an order drawn at random wherever that brings the counts of their classes
    closer to the target, and the best of several orders is chosen.

    Args:
        labels: `(N,)` class numbers, or `(N, K)` bool.
        groups: `(N,)` numbers of groups; None: every image is alone.
        count: images to cut; without groups exactly so many, but for classes of one image.
        seed: of the draws.
        stream: the number of the stream of draws.

    Returns:
        `(N,)`, True for the images that are cut. An image of every class is not cut.
    """
    number = np.arange(len(labels)) if groups is None else np.unique(groups, return_inverse=True)[1]
    alone = np.bincount(number)[number] == 1
    if alone.all():
        return stratify(labels, count, seed, stream)
    together, single = np.flatnonzero(~alone), np.flatnonzero(alone)
    index = np.unique(number[together], return_inverse=True)[1]  # of the group of each
    sizes, parts = _parts(index, labels[together])
    every = _counts(labels)
    width = len(every)
    share = count * len(together) / len(labels)
    target = np.array(count_labels(labels[together], width), np.float64) * share / len(together)
    trials = max(1, min(_TRIALS, _LOOKS // len(sizes)))
    orders = draws(trials * len(sizes), seed, stream).reshape(trials, len(sizes)).argsort(axis=1)
    best = (np.inf, np.zeros(len(sizes), dtype=bool))
    for trial in orders.tolist():
        have, taken = np.zeros(width), np.zeros(len(sizes), dtype=bool)
        for group in trial:
            classes, counts = parts[group]
            if (have[classes] + counts >= every[classes]).any():
                continue  # a class would have no image left
            before = ((have[classes] - target[classes]) ** 2).sum()
            if ((have[classes] + counts - target[classes]) ** 2).sum() < before:
                have[classes] += counts
                taken[group] = True
        distance = float(((have - target) ** 2 / np.maximum(target, 1)).sum())
        best = min(best, (distance, taken), key=itemgetter(0))
    cut = np.zeros(len(labels), dtype=bool)
    cut[together] = best[1][index]
    if (missing := min(count - int(cut.sum()), len(single))) > 0:
        cut[single] = stratify(labels[single], missing, seed, stream)
    return cut


def deal_folds(labels: Labels, groups: Integers | None, folds: int, seed: int, stream: int) -> Integers:
    """Deal the images `(N,)` round folds, each group into one of them as a whole.

    Without groups every class is dealt round: it differs between two folds by one image at most, and so do
    the folds. Groups go one after the other, the largest first and, of equal size, the ones with rare classes
    first, into the fold that has the least of their classes; but never so that two folds differ by more
    than the largest group. The best of several orders is chosen. Where images have several labels `(N, K)`,
    each is a group of its own, and images are exchanged at the end; a label may still differ by more than
    one, as it must for {a, b}, {b, c} and {c, a} in two folds.

    Args:
        labels: `(N,)` class numbers, or `(N, K)` bool.
        groups: `(N,)` numbers of groups; None: every image is alone.
        folds: from 2 to the number of groups.
        seed: of the draws.
        stream: the number of the stream of draws.

    Returns:
        `(N,)` numbers of folds. No fold is empty.
    """
    number = np.arange(len(labels)) if groups is None else np.unique(groups, return_inverse=True)[1]
    if labels.ndim == 1 and number.max() + 1 == len(labels):
        dealt = np.empty(len(labels), np.int64)
        dealt[np.lexsort((draws(len(labels), seed, stream), labels))] = np.arange(len(labels)) % folds
        return dealt
    (sizes, parts), every = _parts(number, labels), _counts(labels)
    width = len(every)
    rarest = np.array([every[classes].min(initial=np.inf) for classes, _ in parts])
    weight, most = 1 / np.maximum(every, 1), int(sizes.max())
    trials = max(1, min(_DEALS, _LOOKS // len(sizes)))
    best = (len(every) + 1, np.inf), np.zeros(len(sizes), np.int64)
    for drawn in draws(trials * len(sizes), seed, stream).reshape(trials, len(sizes)):
        fold_of, have, load = np.empty(len(sizes), np.int64), np.zeros((folds, width)), np.zeros(folds)
        for group in np.lexsort((drawn, rarest, -sizes)).tolist():
            (classes, counts), size = parts[group], int(sizes[group])
            # Fractions of a class and not images, by which frequent classes would decide alone. The size of a
            # fold counts as one more class, so that an empty fold is taken before any other.
            costs = have[:, classes] @ (counts * weight[classes]) + load * (size / len(labels))
            # The smallest fold may always take the group, as no group is larger than `most`; so by induction
            # no fold is ever more than `most` images larger than the smallest.
            costs[load + (size - most) > load.min()] = np.inf
            fold = int(costs.argmin())
            fold_of[group] = fold
            have[fold, classes] += counts
            load[fold] += size
        whole = int(((have == every) & (every > 1)).any(axis=0).sum())  # classes that a fold has all of
        distance = float(((have - every / folds) ** 2 / np.maximum(every, 1)).sum())
        best = min(best, ((whole, distance), fold_of), key=itemgetter(0))
    dealt = best[1][number]
    if labels.ndim == 2 and len(sizes) == len(labels):
        _exchange(labels.astype(np.float64), dealt, folds)
    return dealt


def _exchange(labels: NDArray[np.float64], fold_of: Integers, folds: int) -> None:
    """Exchange images of two folds while that evens out a label `(N, K)` that differs by more than one.

    Each exchange lowers the sum of the squares of all counts, so that it comes to an end.
    """
    have = np.array([labels[fold_of == fold].sum(0) for fold in range(folds)])
    for _ in range(len(labels)):
        for label in np.argsort(-np.ptp(have, axis=0), kind="stable"):
            if np.ptp(have[:, label]) <= 1:
                return
            high, low = int(have[:, label].argmax()), int(have[:, label].argmin())
            ours = np.flatnonzero((fold_of == high) & (labels[:, label] > 0))[:_PAIRS]
            theirs = np.flatnonzero((fold_of == low) & (labels[:, label] == 0))[:_PAIRS]
            leaving, coming, gap = labels[ours], labels[theirs], have[high] - have[low]
            # Half of the change of the sum of squares, which must fall: d (d + gap), where d is the change of
            # the high fold's counts.
            gains = (leaving * (leaving - gap)).sum(1)[:, None] + (coming * (coming + gap)).sum(1)
            gains = gains - 2 * leaving @ coming.T
            if not gains.size or gains.min() >= 0:
                continue
            first, second = np.unravel_index(int(gains.argmin()), gains.shape)
            have[high] += coming[second] - leaving[first]
            have[low] += leaving[first] - coming[second]
            fold_of[ours[first]], fold_of[theirs[second]] = low, high
            break
        else:
            return


def _counts(labels: Labels) -> NDArray[np.float64]:
    """Count the images of each class, (K,)."""
    width = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1
    return np.array(count_labels(labels, width), np.float64)


def _parts(number: Integers, labels: Labels) -> tuple[Integers, list[tuple[Integers, Integers]]]:
    """Return the size of each group, and the numbers of the classes in it with the images of each."""
    sizes = np.bincount(number)
    parts = []
    for rows in np.split(np.argsort(number, kind="stable"), np.cumsum(sizes)[:-1]):
        if labels.ndim == 2:
            sums = labels[rows].sum(0)
            parts.append((np.flatnonzero(sums), sums[sums > 0]))
        else:
            parts.append(np.unique(labels[rows], return_counts=True))
    return sizes, parts


def joined(first: Integers, second: Integers) -> Integers:
    """Join two groupings `(N,)` of images: a group holds all images that either grouping connects."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components  # slow to import

    # Each image connects its group of the first grouping with that of the second.
    pairs = first, first.max() + 1 + second
    graph = coo_array((np.ones(len(first)), pairs), shape=(pairs[1].max() + 1,) * 2)
    groups = connected_components(graph, directed=False)[1][first]
    return number_groups(map(str, groups.tolist()))


FEW = 3
"""In `stratify_label_sets`, images of a label from which on one is cut, as long as the cut has room."""


def stratify(labels: Integers | Flags, count: int, seed: int, stream: int) -> Flags:
    """Choose `count` samples to cut; `stratify_label_sets` says how where samples have several labels.

    The samples are distributed among the classes by largest remainder. At least one sample of each class is
    not cut, even if fewer than `count` are cut for it.

    Args:
        labels: `(N,)` class numbers, or `(N, K)` bool.
        count: samples to cut.
        seed, stream: key of the draws; streams of a seed are independent.

    Returns:
        `(N,)`, True for the samples that are cut.
    """
    if labels.ndim == 2:
        return stratify_label_sets(labels.astype(bool), count, seed, stream)
    sizes = np.unique(labels, return_counts=True)[1]
    exact = count * sizes / len(labels)
    cuts = np.minimum(np.floor(exact).astype(np.int64), sizes - 1)
    while cuts.sum() < count and (cuts < sizes - 1).any():
        cuts[np.argmax(np.where(cuts < sizes - 1, exact - cuts, -np.inf))] += 1
    order = np.lexsort((draws(len(labels), seed, stream), labels))  # by class, within it in a drawn order
    place = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # within the class
    cut = np.zeros(len(labels), dtype=bool)
    cut[order] = place < np.repeat(cuts, sizes)
    return cut


def stratify_label_sets(labels: Flags, count: int, seed: int, stream: int) -> Flags:
    """Choose `count` samples to cut, where each has several labels, or none.

    The rarest label is dealt first, while there is still a choice, as in Sechidis, Tsoumakas and Vlahavas
    2011 ("On the stratification of multi-label data"). Unlike there, all images of a label are dealt at
    once, and three rules are added. Of a label of at least `FEW` images one is cut, while there is room. Of
    every label an image is not cut. Exactly `count` are cut, unless that rule leaves fewer.

    Args:
        labels: `(N, K)` bool.
        count, seed, stream: as for `stratify`.

    Returns:
        `(N,)`, True for the samples that are cut.
    """
    total = len(labels)
    order = np.argsort(draws(total, seed, stream), kind="stable")
    outside = labels.sum(0)  # of each label, images that are not cut
    remaining = outside * count / max(total, 1)  # of each label, images still to be cut
    least = np.where(outside >= FEW, 1, 0)
    waiting = outside.copy()  # of each label, images not yet assigned to either part
    assigned = np.zeros(total, dtype=bool)
    cut = np.zeros(total, dtype=bool)
    while True:
        if waiting.any():
            label = int(np.argmin(np.where(waiting > 0, waiting, total + 1)))
            group = order[labels[order, label] & ~assigned[order]]
            # Halves go up and not to the even number, as `round` has it: the splits of runs depend on it.
            quota = max(math.floor(remaining[label] + 0.5), int(least[label] - cut[labels[:, label]].sum()))
        else:  # samples without a label come last
            group, label = order[~assigned[order]], -1
            quota = count
        missing = count - int(cut.sum())
        after = total - int(assigned.sum()) - len(group)
        # The images after this group must suffice for the rest of the cut, and no more than that may be cut.
        quota = min(max(quota, missing - after), missing)
        taken = 0
        for row in group.tolist():
            if taken >= quota:
                break
            if (outside[labels[row]] > 1).all():
                cut[row] = True
                taken += 1
                outside -= labels[row]
                remaining -= labels[row]
        assigned[group] = True
        waiting -= labels[group].sum(0)
        if label < 0:
            return cut


def spread_order(labels: NDArray[Any], seed: int, stream: int) -> Integers:
    """Order samples so that any part has nearly the fractions of labels of the whole.

    Within a label the order is drawn at random, and sample i of n stands at the fraction (i + 1/2) / n of the
    whole order; but the first sample of each label goes to the front, so that a part as large as the number
    of labels has every label. A sample of several labels counts as one of its rarest.

    Args:
        labels: `(N,)` class numbers, or `(N, K)` bool.
        seed, stream: as for `stratify`.

    Returns:
        `(N,)` numbers of samples.
    """
    if labels.ndim == 2:
        most = len(labels) + 1  # more than any label has
        sizes = np.where(labels, labels.sum(0), most)
        # The column in front is for samples without a label: argmin takes the first of equal columns.
        labels = np.insert(sizes, 0, most, axis=1).argmin(1)
    drawn = draws(len(labels), seed, stream)
    order = np.lexsort((drawn, labels))  # by label, within it in a drawn order
    sizes = np.unique(labels, return_counts=True)[1]
    place = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # within the label
    way = np.where(place == 0, 0, (place + 0.5) / np.repeat(sizes, sizes))
    return order[np.lexsort((drawn[order], way))]


def draws(count: int, seed: int, stream: int) -> NDArray[np.uint64]:
    """Draw `(count,)` numbers of 64 bits from the Philox generator with the key (seed, stream).

    The stream of its raw numbers is fixed for good; that of Generator.permutation is not (NumPy NEP 19).
    """
    return np.random.Philox(key=np.array([seed, stream], dtype=np.uint64)).random_raw(count)

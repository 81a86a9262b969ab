"""Choose images to cut from a split, so that every label keeps its fraction in both parts.

Draws are raw numbers of Philox: their stream is fixed for good, the stream of Generator.permutation is not
(NumPy NEP 19).
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

FEW = 3
"""In `stratify_label_sets`, images of a label from which on one is cut, as long as the cut has room."""


def stratify(
    labels: NDArray[np.int64] | NDArray[np.bool_], count: int, seed: int, stream: int
) -> NDArray[np.bool_]:
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


def stratify_label_sets(labels: NDArray[np.bool_], count: int, seed: int, stream: int) -> NDArray[np.bool_]:
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


def spread_order(labels: NDArray[Any], seed: int, stream: int) -> NDArray[np.int64]:
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
    """Draw `(count,)` numbers of 64 bits from the Philox generator with the key (seed, stream)."""
    return np.random.Philox(key=np.array([seed, stream], dtype=np.uint64)).random_raw(count)

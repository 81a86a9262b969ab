"""Choose images to cut from the training images, so that every label keeps its fraction in both parts.

Draws are raw numbers of Philox: their stream is fixed for good, that of Generator.permutation is not (NumPy
NEP 19).
"""

import math

import numpy as np
from numpy.typing import NDArray

FEW = 3
"""A label with at least this many images gets one into the part that is cut, however small that part is."""


def stratify(labels: NDArray[np.int64], count: int, seed: int, stream: int) -> NDArray[np.bool_]:
    """Choose `count` of the samples to cut, (N,) bool, with one label each.

    The samples are distributed among the classes by largest remainder, and one sample of each class at least
    stays; fewer are cut where that leaves too few.
    """
    sizes = np.unique(labels, return_counts=True)[1]
    exact = count * sizes / len(labels)
    shares = np.minimum(np.floor(exact).astype(np.int64), sizes - 1)
    while shares.sum() < count and (shares < sizes - 1).any():
        shares[np.argmax(np.where(shares < sizes - 1, exact - shares, -np.inf))] += 1
    order = np.lexsort((_draws(len(labels), seed, stream), labels))  # class by class, each as it was drawn
    place = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # within the class
    cut = np.zeros(len(labels), dtype=bool)
    cut[order] = place < np.repeat(shares, sizes)
    return cut


def stratify_label_sets(labels: NDArray[np.bool_], count: int, seed: int, stream: int) -> NDArray[np.bool_]:
    """Choose `count` of the samples to cut, (N,) bool, with several labels each, or none.

    The rarest label is shared first, while there is still a choice, as in Sechidis, Tsoumakas and Vlahavas
    2011 ("On the stratification of multi-label data"); here for all images of a label at once, and with three
    rules more. A label of at least `FEW` images gets one into the cut. Every label keeps an image
    outside. Exactly `count` are cut, unless fewer are left by that.

    Args:
        labels: `(N, K)`.
        count: samples to cut.
        seed: of the draws.
        stream: another stream, other draws.

    Returns:
        `(N,)`
    """
    total = len(labels)
    order = np.argsort(_draws(total, seed, stream), kind="stable")
    outside = labels.sum(0)  # of each label, images that are not cut
    wanted = outside * count / max(total, 1)  # of each label, images still to be cut
    least = np.where(outside >= FEW, 1, 0)
    waiting = outside.copy()  # of each label, images not yet assigned to either part
    assigned = np.zeros(total, dtype=bool)
    cut = np.zeros(total, dtype=bool)
    while True:
        if waiting.any():
            label = int(np.argmin(np.where(waiting > 0, waiting, total + 1)))
            group = order[labels[order, label] & ~assigned[order]]
            share = max(math.floor(wanted[label] + 0.5), int(least[label] - cut[labels[:, label]].sum()))
        else:  # those without a label come last
            group, label = order[~assigned[order]], -1
            share = count
        missing = count - int(cut.sum())
        after = total - int(assigned.sum()) - len(group)
        share = min(max(share, missing - after), missing)
        taken = 0
        for row in group.tolist():
            if taken >= share:
                break
            if (outside[labels[row]] > 1).all():
                cut[row] = True
                taken += 1
                outside -= labels[row]
                wanted -= labels[row]
        assigned[group] = True
        waiting -= labels[group].sum(0)
        if label < 0:
            return cut


def _draws(count: int, seed: int, stream: int) -> NDArray[np.uint64]:
    return np.random.Philox(key=np.array([seed, stream], dtype=np.uint64)).random_raw(count)

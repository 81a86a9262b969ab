"""Cutting a split from groups of images that belong together: a patient's, a scene's, copies of one image."""

import numpy as np
from numpy.typing import NDArray

from vitkit.data.listing import Labels
from vitkit.data.stratify import draws, stratify, stratify_label_sets

_TRIALS = 32
"""Orders in which groups are tried: the cut that keeps the shares of the classes best is taken."""
_LOOKS = 20_000
"""Groups that are looked at in all trials together, so that many small groups cost a second."""


def cut_images(
    labels: Labels, groups: NDArray[np.int64] | None, count: int, seed: int, stream: int
) -> NDArray[np.bool_]:
    """Choose about `count` of the images `(N,)`, stratify, each group inside or outside as a whole.

    Images alone in their group are cut as if there were no groups. Of the images in groups, the same share is
    cut: groups are taken in an order drawn at random wherever that brings the counts of their classes closer
    to what is wanted, and the best of several orders is kept.

    Args:
        labels: `(N,)` class numbers, or `(N, K)` bool.
        groups: `(N,)` numbers of groups; None: every image is alone.
        count: images to cut; without groups exactly so many, but for classes of one image.
        seed: of the draws.
        stream: another stream, other draws.

    Returns:
        `(N,)`. Every class keeps an image outside.
    """
    if groups is None:
        return _cut_single(labels, count, seed, stream)
    _, number, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    alone = sizes[number] == 1
    if alone.all():
        return _cut_single(labels, count, seed, stream)
    cut = np.zeros(len(labels), dtype=bool)
    together = np.flatnonzero(~alone)
    wanted = count * len(together) / len(labels)
    cut[together] = _cut_groups(labels, number, together, wanted, seed, stream)
    single = np.flatnonzero(alone)
    missing = count - int(cut.sum())
    if len(single) and missing > 0:
        cut[single] = _cut_single(labels[single], min(missing, len(single)), seed, stream)
    return cut


def _cut_single(labels: Labels, count: int, seed: int, stream: int) -> NDArray[np.bool_]:
    if labels.ndim == 2:
        return stratify_label_sets(labels.astype(bool), count, seed, stream)
    return stratify(labels.astype(np.int64), count, seed, stream)


def _cut_groups(
    labels: Labels,
    number: NDArray[np.int64],
    together: NDArray[np.int64],
    count: float,
    seed: int,
    stream: int,
) -> NDArray[np.bool_]:
    """Choose about `count` of the images `together`, all of whose groups have several; (M,)."""
    members = number[together]
    names, index = np.unique(members, return_inverse=True)
    order = np.argsort(index, kind="stable")
    ends = np.cumsum(np.bincount(index))
    rows = [together[order[end - size : end]] for end, size in zip(ends, np.bincount(index), strict=True)]
    parts = [_class_counts(labels[row]) for row in rows]
    width = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1
    every = _all_counts(labels, width)
    wanted = _all_counts(labels[together], width) * count / len(together)
    trials = max(1, min(_TRIALS, _LOOKS // len(names)))
    orders = draws(trials * len(names), seed, stream).reshape(trials, len(names)).argsort(axis=1)
    best: tuple[float, NDArray[np.bool_]] | None = None
    for trial in orders.tolist():
        have, taken = np.zeros(width), np.zeros(len(names), dtype=bool)
        for group in trial:
            classes, counts = parts[group]
            if (have[classes] + counts >= every[classes]).any():
                continue  # a class would have no image left
            before = ((have[classes] - wanted[classes]) ** 2).sum()
            if ((have[classes] + counts - wanted[classes]) ** 2).sum() < before:
                have[classes] += counts
                taken[group] = True
        distance = float(((have - wanted) ** 2 / np.maximum(wanted, 1)).sum())
        if best is None or distance < best[0]:
            best = distance, taken
    assert best is not None  # there is at least one trial
    return best[1][index]


def _class_counts(labels: Labels) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the images of the classes that occur: numbers of the classes, and counts."""
    if labels.ndim == 2:
        sums = labels.sum(0)
        return np.flatnonzero(sums), sums[sums > 0]
    return np.unique(labels, return_counts=True)


def _all_counts(labels: Labels, width: int) -> NDArray[np.float64]:
    counts = labels.sum(0) if labels.ndim == 2 else np.bincount(labels, minlength=width)
    return counts.astype(np.float64)


def joined(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    """Put images together that either of two groupings `(N,)` puts together, over any number of steps."""
    above: dict[tuple[int, int], tuple[int, int]] = {}

    def top(node: tuple[int, int]) -> tuple[int, int]:
        while (upper := above.setdefault(node, node)) != node:
            above[node] = above[upper]  # halves the way of whoever comes next
            node = upper
        return node

    for one, other in zip(first.tolist(), second.tolist(), strict=True):
        above[top((0, one))] = top((1, other))
    tops = [top((0, one)) for one in first.tolist()]
    numbers: dict[tuple[int, int], int] = {}
    return np.array([numbers.setdefault(one, len(numbers)) for one in tops], np.int64)

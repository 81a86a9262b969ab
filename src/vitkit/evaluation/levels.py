"""Answer at the level of a tree of classes that a model is sure of: birds, and not the wrong bird.

The classes are the ends of the tree, and the model is a plain classifier of them. A group of classes, such as
birds, is as probable as its classes together, by softmax. At a level an answer is sure if the most probable
group has a probability above that level's threshold, and lies within the most probable group of each level
above: who is told petrel is told bird as well.

What a threshold promises: of new images, drawn like those that it was chosen by, that are named down to its
level or further, at most `MOST_WRONG` are of another group there. That holds with a confidence of
`CONFIDENCE`, for each level by itself. `choose_threshold` says why.

Nothing here imports torch. Shapes: N images, K classes, L levels.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vitkit.config import Count, Fraction
from vitkit.evaluation.predictions import Predictions, in_parts, probabilities
from vitkit.evaluation.statistics import binomial_interval
from vitkit.models.config import Levels
from vitkit.text import tree_levels

Flags = NDArray[np.bool_]

MOST_WRONG = 0.05
"""The part of the answers at a level that may be wrong."""
CONFIDENCE = 0.95
MOST_STARTS = 4
"""Numbers of images from which `choose_threshold` starts, at most: each costs a part of the confidence."""
PARTS = 10
"""Parts of the images that thresholds were chosen by, when they are measured on these images: nine of ten
give nearly the same thresholds as all of them."""


@dataclass(frozen=True)
class Level:
    """A level of a tree."""

    names: tuple[str, ...]
    """Its groups, and the classes that end here or above."""
    group_of: NDArray[np.int64]
    """`(K,)` the number of each class's group."""
    above: NDArray[np.int64]
    """The number of the group of the level above that each group lies within; 0 at the top."""


@lru_cache(maxsize=8)  # a predictor asks at every batch
def levels_of(class_names: tuple[str, ...]) -> tuple[Level, ...]:
    """Return the levels of the tree that the names of classes are paths in, from the top."""
    levels, upper = list[Level](), np.zeros(len(class_names), np.int64)
    for cut in tree_levels(class_names):
        names, group_of = np.unique(cut, return_inverse=True)
        above = np.zeros(len(names), np.int64)
        above[group_of] = upper
        levels.append(Level(tuple(names.tolist()), group_of, above))
        upper = group_of
    return tuple(levels)


def likeliest_groups(
    logits: NDArray[np.float32], levels: Sequence[Level]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the most probable group of each level, and its share of the probability, `(L, N)` each.

    The share is 0 where the group lies outside of the most probable group of a level above.

    The probabilities are those of softmax, also where a model was trained to say yes or no to each class: if
    exactly one of its classes is right, these are their probabilities.

    Args:
        logits: `(N, K)`.
        levels: L of them.
    """
    classes = probabilities(logits, "softmax")
    groups, shares = [], []
    upper, within = np.zeros(len(logits), np.int64), np.ones(len(logits), bool)
    for level in levels:
        order = np.argsort(level.group_of, kind="stable")
        starts = np.searchsorted(level.group_of[order], np.arange(len(level.names)))
        summed = np.add.reduceat(classes[:, order], starts, axis=1)
        likeliest = summed.argmax(1)
        within = within & (level.above[likeliest] == upper)
        groups.append(likeliest)
        shares.append(np.where(within, summed.max(1), 0.0))
        upper = likeliest
    return np.stack(groups), np.stack(shares)


def fewest_images(starts: int = 1) -> int:
    """Count the fewest images, all of them right, that are enough for a threshold: 59 with a single start."""
    return math.ceil(math.log((1 - CONFIDENCE) / starts) / math.log(1 - MOST_WRONG))


def choose_threshold(share: NDArray[np.float64], right: Flags) -> float | None:
    """Choose the probability above which a level's answers are sure: the lowest that keeps the promise.

    The images are put in order, the surest first. The hypothesis that more than `MOST_WRONG` of all images
    surer than number m + 1 are wrong is tested on the m images before it, whose mistakes are then independent
    and alike, by the exact binomial test. From each of several starts m grows by one while the hypothesis is
    rejected, at the level (1 - `CONFIDENCE`) / starts. This is fixed-sequence testing from several starts, of
    "Learn then Test" (Angelopoulos et al. 2021, arXiv 2110.01052): that any hypothesis is rejected which is
    true has at most the probability 1 - `CONFIDENCE`. The starts are the fewest images that can be enough,
    and of many images all of them, a half and a quarter: one mistake among the surest is then not the end.

    Args:
        share: `(N,)`, of `likeliest_groups`, of held-out images; those of 0 have no answer.
        right: `(N,)` whether the groups are the true ones.

    Returns:
        The threshold; None where there are too few images or too many mistakes.
    """
    from scipy.special import bdtr  # slow to import

    above = share > 0
    order = np.argsort(-share[above], kind="stable")
    surest, wrong = share[above][order], np.cumsum(~right[above][order])
    count = len(surest)
    starts = list[int]()
    for number in range(1, MOST_STARTS + 1):
        if count >> (number - 1) >= (fewest := fewest_images(number)):
            starts = [fewest, *(count >> halving for halving in range(number - 1))]
    if not starts:
        return None
    rejected = bdtr(wrong, np.arange(1, count + 1), MOST_WRONG) <= (1 - CONFIDENCE) / len(starts)
    ends = [start - 1 + int(np.append(rejected[start - 1 :], False).argmin()) for start in starts]
    end = max((end for start, end in zip(starts, ends, strict=True) if end >= start), default=0)
    if not end:
        return None
    # Nothing is promised of images that are less sure than all of these.
    return float(np.nextafter(surest[-1], 0) if end == count else surest[end])


def choose_thresholds(shares: NDArray[np.float64], right: Flags) -> tuple[float | None, ...]:
    """Choose the threshold of each level, from the top.

    A threshold below that of the level above is raised to it, which leaves the surer answers: nothing is
    named at a level that is not sure at all levels above.

    Args:
        shares: `(L, N)`, of `likeliest_groups`, of held-out images.
        right: `(L, N)` whether these groups are the true ones.
    """
    chosen, least = list[float | None](), 0.0
    for level, (share, is_right) in enumerate(zip(shares, right, strict=True)):
        threshold = choose_threshold(share, is_right) if level == 0 or chosen[-1] is not None else None
        least = max(least, threshold or 0.0)
        chosen.append(None if threshold is None else least)
    return tuple(chosen)


def learn_levels(
    logits: NDArray[np.float32], labels: NDArray[np.int64], class_names: tuple[str, ...], split: str
) -> Levels:
    """Choose the thresholds of a model by held-out images.

    Args:
        logits: `(N, K)`; N may be 0.
        labels: `(N,)`.
        class_names: K paths.
        split: the name of the images' split.
    """
    levels = levels_of(class_names)
    groups, shares = likeliest_groups(logits, levels)
    right = groups == np.stack([level.group_of[labels] for level in levels])
    return Levels(choose_thresholds(shares, right), split, len(labels))


def describe(learned: Levels) -> Iterator[str]:
    """Say from which probability on a model is sure at each level, and what that promises."""
    images, what = learned.images, "validation" if learned.split == "val" else learned.split
    for level, threshold in enumerate(learned.thresholds, 1):
        if threshold is not None:
            yield f"{level}: sure above {threshold:.1%}"
        elif images < fewest_images():
            yield f"{level}: never sure: that takes {fewest_images()} {what} images, found {images:,}"
        else:
            yield f"{level}: never sure: too many of {images:,} {what} images are wrong there"
    if learned.thresholds[0] is not None:
        yield (
            f"at most {MOST_WRONG:.0%} of answers are wrong at each of these ({CONFIDENCE:.0%} confidence, "
            f"by {images:,} {what} images)"
        )


def is_sure(shares: NDArray[np.float64], thresholds: Sequence[float | None]) -> Flags:
    """Say at which levels answers are sure, `(L, N)`, by the shares of `likeliest_groups`."""
    above = shares > np.array([[1.0 if each is None else each] for each in thresholds])
    # Sums are rounded: a group may come out as less probable than the one class of it that counts.
    return np.asarray(np.logical_and.accumulate(above, axis=0))


def name_groups(
    logits: NDArray[np.float32], class_names: tuple[str, ...], thresholds: Sequence[float | None]
) -> list[tuple[str, float] | None]:
    """Name the group of the deepest level that is sure, and its probability; None where no level is.

    Args:
        logits: `(N, K)`.
        class_names: K paths.
        thresholds: L of them.
    """
    levels = levels_of(class_names)
    groups, shares = likeliest_groups(logits, levels)
    depths = is_sure(shares, thresholds).sum(0)
    return [
        (levels[depth - 1].names[groups[depth - 1, row]], float(shares[depth - 1, row])) if depth else None
        for row, depth in enumerate(depths.tolist())
    ]


@dataclass(frozen=True)
class LevelScore:
    """The numbers of one level."""

    level: Count
    """Counted from the top, which is 1."""
    groups: Count
    """Groups of classes here, and classes that end here or above."""
    correct: Count
    """Images whose most probable group is the true one."""
    accuracy: Fraction
    accuracy_interval: tuple[Fraction, Fraction]
    """95 %, as of the accuracy of classes."""
    named: Count
    """Images that are named down to this level or further."""
    right: Count
    """Named images whose group of this level is the true one."""
    right_interval: tuple[Fraction, Fraction] | None
    """95 %, of the fraction of the named images that is right; None where none is named."""
    ended: Count
    """Images whose answer is of this level."""
    ended_right: Count
    """The images among them whose answer is right."""


@dataclass(frozen=True)
class GroupScore:
    """The numbers of a group of classes, or of a class."""

    name: str
    count: Count
    """Images of it."""
    correct: Count
    """Its images for which it is the most probable at its level."""
    named: Count
    """Its images that are named down to its level or further."""
    right: Count
    """Its images that are named rightly at its level."""


@dataclass(frozen=True)
class LevelScores:
    """The accuracy of a model at each level of its classes, and how often it is sure there."""

    thresholds: tuple[float | None, ...]
    """The model's, from the top."""
    cross_fitted: bool
    """Whether these are the images that the thresholds were chosen by. Each tenth of them, every tenth image,
    is then judged by thresholds that the other nine give."""
    levels: tuple[LevelScore, ...]
    """In order from the top."""
    groups: tuple[GroupScore, ...]
    """In the order of the tree."""

    def sentence(self, images: int) -> str:
        """Say how accurate the model is at each level, and how many of so many images are named there."""
        parts = []
        for each in self.levels:
            named = "none named"
            if each.named:
                named = f"{each.named / images:.1%} named, {each.right / each.named:.1%} of these rightly"
            parts.append(f"{each.accuracy:.2%} at level {each.level} ({named})")
        return f"by level {', '.join(parts)}"


def score_levels(
    predictions: Predictions, class_names: Sequence[str], learned: Levels, cross_fit: bool
) -> LevelScores:
    """Measure a model by level.

    Args:
        predictions: of N images, with their logits.
        class_names: K paths.
        learned: the model's thresholds.
        cross_fit: whether they were chosen by these images.
    """
    levels = levels_of(tuple(class_names))
    parts = [likeliest_groups(rows, levels) for rows, _ in in_parts(predictions.logits, predictions.labels)]
    groups, shares = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
    true = np.stack([level.group_of[predictions.labels] for level in levels])
    right, count = groups == true, len(predictions)
    sure = is_sure(shares, learned.thresholds)
    for part in range(PARTS) if cross_fit else ():
        here = np.arange(count) % PARTS == part
        chosen = choose_thresholds(shares[:, ~here], right[:, ~here])
        both = zip(chosen, learned.thresholds, strict=True)
        of_part = [None if own is None else threshold for threshold, own in both]
        sure[:, here] = is_sure(shares[:, here], of_part)
    depths, rows, tree = sure.sum(0), list[LevelScore](), dict[str, GroupScore]()
    for number, level in enumerate(levels):
        masks = (np.ones(count, bool), right[number], sure[number], sure[number] & right[number])
        _, correct, named, hits = (int(mask.sum()) for mask in masks)
        accuracy = correct, correct / count, binomial_interval(correct, count)
        answers = named, hits, binomial_interval(hits, named) if named else None
        ends = (int((mask & (depths == number + 1)).sum()) for mask in masks[:2])
        rows.append(LevelScore(number + 1, len(level.names), *accuracy, *answers, *ends))
        sums = (np.bincount(true[number][mask], minlength=len(level.names)).tolist() for mask in masks)
        for name, *counts in zip(level.names, *sums, strict=True):
            # A class that ends above this level is in the table already.
            tree.setdefault(name, GroupScore(name, *counts))
    in_order = sorted(tree.values(), key=lambda each: each.name.split("/"))
    return LevelScores(learned.thresholds, cross_fit, tuple(rows), tuple(in_order))

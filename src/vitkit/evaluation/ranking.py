"""Measure how well scores rank the images that have a label before those that have not.

Average precision is the area under the steps of precision over recall, Σ (R_n - R_{n-1}) P_n over the
distinct scores from the largest, as in scikit-learn's `average_precision_score`: images of equal scores
come in together, so that their order decides nothing. Nothing is interpolated (PASCAL VOC does that).

N images, K labels. Everything is computed in float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitkit.evaluation.intervals import wilson_limits

FEWEST_POSITIVES = 3
"""Images with a label from which its average precision gets an interval: of two, one is left to vary."""
_PRIOR_IMAGES = 20
"""Images with a label that weigh as much as the variance of a share: with 5 of them the intervals of single
labels held as little as 86 % in simulations, and with any number more 99 % of frequent labels."""
Floats = NDArray[np.float64]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Ranking:
    """The images in the order of their scores for one label, in groups of equal scores."""

    order: NDArray[np.int64]
    """`(N,)` from the largest score to the smallest."""
    positive: NDArray[np.bool_]
    """`(N,)` whether the image has the label, in that order."""
    ends: NDArray[np.int64]
    """`(G,)` the last image of each group that holds an image with the label."""
    scores: NDArray[np.float32]
    """`(G,)` the score of each of these groups."""

    @classmethod
    def from_scores(cls, scores: NDArray[np.float32], positive: NDArray[np.bool_]) -> "Ranking":
        """Rank images by their scores `(N,)`."""
        order = np.argsort(-scores, kind="stable")
        ranked, positive = scores[order], positive[order]
        ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
        # Groups without the label add nothing to the sum.
        gains = np.diff(np.cumsum(positive)[ends], prepend=0)
        ends = ends[gains > 0]
        return cls(order, positive, ends, ranked[ends])

    def average_precision(self) -> float | None:
        """Compute the average precision; None where no image has the label."""
        if not len(self.ends):
            return None
        found = np.cumsum(self.positive)[self.ends].astype(np.float64)
        return float((np.diff(found, prepend=0) * (found / (self.ends + 1))).sum() / found[-1])

    def without_each(self) -> Floats:
        """Compute the average precision without each image in turn, `(N,)` in the order of the images.

        NaN where the only image with the label is left out.
        """
        count = len(self.order)
        if not len(self.ends):
            return np.full(count, np.nan)
        found = np.cumsum(self.positive)[self.ends].astype(np.float64)
        gains, total = np.diff(found, prepend=0), found[-1]
        # The sum's terms before a group stay as they are; in those after it, one image fewer is seen.
        before = np.append(0.0, np.cumsum(gains * (found / (self.ends + 1))))
        seen = np.maximum(self.ends, 1).astype(np.float64)  # a group of one image has no term left
        fewer = _sums_from(gains * (found / seen))
        one_less = _sums_from(gains * ((found - 1) / seen))
        own = (gains - 1) * ((found - 1) / seen)
        # The group of each image, or the next one that holds an image with the label.
        group = np.searchsorted(self.ends, np.arange(count))
        sums = before[group] + fewer[group]
        labelled = group[self.positive]
        sums[self.positive] = before[labelled] + own[labelled] + one_less[labelled + 1]
        left = np.where(self.positive, total - 1, total)
        values = np.full(count, np.nan)
        values[self.order] = np.divide(sums, left, out=np.full(count, np.nan), where=left > 0)
        return values

    def best_f1(self) -> tuple[float, float] | None:
        """Find the largest F1 that a threshold can reach, and that threshold.

        Labels with that score or more are predicted; among equal F1 the largest threshold is returned. None
        where no image has the label.
        """
        if not len(self.ends):
            return None
        found = np.cumsum(self.positive)[self.ends]
        f1 = 2 * found / (self.ends + 1 + found[-1])
        best = int(f1.argmax())
        return float(f1[best]), float(self.scores[best])


def _sums_from(terms: Floats) -> Floats:
    """Add up the terms from each place to the end, `(G + 1,)`; the last one is 0."""
    return np.append(np.cumsum(terms[::-1])[::-1], 0.0)


def intervals_95(rankings: Sequence[Ranking]) -> tuple[Interval | None, list[Interval | None]]:
    """Estimate 95 % intervals of average precisions on other images drawn alike.

    The average precision of a few images is too high on average: the jackknife (leave each image out in turn)
    says by how much, and how far it varies, all labels of an image together. A rare label that happens to be
    ranked well seems not to vary at all, so the variance of each label is drawn up towards that of a share of
    its images, AP (1 - AP) / n (Boyd, Eng and Page 2013, "Area under the precision-recall curve", 3.2). The
    limits are Wilson's for as many images as a share of this variance would have been counted on.

    In simulations (`python -m benchmarks.coverage`, docs/results.md) they held the truth in 93 to 97 % of the
    cases from 100 images on; in up to 99 % where one of few labels is rare and ranked hardly better than by
    chance. Labels that do not occur are not in the mean, nor in what is said of other images.

    Args:
        rankings: of the same images for K labels.

    Returns:
        The interval of the mean over the labels that occur, from 0 to 1, and that of each label; None where a
        label has fewer than `FEWEST_POSITIVES` images, and for the mean where one that occurs has.
    """
    counts = [int(ranking.positive.sum()) for ranking in rankings]
    singles: list[Interval | None] = []
    parts: list[_Jackknife] = []
    together: Floats | None = None
    for ranking, count in zip(rankings, counts, strict=True):
        if count < FEWEST_POSITIVES:
            singles.append(None)
            continue
        part, deviations = _jackknife(ranking, count)
        parts.append(part)
        singles.append(_wilson_of([part], part.variance))
        together = deviations if together is None else together + deviations
    if together is None or any(0 < count < FEWEST_POSITIVES for count in counts):
        return None, singles
    return _wilson_of(parts, _variance(together) / len(parts) ** 2), singles


@dataclass(frozen=True)
class _Jackknife:
    """The average precision of one label, by leaving each image out in turn."""

    value: float
    """Without its bias, from 0 to 1."""
    smoothed: float
    """The value if one image more were ranked first, and one last: never 0 or 1."""
    variance: float
    missing: float
    """Variance that the images with the label are too few to show."""


def _jackknife(ranking: Ranking, count: int) -> tuple[_Jackknife, Floats]:
    """Estimate value and variance of an average precision; returns each image's part in it `(N,)` too."""
    precision, without = ranking.average_precision(), ranking.without_each()
    assert precision is not None
    mean = float(without.mean())
    value = min(max(precision - (len(without) - 1) * (mean - precision), 0.0), 1.0)
    smoothed = (count * value + 1) / (count + 2)
    deviations = without - mean
    variance = _variance(deviations)
    weight = _PRIOR_IMAGES / (count + _PRIOR_IMAGES)
    missing = weight * max(0.0, smoothed * (1 - smoothed) / count - variance)
    return _Jackknife(value, smoothed, variance, missing), deviations


def _variance(deviations: Floats) -> float:
    return float((deviations**2).sum()) * (len(deviations) - 1) / len(deviations)


def _wilson_of(parts: Sequence[_Jackknife], variance: float) -> Interval:
    """Make Wilson's interval of a mean of average precisions with so much variance, and what is missing."""
    labels = len(parts)
    value = sum(part.value for part in parts) / labels
    smoothed = sum(part.smoothed for part in parts) / labels
    variance += sum(part.missing for part in parts) / labels**2
    return wilson_limits(value, smoothed * (1 - smoothed) / variance)

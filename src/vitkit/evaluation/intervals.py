"""Compute intervals and tests: how far a number that was counted on a sample holds for others like it.

All are formulas: nothing is drawn at random, so that the same predictions give the same figures.
"""

import math

import numpy as np
from numpy.typing import NDArray

NORMAL_95 = 1.959963984540054  # the standard normal's 97.5% point


def wilson_interval(correct: int, count: int) -> tuple[float, float]:
    """Return the 95% confidence interval of a fraction, `(0, 1)` where nothing was counted (Wilson 1927).

    Unlike the textbook's p +- 1.96 sigma it is right for few images and for accuracies near 0 and 1: averaged
    over true fractions of up to 99 % it holds 94 to 96 %, of above 99 % with 20 to 50 images 92 to 94 %
    (`python -m benchmarks.coverage`).
    """
    if count == 0:
        return 0.0, 1.0
    lower, upper = wilson_limits(correct / count, count)
    # Exact at the ends, where rounding would leave 1e-17.
    return 0.0 if correct == 0 else lower, 1.0 if correct == count else upper


def wilson_limits(fraction: float, count: float) -> tuple[float, float]:
    """Return Wilson's 95% limits of a fraction, within 0 to 1.

    Args:
        fraction: from 0 to 1.
        count: observations, above 0; for another estimate, fraction (1 - fraction) / its variance.
    """
    z2 = NORMAL_95**2
    centre = (fraction + z2 / (2 * count)) / (1 + z2 / count)
    half = NORMAL_95 / (1 + z2 / count) * math.sqrt(fraction * (1 - fraction) / count + z2 / (4 * count**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def sign_test(first: int, second: int) -> float:
    """Return the two-sided p of McNemar's exact test, which is a sign test.

    Two classifiers are compared on the same images. Where both are right, or both wrong, an image says
    nothing about which is better; if they were equally good, the others would fall to either side like a coin
    (McNemar 1947; Dietterich 1998, "Approximate Statistical Tests for Comparing Supervised Classification
    Learning Algorithms", 3.1; here with the exact binomial in place of the chi-square).

    Args:
        first: images that the first classifier alone is right on.
        second: images that the second one alone is right on.
    """
    count = first + second
    # Logarithms: 2^-count is no float64 above 1,074 images.
    logs = [
        math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) - count * math.log(2)
        for k in range(max(first, second), count + 1)
    ]
    return min(1.0, 2 * math.fsum(map(math.exp, logs)))


def overconfidence_interval(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the 95% confidence interval of mean confidence - accuracy, both of the same images.

    The limits of the two means are put together by their squares (Zou and Donner 2008, "Construction of
    confidence limits about effect measures", for paired estimates; Newcombe 1998). The accuracy has Wilson's
    limits, so that a model that was right on all of 20 images is not called too modest, as a bootstrap
    of the differences would have it.

    Args:
        confidence: `(N,)` probabilities of the predicted classes, N at least 1.
        right: `(N,)` whether they are the true ones.
    """
    count, correct = len(right), int(right.sum())
    mean, accuracy = math.fsum(confidence) / count, correct / count
    spread = float(np.std(confidence, ddof=1)) if count > 1 else 1.0  # one image says nothing about others
    half = NORMAL_95 * spread / math.sqrt(count)
    low, high = wilson_interval(correct, count)
    varies = spread > 0 and 0 < correct < count
    together = float(np.corrcoef(confidence, right)[0, 1]) if varies and count > 1 else 0.0
    below, above = accuracy - low, high - accuracy
    # Rounding may leave a square root of a little less than nothing.
    return (
        mean - accuracy - math.sqrt(max(0.0, half**2 + above**2 - 2 * together * half * above)),
        mean - accuracy + math.sqrt(max(0.0, half**2 + below**2 - 2 * together * half * below)),
    )

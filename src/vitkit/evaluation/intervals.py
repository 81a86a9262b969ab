"""Compute intervals and tests: how far a number that was counted on a sample holds for others like it.

All are formulas: nothing is drawn at random, so that the same predictions give the same figures.
"""

import math

import numpy as np
from numpy.typing import NDArray

NORMAL_95 = 1.959963984540054  # the standard normal's 97.5% point


def binomial_interval(right: float, count: float) -> tuple[float, float]:
    """Return the 95 % confidence interval of a fraction, `(0, 1)` where nothing was counted.

    The limits are those of Clopper and Pearson (1934): the ends of what `binomial_test` does not reject. They
    hold the true fraction at least 95 times in 100, whatever it is. Wilson's, 1 to 13 % narrower, fall to
    84 % above 99 % right, and call up to 8 % of the models that know nothing better than guessing, where
    2.5 % are allowed (`python -m benchmarks.coverage verdicts`).

    Args:
        right: observations, from 0 to `count`.
        count: all of them. For another estimate of a fraction that need be no whole number:
            fraction (1 - fraction) / its variance.
    """
    from scipy.special import betaincinv  # a fifth of a second to import, which only evaluations need

    if count <= 0:
        return 0.0, 1.0
    wrong = count - right
    lower = float(betaincinv(right, wrong + 1, 0.025)) if right > 0 else 0.0
    return lower, float(betaincinv(right + 1, wrong, 0.975)) if wrong > 0 else 1.0


def describe_interval(interval: tuple[float, float]) -> str:
    """Write the 95 % interval of a fraction, to stand behind it."""
    return f"(95 % interval {interval[0]:.1%} to {interval[1]:.1%})"


def binomial_test(right: int, count: int, chance: float) -> float:
    """Return the two-sided p of the exact binomial test: twice the smaller tail.

    It is below 0.05 where `binomial_interval` does not hold `chance`: test and interval are one construction.
    """
    from scipy.special import betainc

    most = float(betainc(right, count - right + 1, chance)) if right > 0 else 1.0
    least = float(betainc(count - right, right + 1, 1 - chance)) if right < count else 1.0
    return min(1.0, 2 * min(most, least))


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
    return binomial_test(first, first + second, 0.5)


def overconfidence_interval(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the 95% confidence interval of mean confidence - accuracy, both of the same images.

    The limits of the two means are put together by their squares (Zou and Donner 2008, "Construction of
    confidence limits about effect measures", for paired estimates; Newcombe 1998). The accuracy has its exact
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
    low, high = binomial_interval(correct, count)
    varies = spread > 0 and 0 < correct < count
    together = float(np.corrcoef(confidence, right)[0, 1]) if varies and count > 1 else 0.0
    below, above = accuracy - low, high - accuracy
    # Rounding may leave a square root of a little less than nothing.
    return (
        mean - accuracy - math.sqrt(max(0.0, half**2 + above**2 - 2 * together * half * above)),
        mean - accuracy + math.sqrt(max(0.0, half**2 + below**2 - 2 * together * half * below)),
    )

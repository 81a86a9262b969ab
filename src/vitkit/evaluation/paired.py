"""Compare two models or ways to train on test images: the difference, its interval, the detectable one.

All are formulas: nothing is drawn at random, so that the same answers give the same figures.

Letters: S seeds, N images.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from vitkit.errors import VitkitError
from vitkit.evaluation.intervals import NORMAL_95, sign_test

NORMAL_80 = 0.8416212335729143  # the standard normal's 80 % point
SURE = 0.05
"""The p, after Holm, below which two models or ways to train are said to differ."""
Scores: TypeAlias = Mapping[int, NDArray[np.float64]]
"""The scores of a way to train by seed, each `(N,)` from 0 to 1; without the seeds that diverged."""


@dataclass(frozen=True)
class PairedDifference:
    """The mean difference of two ways to train, over the same seeds and test images."""

    seeds: int
    images: int
    mean: float
    """The score of the second less that of the first."""
    seed_variance: float | None
    """The part of the mean's variance by the seeds: the variance of the seeds' differences over S. None of
    one seed, whose difference is about these weights only."""
    image_variance: float
    """The part of the mean's variance by the images that were drawn for the test."""
    degrees_of_freedom: float
    interval: tuple[float, float]
    """95 %, by Student's t."""
    p: float
    """Two-sided, for no difference; not adjusted for other comparisons."""
    detectable: float
    """The smallest true difference that 8 of 10 studies of this size and spread find, at p < 0.05."""

    @property
    def standard_error(self) -> float:
        """The square root of the two variances together."""
        return math.sqrt((self.seed_variance or 0.0) + self.image_variance)


def paired_difference(first: NDArray[np.float64], second: NDArray[np.float64]) -> PairedDifference:
    """Compare the scores of two ways to train, each with the same seeds on the same images.

    Seeds and images are both samples: another seed makes other weights, another test set has other images.
    The variance of the mean is taken as the sum of two terms. By seeds: the variance of the S differences
    over S. By images: the bootstrap variance of the differences averaged over seeds. It needs no draws: for a
    mean, infinitely many draws give the variance of the images, divided by N and not N - 1, over N (Efron and
    Tibshirani 1993, "An Introduction to the Bootstrap", 5.3 and 6.2). The interaction of seed and image is in
    both terms, so that the sum is too large rather than too small (Owen 2007, "The pigeonhole bootstrap", 3).
    The degrees of freedom of a sum of two variances follow Satterthwaite (1946, "An Approximate Distribution
    of Estimates of Variance Components") and Welch (1947). With two seeds that happen to agree they are too
    many: 95 % intervals held 86 to 97 % of simulated studies of two seeds, 92 to 97 % of three, 94 to 97 % of
    five (`python -m benchmarks.coverage`).

    Args:
        first: `(S, N)` scores from 0 to 1.
        second: `(S, N)`, in the same order of seeds and images.

    Raises:
        VitkitError: the two differ in shape, or there is no seed or no image.
    """
    if first.shape != second.shape or first.ndim != 2 or 0 in first.shape:
        raise VitkitError(
            f"A paired difference needs scores of the same seeds on the same images, (S, N) twice, found "
            f"{first.shape} and {second.shape}: test both on the same images."
        )
    from scipy.special import stdtr, stdtrit  # half a second to import, which only comparisons need

    difference = second - first
    seeds, images = difference.shape
    by_seed, by_image = difference.mean(1), difference.mean(0)
    mean = float(by_seed.mean())
    seed_variance = float(by_seed.var(ddof=1)) / seeds if seeds > 1 else None
    image_variance = float(by_image.var()) / images
    variance = (seed_variance or 0.0) + image_variance
    squares = 0.0 if seed_variance is None else seed_variance**2 / (seeds - 1)
    squares += image_variance**2 / max(images - 1, 1)
    # Without any variance, the scores are equal everywhere, or differ by the same amount on every image.
    freedom = variance**2 / squares if squares > 0 else float(max(images - 1, 1))
    error = math.sqrt(variance)
    point = float(stdtrit(freedom, 0.975))
    p = 1.0 if mean == 0 else 0.0 if error == 0 else min(1.0, 2 * float(stdtr(freedom, -abs(mean) / error)))
    return PairedDifference(
        seeds,
        images,
        mean,
        seed_variance,
        image_variance,
        freedom,
        (mean - point * error, mean + point * error),
        p,
        (point + NORMAL_80) * error,
    )


def compare_scores(first: Sequence[Scores], second: Sequence[Scores]) -> PairedDifference | None:
    """Compare the summed scores of some ways to train and of as many others, over the seeds of all of them.
    Returns:
        The second sum less the first; None where no seed finished in all of them.
    """
    seeds = [seed for seed in first[0] if all(seed in scores for scores in (*first, *second))]
    if not seeds:
        return None
    sums = (
        np.stack([np.sum([scores[seed] for scores in side], axis=0) for seed in seeds])
        for side in (first, second)
    )
    return paired_difference(*sums)


def holm(values: Sequence[float]) -> tuple[float, ...]:
    """Adjust the p of several comparisons: at 0.05, at most one in 20 families has a false finding.

    The smallest p is multiplied by the number of comparisons, the next by one less, and so on; none becomes
    smaller than the p before it (Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure").
    """
    adjusted = [0.0] * len(values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=lambda i: values[i])):
        highest = max(highest, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = highest
    return tuple(adjusted)


def adjust(differences: Sequence[PairedDifference | None]) -> list[float | None]:
    """Adjust the p of several differences by Holm; None stays where there is no difference."""
    adjusted = iter(holm([difference.p for difference in differences if difference is not None]))
    return [None if difference is None else next(adjusted) for difference in differences]


@dataclass(frozen=True)
class Flips:
    """The images on which one of two models scores higher than the other."""

    first_only: int
    """Images on which the first scores higher; if an image is right or wrong, it alone is right on them."""
    second_only: int
    both_right: int
    """Images on which both score 1."""
    graded: bool
    """Whether an image can be right in part, such as an image with several labels."""
    p: float
    """Two-sided, of McNemar's exact test (`vitkit.evaluation.intervals.sign_test`); not adjusted for other
    comparisons."""


def count_flips(first: NDArray[np.float64], second: NDArray[np.float64]) -> Flips:
    """Count the images on which two models differ, and test whether either is better on more of them.

    Args:
        first: `(N,)` scores from 0 to 1.
        second: `(N,)`, of the same images.
    """
    first_only, second_only = int((first > second).sum()), int((second > first).sum())
    both = int(((first == 1) & (second == 1)).sum())
    graded = any(bool(((scores != 0) & (scores != 1)).any()) for scores in (first, second))
    return Flips(first_only, second_only, both, graded, sign_test(first_only, second_only))


@dataclass(frozen=True)
class ModelDifference:
    """The difference of two models, of these weights alone, over the same test images."""

    images: int
    mean: float
    """The mean score of the second less that of the first."""
    interval: tuple[float, float]
    """95 %, over other images drawn alike."""
    p: float
    """Two-sided, for no difference."""
    detectable: float
    """The smallest true difference that 8 of 10 comparisons of this size find, at p < 0.05."""
    flips: Flips

    @property
    def differs(self) -> bool:
        """Whether the models differ at p < 0.05."""
        return self.p < SURE


def model_difference(first: NDArray[np.float64], second: NDArray[np.float64]) -> ModelDifference:
    """Compare two models on the same images.

    If each image is right or wrong, the test is McNemar's exact one, and the interval follows Bonett
    and Price (2012, "Adjusted Wald Confidence Interval for a Difference of Binomial Proportions Based on
    Paired Data"), which holds for the few images on which two good models differ. Else both are Student's t
    of the paired differences, as in `paired_difference`; fewer than six images show no difference.

    Args:
        first: `(N,)` scores from 0 to 1, N at least 1.
        second: `(N,)`, in the same order of images.

    Raises:
        VitkitError: the two differ in shape, or there is no image.
    """
    paired, flips = paired_difference(first[None], second[None]), count_flips(first, second)
    images, mean = paired.images, paired.mean
    if flips.graded and sign_test(images, 0) >= SURE:
        # Fewer than six images show no difference even if one model is better on all of them. Student's t
        # would be sure of two images with equal differences, whose spread is 0.
        return ModelDifference(images, mean, (-1.0, 1.0), flips.p, 1.0, flips)
    if flips.graded:
        return ModelDifference(images, mean, paired.interval, paired.p, paired.detectable, flips)
    gains, losses = ((count + 1) / (images + 2) for count in (flips.second_only, flips.first_only))
    centre = gains - losses
    half = NORMAL_95 * math.sqrt((gains + losses - centre**2) / (images + 2))
    interval = max(-1.0, centre - half), min(1.0, centre + half)
    least = detectable_flips(images, min(flips.first_only, flips.second_only))
    return ModelDifference(images, mean, interval, flips.p, least, flips)


def detectable_flips(images: int, other_way: int) -> float:
    """Compute the smallest true difference that McNemar's exact test finds in 8 of 10 comparisons.

    The number of images on which the models differ is binomial, and so is, given that number, the number on
    which the better one is right; the test looks at the second alone. The observed spread cannot replace
    this: two good models differ on hardly any image, and the test needs six to find a difference.

    Args:
        images: that both are tested on.
        other_way: images that the worse model alone is right on; their fraction is taken as the true one.

    Returns:
        The difference of the two fractions right, as nearly as a thousandth of it; 1 where none is found.
    """
    background = other_way / images
    low, high = 0.0, 1.0 - background * 2
    if high <= 0 or _power(images, background, high) < 0.8:
        return 1.0
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _power(images, background, middle) >= 0.8 else (middle, high)
    return high


def _power(images: int, background: float, difference: float) -> float:
    """Compute how often McNemar's exact test finds a true difference.

    Args:
        images: that both models are tested on.
        background: fraction of them that the worse model alone is right on.
        difference: fraction that the better one alone is right on, less `background`.
    """
    apart = min(1.0, 2 * background + difference)
    spread = 6 * math.sqrt(images * apart * (1 - apart)) + 6  # beyond it there is less than 1e-8
    least, most = max(0.0, images * apart - spread), min(float(images), images * apart + spread)
    counts = np.arange(math.floor(least), math.floor(most) + 1)
    whole = np.full(len(counts), images)
    weights = _binomial(counts, whole, apart) - _binomial(counts - 1, whole, apart)
    edges = _least_sure(counts)
    better = (
        background + difference
    ) / apart  # the fraction of these images on which the better one is right
    few, many = _binomial(edges, counts, better), 1 - _binomial(counts - edges - 1, counts, better)
    return float((weights * np.where(edges >= 0, few + many, 0.0)).sum())


def _least_sure(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give the most images on which the worse of two models may be right, of `counts` on which they differ,
    so that McNemar's exact test still finds a difference; -1 where it finds none."""
    low, high = np.full(len(counts), -1), counts // 2
    while (low < high).any():  # halve the ranges; the probability rises with the images
        middle = (low + high + 1) // 2
        is_sure = _binomial(middle, counts, 0.5) < SURE / 2
        low, high = np.where(is_sure, middle, low), np.where(is_sure, high, middle - 1)
    return low


def _binomial(
    successes: NDArray[np.int64], trials: NDArray[np.int64], probability: float
) -> NDArray[np.float64]:
    """Compute the probability of at most `successes`, by the incomplete beta function."""
    from scipy.special import betainc

    inside = (successes >= 0) & (successes < trials)
    k, n = np.where(inside, successes, 0), np.where(inside, trials, 1)
    below: NDArray[np.float64] = np.where(inside, betainc(n - k, k + 1, 1 - probability), successes >= trials)
    return below

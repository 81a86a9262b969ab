"""Compare two models or ways to train on test images: the difference, how sure it is, what would have shown.

All are formulas: nothing is drawn at random, so that the same answers give the same words.

Letters: S seeds, N images.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitkit.errors import VitkitError
from vitkit.evaluation.intervals import NORMAL_95, sign_test

NORMAL_80 = 0.8416212335729143  # the standard normal's 80 % point
SURE = 0.05
"""The p, after Holm, below which a difference is said to be there."""


@dataclass(frozen=True)
class PairedDifference:
    """The mean difference of two ways to train, over the seeds and test images that they share."""

    seeds: int
    images: int
    mean: float
    """The score of the second less that of the first."""
    seed_variance: float | None
    """The variance of the mean by the seeds: that of the differences of the seeds, over S; None of one seed,
    whose difference is about these weights only."""
    image_variance: float
    """The variance of the mean by the images that were drawn for the test."""
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
    over S. By images: the bootstrap's, of the differences averaged over seeds; of a mean it needs no draws,
    because the limit of infinitely many is the variance of the images, with N below it, over N (Efron and
    Tibshirani 1993, "An Introduction to the Bootstrap", 5.3 and 6.2). What belongs to a seed and an image
    together is in both terms, so that the sum is too large rather than too small (Owen 2007, "The pigeonhole
    bootstrap", 3). The degrees of freedom are those of a sum of two variances (Satterthwaite 1946, "An
    Approximate Distribution of Estimates of Variance Components"; Welch 1947);
    with two seeds that happen to agree they are too many: 95 % intervals held 86 to 97 % of simulated studies
    of two seeds, 92 to 97 % of three, 94 to 97 % of five (`python -m benchmarks.coverage`).

    Args:
        first: `(S, N)` scores from 0 to 1.
        second: `(S, N)`, in the same order of seeds and images.

    Raises:
        VitkitError: the two have not the same shape, or no seed or no image.
    """
    if first.shape != second.shape or first.ndim != 2 or 0 in first.shape:
        raise VitkitError(
            f"A paired difference needs scores of the same seeds on the same images, (S, N) twice, found "
            f"{first.shape} and {second.shape}: test both on the same images."
        )
    from scipy.special import stdtr, stdtrit  # half a second to import: only who compares waits

    difference = second - first
    seeds, images = difference.shape
    by_seed, by_image = difference.mean(1), difference.mean(0)
    mean = float(by_seed.mean())
    seed_variance = float(by_seed.var(ddof=1)) / seeds if seeds > 1 else None
    image_variance = float(by_image.var()) / images
    variance = (seed_variance or 0.0) + image_variance
    squares = 0.0 if seed_variance is None else seed_variance**2 / (seeds - 1)
    squares += image_variance**2 / max(images - 1, 1)
    # Without any variance, the answers are the same everywhere, or differ by the same on every image.
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


def holm(values: Sequence[float]) -> tuple[float, ...]:
    """Adjust the p of several comparisons, so that one in 20 families of them has a false finding at 0.05.

    Step down from the smallest: it is multiplied by their number, the next by one less, and none becomes
    smaller than the one before it (Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure").
    """
    adjusted = [0.0] * len(values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=lambda i: values[i])):
        highest = max(highest, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = highest
    return tuple(adjusted)


@dataclass(frozen=True)
class Flips:
    """The images on which one of two models scores higher than the other."""

    first_only: int
    """Images on which the first scores higher: where each is right or wrong, it alone is right on them."""
    second_only: int
    both_right: int
    """Images that both are wholly right on."""
    graded: bool
    """Whether an image can be right in part, as where it has several labels."""
    p: float
    """Two-sided, of McNemar's exact test (`vitkit.evaluation.intervals.sign_test`); not adjusted for other
    comparisons."""


def count_flips(first: NDArray[np.float64], second: NDArray[np.float64]) -> Flips:
    """Count the images that tell two models apart, and test whether they fall to both alike.

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
    """The difference of two models, of these weights alone, over the test images that they share."""

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
        """Whether a difference was found."""
        return self.p < SURE


def model_difference(first: NDArray[np.float64], second: NDArray[np.float64]) -> ModelDifference:
    """Compare two models on the same images.

    If each image is right or wrong, the test is McNemar's exact one, and the interval follows Bonett
    and Price (2012, "Adjusted Wald Confidence Interval for a Difference of Binomial Proportions Based on
    Paired Data"), which holds for the few images that tell two good models apart. Else both are Student's t
    of the paired differences, as in `paired_difference`; fewer than six images tell no models apart.

    Args:
        first: `(N,)` scores from 0 to 1, N at least 1.
        second: `(N,)`, in the same order of images.

    Raises:
        VitkitError: the two have not the same shape, or there is no image.
    """
    found, flips = paired_difference(first[None], second[None]), count_flips(first, second)
    images, mean = found.images, found.mean
    if flips.graded and sign_test(images, 0) >= SURE:
        # Fewer than six images: not even if all fell to one side. Student's t would be sure of two of them
        # that differ by the same, whose spread is nothing.
        return ModelDifference(images, mean, (-1.0, 1.0), flips.p, 1.0, flips)
    if flips.graded:
        return ModelDifference(images, mean, found.interval, found.p, found.detectable, flips)
    gains, losses = ((count + 1) / (images + 2) for count in (flips.second_only, flips.first_only))
    centre = gains - losses
    half = NORMAL_95 * math.sqrt((gains + losses - centre**2) / (images + 2))
    interval = max(-1.0, centre - half), min(1.0, centre + half)
    least = detectable_flips(images, min(flips.first_only, flips.second_only))
    return ModelDifference(images, mean, interval, flips.p, least, flips)


def detectable_flips(images: int, other_way: int) -> float:
    """Compute the smallest true difference that McNemar's exact test finds in 8 of 10 comparisons.

    The number of images that tell the models apart is binomial, and how they fall to the two is binomial
    given that; the test looks at the second alone. The observed spread would not do in place of it: between
    two good models hardly any image falls to either side, and the test needs six of them to find anything.

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
        difference: fraction that the better one alone is right on, less that.
    """
    apart = min(1.0, 2 * background + difference)
    spread = 6 * math.sqrt(images * apart * (1 - apart)) + 6  # beyond it there is less than 1e-8
    least, most = max(0.0, images * apart - spread), min(float(images), images * apart + spread)
    counts = np.arange(math.floor(least), math.floor(most) + 1)
    whole = np.full(len(counts), images)
    weights = _binomial(counts, whole, apart) - _binomial(counts - 1, whole, apart)
    edges = _least_sure(counts)
    share = (background + difference) / apart
    few, many = _binomial(edges, counts, share), 1 - _binomial(counts - edges - 1, counts, share)
    return float((weights * np.where(edges >= 0, few + many, 0.0)).sum())


def _least_sure(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give the most images of the one kind, of so many that tell two models apart, with which McNemar's exact
    test still finds a difference; -1 where it finds none."""
    low, high = np.full(len(counts), -1), counts // 2
    while (low < high).any():  # halve the ranges; the probability rises with the images
        middle = (low + high + 1) // 2
        is_sure = _binomial(middle, counts, 0.5) < SURE / 2
        low, high = np.where(is_sure, middle, low), np.where(is_sure, high, middle - 1)
    return low


def _binomial(
    successes: NDArray[np.int64], trials: NDArray[np.int64], probability: float
) -> NDArray[np.float64]:
    """Compute how often there are at most so many successes, by the incomplete beta function."""
    from scipy.special import betainc

    inside = (successes >= 0) & (successes < trials)
    k, n = np.where(inside, successes, 0), np.where(inside, trials, 1)
    below: NDArray[np.float64] = np.where(inside, betainc(n - k, k + 1, 1 - probability), successes >= trials)
    return below

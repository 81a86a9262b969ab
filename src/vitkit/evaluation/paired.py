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
from vitkit.evaluation.intervals import sign_test

NORMAL_80 = 0.8416212335729143  # the standard normal's 80 % point
SURE = 0.05
"""The p, after Holm, below which two models or ways to train are said to differ."""
FEWEST_IMAGES = 6
"""Fewer find no difference: if all fall one way, 1 of 16 pairs of equal models does so too, or more."""
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
    interval: tuple[float, float]
    """95 %, by Student's t of each part."""
    p: float
    """Two-sided, for no difference; not adjusted for other comparisons."""
    detectable: float
    """The smallest true difference that 8 of 10 studies of this size and spread find, at p < 0.05."""


def paired_difference(first: NDArray[np.float64], second: NDArray[np.float64]) -> PairedDifference:
    """Compare the scores of two ways to train, each with the same seeds on the same images.

    Seeds and images are both samples: another seed makes other weights, another test set has other images.
    The variance of the mean is the sum of two terms. By seeds: the variance of the S differences over S. By
    images: the bootstrap variance of the differences averaged over seeds, which for a mean is the variance of
    the images over N (Efron and Tibshirani 1993, "An Introduction to the Bootstrap", 5.3 and 6.2), less what
    seed and image do together, which is in the term of the seeds already (a two-way analysis of variance).

    Each term has its own Student's t: the half width is sqrt(t(S-1)^2 by seeds + t(N-1)^2 by images), which
    holds the truth at least as often as it says whatever the ratio of the two (Banerjee 1960, "Approximate
    confidence interval for linear functions of means of k populations when the population variances are not
    equal"). p is that of the interval that ends at 0. Degrees of freedom by Satterthwaite, of which two or
    three seeds that happen to agree get far too many, found a difference in up to 27 % of families of four
    without any (`python -m benchmarks.coverage verdicts`).

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
    difference = second - first
    seeds, images = difference.shape
    by_seed, by_image = difference.mean(1), difference.mean(0)
    mean = float(by_seed.mean())
    seed_variance = float(by_seed.var(ddof=1)) / seeds if seeds > 1 else None
    image_variance = float(by_image.var()) / images
    if seed_variance is not None and images > 1:
        rest = difference - by_seed[:, None] - by_image + mean
        shared = float((rest**2).sum()) / ((seeds - 1) * (images - 1)) / (seeds * images)
        # Not below a share of it: seeds that agree by chance must not leave a variance of 0.
        image_variance = max(image_variance - shared, image_variance / seeds)
    terms = ((seed_variance or 0.0, max(seeds - 1, 1)), (image_variance, max(images - 1, 1)))
    half, error = _half_width(terms, SURE), math.sqrt((seed_variance or 0.0) + image_variance)
    low, p = 0.0, 1.0
    for _ in range(60):  # halve the range of p; without any variance it becomes 0
        middle = (low + p) / 2
        low, p = (low, middle) if _half_width(terms, middle) < abs(mean) else (middle, p)
    return PairedDifference(
        seeds,
        images,
        mean,
        seed_variance,
        image_variance,
        (mean - half, mean + half),
        p,
        half + NORMAL_80 * error,
    )


def _half_width(terms: Sequence[tuple[float, int]], p: float) -> float:
    """Compute half the width of the interval of level 1 - p, from variances with their degrees of freedom."""
    from scipy.special import stdtrit  # a fifth of a second to import, which only evaluations need

    return math.sqrt(math.fsum(stdtrit(freedom, p / 2) ** 2 * variance for variance, freedom in terms))


def expected_detectable(seeds: int, images: int, accuracy: float = 0.9) -> float:
    """Estimate the smallest difference that `paired_difference` will find in 8 of 10 studies of this size.

    Every run is taken to be right on the same fraction of the images, independently of the others: the less
    independent their mistakes are, the smaller the differences that are found. It is 1 where none is found.
    """
    variance = 2 * accuracy * (1 - accuracy) / images  # of the difference of two runs
    terms = [(variance / seeds**2, max(images - 1, 1))]
    if seeds > 1:
        terms.append((variance / seeds, seeds - 1))
    detectable = _half_width(terms, SURE) + NORMAL_80 * math.sqrt(math.fsum(part for part, _ in terms))
    return min(1.0, detectable)


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
    order = np.argsort(values, kind="stable")
    adjusted = np.array(values)[order] * np.arange(len(values), 0, -1)
    adjusted[order] = np.maximum.accumulate(np.minimum(adjusted, 1.0))
    return tuple(adjusted.tolist())


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

    If each image is right or wrong, test and interval are those of `bonett_price`, else Student's t of the
    paired differences, as in `paired_difference`. Fewer than six images show no difference.

    Args:
        first: `(N,)` scores from 0 to 1, N at least 1.
        second: `(N,)`, in the same order of images.

    Raises:
        VitkitError: the two differ in shape, or there is no image.
    """
    paired, flips = paired_difference(first[None], second[None]), count_flips(first, second)
    images, mean = paired.images, paired.mean
    if images < FEWEST_IMAGES:
        # Student's t would be sure of two images with equal differences, whose spread is 0.
        return ModelDifference(images, mean, (-1.0, 1.0), flips.p, 1.0, flips)
    if flips.graded:
        return ModelDifference(images, mean, paired.interval, paired.p, paired.detectable, flips)
    interval, p = bonett_price(flips.first_only, flips.second_only, images)
    least = detectable_flips(images, min(flips.first_only, flips.second_only))
    return ModelDifference(images, mean, interval, p, least, flips)


def bonett_price(first_only: int, second_only: int, images: int) -> tuple[tuple[float, float], float]:
    """Return the 95 % interval of the difference of two fractions right, and the p for no difference.

    Both follow from one estimate and its error (Bonett and Price 2012, "Adjusted Wald Confidence Interval for
    a Difference of Binomial Proportions Based on Paired Data"), which hold for the few images on which two
    good models differ. With Student's t in place of the normal, equal models differ in at most 5 % of the
    test sets, of few images too (`python -m benchmarks.coverage verdicts`).

    Args:
        first_only: images that the first model alone is right on.
        second_only: images that the second one alone is right on.
        images: all of them, at least two.
    """
    from scipy.special import stdtr, stdtrit

    gains, losses = ((count + 1) / (images + 2) for count in (second_only, first_only))
    centre = gains - losses
    error = math.sqrt((gains + losses - centre**2) / (images + 2))
    half = float(stdtrit(images - 1, 1 - SURE / 2)) * error
    interval = max(-1.0, centre - half), min(1.0, centre + half)
    return interval, 2 * float(stdtr(images - 1, -abs(centre) / error))


def detectable_flips(images: int, other_way: int) -> float:
    """Compute the smallest true difference that `model_difference` finds in 8 of 10 comparisons.

    The number of images on which the models differ is binomial, and so is, given that number, the number on
    which the better one is right; the test looks at the second alone. The observed spread cannot replace
    this: two good models differ on hardly any image, and the test needs about six to find a difference.

    Args:
        images: that both are tested on.
        other_way: images that the worse model alone is right on; their fraction is taken as the true one.

    Returns:
        The difference of the two fractions right, as nearly as a thousandth of it; 1 where none is found.
    """
    background = other_way / images
    low, high = 0.0, 1.0 - background * 2
    if images < FEWEST_IMAGES or high <= 0 or _power(images, background, high) < 0.8:
        return 1.0
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _power(images, background, middle) >= 0.8 else (middle, high)
    return high


def _power(images: int, background: float, difference: float) -> float:
    """Compute how often `model_difference` finds a true difference.

    Args:
        images: that both models are tested on.
        background: fraction of them that the worse model alone is right on.
        difference: fraction that the better one alone is right on, less `background`.
    """
    from scipy.stats import binom, t

    apart = min(1.0, 2 * background + difference)
    spread = 6 * math.sqrt(images * apart * (1 - apart)) + 6  # beyond it there is less than 1e-8
    least, most = max(0.0, images * apart - spread), min(float(images), images * apart + spread)
    counts = np.arange(math.floor(least), math.floor(most) + 1)
    # The most images on which the worse model may be right, so that a difference is still found; below 0
    # where none is: gap^2 = point (counts + 2 - gap^2 / (images + 2)) where the interval ends at 0.
    point = float(t.ppf(1 - SURE / 2, images - 1)) ** 2
    gap = np.sqrt(point * (counts + 2) / (1 + point / (images + 2)))
    edges = np.ceil((counts - gap) / 2).astype(np.int64) - 1
    better = (
        background + difference
    ) / apart  # the fraction of these images on which the better one is right
    noticed = binom.cdf(edges, counts, better) + binom.sf(counts - edges - 1, counts, better)
    return float((binom.pmf(counts, images, apart) * noticed).sum())

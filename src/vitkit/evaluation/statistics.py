"""Statistics of evaluations: how far a number that was counted on some images holds for others like them.

Intervals and tests of one model, paired comparisons of two models or ways to train, and a law of scale. All
are formulas: nothing is drawn at random, so that the same predictions give the same figures.

Letters: S seeds, N images.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from vitkit.errors import VitkitError

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
    interval, detectable = (mean - half, mean + half), half + NORMAL_80 * error
    return PairedDifference(seeds, images, mean, seed_variance, image_variance, interval, p, detectable)


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
    """Two-sided, of McNemar's exact test (`vitkit.evaluation.statistics.sign_test`); not adjusted for other
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


# Intervals and tests

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


# A law of scale: error(x) = c + a x^-b, fitted to a few measured points, with an interval for the next one
#
# x is the number of training images, the steps or the FLOPs; `c` is the error that no larger x takes away,
# and where it is 0 the error falls along a straight line on logarithmic axes (Hestness et al. 2017, "Deep
# Learning Scaling is Predictable, Empirically"; with an offset: Rosenfeld et al. 2019, "A Constructive
# Prediction of the Generalization Error Across Scales"; Zhai et al. 2021, "Scaling Vision Transformers",
# section 3).
#
# The points share their test images. Whether these are easy or hard moves all of them the same way, the next
# point too, so that it cancels: the difference of two runs on the same images is left. Where runs differ by
# chance alone it is less than the binomial noise of the images (Jordan 2023, "Calibrated Chaos"); few
# training images, or an unsteady training, make it more. The points therefore state their noise relative to
# each other, and its size is estimated from the residuals of the fit and the differences between seeds. The
# stated size counts as one residual more (as Smyth 2004, "Linear models and empirical Bayes methods",
# section 4, moderates a variance), and the quantiles are Student's. Everything here is about these test
# images: for others like them, their binomial noise comes on top.
#
# Points cannot tell a law from all that resembles it so far: an error may be linear in log x and have no
# offset, and a floor may begin right behind the last point. The interval of `predict` holds where a law
# does: a held-out point tests it. What nobody will measure is for `extrapolate`, whose interval reaches from
# no gain at all to a straight line in log x. Ten times beyond, that line has mostly reached an error of 0.
#
# `python -m benchmarks.power_law` simulates how often the intervals hold the error of the next run.

FEWEST = 5
"""Fewest points that a law is fitted to: it has three numbers, and two residuals are left."""
NUMBERS = 3
"""The numbers of a law: offset, scale and exponent."""
EXPONENTS = np.geomspace(0.02, 3.0, 501)
"""Exponents that are tried, 1 % apart. Below 0.02 a law hardly differs from a straight line in log x, and
above 3 from an error that has reached its offset; measured exponents lie from 0.05 to 1 (Hestness et al.)."""
EXPECTED, SURE_AS = 0.5, 1.0
"""Expected variance of runs on the same images, in units of the stated one, and the number of residuals that
it counts for. Without it the two residuals of five points are now and then almost 0 by chance, and so is the
interval. With these numbers 91 to 99 % of the simulated errors were inside, for runs that differ by 0.65 to 2
times the stated noise; counting for 2 residuals, 87 % for the latter; with a variance of 1, 100 % for the
former."""
MOST_NOISE = 2.0
"""Points contradict the law if so many times the stated noise does not explain their misfit, nor the
differences between seeds: runs on a few dozen images differ by that much."""
RELATIVE_NOISE = 0.01
"""Noise of a point that states none, such as a loss, as a fraction of its value: its size does not matter,
because the residuals alone decide then."""
CONTRADICTED = 0.99
"""Quantile of the misfit beyond which the points contradict the law."""
FALLS = 0.95
"""Quantile beyond which a law fits better than a constant, so that the error falls at all; and a slope is
below 0, or above."""
LAST = 3
"""Places through which the straight line is drawn that goes on behind the last of them."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Point:
    """The errors that were measured at one x."""

    x: float
    """Training images, steps or FLOPs: above 0."""
    errors: tuple[float, ...]
    """An error for each seed, on the same test images."""
    noise: float | None
    """Standard error of a single error by the number of its test images; None where none is stated."""

    @property
    def error(self) -> float:
        """Give the mean over seeds."""
        return math.fsum(self.errors) / len(self.errors)

    @property
    def unit(self) -> float:
        """Give the noise of a single error in its own units, above 0."""
        noise = RELATIVE_NOISE * abs(self.error) if self.noise is None else self.noise
        return max(noise, 1e-12)  # a point with an error of 0 would otherwise have infinite weight

    @property
    def variance(self) -> float:
        """Give the stated variance of the mean over seeds."""
        return self.unit**2 / len(self.errors)


@dataclass(frozen=True)
class PowerLaw:
    """error(x) = offset + scale (x / unit)^-exponent."""

    offset: float
    """The error that no larger x takes away; 0 or more."""
    scale: float
    """The part of the error at x = `unit` that a larger x takes away; 0 or more."""
    exponent: float
    unit: float
    """The largest x of the fitted points."""

    def at(self, x: float) -> float:
        """Give the error at x."""
        return self.offset + self.scale * math.pow(x / self.unit, -self.exponent)

    def describe(self) -> str:
        """Write the law with its numbers."""
        return f"{self.offset:.4g} + {self.scale:.4g} (x / {self.unit:,.6g})^-{self.exponent:.3g}"


@dataclass(frozen=True)
class Prediction:
    """The error that a law expects to be measured at a place, with its 95 % interval."""

    x: float
    error: float
    low: float
    high: float

    def holds(self, error: float) -> bool:
        """Whether an error lies inside the interval."""
        return self.low <= error <= self.high


@dataclass(frozen=True)
class LawFit:
    """A law, and how well its points agree with it."""

    points: tuple[Point, ...]
    law: PowerLaw
    misfit: float
    """Sum of the squared residuals, each over its stated variance."""

    @property
    def residuals(self) -> int:
        """Count the degrees of freedom that estimate the noise after three numbers were fitted."""
        return len(self.points) - NUMBERS

    @cached_property
    def pure_noise(self) -> tuple[float, float]:
        """Give the variance of the noise, in units of the stated one, without the residuals of the fit; and
        its degrees of freedom, 0 without a stated noise and without several seeds."""
        prior = SURE_AS if self.is_fraction else 0.0
        degrees = prior + sum(len(point.errors) - 1 for point in self.points)
        squares = [((e - point.error) / point.unit) ** 2 for point in self.points for e in point.errors]
        return (EXPECTED * prior + math.fsum(squares)) / max(degrees, 1.0), degrees

    @cached_property
    def noise(self) -> tuple[float, float]:
        """Give the variance of the noise, in units of the stated one, and its degrees of freedom."""
        variance, before = self.pure_noise
        degrees = before + self.residuals
        return (variance * before + self.misfit) / degrees, degrees

    @property
    def is_fraction(self) -> bool:
        """Whether the errors are fractions, which state their noise; else a loss, which does not."""
        return all(point.noise is not None for point in self.points)

    def predict(self, x: float) -> Prediction:
        """Predict the error that will be measured at x on the same test images, as the mean of as many seeds
        as the last point has.

        The interval holds every value that, taken for a further point, would make the fit worse by no more
        than Student's quantile allows: of a straight line this is the textbook's prediction interval, and of
        a curve its form by profile likelihood, which knows that the offset is not below 0 (Bates and Watts
        1988, "Nonlinear Regression Analysis", section 6.1). The noise of the value itself is in it.
        """
        from scipy.special import stdtrit  # half a second to import, which only predictions need

        centre = self.law.at(x)
        variance, degrees = self.noise
        allowed = variance * float(stdtrit(degrees, 0.975)) ** 2
        last = max(self.points, key=lambda point: point.x)

        def surplus(error: float) -> float:
            further = Point(x, (error,) * len(last.errors), last.unit)
            return float(_profile([*self.points, further])[0].min()) - self.misfit - allowed

        spread = math.sqrt(allowed * last.variance)  # of the measured value alone: the interval is wider
        low, high = (_crossing(surplus, centre, sign * spread) for sign in (-1, 1))
        return Prediction(x, centre, max(0.0, low), min(1.0 if self.is_fraction else math.inf, high))

    def extrapolate(self, x: float) -> Prediction:
        """Predict the error at an x beyond the last point, whatever the shape of the curve.

        An error that falls ever more slowly in log x lies between two lines: it stays as it was last, or goes
        on falling along the straight line through the last points. The interval reaches from the one to the
        other and has the noise of each at its end. The true curve can be near one of them alone, so that a
        one-sided quantile leaves 5 % outside.
        """
        from scipy.special import stdtrit  # half a second to import

        variance, degrees = self.noise
        quantile = float(stdtrit(degrees, FALLS)) * math.sqrt(variance)
        line, covariance = _straight_line(self._last_points)
        at, last, error = np.array([math.log(x), 1.0]), self._last_points[-1], self.law.at(x)
        goes_on = float(line @ at) - quantile * math.sqrt(at @ covariance @ at + last.variance)
        stays = quantile * math.sqrt(2 * last.variance)  # of the last error, and of the one to come
        low, high = min(goes_on, last.error - stays, error), max(last.error + stays, error)
        return Prediction(x, error, max(0.0, low), min(1.0 if self.is_fraction else math.inf, high))

    @property
    def falls_at_last(self) -> bool:
        """Whether the error still falls through the last points, by a one-sided t test at 5 %."""
        from scipy.special import stdtrit  # half a second to import

        (variance, degrees), (line, covariance) = self.noise, _straight_line(self._last_points)
        return bool(line[0] < -math.sqrt(variance * covariance[0, 0]) * stdtrit(degrees, FALLS))

    @property
    def _last_points(self) -> list[Point]:
        """Give the points at the last places, in order."""
        first = sorted({point.x for point in self.points})[-LAST]
        return sorted((p for p in self.points if p.x >= first), key=lambda point: point.x)

    def objection(self) -> str:
        """Say why the law does not hold on its points; "" where nothing speaks against it."""
        from scipy.special import chdtri, fdtri, stdtrit  # half a second to import

        pure, pure_degrees = self.pure_noise
        x, errors, weights = _arrays(self.points)
        line, covariance = _straight_line(self.points)
        left = errors - line[0] * np.log(x) - line[1]
        along = pure_degrees + len(x) - 2  # degrees of freedom of a straight line in log x
        spread = (pure * pure_degrees + float(weights @ left**2)) / along
        # A one-sided t test at 5 %.
        if line[0] > math.sqrt(spread * covariance[0, 0]) * stdtrit(along, FALLS):
            return "the error rises from point to point"
        stated = MOST_NOISE**2 if self.is_fraction else math.inf
        explained = stated * float(chdtri(self.residuals, 1 - CONTRADICTED))
        if any(len(point.errors) > 1 for point in self.points):
            seen = pure * self.residuals * float(fdtri(self.residuals, pure_degrees, CONTRADICTED))
            # Seeds share their training images, so that they differ less than the choice of few images does.
            explained = max(explained, seen) if self.is_fraction else seen
        if self.misfit > explained:
            return "the points lie farther from any such law than their noise explains"
        variance, degrees = self.noise
        constant = float(weights @ errors / weights.sum())
        gained = float(weights @ (errors - constant) ** 2) - self.misfit
        # Scale and exponent are two numbers more than a constant has.
        if gained / 2 <= variance * float(fdtri(2, degrees, FALLS)):
            return "the error does not fall from point to point by more than its noise"
        return ""


def _straight_line(points: Sequence[Point]) -> tuple[Floats, Floats]:
    """Fit a straight line in log x: give slope and the error at x = 1, and their covariance in the noise."""
    x, errors, weights = _arrays(points)
    return np.polyfit(np.log(x), errors, 1, w=np.sqrt(weights), cov="unscaled")


def judge_held_out(fit: LawFit, prediction: Prediction, held_out: Point) -> tuple[LawFit, str]:
    """Compare a point with what a law predicted for it.

    Returns:
        the law fitted to that point too; and the reason why the law does not hold, "" where it does.
    """
    final = fit_power_law([*fit.points, held_out])
    objection, with_all = fit.objection(), final.objection()
    if not objection and not prediction.holds(held_out.error):
        objection = "the held-out point lies outside the interval that was predicted"
    return final, objection or (with_all and f"with the held-out point, {with_all}")


def fit_power_law(points: Sequence[Point]) -> LawFit:
    """Fit a law to points by weighted least squares.

    For every exponent of a grid the best offset and scale, neither below 0, are a formula; the best exponent
    is then refined between its neighbours. There is no start to choose and no minimum to get caught in.

    Raises:
        VitkitError: there are fewer than five places, or a value that no law can be fitted to.
    """
    if len(places := {point.x for point in points}) < FEWEST:
        raise VitkitError(
            f"A law of scale has three numbers and is fitted to {FEWEST} places or more, found {len(places)}."
        )
    for point in points:
        if not (0 < point.x < math.inf and all(math.isfinite(error) for error in point.errors)):
            raise VitkitError(
                f"A law of scale needs finite errors at places above 0, found {point.errors} at {point.x:g}."
            )
    if any(point.noise is None for point in points):  # noise that only some points state is no common measure
        points = [replace(point, noise=None) for point in points]
    exponents = EXPONENTS
    for _ in range(4):  # each of the last three looks 50 times as closely: 1 % becomes a ten-millionth
        misfits, offsets, scales = _profile(points, exponents)
        best = int(misfits.argmin())
        low, high = exponents[max(best - 1, 0)], exponents[min(best + 1, len(exponents) - 1)]
        law = float(offsets[best]), float(scales[best]), float(exponents[best])
        exponents = np.linspace(low, high, 101)
    return LawFit(tuple(points), PowerLaw(*law, unit=max(places)), float(misfits[best]))


def _arrays(points: Sequence[Point]) -> tuple[Floats, Floats, Floats]:
    """Give x over the largest x, errors, and one over their variances."""
    x = np.array([point.x for point in points])
    errors = np.array([point.error for point in points])
    return x, errors, 1 / np.array([point.variance for point in points])


def _profile(points: Sequence[Point], exponents: Floats = EXPONENTS) -> tuple[Floats, Floats, Floats]:
    """Fit offset and scale for each exponent, neither below 0.

    Returns:
        misfit, offset and scale, each `(len(exponents),)`.
    """
    x, errors, weights = _arrays(points)
    falling = (x / x.max()) ** -exponents[:, None]  # (exponents, points), 1 at the largest x
    total = weights.sum()
    mean_falling, mean = falling @ weights / total, float(errors @ weights / total)
    centred = falling - mean_falling[:, None]
    scale = centred @ (weights * (errors - mean)) / (centred**2 @ weights)
    offset = mean - scale * mean_falling
    # The sum of squares is convex: where the free minimum leaves the corner, the best lies on its edge.
    through = np.maximum(falling @ (weights * errors) / (falling**2 @ weights), 0.0)
    offset, scale = np.where(offset < 0, 0.0, offset), np.where(offset < 0, through, scale)
    offset, scale = np.where(scale < 0, max(mean, 0.0), offset), np.maximum(scale, 0.0)
    left = errors - offset[:, None] - scale[:, None] * falling
    return left**2 @ weights, offset, scale


def _crossing(surplus: Callable[[float], float], centre: float, step: float) -> float:
    """Find where a function that is below 0 at the centre and rises away from it crosses 0."""
    inner, outer = centre, centre + step
    for _ in range(60):  # doubled each time: 60 doublings leave every scale behind
        if surplus(outer) > 0:
            break
        inner, outer, step = outer, outer + 2 * step, 2 * step
    for _ in range(30):  # halved each time: to a billionth of the step
        middle = (inner + outer) / 2
        inner, outer = (inner, middle) if surplus(middle) > 0 else (middle, outer)
    return outer

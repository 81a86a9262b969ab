"""Compare two ways to train on the same test images: the difference, how sure it is, what would have shown.

All are formulas: nothing is drawn at random, so that the same answers give the same words.

Letters: S seeds, N images.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitkit.errors import VitkitError

NORMAL_80 = 0.8416212335729143  # the standard normal's 80 % point
SURE = 0.05
"""The p from which on a difference is called one, after Holm."""


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
    Approximate Distribution of Estimates of Variance Components"; Welch 1947).

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

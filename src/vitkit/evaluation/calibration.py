"""Compare a classifier's confidence with its accuracy, over all images and in bins."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitkit.config import Count, Fraction
from vitkit.evaluation.intervals import overconfidence_interval
from vitkit.evaluation.scores import ratio

CALIBRATION_BINS = 15  # as in Guo et al. 2017


@dataclass(frozen=True)
class CalibrationBin:
    """Images whose confidence (the predicted class's probability) lies in `(lower, upper]`."""

    lower: Fraction
    upper: Fraction
    count: Count
    confidence: Fraction | None
    """Mean over the bin's images."""
    accuracy: Fraction | None


@dataclass(frozen=True)
class Overconfidence:
    """The mean confidence of a model minus its accuracy, over all images."""

    mean: float
    """Mean confidence - accuracy; below 0 the model is not sure enough."""
    interval: tuple[float, float]
    """The 95% confidence interval of this mean."""

    @property
    def verdict(self) -> str:
        """Say "too sure of itself" or "not sure enough" where the interval excludes 0; else ""."""
        if self.interval[0] > 0:
            return "too sure of itself"
        return "not sure enough" if self.interval[1] < 0 else ""


def overconfidence(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> Overconfidence:
    """Compare the confidence in the predictions `(N,)` with whether they are `right`, `(N,)`."""
    mean = (math.fsum(confidence) - int(right.sum())) / len(right)
    return Overconfidence(mean, overconfidence_interval(confidence, right))


def calibration_bins(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> tuple[CalibrationBin, ...]:
    """Put images into 15 bins of equal width by their confidence (Guo et al. 2017)."""
    number = np.clip(np.ceil(confidence * CALIBRATION_BINS) - 1, 0, CALIBRATION_BINS - 1)
    bins = []
    for i in range(CALIBRATION_BINS):
        inside = number == i
        count = int(inside.sum())
        mean = math.fsum(confidence[inside]) / count if count else None
        accuracy = ratio(int(right[inside].sum()), count)
        bins.append(CalibrationBin(i / CALIBRATION_BINS, (i + 1) / CALIBRATION_BINS, count, mean, accuracy))
    return tuple(bins)


def calibration_error(bins: Sequence[CalibrationBin]) -> float:
    """Average the bins' |accuracy - confidence| over their images."""
    gaps = (b.count * abs((b.accuracy or 0.0) - (b.confidence or 0.0)) for b in bins)
    return math.fsum(gaps) / sum(b.count for b in bins)

"""Forecast the accuracy of a run from a probe: cross-validated classifiers of frozen features, or of pixels.

A rule is linear from the accuracies of probes to that of the finished run, all as log-odds, with a spread
that was found on the runs it was fitted to. Everything here is a formula; nothing is drawn at random.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.evaluation.fewshot_folds import Folded

Floats = NDArray[np.floating[Any]]

LEVEL = 0.8
"""Part of the runs whose accuracy should lie inside the interval."""
BASE_IMAGES = 500
"""Training images from which doublings are counted; any other number moves the offset alone."""
DECAY = 0.7
"""What a doubling of the images is worth of what the one before was worth, in log-odds: a curve that becomes
flat, where a straight line would promise too much."""
MOST_DOUBLINGS = 6.0
"""Beyond 64 times as many images as were looked at, nothing more is added."""


@dataclass(frozen=True)
class Rule:
    """How the accuracy of a run follows from that of a probe, in log-odds."""

    offset: float
    slopes: tuple[float, ...]
    """Of each probe."""
    doubling: float
    """What twice as many images add, beside what they add to the probes: default runs on more images have
    more steps."""
    spread: float
    """Standard deviation of what the line does not explain, beside the counting of images."""
    runs: int
    """Number of runs it was fitted to."""


FINETUNED = Rule(offset=0.0, slopes=(0.7, 0.3), doubling=0.0, spread=0.6, runs=10)
"""Of the features of the start, and of small pictures."""
SCRATCH = Rule(offset=-0.5, slopes=(1.0,), doubling=0.0, spread=0.8, runs=10)
"""Of small pictures."""


@dataclass(frozen=True)
class Forecast:
    """An accuracy that is expected, from 0 to 1, and the interval in which it lies in 8 of 10 cases."""

    accuracy: float
    low: float
    high: float

    @property
    def words(self) -> str:
        """The interval in words: "71 to 83 %"."""
        return f"{100 * self.low:.0f} to {100 * self.high:.0f} %"

    def compare(self, accuracy: float) -> str:
        """Say what was expected and what came out, in a sentence without a full stop.

        Args:
            accuracy: that was measured, from 0 to 1.
        """
        where = "" if self.low <= accuracy <= self.high else self._outside(accuracy)
        return f"expected {self.words}, came out {100 * accuracy:.0f} %{where}"

    def _outside(self, accuracy: float) -> str:
        side = "above" if accuracy > self.high else "below"
        return f": {side} the interval, which 2 of 10 runs should be"


@dataclass(frozen=True)
class Evidence:
    """What a probe found: counts, as `Folded` has them."""

    images: int
    """That took part."""
    right: int
    right_of_half: int
    """When classifiers learned from half as many."""
    learned_from: float
    """Images that each classifier learned from."""

    @property
    def variance(self) -> float:
        """The variance of the log-odds that the number of images explains."""
        return _variance(self.right, self.images)


def evidence_of(folded: Folded) -> Evidence:
    """Take what a forecast needs from a cross-validation: the counts of its best method."""
    method = folded.method
    right, of_half = folded.right[method], folded.right_of_half[method]
    return Evidence(folded.images, right, of_half, folded.learned_from)


def log_odds(right: float, images: float) -> float:
    """Return the log-odds of a share; half an image is added to either side, so that 0 and all are finite."""
    return math.log((right + 0.5) / (images - right + 0.5))


def share(log_odds: float) -> float:
    """Return the share, from 0 to 1, of log-odds."""
    return 1 / (1 + math.exp(-log_odds)) if log_odds > -700 else 0.0


def extrapolate(found: Evidence, images: int) -> float:
    """Estimate the log-odds of a probe that would learn from so many images.

    The last doubling of the images, which the probe has measured, is continued with less and less gain.

    Args:
        found: by the probe.
        images: to learn from, as many as the probe's or more.
    """
    here, half = log_odds(found.right, found.images), log_odds(found.right_of_half, found.images)
    doublings = min(math.log2(max(images / found.learned_from, 1.0)), MOST_DOUBLINGS)
    gain = max(here - half, 0.0)
    return here + gain * DECAY * (1 - math.pow(DECAY, doublings)) / (1 - DECAY)


def predict(
    found: Sequence[Evidence], images: int, tested: int, rule: Rule, level: float = LEVEL
) -> Forecast:
    """Forecast the test accuracy of a run.

    Args:
        found: by the probes, one for each slope of the rule.
        images: training images of the run.
        tested: test images that its accuracy will be counted on: few of them make it less certain.
        rule: for this kind of run.
        level: part of the runs that should lie inside.
    """
    from scipy.special import stdtrit  # half a second to import: only who forecasts waits

    pairs = list(zip(rule.slopes, found, strict=True))
    centre = rule.offset + rule.doubling * math.log2(images / BASE_IMAGES)
    centre += math.fsum(slope * extrapolate(one, images) for slope, one in pairs)
    expected = share(centre)
    variance = rule.spread**2 + math.fsum(slope**2 * one.variance for slope, one in pairs)
    # Where nearly all are right, or none, the counts of the test images are as coarse as one image.
    variance += 1 / max(tested * expected * (1 - expected), 0.5)
    # The rule's own parameters are uncertain, as they were fitted to so many runs.
    fitted = 2 + len(rule.slopes)
    variance *= 1 + fitted / rule.runs
    half = float(stdtrit(max(rule.runs - fitted, 1), (1 + level) / 2)) * math.sqrt(variance)
    return Forecast(expected, share(centre - half), share(centre + half))


@dataclass(frozen=True)
class Outcome:
    """A run that has ended: its probes, and the test images that it is right on."""

    found: tuple[Evidence, ...]
    images: int
    right: int
    tested: int


def fit(outcomes: Sequence[Outcome]) -> Rule:
    """Fit a rule to runs that have ended, by restricted maximum likelihood.

    Each run counts by what is certain about it: the variance of its counts and the spread, which is searched
    from 0.01 to 3. Slopes below 0 are not believed: what only a few runs seem to say is set to 0.
    """
    rows = np.array([_row(run) for run in outcomes])
    targets = np.array([log_odds(run.right, run.tested) for run in outcomes])
    best: tuple[float, Rule] | None = None
    counted = np.array([_variance(run.right, run.tested) for run in outcomes])
    probed = np.array([[one.variance for one in run.found] for run in outcomes])
    slopes = np.ones(probed.shape[1]) / probed.shape[1]
    for spread in (np.arange(1, 301) / 100).tolist():
        weights = 1 / (spread**2 + counted + probed @ slopes**2)
        used = _fit_line(rows, targets, weights)
        slopes = used[2:]
        left = targets - rows @ used
        precision = np.linalg.slogdet(rows.T @ (weights[:, None] * rows))[1]
        score = float((weights * left**2).sum() - np.log(weights).sum() + precision)
        if best is None or score < best[0]:
            offset, doubling = map(float, used[:2])
            best = score, Rule(offset, tuple(map(float, slopes)), doubling, spread, len(outcomes))
    assert best is not None
    return best[1]


def _row(run: Outcome) -> list[float]:
    """Make what the rule's numbers are multiplied with: offset, doublings, probes."""
    doublings = math.log2(run.images / BASE_IMAGES)
    return [1.0, doublings, *(extrapolate(one, run.images) for one in run.found)]


def _fit_line(rows: Floats, targets: Floats, weights: Floats) -> Floats:
    """Fit offset and slopes, none of them below 0, by weighted least squares."""
    from scipy.optimize import lsq_linear

    root = np.sqrt(weights)
    lowest = np.array([-np.inf, *[0.0] * (rows.shape[1] - 1)])
    found: Floats = lsq_linear(root[:, None] * rows, root * targets, (lowest, np.inf)).x
    return found


def _variance(right: float, images: float) -> float:
    """Return the variance of the log-odds of a share that was counted."""
    return 1 / (right + 0.5) + 1 / (images - right + 0.5)

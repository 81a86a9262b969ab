"""Forecast the accuracy of a run from a probe: cross-validated classifiers of frozen features, or of pixels.

A rule is a straight line from the probe's accuracy to that of the finished run, both as log-odds, with a
spread that was found on runs it was fitted to. Everything here is a formula; nothing is drawn at random.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.8
"""Part of the runs whose accuracy should lie inside the interval."""
DECAY = 0.7
"""What a doubling of the images is worth of what the one before was worth, in log-odds: a curve that becomes
flat, where a straight line would promise too much."""
MOST_DOUBLINGS = 6.0
"""Beyond 64 times as many images as were looked at, nothing more is added."""


@dataclass(frozen=True)
class Rule:
    """How the accuracy of a run follows from that of a probe, in log-odds."""

    offset: float
    slope: float
    spread: float
    """Standard deviation of what the line does not explain, beside the counting of images."""
    runs: int
    """Number of runs it was fitted to."""


FINETUNED = Rule(offset=0.0, slope=1.0, spread=0.6, runs=10)
SCRATCH = Rule(offset=-0.5, slope=1.0, spread=0.8, runs=10)


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
    return here + gain * DECAY * (1 - DECAY**doublings) / (1 - DECAY)


def predict(found: Evidence, images: int, tested: int, rule: Rule) -> Forecast:
    """Forecast the test accuracy of a run.

    Args:
        found: by the probe.
        images: training images of the run.
        tested: test images that its accuracy will be counted on: few of them make it less certain.
        rule: for this kind of run.
    """
    centre = rule.offset + rule.slope * extrapolate(found, images)
    variance = rule.spread**2 + rule.slope**2 * _variance(found.right, found.images)
    expected = share(centre)
    variance += 1 / max(tested * expected * (1 - expected), 0.5)
    # The line itself is uncertain, as its parameters were fitted to a number of runs: a prediction interval.
    half = _student(rule.runs - 2) * math.sqrt(variance * (1 + 1 / rule.runs))
    return Forecast(expected, share(centre - half), share(centre + half))


def fit(
    found: Sequence[float], variances: Sequence[float], outcomes: Sequence[float], slope: float | None = None
) -> Rule:
    """Fit a rule to runs that have ended, by maximum likelihood.

    Args:
        found: log-odds of the probes, continued to the runs' images, `extrapolate`.
        variances: of what counting alone explains of each difference: `counting_variance`.
        outcomes: log-odds of the runs' test accuracies.
        slope: given, only offset and spread are fitted.
    """
    best: tuple[float, Rule] | None = None
    for step in range(1, 301):
        spread = step / 100
        weights = [1 / (spread**2 + variance) for variance in variances]
        total = math.fsum(weights)
        x = math.fsum(w * v for w, v in zip(weights, found, strict=True)) / total
        y = math.fsum(w * v for w, v in zip(weights, outcomes, strict=True)) / total
        spread_x = math.fsum(w * (v - x) ** 2 for w, v in zip(weights, found, strict=True))
        both = math.fsum(w * (a - x) * (b - y) for w, a, b in zip(weights, found, outcomes, strict=True))
        used = slope if slope is not None else both / spread_x if spread_x else 1.0
        left = (b - y - used * (a - x) for a, b in zip(found, outcomes, strict=True))
        # Restricted likelihood: the mean, which is fitted, costs a degree of freedom.
        score = math.fsum(w * d * d - math.log(w) for w, d in zip(weights, left, strict=True))
        score += math.log(total)
        if best is None or score < best[0]:
            best = score, Rule(y - used * x, used, spread, len(outcomes))
    assert best is not None
    return best[1]


def counting_variance(found: Evidence, right: int, tested: int) -> float:
    """Return the variance of the difference of two log-odds that the numbers of images explain."""
    return _variance(found.right, found.images) + _variance(right, tested)


def _variance(right: float, images: float) -> float:
    """Return the variance of the log-odds of a share that was counted."""
    return 1 / (right + 0.5) + 1 / (images - right + 0.5)


def _student(degrees: int) -> float:
    """Return the point of Student's t that so many degrees of freedom exceed in a tenth of the cases."""
    from scipy.special import stdtrit  # half a second to import: only who forecasts waits

    return float(stdtrit(max(degrees, 1), (1 + LEVEL) / 2))

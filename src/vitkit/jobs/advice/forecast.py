"""Forecast the accuracy of a run from a probe: cross-validated classifiers of frozen features, or of pixels.

A relation gives the gain of a finished run over its probe, in log-odds, and how much runs scatter around it.
It was fitted to finished runs (`benchmarks/advice.py`). Everything here is a formula; nothing is drawn at
random.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitkit.evaluation.fewshot.folds import Folded
from vitkit.runs.records import Forecast

LEVEL = 0.8
"""Fraction of the runs whose accuracy should lie inside the interval."""
BASE_IMAGES, FEWEST, MOST = 500, 45, 450
"""Numbers of training images: the one from which doublings are counted, and the fewest and the most of the
fitted runs. With fewer or more images the line stays at its value there."""
LARGEST_START = 500_000
"""Parameters that the starts of the fitted runs stayed below."""
UNMEASURED = 2.0
"""The factor by which an interval is wider, in log-odds, where no run was measured. It is a guess: where the
relation holds, the interval has nearly all runs and not 8 of 10; and the relation may be off by as much as it
scatters."""
Floats = NDArray[np.float64]
SPREADS = tuple(step / 100 for step in range(1, 301))
"""The spreads that are tried in fitting, in log-odds."""
FITTED = 2
"""The number of fitted parameters beside the spread: offset and doubling."""
DECAY = 0.7
"""The gain of a doubling of the images over the gain of the doubling before, in log-odds: the curve becomes
flat, where a straight line would promise too much."""
MOST_DOUBLINGS = 6.0
"""Beyond 64 times as many images as the probe learned from, no gain is added."""


@dataclass(frozen=True)
class Relation:
    """The relation between the accuracies of a run and of its probe, in log-odds.

    Its slope on the probe is 1: fitted slopes, 0.3 to 0.5 on few images of weak starts, would mislead for
    strong starts. This form was chosen while its coverage was looked at.
    """

    offset: float
    """The gain of the run over the probe, with `BASE_IMAGES` training images."""
    doubling: float
    """The further gain with twice as many images: default runs on more images have more steps."""
    spread: float
    """Standard deviation of runs around the line, beside the sampling error of the images."""
    runs: int
    """Number of runs it was fitted to."""

    def line(self, images: int) -> float:
        """Return the gain of a run over its probe with a number of training images."""
        return self.offset + self.doubling * doublings(images)


FINETUNED = Relation(offset=0.23, doubling=0.14, spread=0.28, runs=32)
"""The rule from frozen features of a start to the start fine-tuned by default options: 32 runs on 45 to 450
images of CIFAR-10, MNIST, digits and Imagenette, from two starts of less than half a million parameters."""


@dataclass(frozen=True)
class Evidence:
    """The result of a probe, as counts."""

    images: int
    """The number of images in the cross-validation."""
    right: int
    """Images that were classified rightly."""
    right_of_half: int
    """The same by classifiers that learned from half as many images."""
    learned_from: float
    """Images that each classifier learned from."""

    @property
    def variance(self) -> float:
        """Return the sampling variance of the log-odds."""
        return _variance(self.right, self.images)


def evidence_of(folded: Folded) -> Evidence:
    """Return the counts of a cross-validation's best method."""
    method = folded.method
    right, of_half = folded.right[method], folded.right_of_half[method]
    return Evidence(folded.images, right, of_half, folded.learned_from)


def log_odds(right: float, images: float) -> float:
    """Return the log-odds of a fraction; half an image is added to either side, to keep 0 and 1 finite."""
    return math.log((right + 0.5) / (images - right + 0.5))


def fraction(log_odds: float) -> float:
    """Return the fraction, from 0 to 1, that has some log-odds."""
    return 1 / (1 + math.exp(-log_odds)) if log_odds > -700 else 0.0


def doublings(images: int) -> float:
    """Count the doublings from `BASE_IMAGES` to a number of training images."""
    return math.log2(min(max(images, FEWEST), MOST) / BASE_IMAGES)


def extrapolate(evidence: Evidence, images: int) -> float:
    """Estimate the log-odds of a probe that learns from another number of images.

    Further doublings gain less and less, beginning from the gain of the last one, which the probe measured.

    Args:
        evidence: the result of the probe.
        images: the number to learn from, the probe's own or larger.
    """
    whole, half = (log_odds(right, evidence.images) for right in (evidence.right, evidence.right_of_half))
    further = min(math.log2(max(images / evidence.learned_from, 1.0)), MOST_DOUBLINGS)
    gain = max(whole - half, 0.0)
    return whole + gain * DECAY * (1 - math.pow(DECAY, further)) / (1 - DECAY)


def predict(
    evidence: Evidence,
    images: int,
    tested: int,
    relation: Relation,
    level: float = LEVEL,
    parameters: int = 0,
) -> Forecast:
    """Forecast the test accuracy of a run.

    Args:
        evidence: the result of the probe.
        images: training images of the run.
        tested: test images: the fewer, the less certain the accuracy that is counted on them.
        relation: the relation of this kind of run to its probe.
        level: fraction of the runs that should lie inside the interval.
        parameters: the start's. Above `LARGEST_START`, and outside of `FEWEST` to `MOST` images, the interval
            is wider by the factor `UNMEASURED`.
    """
    from scipy.special import stdtrit  # half a second to import, for a forecast alone

    centre = extrapolate(evidence, images) + relation.line(images)
    expected = fraction(centre)
    # Near 0 and 1 the count of test images is as coarse as half an image: its variance is at least that.
    variance = relation.spread**2 + evidence.variance + 1 / max(tested * expected * (1 - expected), 0.5)
    # Offset and doubling are uncertain themselves: they were fitted to `relation.runs` runs.
    variance *= 1 + FITTED / relation.runs
    half = float(stdtrit(max(relation.runs - FITTED, 1), (1 + level) / 2)) * math.sqrt(variance)
    measured = FEWEST <= images <= MOST and parameters <= LARGEST_START
    half *= 1.0 if measured else UNMEASURED
    return Forecast(expected, fraction(centre - half), fraction(centre + half), measured)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a finished run, beside its probe."""

    evidence: Evidence
    """The result of the probe before the run."""
    images: int
    """Training images."""
    right: int
    """Test images that the run classifies rightly."""
    tested: int
    """Test images."""
    data: str = ""
    """Name of the data set."""


def fit(outcomes: Sequence[Outcome]) -> Relation:
    """Fit a relation to finished runs.

    Each run is weighted by its certainty, from its sampling variance and the spread. A forecast is for data
    that the relation was not fitted to, so the spread is estimated on such data: each data set in turn is
    left out, and predicted by the others. For a single data set it is the spread around the line.

    Args:
        outcomes: three runs or more.
    """
    names = sorted({run.data for run in outcomes})
    offset, doubling, spread = _fit_line(outcomes)
    if len(names) > 1:
        residuals, variances = [], []
        for name in names:
            line = _fit_line([run for run in outcomes if run.data != name])
            left_out = [run for run in outcomes if run.data == name]
            residuals += [_gain(run) - line[0] - line[1] * doublings(run.images) for run in left_out]
            variances += [_sampling_variance(run) for run in left_out]
        spread = min(SPREADS, key=lambda value: _deviance(value, np.array(residuals), np.array(variances)))
    return Relation(offset, doubling, spread, len(outcomes))


def _fit_line(outcomes: Sequence[Outcome]) -> tuple[float, float, float]:
    """Fit offset, doubling and spread by restricted maximum likelihood."""
    rows = np.array([[1.0, doublings(run.images)] for run in outcomes])
    gains, variances = np.array([(_gain(run), _sampling_variance(run)) for run in outcomes]).T
    best: tuple[float, tuple[float, float, float]] | None = None
    for spread in SPREADS:
        root = 1 / np.sqrt(spread**2 + variances)
        line = np.linalg.lstsq(root[:, None] * rows, root * gains, rcond=None)[0]
        certainty = np.linalg.slogdet((root[:, None] * rows).T @ (root[:, None] * rows))[1]
        score = _deviance(spread, gains - rows @ line, variances) + certainty
        if best is None or score < best[0]:
            best = score, (float(line[0]), float(line[1]), spread)
    assert best is not None
    return best[1]


def _deviance(spread: float, residuals: Floats, variances: Floats) -> float:
    """Return minus twice the log-likelihood of normal residuals, up to a constant."""
    total = spread**2 + variances
    return float((residuals**2 / total + np.log(total)).sum())


def _gain(run: Outcome) -> float:
    """Return the gain of a run over its probe, in log-odds."""
    return log_odds(run.right, run.tested) - extrapolate(run.evidence, run.images)


def _sampling_variance(run: Outcome) -> float:
    """Return the sampling variance of a run's gain: its own and its probe's."""
    return _variance(run.right, run.tested) + run.evidence.variance


def _variance(right: float, images: float) -> float:
    """Return the sampling variance of the log-odds of a counted fraction."""
    return 1 / (right + 0.5) + 1 / (images - right + 0.5)

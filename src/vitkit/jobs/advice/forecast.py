"""Forecast the accuracy of a run from a probe: cross-validated classifiers of frozen features, or of pixels.

A relation says what a finished run has over the probe, both as log-odds, and how much runs scatter around
that. It was fitted to runs that have ended (`benchmarks/advice.py`). Everything here is a formula; nothing is
drawn at random.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitkit.evaluation.fewshot.folds import Folded
from vitkit.runs.records import Forecast

LEVEL = 0.8
"""Part of the runs whose accuracy should lie inside the interval."""
BASE_IMAGES, FEWEST, MOST = 500, 45, 450
"""Training images from which doublings are counted, and those between which there were runs to fit a relation
to: with fewer or more, its line stays as it is at that end."""
LARGEST_START = 500_000
"""Parameters that the starts of those runs stayed below."""
UNMEASURED = 2.0
"""The factor of an interval's width, in log-odds, where no run was measured. It is a guess: it makes 8 of 10
runs nearly all of them where the relation holds, and allows for one that is off by as much as it scatters."""
Floats = NDArray[np.float64]
SPREADS = tuple(step / 100 for step in range(1, 301))
"""Those that are tried, in log-odds."""
FITTED = 2
"""Numbers of a relation that are fitted beside its spread."""
DECAY = 0.7
"""The gain of a doubling of the images divided by that of the doubling before, in log-odds: a curve that
becomes flat, where a straight line would promise too much."""
MOST_DOUBLINGS = 6.0
"""Beyond 64 times as many images as were looked at, nothing more is added."""


@dataclass(frozen=True)
class Relation:
    """The relation between the accuracy of a run and that of a probe, in log-odds."""

    offset: float
    """The gain of the run over the probe, with `BASE_IMAGES` training images."""
    doubling: float
    """The gain that twice as many images add to that: default runs on more images have more steps."""
    spread: float
    """Standard deviation of what this does not explain, beside the counting of images."""
    runs: int
    """Number of runs it was fitted to."""

    def line(self, images: int) -> float:
        """Return what is added to a probe's log-odds for a run on so many training images."""
        return self.offset + self.doubling * doublings(images)


FINETUNED = Relation(offset=0.23, doubling=0.14, spread=0.28, runs=32)
"""The rule from frozen features of a start to the start fine-tuned by default options: 32 runs on 45 to 450
images of CIFAR-10, MNIST, digits and Imagenette, from two starts of less than half a million parameters."""


@dataclass(frozen=True)
class Evidence:
    """The result of a probe: counts, as `Folded` has them."""

    images: int
    """The number of images that took part."""
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


def doublings(images: int) -> float:
    """Count the doublings from `BASE_IMAGES` to a number of training images."""
    return math.log2(min(max(images, FEWEST), MOST) / BASE_IMAGES)


def extrapolate(found: Evidence, images: int) -> float:
    """Estimate the log-odds of a probe that would learn from so many images.

    The last doubling of the images, which the probe has measured, is continued with less and less gain.

    Args:
        found: by the probe.
        images: to learn from, as many as the probe's or more.
    """
    here, half = log_odds(found.right, found.images), log_odds(found.right_of_half, found.images)
    further = min(math.log2(max(images / found.learned_from, 1.0)), MOST_DOUBLINGS)
    gain = max(here - half, 0.0)
    return here + gain * DECAY * (1 - math.pow(DECAY, further)) / (1 - DECAY)


def predict(
    found: Evidence,
    images: int,
    tested: int,
    relation: Relation,
    level: float = LEVEL,
    parameters: int = 0,
) -> Forecast:
    """Forecast the test accuracy of a run.

    Args:
        found: by the probe.
        images: training images of the run.
        tested: test images that its accuracy will be counted on: few of them make it less certain.
        relation: for this kind of run.
        level: part of the runs that should lie inside.
        parameters: of the start. For more than `LARGEST_START`, and for other numbers of images than `FEWEST`
            to `MOST`, the interval is wider by the factor `UNMEASURED`.
    """
    from scipy.special import stdtrit  # half a second to import: only who forecasts waits

    centre = extrapolate(found, images) + relation.line(images)
    expected = share(centre)
    # Where nearly all are right, or none, the counts of the test images are as coarse as one image.
    variance = relation.spread**2 + found.variance + 1 / max(tested * expected * (1 - expected), 0.5)
    # Offset and doubling are uncertain themselves, as they were fitted to so many runs.
    variance *= 1 + FITTED / relation.runs
    half = float(stdtrit(max(relation.runs - FITTED, 1), (1 + level) / 2)) * math.sqrt(variance)
    measured = FEWEST <= images <= MOST and parameters <= LARGEST_START
    half *= 1.0 if measured else UNMEASURED
    return Forecast(expected, share(centre - half), share(centre + half), measured)


@dataclass(frozen=True)
class Outcome:
    """A run that has ended: its probe, and the test images that it is right on."""

    found: Evidence
    images: int
    right: int
    tested: int
    data: str = ""
    """Name of the data set."""


def fit(outcomes: Sequence[Outcome]) -> Relation:
    """Fit a relation to runs that have ended.

    Each run counts by what is certain about it: the variance of its counts and the spread. The spread is that
    of runs on data that the relation was not fitted to, because that is what a forecast is for: each data set
    in turn is left out, and predicted by the others. Of a single data set it is the spread around the line.

    Args:
        outcomes: of three runs or more.
    """
    names = sorted({run.data for run in outcomes})
    offset, doubling, spread = _fit_line(outcomes)
    if len(names) > 1:
        left, counted = [], []
        for name in names:
            line = _fit_line([run for run in outcomes if run.data != name])
            own = [run for run in outcomes if run.data == name]
            left += [_gain(run) - line[0] - line[1] * doublings(run.images) for run in own]
            counted += [_counted(run) for run in own]
        spread = min(SPREADS, key=lambda value: _surprise(value, np.array(left), np.array(counted)))
    return Relation(offset, doubling, spread, len(outcomes))


def _fit_line(outcomes: Sequence[Outcome]) -> tuple[float, float, float]:
    """Fit offset, doubling and spread by restricted maximum likelihood."""
    rows = np.array([[1.0, doublings(run.images)] for run in outcomes])
    gains, counted = np.array([(_gain(run), _counted(run)) for run in outcomes]).T
    best: tuple[float, tuple[float, float, float]] | None = None
    for spread in SPREADS:
        root = 1 / np.sqrt(spread**2 + counted)
        line = np.linalg.lstsq(root[:, None] * rows, root * gains, rcond=None)[0]
        certainty = np.linalg.slogdet((root[:, None] * rows).T @ (root[:, None] * rows))[1]
        score = _surprise(spread, gains - rows @ line, counted) + certainty
        if best is None or score < best[0]:
            best = score, (float(line[0]), float(line[1]), spread)
    assert best is not None
    return best[1]


def _surprise(spread: float, left: Floats, counted: Floats) -> float:
    """Return minus twice the logarithm of how likely differences are, but for a constant."""
    variances = spread**2 + counted
    return float((left**2 / variances + np.log(variances)).sum())


def _gain(run: Outcome) -> float:
    """Return what a run has over its probe, in log-odds."""
    return log_odds(run.right, run.tested) - extrapolate(run.found, run.images)


def _counted(run: Outcome) -> float:
    """Return the variance of that which the numbers of images explain."""
    return _variance(run.right, run.tested) + run.found.variance


def _variance(right: float, images: float) -> float:
    """Return the variance of the log-odds of a share that was counted."""
    return 1 / (right + 0.5) + 1 / (images - right + 0.5)

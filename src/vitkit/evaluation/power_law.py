"""A law of scale: error(x) = c + a x^-b, fitted to a few measured points, with an interval for the next one.

x is the number of training images, the steps or the FLOPs; `c` is the error that no larger x takes away, and
where it is 0 the error falls along a straight line on logarithmic axes (Hestness et al. 2017, "Deep Learning
Scaling is Predictable, Empirically"; with an offset: Rosenfeld et al. 2019, "A Constructive Prediction of the
Generalization Error Across Scales"; Zhai et al. 2021, "Scaling Vision Transformers", section 3).

The points share their test images. Whether these are easy or hard moves all of them the same way, the next
point too, so that it cancels: the difference of two runs on the same images is left. Where runs differ by
chance alone it is less than the binomial noise of the images (Jordan 2023, "Calibrated Chaos"); few training
images, or an unsteady training, make it more. The points therefore state their noise relative to each other,
and its size is estimated from the residuals of the fit and the differences between seeds. The stated size
counts as one residual more (as Smyth 2004, "Linear models and empirical Bayes methods", section 4, moderates
a variance), and the quantiles are Student's. Everything here is about these test images: for others like
them, their binomial noise comes on top.

Points cannot tell a law from all that resembles it so far: an error may be linear in log x and have no
offset, and a floor may begin right behind the last point. The interval of `predict` holds where a law does: a
held-out point tests it. What nobody will measure is for `extrapolate`, whose interval reaches from no gain at
all to a straight line in log x. Ten times beyond, that line has mostly reached an error of 0.

`python -m benchmarks.power_law` simulates how often the intervals hold the error of the next run.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vitkit.errors import VitkitError

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
    places = {point.x for point in points}
    if len(places) < FEWEST:
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
    unit = max(places)
    return LawFit(tuple(points), PowerLaw(*law, unit), float(misfits[best]))


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

"""Simulate how often the intervals of a law of scale hold the error that is then measured.

    python -m benchmarks.power_law

Five hundred laws of each kind are drawn: error at the first point from 20 to 90 %, exponent from 0.1 to 1, an
offset of up to half of the first error, none in a quarter of them. Test images are 300 to 10,000, the same at
every place: each is easier or harder, and a run is right on it or not, so that runs agree on most images. On
top, runs differ from one another. Five to eight points over a decade and a half are measured and fitted, and
the law's interval is compared with what is measured at the held-out point, three times beyond. Where nothing
speaks against the law, the extrapolation from there is compared with what is measured three times farther;
and the law's own interval with what is measured ten times farther, where `vitkit scale` says nothing.

Then the same with other shapes, six of them on 1,000 test images. `tests/evaluation/test_power_law.py` has
small forms of all.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from vitkit.evaluation.statistics import NORMAL_95, Point, binomial_interval, fit_power_law, judge_held_out

CURVES = 500
SPAN = 10**1.5
"""The largest fitted x over the smallest: a decade and a half."""
ALIKE = 0.8
"""Correlation, between two runs, of what decides on an image. It leaves 0.65 of the binomial noise between
runs; what is above that is added to each run."""
BETWEEN_RUNS = 0.65
Curve = Callable[[float], float]
"""The error at x, where x is 1 at the first point."""


@dataclass(frozen=True)
class Row:
    """Curves of one kind, and what was said of them."""

    held_out: float
    """The share of the curves, among those whose points were no objection, where the law's interval held what
    was measured at three times the largest x."""
    width: float
    """The median width of that interval, as a share of what was measured."""
    objected: float
    """The share of the curves of which it was said, before the held-out point or after, that no law holds."""
    held: float
    """The share of the others where the extrapolation held what was measured three times beyond the held-out
    point; `held_ten` the share where the law's own interval held what was measured ten times beyond it."""
    width_beyond: float
    """The median width of the extrapolation's interval, as a fraction of the test images."""
    gains: float
    """The share of the others whose last points still fall, so that a gain is spoken of."""
    held_ten: float


def draw_law(draw: np.random.Generator) -> Curve:
    """Draw a law."""
    first, exponent = draw.uniform(0.2, 0.9), math.exp(draw.uniform(math.log(0.1), 0))
    offset = first * draw.uniform(0, 0.5) * (draw.random() > 0.25)
    return lambda x: offset + (first - offset) * x**-exponent


def draw_valley(draw: np.random.Generator) -> Curve:
    """Draw an error that falls by a law to the middle and rises again by half as steep a one."""
    law = draw_law(draw)
    middle = math.sqrt(SPAN)
    return lambda x: law(x) if x <= middle else law(middle) + (law(1) - law(x / middle)) / 2


def draw_constant(draw: np.random.Generator) -> Curve:
    """Draw an error that x does not change."""
    level = draw.uniform(0.1, 0.9)
    return lambda x: level


def draw_plain(draw: np.random.Generator) -> Curve:
    """Draw a law of an error below 60 %."""
    offset, exponent = draw.choice([0, 0.02, 0.1, 0.3]), draw.uniform(0.1, 0.8)
    scale = draw.uniform(0.1, 0.6 - offset / 2)
    return lambda x: offset + scale * x**-exponent


def draw_plateau(draw: np.random.Generator) -> Curve:
    """Draw an error that is a logistic function of log x: it stays by chance, then falls to its offset."""
    offset, steepness = draw.choice([0, 0.02, 0.1]), draw.uniform(0.8, 2)
    middle = SPAN ** draw.uniform(0.2, 1)
    return lambda x: offset + (0.9 - offset) / (1 + (x / middle) ** steepness)


def _draw_broken(draw: np.random.Generator, before: tuple[float, float], after: tuple[float, float]) -> Curve:
    first, second = draw.uniform(*before), draw.uniform(*after)
    middle = 10 ** draw.uniform(0.8, 1.3)
    return lambda x: 0.6 * min(x, middle) ** -first * max(x / middle, 1) ** -second


def draw_flattening(draw: np.random.Generator) -> Curve:
    """Draw a law whose exponent falls to a third, from one point to the next."""
    return _draw_broken(draw, (0.5, 0.8), (0.05, 0.25))


def draw_steepening(draw: np.random.Generator) -> Curve:
    """Draw a law whose exponent rises to five times what it was, from one point to the next."""
    return _draw_broken(draw, (0.05, 0.2), (0.5, 0.9))


def draw_straight(draw: np.random.Generator) -> Curve:
    """Draw an error that is linear in log x, down to 2 %."""
    slope = draw.uniform(0.05, 0.15)
    return lambda x: max(0.8 - slope * math.log(x), 0.02)


def draw_floor(draw: np.random.Generator) -> Curve:
    """Draw a law that stops at once at 6 %, between the last points or behind them."""
    exponent = draw.uniform(0.3, 0.6)
    return lambda x: max(0.5 * x**-exponent, 0.06)


SHAPES = {
    "power law": draw_plain,
    "plateau, then falls": draw_plateau,
    "steep, then flat": draw_flattening,
    "flat, then steep": draw_steepening,
    "linear in log x": draw_straight,
    "law with a floor of 6 %": draw_floor,
}


@dataclass(frozen=True)
class Images:
    """Test images, and how runs on them are counted."""

    difficulty: np.ndarray
    noise: float
    draw: np.random.Generator

    def error(self, curve: Curve, x: float) -> float:
        """Train a run, and count its errors."""
        count, share = len(self.difficulty), min(max(curve(x), 1e-4), 0.999)
        own = math.sqrt(max(self.noise**2 - BETWEEN_RUNS**2, 0) * share * (1 - share) / count)
        share = min(max(share + own * self.draw.normal(), 1e-4), 0.999)
        decides = math.sqrt(ALIKE) * self.difficulty + math.sqrt(1 - ALIKE) * self.draw.normal(size=count)
        return float((decides > -ndtri(share)).mean())

    def measure(self, curve: Curve, x: float, seeds: int) -> Point:
        """Train a run for each seed, as the points of a study are measured."""
        errors = tuple(self.error(curve, x) for _ in range(seeds))
        count = len(self.difficulty)
        low, high = binomial_interval(round(sum(errors) / seeds * count), count)
        return Point(x, errors, (high - low) / (2 * NORMAL_95))


def simulate(
    noise: float,
    points: int,
    seeds: int = 1,
    curves: int = CURVES,
    draw_curve: Callable[[np.random.Generator], Curve] = draw_law,
    images: int | None = None,
) -> Row:
    """Draw curves, measure their points, and compare what is said with what is measured there.

    Args:
        noise: standard deviation between runs on the same images, in units of the binomial one.
        images: in the test set; left out, 300 to 10,000.
    """
    draw = np.random.default_rng(0)
    inside, widths, held, widths_beyond, gains, held_ten = ([] for _ in range(6))
    for _ in range(curves):
        curve = draw_curve(draw)
        count = images or int(math.exp(draw.uniform(math.log(300), math.log(10_000))))
        tested = Images(draw.normal(size=count), noise, draw)
        fit = fit_power_law([tested.measure(curve, x, seeds) for x in np.geomspace(1, SPAN, points)])
        held_out, three, ten = (tested.measure(curve, x * SPAN, seeds) for x in (3, 9, 30))
        prediction = fit.predict(held_out.x)
        if not fit.objection():
            inside.append(prediction.holds(held_out.error))
            widths.append((prediction.high - prediction.low) / max(held_out.error, 1e-4))
        final, objection = judge_held_out(fit, prediction, held_out)
        if not objection:
            said = final.extrapolate(three.x)
            held.append(said.holds(three.error))
            widths_beyond.append(said.high - said.low)
            gains.append(final.falls_at_last)
            held_ten.append(final.predict(ten.x).holds(ten.error))
    return Row(
        held_out=_mean(inside),
        width=float(np.median(widths or math.nan)),
        objected=1 - len(held) / curves,
        held=_mean(held),
        width_beyond=float(np.median(widths_beyond or math.nan)),
        gains=_mean(gains),
        held_ten=_mean(held_ten),
    )


def _mean(of: list[bool]) -> float:
    return sum(of) / len(of) if of else math.nan


def main() -> None:
    head = (
        "held out, inside | median width | objected | said of 3x | held | median width | falls | law at 10x"
    )
    line = "| --- " * 11 + "|"

    def show(*first: object, row: Row) -> None:
        said = f"{1 - row.objected:.1%} | {row.held:.1%} | {row.width_beyond:.3f} | {row.gains:.0%}"
        before = f"{row.held_out:.1%} | {row.width:.0%} | {row.objected:.1%}"
        line = f"| {' | '.join(map(str, first))} | {before} | {said} | {row.held_ten:.1%} |"
        print(line.replace("nan%", "–").replace("nan", "–"), flush=True)

    print(f"| noise between runs | points | seeds | {head} |\n{line}")
    for noise in (0.65, 1.0, 1.5, 2.0):
        for points, seeds in ((5, 1), (6, 1), (8, 1), (5, 3)):
            show(f"{noise:g} of the binomial", points, seeds, row=simulate(noise, points, seeds))
    print(f"\n| shape, on 1,000 images | points | seeds | {head} |\n{line}")
    for seeds in (1, 3):
        for name, shape in SHAPES.items():
            show(name, 6, seeds, row=simulate(1.0, 6, seeds, draw_curve=shape, images=1000))
        for name, shape in (("a constant", draw_constant), ("falls, then rises", draw_valley)):
            show(name, 6, seeds, row=simulate(1.0, 6, seeds, draw_curve=shape, images=1000))


if __name__ == "__main__":
    main()

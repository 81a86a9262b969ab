"""Simulate how often the interval of a law of scale holds the error that is then measured.

    python -m benchmarks.power_law

Five hundred laws of each kind are drawn: error at the first point from 20 to 90 %, exponent from 0.1 to 1, an
offset of up to half of the first error, none in a quarter of them. Test images are 300 to 10,000, the same at
every place: each is easier or harder, and a run is right on it or not, so that runs agree on most images. On
top, runs differ from one another. Five to eight points over a decade and a half are measured and fitted, and
the interval is compared with what is measured three and ten times beyond. Then the same with what is no law:
how often that is noticed. `tests/evaluation/test_power_law.py` has small forms of both.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from vitkit.evaluation.intervals import NORMAL_95, binomial_interval
from vitkit.evaluation.power_law import Point, fit_power_law

LAWS = 500
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
    """Laws of one kind, and what was said of them."""

    noise: float
    """Standard deviation between runs on the same images, in units of the binomial one."""
    points: int
    seeds: int
    held_at_3: float
    """The share of the laws, among those without an objection, where the interval held what was measured at
    three times the largest x."""
    held_at_10: float
    width_at_3: float
    """The median width of the interval, as a share of what was measured."""
    objected: float
    """The share of the laws that were said not to hold."""


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
    laws: int = LAWS,
    draw_curve: Callable[[np.random.Generator], Curve] = draw_law,
) -> Row:
    """Draw laws, measure their points, and compare the predictions with what is measured there."""
    draw = np.random.default_rng(0)
    held, widths, objected = [], [], 0
    for _ in range(laws):
        curve = draw_curve(draw)
        count = int(math.exp(draw.uniform(math.log(300), math.log(10_000))))
        images = Images(draw.normal(size=count), noise, draw)
        fit = fit_power_law([images.measure(curve, x, seeds) for x in np.geomspace(1, SPAN, points)])
        beyond = [
            (fit.predict(times * SPAN), images.measure(curve, times * SPAN, seeds)) for times in (3, 10)
        ]
        if fit.objection():
            objected += 1
            continue
        held.append([said.holds(measured.error) for said, measured in beyond])
        said, measured = beyond[0]
        widths.append((said.high - said.low) / max(measured.error, 1e-4))
    at_3, at_10 = np.mean(held, 0).tolist() if held else (math.nan, math.nan)
    width = float(np.median(widths)) if widths else math.nan
    return Row(noise, points, seeds, at_3, at_10, width, objected / laws)


def rows(laws: int = LAWS) -> Iterator[Row]:
    """Simulate laws at every level of noise with every number of points."""
    for noise in (0.65, 1.0, 1.5, 2.0):
        for points in (5, 6, 8):
            yield simulate(noise, points, laws=laws)
        yield simulate(noise, 5, seeds=3, laws=laws)


def main() -> None:
    print(
        "| noise between runs | points | seeds | held at 3x | held at 10x | median width at 3x | objected |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows():
        shares = f"{row.held_at_3:.1%} | {row.held_at_10:.1%} | {row.width_at_3:.0%} | {row.objected:.1%}"
        print(f"| {row.noise:g} of the binomial | {row.points} | {row.seeds} | {shares} |", flush=True)
    print("\n| no law | noise | points | seeds | noticed |\n| --- | --- | --- | --- | --- |")
    for name, curve in (("a constant", draw_constant), ("falls, then rises", draw_valley)):
        for seeds in (1, 3):
            row = simulate(1.0, 6, seeds, draw_curve=curve)
            print(f"| {name} | {row.noise:g} | {row.points} | {row.seeds} | {row.objected:.1%} |", flush=True)


if __name__ == "__main__":
    main()

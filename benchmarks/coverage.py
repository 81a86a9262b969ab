"""Measure how often the intervals that vitkit prints hold the truth, where the truth is known.

Samples are drawn from a known truth, a thousand of each kind, and the interval of each is compared with it.
Accuracies are not drawn: the coverage of an interval of a count is a sum, here averaged over true accuracies.

    python -m benchmarks.coverage

prints the table of docs/results/accuracy.md; `tests/evaluation/test_coverage.py` fails where a row leaves
its range.

    python -m benchmarks.coverage verdicts

prints how often a verdict falls where nothing is to be found, and where something is, by the present rules
and by those before 24 November 2026.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import expit

from vitkit.data.layouts.vtab_tasks import VTAB_TASKS
from vitkit.evaluation.classify import Interval, Ranking, intervals_95, overconfidence
from vitkit.evaluation.fewshot.config import Learning, Method
from vitkit.evaluation.fewshot.methods import Draws, LabelledFeatures, measure
from vitkit.evaluation.statistics import (
    NORMAL_95,
    binomial_interval,
    bonett_price,
    holm,
    paired_difference,
    sign_test,
)
from vitkit.jobs.vtab import TaskScore, mean_of
from vitkit.text import pluralize

TRIALS = 1_000
TRUTH = 200_000
"""Images that the true average precision is counted on."""
USUAL = 0.93, 0.97
"""The coverage that a 95 % interval may have."""
AT_LEAST = 0.93, 1.0
"""The same where an interval has exact limits, which may hold too often, or is wider than it need be."""
PREVALENCES = tuple(np.linspace(0.03, 0.30, 8).tolist())
"""The share of the images that have each of eight labels."""


@dataclass(frozen=True)
class Row:
    """One interval in one case, and its coverage."""

    interval: str
    case: str
    held: float
    """The share of the trials with an interval in which it held the truth."""
    shown: float = 1.0
    """The share of the trials that have one."""
    trials: int | None = None
    """None where nothing was drawn."""
    claimed: float = 0.95
    allowed: tuple[float, float] = USUAL

    @property
    def is_in_range(self) -> bool:
        """Whether the coverage is in its range."""
        return self.allowed[0] <= self.held <= self.allowed[1]


def _labels(
    draw: np.random.Generator, images: int, prevalences: Sequence[float], separation: float
) -> list[Ranking]:
    """Draw images and rank them: scores are normal, and higher by `separation` where the label is there."""
    targets = draw.random((images, len(prevalences))) < np.array(prevalences)
    scores = (draw.normal(size=targets.shape) + separation * targets).astype(np.float32)
    return [Ranking.from_scores(*pair) for pair in zip(scores.T, targets.T, strict=True)]


@cache
def _truth(prevalences: tuple[float, ...], separation: float) -> float:
    rankings = _labels(np.random.default_rng(99), TRUTH, prevalences, separation)
    precisions = [ranking.average_precision() for ranking in rankings]
    return math.fsum(value for value in precisions if value is not None) / len(precisions)


def _held(intervals: Sequence[Interval | None], truth: float) -> tuple[float, float]:
    """Return the share of the intervals that hold the truth, and the share of all that there are."""
    shown = [interval for interval in intervals if interval is not None]
    held = sum(low <= truth <= high for low, high in shown)
    return held / max(len(shown), 1), len(shown) / len(intervals)


def mean_precision(
    images: int, separation: float, trials: int = TRIALS, prevalences: Sequence[float] = PREVALENCES
) -> Row:
    """Measure the interval of a mean average precision."""
    draw = np.random.default_rng(images)
    intervals = [intervals_95(_labels(draw, images, prevalences, separation))[0] for _ in range(trials)]
    labels = f"{len(prevalences)} labels on {min(prevalences):.0%} to {max(prevalences):.0%}"
    case = f"{labels} of {images:,} images, separation {separation:g}"
    held, shown = _held(intervals, _truth(tuple(prevalences), separation))
    return Row("mean average precision", case, held, shown, trials, allowed=AT_LEAST)


def label_precision(images: int, prevalence: float, separation: float, trials: int = TRIALS) -> Row:
    """Measure the interval of the average precision of one label."""
    draw = np.random.default_rng(images)
    intervals = [intervals_95(_labels(draw, images, [prevalence], separation))[1][0] for _ in range(trials)]
    case = f"label on {prevalence:.0%} of {images:,} images, separation {separation:g}"
    held, shown = _held(intervals, _truth((prevalence,), separation))
    return Row("average precision of a label", case, held, shown, trials, allowed=AT_LEAST)


def _holding(limits: NDArray[np.float64], share: float) -> float:
    """Sum up how often limits for each number of right images hold a true accuracy."""
    chances = stats.binom.pmf(np.arange(len(limits)), len(limits) - 1, share)
    return float(chances[(limits[:, 0] <= share) & (share <= limits[:, 1])].sum())


def accuracy(images: int, lowest: float, highest: float) -> Row:
    """Sum up the coverage of the interval of an accuracy: the lowest one, of 200 true accuracies."""
    limits = np.array([binomial_interval(correct, images) for correct in range(images + 1)])
    held = min(_holding(limits, share) for share in np.linspace(lowest, highest, 200))
    case = f"{images:,} images, {lowest:.0%} to {highest:.1%} right, the lowest"
    return Row("accuracy, recall, top-5 (exact)", case, held, allowed=(0.95, 1.0))


def sureness(images: int, level: float, trials: int = TRIALS) -> Row:
    """Measure the interval of mean confidence minus accuracy, of a model that is as sure as it should be."""
    draw, intervals = np.random.default_rng(images), []
    for _ in range(trials):
        confidence = np.clip(draw.normal(level, 0.1, images), 0.34, 1)
        intervals.append(overconfidence(confidence, draw.random(images) < confidence).interval)
    case = f"{images:,} images, {level:.0%} sure"
    return Row("confidence - accuracy", case, _held(intervals, 0.0)[0], trials=trials, allowed=AT_LEAST)


def draws_of_shots(shots: int, seeds: int, method: Method, trials: int = TRIALS) -> Row:
    """Measure the interval of few-shot accuracies over draws, for the same test images."""
    draw, classes, features = np.random.default_rng(0), 5, 16
    centres = draw.normal(size=(classes, features))

    def sample(count: int) -> LabelledFeatures:
        labels = np.arange(count) % classes
        rows = centres[labels] + 1.5 * draw.normal(size=(count, features))
        return LabelledFeatures(np.arange(count), rows, labels)

    pool, test = sample(300), sample(200)
    intervals: list[Interval | None] = []
    every: list[float] = []
    for trial in range(trials):
        drawn = [Draws(pool.labels, classes, trial * seeds + seed) for seed in range(seeds)]
        (score,) = measure(drawn, Learning((shots,), methods=(method,)), pool, test, classes)
        intervals.append(score.interval)
        every += score.accuracies
    held, _ = _held(intervals, math.fsum(every) / len(every))
    case = f"{seeds} draws of {shots} a class, {method}"
    return Row("few-shot mean over draws (Student's t)", case, held, trials=trials)


def mean_of_tasks(tasks: int, images: int, trials: int = TRIALS) -> Row:
    """Measure the interval of VTAB's mean, where the accuracies are those of the paper's ViT-L/16 on I21k."""
    draw, intervals = np.random.default_rng(tasks), []
    chosen = VTAB_TASKS[:: len(VTAB_TASKS) // tasks][:tasks]
    shares = [task.paper[-1] / 100 for task in chosen]
    for _ in range(trials):
        scores = []
        for task, share in zip(chosen, shares, strict=True):
            right = int(draw.binomial(images, share))
            interval = binomial_interval(right, images)
            scores.append(TaskScore(task, right / images, interval, images, 0, 0, 0.0, "", 0.01))
        mean = mean_of(scores)
        intervals.append(None if mean is None else mean.interval)
    held, _ = _held(intervals, math.fsum(shares) / tasks)
    return Row("VTAB mean", f"{tasks} tasks of {images:,} test images", held, trials=trials)


def paired_study(seeds: int, images: int, spread: float, trials: int = TRIALS) -> Row:
    """Draw studies of two ways to train, and compare the interval of their difference with the true one.

    An image is right where a sum of normal numbers is above 0: how good the way to train is, how easy the
    image is (deviation 1), how it suits this way (0.3), how well the seed went (`spread`) and what else
    happened (0.5). About 85 % are right; a spread of 0.05 is a deviation of about 1 point over seeds.
    """
    draw, ways, held = np.random.default_rng(seeds), (1.3, 1.4), 0
    whole = math.sqrt(1 + 0.3**2 + spread**2 + 0.5**2)
    truth = _normal(ways[1] / whole) - _normal(ways[0] / whole)
    for _ in range(trials):
        easy, scores = draw.normal(size=images), []
        for way in ways:
            own = draw.normal(scale=0.3, size=images) + draw.normal(scale=spread, size=(seeds, 1))
            sums = way + easy + own + draw.normal(scale=0.5, size=(seeds, images))
            scores.append((sums > 0).astype(np.float64))
        low, high = paired_difference(*scores).interval
        held += low <= truth <= high
    # One seed cannot know how much seeds differ: its interval is about its weights alone.
    allowed = (0.0, 0.93) if seeds == 1 else AT_LEAST
    case = f"{pluralize(seeds, 'seed')} (deviation {20 * spread:g} points), {images:,} images"
    return Row("paired difference of two ways to train", case, held / trials, trials=trials, allowed=allowed)


def _normal(value: float) -> float:
    """Give the standard normal's share below a value."""
    return (1 + math.erf(value / math.sqrt(2))) / 2


def rows(trials: int = TRIALS) -> Iterator[Row]:
    """Measure every interval in every case."""
    for separation in (1.0, 2.0, 3.0):
        for images in (100, 300, 1_000):
            yield mean_precision(images, separation, trials)
    for separation in (1.0, 2.0, 3.0):
        yield mean_precision(300, separation, trials, (0.02, 0.11, 0.2))
    for images, prevalence in ((100, 0.1), (300, 0.05), (300, 0.3), (1_000, 0.03), (1_000, 0.3)):
        for separation in (1.0, 2.0, 3.0):
            yield label_precision(images, prevalence, separation, trials)
    for images in (10, 20, 50, 100, 360, 1_000, 10_000):
        for lowest, highest in ((0.1, 0.5), (0.5, 0.9), (0.9, 0.99), (0.99, 0.999)):
            yield accuracy(images, lowest, highest)
    for images in (20, 100, 1_000):
        for level in (0.5, 0.9):
            yield sureness(images, level, trials)
    for shots in (1, 5):
        for seeds in (3, 5):
            yield draws_of_shots(shots, seeds, "ridge", trials)
    yield draws_of_shots(5, 5, "knn", trials)
    for tasks, images in ((2, 200), (6, 200), (19, 1_000)):
        yield mean_of_tasks(tasks, images, trials)
    for seeds in (1, 2, 3, 5):
        for images in (360, 2_000):
            for spread in (0.05, 0.1):
                yield paired_study(seeds, images, spread, trials)


def _wilson(images: int) -> NDArray[np.float64]:
    """Compute Wilson's limits for each number of right images, as vitkit printed them before."""
    share, square = np.arange(images + 1) / images, NORMAL_95**2
    centre = (share + square / (2 * images)) / (1 + square / images)
    half = (
        np.sqrt(share * (1 - share) / images + square / (4 * images**2)) * NORMAL_95 / (1 + square / images)
    )
    return np.stack([centre - half, centre + half], 1)


def _mcnemar_against_guess(counts: Sequence[int], right: Sequence[int]) -> bool:
    """Whether McNemar's exact test against the largest class, the rule before, calls a model better."""
    most = int(np.argmax(counts))
    model, guess = sum(right) - right[most], counts[most] - right[most]
    return model > guess and sign_test(model, guess) < 0.05


def guessing_table(trials: int = TRIALS) -> Iterator[str]:
    """Count the models that are called better than guessing, and that know nothing or something."""
    yield "| images | classes | truly right | interval (now) | McNemar (before) | Wilson's interval |"
    yield "| --- | --- | --- | --- | --- | --- |"
    draw = np.random.default_rng(0)
    for counts, kind, share in _guessing_cases():
        classes, images = len(counts), sum(counts)
        exact = np.array([binomial_interval(right, images) for right in range(images + 1)])[:, 0]
        wilson, chance = _wilson(images)[:, 0], max(counts) / images
        # A model that knows nothing answers each class as often as it occurs.
        shares = np.array(counts) / images if share is None else np.full(classes, share)
        chances = np.ones(1)  # of each number of right answers, a sum over the classes
        for size, part in zip(counts, shares.tolist(), strict=True):
            chances = np.convolve(chances, stats.binom.pmf(np.arange(size + 1), size, part))
        hits = draw.binomial(counts, shares, (trials, classes)).tolist()
        mcnemar = np.mean([_mcnemar_against_guess(counts, row) for row in hits])
        called = (chances[exact > chance].sum(), mcnemar, chances[wilson > chance].sum())
        right = "knows nothing" if share is None else f"{share:.0%}"
        yield f"| {images:,} | {classes}, {kind} | {right} | {' | '.join(f'{part:.1%}' for part in called)} |"


def _guessing_cases() -> Iterator[tuple[list[int], str, float | None]]:
    for images in (20, 50, 150, 360, 1_000, 5_000):
        for classes in (2, 5, 20, 100):
            if images >= 2 * classes or images == classes:
                yield [images // classes] * classes, "equal", None
        yield [images * 7 // 10, images - images * 7 // 10], "7 to 3", None
    for each, share in ((25, 0.7), (75, 0.6), (75, 0.65), (13, 0.8)):
        yield [each] * 2, "equal", share
    yield [70, 83], "70 to 83", 0.64


def models_table() -> Iterator[str]:
    """Sum up how often equal models are said to differ, and how often the interval of a difference holds."""
    yield "| images | models differ on | said to differ (now) | McNemar (before) | interval holds |"
    yield "| --- | --- | --- | --- | --- |"
    for images in (10, 20, 50, 100, 360, 1_000, 10_000):
        for apart in (0.01, 0.03, 0.1, 0.3):
            if images * apart > 300:
                continue
            said, before = (_said_to_differ(images, apart, rule) for rule in (_bonett_price, _mcnemar))
            held = [_difference_held(images, apart, lean) for lean in (0.0, 0.25, 0.5, 0.75, 1.0)]
            cells = f"{said:.1%} | {before:.1%} | {min(held):.1%} to {max(held):.1%}"
            yield f"| {images:,} | {apart:.0%} | {cells} |"


@cache
def _bonett_price(first: int, second: int, images: int) -> tuple[float, float, bool]:
    """Compare two models of which each alone is right on so many images: the interval, and the verdict."""
    interval, p = bonett_price(first, second, images)
    return (*interval, p < 0.05)


@cache
def _mcnemar(first: int, second: int, images: int) -> tuple[float, float, bool]:
    return 0.0, 0.0, sign_test(first, second) < 0.05


def _tables(images: int, apart: float, lean: float) -> Iterator[tuple[int, int, float]]:
    """Yield the numbers of images that each model alone is right on, with their probability."""
    count = np.arange(images + 1)
    for differ, chance in zip(count.tolist(), stats.binom.pmf(count, images, apart).tolist(), strict=True):
        if chance < 1e-6:
            continue
        ways = stats.binom.pmf(count[: differ + 1], differ, (1 + lean) / 2).tolist()
        yield from ((differ - second, second, chance * way) for second, way in enumerate(ways) if way > 1e-6)


def _said_to_differ(
    images: int, apart: float, rule: Callable[[int, int, int], tuple[float, float, bool]]
) -> float:
    return sum(
        chance for first, second, chance in _tables(images, apart, 0.0) if rule(first, second, images)[2]
    )


def _difference_held(images: int, apart: float, lean: float) -> float:
    held = 0.0
    for first, second, chance in _tables(images, apart, lean):
        low, high, _ = _bonett_price(first, second, images)
        held += chance * (low <= lean * apart <= high)
    return held


@dataclass(frozen=True)
class Studies:
    """Simulated studies of four arms and a base, at one size: shares of the arms, or of the studies."""

    level: float
    """Arms without a difference that are said to differ before Holm: at most 5 %."""
    family_level: float
    """Studies without a difference in which any arm is said to differ after Holm: at most 5 %."""
    coverage: float
    """Intervals that hold the true difference, 0."""
    power: float
    """True differences of 3 points that are found, before Holm."""


Rule = Callable[[NDArray[np.float64], NDArray[np.float64]], float]


def _now(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    return paired_difference(first, second).p


def _satterthwaite(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Compute the p of the rule before: one Student's t of both variances together."""
    difference = second - first
    seeds, images = difference.shape
    by_image = difference.mean(0).var() / images
    by_seed = difference.mean(1).var(ddof=1) / seeds if seeds > 1 else 0.0
    variance, squares = by_seed + by_image, by_seed**2 / max(seeds - 1, 1) + by_image**2 / (images - 1)
    return float(2 * stats.t.sf(abs(difference.mean()) / math.sqrt(variance), variance**2 / squares))


def studies(
    seeds: int,
    images: int,
    spread: float,
    trials: int = TRIALS,
    rules: Sequence[Rule] = (_now,),
    base: float = 2.5,
) -> list[Studies]:
    """Draw studies, each of four arms against a base, and judge them by each rule.

    The logit of the probability that an image is right is normal: `base` on average, with deviations of 1.5
    over images, of `spread` over seeds, 0.3 over what suits an arm in an image, and 0.7 over the rest.
    """
    draw = np.random.default_rng([seeds, images])
    normal = draw.normal(0, math.sqrt(1.5**2 + 0.3**2 + 0.7**2 + spread**2), 200_000)
    # The shift that makes 3 points more right.
    steps = np.linspace(0, 1, 201)
    shift = steps[
        np.searchsorted(
            [expit(base + step + normal).mean() for step in steps], expit(base + normal).mean() + 0.03
        )
    ]
    counts = np.zeros((len(rules), 4))
    for _ in range(trials):
        easy = base + 1.5 * draw.normal(size=images)

        def arm(shift: float = 0.0, easy: NDArray[np.float64] = easy) -> NDArray[np.float64]:
            own = 0.3 * draw.normal(size=images) + spread * draw.normal(size=(seeds, 1))
            logits = easy + own + 0.7 * draw.normal(size=(seeds, images)) + shift
            right: NDArray[np.bool_] = draw.random((seeds, images)) < expit(logits)
            return right.astype(np.float64)

        first, arms, better = arm(), [arm() for _ in range(4)], arm(shift)
        for number, rule in enumerate(rules):
            ps = [rule(first, second) for second in arms]
            said = sum(p < 0.05 for p in ps) / 4
            counts[number] += said, min(holm(ps)) < 0.05, 1 - said, rule(first, better) < 0.05
    return [Studies(*row) for row in (counts / trials).tolist()]


def studies_table(trials: int = TRIALS) -> Iterator[str]:
    """Count what studies of several seeds find."""
    yield "| seeds | images | deviation of seeds | one arm | any of four, Holm | held | 3 points found |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for seeds in (1, 2, 3, 5):
        for images in (200, 360, 1_000):
            for spread in (0.0, 0.15, 0.3, 0.6):
                now, before = studies(seeds, images, spread, trials, (_now, _satterthwaite))
                pairs = [
                    f"{getattr(now, field.name):.1%} ({getattr(before, field.name):.1%})"
                    for field in fields(Studies)
                ]
                yield f"| {seeds} | {images:,} | {spread:g} | {' | '.join(pairs)} |"


def main() -> None:
    if sys.argv[1:] == ["verdicts"]:
        for table in (guessing_table(), models_table(), studies_table()):
            for line in table:
                print(line, flush=True)
            print()
        return
    print("| interval | case | claimed | held | printed | trials |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows():
        trials = "a sum" if row.trials is None else f"{row.trials:,}"
        held = f"{row.held:.1%}" if row.is_in_range else f"**{row.held:.1%}**"
        cells = (row.interval, row.case, f"{row.claimed:.0%}", held, f"{row.shown:.0%}", trials)
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

"""Measure how often the intervals that vitkit prints hold the truth, where the truth is known.

Samples are drawn from a known truth, a thousand of each kind, and the interval of each is compared with it.
Accuracies are not drawn: the coverage of an interval of a count is a sum, here averaged over true accuracies.
The forecasts of `vitkit advise` are compared with the runs of `advice_outcomes.jsonl`, each data set by the
relation that the others make.

    python -m benchmarks.coverage

prints the table of docs/results/accuracy.md; `tests/evaluation/test_coverage.py` fails where a row leaves
its range.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import numpy as np

from vitkit.config import from_json
from vitkit.data.layouts.vtab_tasks import VTAB_TASKS
from vitkit.evaluation.calibration import overconfidence
from vitkit.evaluation.classify import compare_with_guessing
from vitkit.evaluation.fewshot.config import Method
from vitkit.evaluation.fewshot.methods import Draws
from vitkit.evaluation.fewshot.scores import LabelledFeatures, measure
from vitkit.evaluation.intervals import wilson_interval
from vitkit.evaluation.multilabel import Interval, Ranking, intervals_95
from vitkit.evaluation.paired import paired_difference
from vitkit.jobs.advice.forecast import FINETUNED, Outcome, fit, predict
from vitkit.jobs.vtab.result import PAPER, TaskScore, mean_of
from vitkit.text import pluralize

TRIALS = 1_000
TRUTH = 200_000
"""Images that the true average precision is counted on."""
USUAL = 0.93, 0.97
"""The coverage that a 95 % interval may have."""
AT_LEAST = 0.93, 1.0
"""The same where an interval is known to be wider than it need be."""
PREVALENCES = tuple(np.linspace(0.03, 0.30, 8).tolist())
"""The share of the images that have each of eight labels."""
OUTCOMES = Path(__file__).with_name("advice_outcomes.jsonl")


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
    # Rare ones of a few labels that are ranked hardly better than by chance vary less than shares do.
    allowed = USUAL if len(prevalences) > 3 else AT_LEAST
    return Row("mean average precision", case, held, shown, trials, allowed=allowed)


def label_precision(images: int, prevalence: float, separation: float, trials: int = TRIALS) -> Row:
    """Measure the interval of the average precision of one label."""
    draw = np.random.default_rng(images)
    intervals = [intervals_95(_labels(draw, images, [prevalence], separation))[1][0] for _ in range(trials)]
    case = f"label on {prevalence:.0%} of {images:,} images, separation {separation:g}"
    held, shown = _held(intervals, _truth((prevalence,), separation))
    return Row("average precision of a label", case, held, shown, trials, allowed=AT_LEAST)


def accuracy(images: int, lowest: float, highest: float) -> Row:
    """Sum up Wilson's interval of an accuracy, averaged over true accuracies."""
    limits = np.array([wilson_interval(correct, images) for correct in range(images + 1)])
    counts = np.arange(images + 1)
    factorials = np.array([math.lgamma(count + 1) for count in range(images + 1)])
    ways = factorials[-1] - factorials - factorials[::-1]  # logarithms of the binomial coefficients
    held = []
    for share in np.linspace(lowest, highest, 200):
        chances = np.exp(ways + counts * math.log(share) + (images - counts) * math.log1p(-share))
        held.append(chances[(limits[:, 0] <= share) & (share <= limits[:, 1])].sum())
    case = f"{images:,} images, {lowest:.0%} to {highest:.1%} right"
    few = images <= 50 and lowest >= 0.99  # too short, as the caption of the classes says
    allowed = (0.90, 0.97) if few else USUAL
    return Row("accuracy, recall, top-5 (Wilson)", case, float(np.mean(held)), allowed=allowed)


def sureness(images: int, level: float, trials: int = TRIALS) -> Row:
    """Measure the interval of mean confidence minus accuracy, of a model that is as sure as it should be."""
    draw, intervals = np.random.default_rng(images), []
    for _ in range(trials):
        confidence = np.clip(draw.normal(level, 0.1, images), 0.34, 1)
        intervals.append(overconfidence(confidence, draw.random(images) < confidence).interval)
    case = f"{images:,} images, {level:.0%} sure"
    return Row("confidence - accuracy", case, _held(intervals, 0.0)[0], trials=trials)


def verdict(images: int, classes: int, trials: int = TRIALS) -> Row:
    """Measure how often a model that guesses is not told from guessing."""
    draw, right = np.random.default_rng(images), 0
    names = tuple(map(str, range(classes)))
    for _ in range(trials):
        truth, said = draw.integers(0, classes, (2, images))
        counts = [int((truth == label).sum()) for label in range(classes)]
        hits = [int(((truth == label) & (said == label)).sum()) for label in range(classes)]
        right += compare_with_guessing(names, counts, hits).verdict != "better than guessing"
    case = f"{images:,} images of {classes} classes, a model that guesses"
    return Row(
        '"better than guessing" is not said (McNemar)',
        case,
        right / trials,
        trials=trials,
        allowed=(0.95, 1.0),
    )


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
        (score,) = measure(drawn, [shots], [method], pool, test, classes)
        intervals.append(score.interval)
        every += score.accuracies
    held, _ = _held(intervals, math.fsum(every) / len(every))
    case = f"{seeds} draws of {shots} a class, {method}"
    return Row("few-shot mean over draws (Student's t)", case, held, trials=trials)


def mean_of_tasks(tasks: int, images: int, trials: int = TRIALS) -> Row:
    """Measure the interval of VTAB's mean, where the accuracies are those of the paper's ViT-L/16 on I21k."""
    draw, intervals = np.random.default_rng(tasks), []
    folders = [task.folder for task in VTAB_TASKS[:: len(VTAB_TASKS) // tasks]][:tasks]
    shares = [PAPER[folder][-1] / 100 for folder in folders]
    for _ in range(trials):
        scores = []
        for folder, share in zip(folders, shares, strict=True):
            right = int(draw.binomial(images, share))
            interval = wilson_interval(right, images)
            scores.append(TaskScore(folder, "", "", right / images, interval, images, 0, 0, 0.0, "", 0.01))
        mean = mean_of(scores, tasks)
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
    # One seed cannot know how much seeds differ: its interval is about its weights alone. Two may agree by
    # chance, which makes their interval too narrow.
    allowed = {1: (0.0, 0.93), 2: (0.85, 0.99)}.get(seeds, (0.91, 0.99))
    case = f"{pluralize(seeds, 'seed')} (deviation {20 * spread:g} points), {images:,} images"
    return Row("paired difference of two ways to train", case, held / trials, trials=trials, allowed=allowed)


def _normal(value: float) -> float:
    """Give the standard normal's share below a value."""
    return (1 + math.erf(value / math.sqrt(2))) / 2


def outcomes() -> list[Outcome]:
    """Read the runs that have ended."""
    lines = map(json.loads, OUTCOMES.read_text().splitlines())
    names = [field.name for field in fields(Outcome)]
    return [from_json(Outcome, {name: line[name] for name in names}, OUTCOMES.name) for line in lines]


def forecasts() -> Row:
    """Count the runs that came out inside the forecast, each data set by the relation of the others."""
    runs = outcomes()
    inside = 0
    for name in {run.data for run in runs}:
        others = fit([run for run in runs if run.data != name])
        for run in (run for run in runs if run.data == name):
            said = predict(run.evidence, run.images, run.tested, others)
            inside += said.low <= run.right / run.tested <= said.high
    low, high = wilson_interval(inside, len(runs))
    case = f"{inside} of {len(runs)} runs, each data set left out in turn ({low:.0%} to {high:.0%})"
    return Row("forecast of advise", case, inside / len(runs), claimed=0.8, allowed=(0.7, 0.97))


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
    for images in (60, 1_000):
        yield verdict(images, 3, trials)
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
    yield forecasts()


def main() -> None:
    print("| interval | case | claimed | held | printed | trials |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows():
        trials = "a sum" if row.trials is None else f"{row.trials:,}"
        held = f"{row.held:.1%}" if row.is_in_range else f"**{row.held:.1%}**"
        cells = (row.interval, row.case, f"{row.claimed:.0%}", held, f"{row.shown:.0%}", trials)
        print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\nthe relation that fits all outcomes: {fit(outcomes())}; shipped: {FINETUNED}")


if __name__ == "__main__":
    main()

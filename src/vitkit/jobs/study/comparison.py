"""Compare each arm of a study with the first one, the base, on the same test images and seeds.

The scores are read from the series of the arms; conclusions, table and figure are made here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitkit.config import to_json
from vitkit.errors import VitkitError
from vitkit.evaluation.paired import SURE, PairedDifference, Scores, adjust, compare_scores
from vitkit.jobs.study.study import Arm
from vitkit.runs.series_record import Series
from vitkit.tasks import find_task
from vitkit.tasks.page import Plot, Table, describe_images, points, shown_p, shown_score, table_of
from vitkit.text import join_names, pluralize


@dataclass(frozen=True)
class ArmResult:
    """The scores of an arm, and its difference from the base."""

    folder: str
    label: str
    learning_rate: float | None
    """The rate of its runs, the best rate of a sweep; None where training diverged with all rates."""
    scores: Mapping[str, float]
    """Mean score of the test images, from 0 to 1, by seed; without the seeds whose training diverged."""
    diverged: tuple[int, ...]
    """The seeds whose training diverged."""
    end_of_sweep: Literal["lowest", "highest"] | None = None
    """Whether the rate is the lowest or highest of its sweep, so that a better rate may lie beyond it."""
    difference: PairedDifference | None = None
    """The difference from the base, over the seeds that finished in both; None of the base, and without such
    seeds."""
    adjusted_p: float | None = None
    """The p of the difference by Holm, over all arms that are compared."""

    @property
    def mean(self) -> float | None:
        """The mean of the scores; None where there is none."""
        return float(np.mean(list(self.scores.values()))) if self.scores else None

    @property
    def differs(self) -> bool:
        """Whether the difference from the base is significant."""
        return self.adjusted_p is not None and self.adjusted_p < SURE


@dataclass(frozen=True)
class TestImages:
    """The images that arms are compared on, and their score."""

    score: str
    """The name of the mean score of the images: accuracy."""
    split: str
    images: int

    def describe(self) -> str:
        """Say how many images of which split: "360 test images"."""
        return describe_images(self.images, self.split)


@dataclass(frozen=True)
class Comparison(TestImages):
    """The arms of a study on the same test images."""

    seeds: tuple[int, ...]
    base: ArmResult
    arms: tuple[ArmResult, ...]
    """The other arms."""

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        return to_json(self)


@dataclass(frozen=True)
class ScoredArms(TestImages):
    """The scores of arms on the same test images, image by image."""

    scores: tuple[Scores, ...]
    """The scores of each arm."""


def read_scores(folder: Path, arms: Sequence[Arm], completed: Sequence[Series]) -> ScoredArms:
    """Read the scores of all arms of a study, which were tested on the same images.

    Args:
        folder: of the study.
        arms: all of them, with one task and the same seeds.
        completed: the series of each.

    Raises:
        VitkitError: an evaluation is damaged, or an arm was tested on other images than another.
    """
    answering = find_task(arms[0].run.task).answering
    if answering is None:
        raise VitkitError(f"{arms[0].run.task} gives no answers that could be compared by test images.")
    scored, tested, split = [], None, ""
    for arm, series in zip(arms, completed, strict=True):
        scores: dict[int, NDArray[np.float64]] = {}
        for member in series.members:
            if member.score is None:
                continue
            split = member.score.split
            path = folder / arm.folder / member.folder / "evaluation" / f"{split}.json"
            predictions = answering.read_evaluation(path)[1]
            tested = predictions.ids if tested is None else tested
            if not np.array_equal(predictions.ids, tested):
                raise VitkitError(
                    f"{path}: expected the images that the other arms were tested on, found "
                    f"{len(predictions):,} others. An option that changes which images can be read cannot "
                    "be compared."
                )
            scores[member.seed] = answering.score_images(predictions)
        scored.append(scores)
    return ScoredArms(answering.image_score, split, 0 if tested is None else len(tested), tuple(scored))


def compare_arms(folder: Path, arms: Sequence[Arm], completed: Sequence[Series]) -> Comparison:
    """Compare the arms of a study with the first one, with the arguments and errors of `read_scores`."""
    tested = read_scores(folder, arms, completed)
    results = []
    differences = [None, *(compare_scores(tested.scores[:1], [scores]) for scores in tested.scores[1:])]
    for arm, series, scores, difference, p in zip(
        arms, completed, tested.scores, differences, adjust(differences), strict=True
    ):
        diverged = tuple(member.seed for member in series.members if member.diverged)
        if series.chosen is None:
            diverged = tuple(member.seed for member in series.members)
        means = {str(seed): float(rows.mean()) for seed, rows in scores.items()}
        end = _end_of_sweep(series)
        results.append(ArmResult(arm.folder, arm.label, series.chosen, means, diverged, end, difference, p))
    seeds = tuple(member.seed for member in completed[0].members)
    return Comparison(tested.score, tested.split, tested.images, seeds, results[0], tuple(results[1:]))


def _end_of_sweep(series: Series) -> Literal["lowest", "highest"] | None:
    """Return the end of the sweep at which the chosen rate lies; None if it lies between others."""
    tried = [member.learning_rate for member in series.rates]
    if not tried or series.chosen not in (tried[0], tried[-1]):
        return None
    return "lowest" if series.chosen == tried[0] else "highest"


def conclusions(comparison: Comparison) -> list[str]:
    """Write a sentence about each arm, about rates at the end of a sweep, and about seeds and images."""
    if not comparison.images:
        return ["Training diverged in every run: there is nothing to compare. Give lower rates."]
    sentences = [_conclusion(comparison, arm) for arm in comparison.arms]
    for end, beyond in (("lowest", "a lower"), ("highest", "a higher")):
        names = [arm.label for arm in (comparison.base, *comparison.arms) if arm.end_of_sweep == end]
        if names:
            sentences.append(
                f"The {end} learning rate that was tried was the best for {join_names(names)}: {beyond} rate "
                "may be better still (--rates)."
            )
    where = comparison.describe()
    if len(comparison.seeds) == 1:
        sentences.append(
            f"One seed on {where}: this is about these weights only, and says nothing about other trainings. "
            "Give --seeds 3 or more for that."
        )
    else:
        few = len(comparison.seeds) == 2
        sentences.append(
            f"{pluralize(len(comparison.seeds), 'seed')} on {where}, the same in every arm: the intervals "
            "are about other seeds and other images like these."
            + (" Two hardly tell how far seeds differ: --seeds 3 or more give shorter ones." if few else "")
        )
    return sentences


def _conclusion(comparison: Comparison, arm: ArmResult) -> str:
    """Compare an arm with the base in a sentence."""
    base, difference = comparison.base, arm.difference
    if difference is None:
        reason = _diverged_seeds(comparison, arm if base.scores else base)
        return f"{arm.label}: not compared, because training diverged with {reason}."
    if difference.mean == 0 and difference.standard_error == 0:
        sentence = f"{arm.label}: the same as {base.label} on every test image"
    else:
        better = "better than" if difference.mean > 0 else "worse than" if difference.mean < 0 else "from"
        low, high = (points(comparison, value, signed=True) for value in difference.interval)
        sure = f"95 % interval {low} to {high}, adjusted p {shown_p(arm.adjusted_p)}"
        size = f"{points(comparison, abs(difference.mean))} points {better} {base.label} ({sure})"
        least = points(comparison, difference.detectable)
        sentence = f"{arm.label}: {size}"
        if not arm.differs:
            sentence = (
                f"{arm.label}: no difference found, {size}; one of {least} points or more would have been "
                "found in 8 of 10 studies of this size"
            )
    if difference.seeds < len(comparison.seeds):
        sentence += f". Only {pluralize(difference.seeds, 'seed')} finished in both"
    return f"{sentence}."


def _diverged_seeds(comparison: Comparison, arm: ArmResult) -> str:
    """Name the seeds of an arm whose training diverged."""
    if len(arm.diverged) == len(comparison.seeds):
        return f"every seed of {arm.label}"
    return f"seed {join_names([str(seed) for seed in arm.diverged])} of {arm.label}"


def arm_table(comparison: Comparison) -> Table:
    """Make the table of the arms: rate, mean score, difference with its interval and p, score by seed."""

    def difference(show: Callable[[PairedDifference], str]) -> Callable[[ArmResult], str]:
        return lambda arm: "–" if arm.difference is None else show(arm.difference)

    def interval(difference: PairedDifference) -> str:
        low, high = (points(comparison, value, signed=True) for value in difference.interval)
        return f"{low} to {high}"

    def each_seed(arm: ArmResult) -> str:
        scores = ((seed, arm.scores.get(str(seed))) for seed in comparison.seeds)
        return ", ".join(
            "diverged" if seed in arm.diverged else shown_score(comparison, score) for seed, score in scores
        )

    columns: dict[str, Callable[[ArmResult], str]] = {
        "arm": lambda arm: arm.label,
        "learning rate": lambda arm: "–" if arm.learning_rate is None else f"{arm.learning_rate:g}",
        f"mean {comparison.score}": lambda arm: shown_score(comparison, arm.mean),
        "difference": difference(lambda found: points(comparison, found.mean, signed=True)),
        "95 % interval": difference(interval),
        "p by Holm": lambda arm: shown_p(arm.adjusted_p),
        "detectable": difference(lambda found: points(comparison, found.detectable)),
        "each seed": each_seed,
    }
    return table_of((comparison.base, *comparison.arms), columns)


def difference_plot(comparison: Comparison) -> Plot | None:
    """Draw the differences from the base with their intervals; None where there are none."""
    from vitkit.analysis.study_figures import difference_figure

    drawn = [(arm.label, arm.difference) for arm in comparison.arms if arm.difference is not None]
    if not drawn:
        return None
    figure = difference_figure(
        [label for label, _ in drawn],
        [difference.mean for _, difference in drawn],
        [difference.interval for _, difference in drawn],
        f"{comparison.score} less that of {comparison.base.label}, in points",
    )
    return Plot(figure, "differences", "The differences from the base with their 95 % intervals, as above.")

"""The result of a study: each arm against the first one, the base, on the same test images and seeds.

Everything is read from the series of the arms; the words, the table and the figure are made here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitkit.config import to_json
from vitkit.errors import VitkitError
from vitkit.evaluation.paired import SURE, PairedDifference, holm, paired_difference
from vitkit.jobs.study.study import Arm
from vitkit.runs.series_record import Series
from vitkit.tasks import find_task
from vitkit.tasks.page import Plot, Table, describe_images
from vitkit.text import join_names, pluralize

MANY_IMAGES = 5_000
"""Test images from which a hundredth of a point is told: with as many, an accuracy of 90 % is known to less
than half a point."""


@dataclass(frozen=True)
class ArmResult:
    """The scores of an arm, and its difference from the base."""

    folder: str
    label: str
    learning_rate: float | None
    """The rate of its runs: the best one of a sweep; None where training diverged with all of them."""
    scores: Mapping[str, float]
    """Mean score of the test images, from 0 to 1, by seed; without the seeds whose training diverged."""
    diverged: tuple[int, ...]
    """The seeds whose training diverged."""
    end_of_sweep: Literal["lowest", "highest"] | None = None
    """Whether the rate is the lowest or highest one of a sweep, so that a better one may lie beyond it."""
    difference: PairedDifference | None = None
    """Against the base, over the seeds that finished in both; None of the base, and where there is none."""
    adjusted_p: float | None = None
    """Its p by Holm, over all arms that are compared."""

    @property
    def mean(self) -> float | None:
        """The mean of the scores; None where there is none."""
        return float(np.mean(list(self.scores.values()))) if self.scores else None

    @property
    def differs(self) -> bool:
        """Whether a difference from the base was found."""
        return self.adjusted_p is not None and self.adjusted_p < SURE


@dataclass(frozen=True)
class Comparison:
    """The arms of a study on the same test images."""

    score: str
    """The name of the mean score of the images: accuracy."""
    split: str
    images: int
    seeds: tuple[int, ...]
    base: ArmResult
    arms: tuple[ArmResult, ...]
    """The other arms."""

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        return to_json(self)


def compare_arms(folder: Path, arms: Sequence[Arm], completed: Sequence[Series]) -> Comparison:
    """Compare the arms of a study with the first one.

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
    results, scored, tested, split = [], [], None, ""
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
        diverged = tuple(member.seed for member in series.members if member.diverged)
        if series.chosen is None:
            diverged = tuple(member.seed for member in series.members)
        means = {str(seed): float(rows.mean()) for seed, rows in scores.items()}
        end = _end_of_sweep(series)
        results.append(ArmResult(arm.folder, arm.label, series.chosen, means, diverged, end))
        scored.append(scores)
    for number in range(1, len(results)):
        shared = [seed for seed in scored[0] if seed in scored[number]]
        if shared:
            pair = (np.stack([scores[seed] for seed in shared]) for scores in (scored[0], scored[number]))
            results[number] = replace(results[number], difference=paired_difference(*pair))
    compared = [number for number, one in enumerate(results) if one.difference is not None]
    ps = [one.difference.p for one in results if one.difference is not None]
    for number, adjusted in zip(compared, holm(ps), strict=True):
        results[number] = replace(results[number], adjusted_p=adjusted)
    seeds = tuple(member.seed for member in completed[0].members)
    images = 0 if tested is None else len(tested)
    return Comparison(answering.image_score, split, images, seeds, results[0], tuple(results[1:]))


def _end_of_sweep(series: Series) -> Literal["lowest", "highest"] | None:
    """Say at which end of the rates that were tried the chosen one lies; None between them."""
    tried = [member.learning_rate for member in series.rates]
    if not tried or series.chosen not in (tried[0], tried[-1]):
        return None
    return "lowest" if series.chosen == tried[0] else "highest"


def conclusions(found: Comparison) -> list[str]:
    """Say what a comparison came to: a sentence for each arm, and what all of them are about."""
    if not found.images:
        return ["Training diverged in every run: there is nothing to compare. Give lower rates."]
    said = [_conclusion(found, arm) for arm in found.arms]
    for end, beyond in (("lowest", "a lower"), ("highest", "a higher")):
        names = [arm.label for arm in (found.base, *found.arms) if arm.end_of_sweep == end]
        if names:
            said.append(
                f"The {end} learning rate that was tried was the best for {join_names(names)}: {beyond} one "
                "may be better still (--rates)."
            )
    where = describe_images(found.images, found.split)
    if len(found.seeds) == 1:
        said.append(
            f"One seed on {where}: this is about these weights only, and says nothing about other trainings. "
            "Give --seeds 3 or more for that."
        )
    else:
        said.append(
            f"{pluralize(len(found.seeds), 'seed')} on {where}, the same in every arm: the intervals are "
            "about other seeds and other images like these."
        )
    return said


def _conclusion(found: Comparison, arm: ArmResult) -> str:
    """Say in a sentence how an arm compares with the base."""
    difference = arm.difference
    if difference is None:
        lost = found.base if not found.base.scores else arm
        return f"{arm.label}: not compared, because training diverged with {_lost(found, lost)}."
    if difference.mean == 0 and difference.standard_error == 0:
        sentence = f"{arm.label}: the same as {found.base.label} on every test image"
    else:
        better = "better" if difference.mean > 0 else "worse"
        low, high = (points(found, value, signed=True) for value in difference.interval)
        sure = f"95 % interval {low} to {high}, adjusted p {_shown_p(arm.adjusted_p)}"
        size = f"{points(found, abs(difference.mean))} points {better} than {found.base.label} ({sure})"
        least = points(found, difference.detectable)
        sentence = f"{arm.label}: {size}"
        if not arm.differs:
            sentence = (
                f"{arm.label}: no difference found, {size}; one of {least} points or more would have been "
                "found in 8 of 10 studies of this size"
            )
    if difference.seeds < len(found.seeds):
        sentence += f". Only {pluralize(difference.seeds, 'seed')} finished in both"
    return f"{sentence}."


def _lost(found: Comparison, arm: ArmResult) -> str:
    """Say which seeds of an arm diverged."""
    if len(arm.diverged) == len(found.seeds):
        return f"every seed of {arm.label}"
    return f"seed {join_names([str(seed) for seed in arm.diverged])} of {arm.label}"


def points(found: Comparison, value: float, signed: bool = False) -> str:
    """Write a difference in points, hundredths of the score, as exactly as the images allow."""
    digits = 2 if found.images >= MANY_IMAGES else 1
    # Rounded first: a loss of 0.001 points is no "-0.0".
    rounded = round(100 * value, digits) + 0.0
    return f"{rounded:+.{digits}f}" if signed else f"{rounded:.{digits}f}"


def _shown_p(p: float | None) -> str:
    """Write a p with two digits that say something."""
    return "–" if p is None else "below 0.001" if p < 0.001 else f"{p:.2g}"


def arm_table(found: Comparison) -> Table:
    """Make the table of the arms: rate, score by seed and mean, difference with its interval and p."""
    seeds = [f"seed {seed}" for seed in found.seeds]
    headings = (
        "arm",
        "learning rate",
        *seeds,
        f"mean {found.score}",
        "difference in points",
        "95 % interval",
        "p",
        "p by Holm",
        "found in 8 of 10",
    )
    rows = []
    for arm in (found.base, *found.arms):
        rate = "–" if arm.learning_rate is None else f"{arm.learning_rate:g}"
        cells = [
            "diverged" if seed in arm.diverged else share(found, arm.scores.get(str(seed)))
            for seed in found.seeds
        ]
        rows.append((arm.label, rate, *cells, share(found, arm.mean), *_difference_cells(found, arm)))
    return Table(headings, tuple(rows))


def _difference_cells(found: Comparison, arm: ArmResult) -> tuple[str, ...]:
    """Write the difference of an arm from the base, its interval, its two p and what would have shown."""
    one = arm.difference
    if one is None:
        return ("–",) * 5
    low, high = (points(found, value, signed=True) for value in one.interval)
    return (
        points(found, one.mean, signed=True),
        f"{low} to {high}",
        _shown_p(one.p),
        _shown_p(arm.adjusted_p),
        points(found, one.detectable),
    )


def share(found: Comparison, value: float | None) -> str:
    """Write a score as a percentage, as exactly as differences are."""
    digits = 2 if found.images >= MANY_IMAGES else 1
    return "–" if value is None else f"{value:.{digits}%}"


def difference_plot(found: Comparison) -> Plot | None:
    """Draw the differences from the base with their intervals; None where there are none."""
    from vitkit.analysis.study_figures import difference_figure

    drawn = [(arm.label, arm.difference) for arm in found.arms if arm.difference is not None]
    if not drawn:
        return None
    figure = difference_figure(
        [label for label, _ in drawn],
        [one.mean for _, one in drawn],
        [one.interval for _, one in drawn],
        f"{found.score} less that of {found.base.label}, in points",
    )
    return Plot(figure, "differences", "The differences from the base with their 95 % intervals, as above.")

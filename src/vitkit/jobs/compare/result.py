"""The result of a comparison of two models, as values and in words."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitkit.config import to_json
from vitkit.errors import VitkitError
from vitkit.evaluation.paired import SURE, Flips, ModelDifference, count_flips, holm
from vitkit.tasks.answering import Answering
from vitkit.tasks.page import Number, Table, describe_images, points, shown_p, shown_score
from vitkit.text import format_count, format_size, join_names, pluralize

CLASSES_NAMED = 10


@dataclass(frozen=True)
class Side:
    """One of the two models."""

    given: str
    """The path or name that a person gave."""
    label: str
    """Its name in tables and sentences."""
    model: str
    """The name of its architecture."""
    image_size: tuple[int, int]
    """Height and width in pixels."""
    parameters: int
    forward_flops: int
    """FLOPs of the forward pass of one image, with the head."""
    score: float
    """The mean score of the images, from 0 to 1."""
    measures: tuple[tuple[str, str], ...]
    """The numbers of its evaluation by their names, in words: with those of calibration."""
    numbers: Mapping[str, Any]
    """All numbers of its evaluation, as vitkit evaluate --json prints them."""
    was_stored: bool
    """Whether its evaluation was read from its run folder; else it was made for the comparison."""
    trained_on_tested: int | None
    """Images among those tested that it was trained on, pixel for pixel; None where that is not known."""


@dataclass(frozen=True)
class ClassChange:
    """A class by both models."""

    name: str
    count: int
    """Images that count for it: its own; where an image has several labels, all."""
    first: float
    """The fraction of them that the first model is right on."""
    second: float
    flips: Flips
    adjusted_p: float
    """The p of its flips by Holm, over all classes."""

    @property
    def gain(self) -> float:
        """The fraction of the second less that of the first."""
        return self.second - self.first

    @property
    def differs(self) -> bool:
        """Whether a difference was found."""
        return self.adjusted_p < SURE


@dataclass(frozen=True)
class Speeds:
    """The speed of both models, measured in turns on one machine."""

    images_per_second: tuple[float, float]
    """The median of the rounds of each."""
    ratio: float
    """The speed of the second to that of the first, the median of the rounds."""
    ratio_quartiles: tuple[float, float]
    batch_size: int
    rounds: int
    threads: int
    device: str
    clock: str
    """The time that was measured: the processor's, the wall's, or that of a GPU's own events."""

    def __post_init__(self) -> None:
        for number in (*self.images_per_second, self.ratio, *self.ratio_quartiles):
            if not 0 < number < math.inf:  # a record may have been edited
                raise VitkitError(f"expected speeds above 0, found {number:g}. Choose another --out.")


@dataclass(frozen=True)
class ModelComparison:
    """Two models on the same test images."""

    folder: Path
    """The folder of the page and of the evaluations that were made."""
    task: str
    score: str
    """The name of the mean score of the images: accuracy."""
    data: str
    """The name of the data set."""
    split: str
    """Empty where the data has no splits, and all of it was tested on."""
    images: int
    unreadable: int
    first: Side
    second: Side
    difference: ModelDifference
    """The score of the second less that of the first, of these two sets of weights, over the images."""
    classes: tuple[ClassChange, ...]
    """The classes with images, in the order of the first model."""
    speeds: Speeds | None
    """None where none were measured."""
    options: tuple[str, ...] | None
    """The options in which the two runs differ: "--seed 0 -> 1"; None where one of them is no run."""
    notes: tuple[str, ...]
    """Sentences that belong to the result, such as which run of a series was taken."""
    command: str
    """The command that makes the comparison again, without the places of folders."""

    @property
    def page(self) -> Path:
        """Return the path of the page."""
        return self.folder / "report.html"

    @property
    def tested(self) -> str:
        """Return the images in words: "360 test images of digits"."""
        images = describe_images(self.images, self.split) if self.split else pluralize(self.images, "image")
        return f"{images} of {self.data}"

    @property
    def is_told_apart(self) -> bool:
        """Whether there is an image on which one model is better than the other."""
        flips = self.difference.flips
        return bool(flips.first_only or flips.second_only)

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        return {**to_json(self), "folder": str(self.folder)}


def compare_classes(
    answering: Answering[Any, Any], first: tuple[Any, Any], second: tuple[Any, Any]
) -> tuple[ClassChange, ...]:
    """Compare two models class by class, matched by name.

    Args:
        answering: their task.
        first: numbers and predictions of the first model.
        second: those of the second, of the same images in the same order.
    """
    one, other = (answering.right_by_class(*evaluation) for evaluation in (first, second))
    pairs = {
        name: (right.astype(float), other[name].astype(float)) for name, right in one.items() if len(right)
    }
    flips = {name: count_flips(*pair) for name, pair in pairs.items()}
    adjusted = holm([found.p for found in flips.values()])
    return tuple(
        ClassChange(name, len(right), float(right.mean()), float(others.mean()), flips[name], p)
        for (name, (right, others)), p in zip(pairs.items(), adjusted, strict=True)
    )


def conclusions(found: ModelComparison) -> list[str]:
    """Say what a comparison came to, in sentences, the answer first."""
    sentences = [_difference(found), _flips(found)]
    if len(found.classes) > 1:
        sentences.append(_classes(found))
    sentences += [
        f"{side.label} was trained on {side.trained_on_tested:,} of these images, pixel for pixel: its "
        "figures are too good, and the comparison is unfair."
        for side in (found.first, found.second)
        if side.trained_on_tested
    ]
    sentences += [
        f"Whether {side.label} was trained on some of these images is not known."
        for side in (found.first, found.second)
        if side.trained_on_tested is None
    ]
    if found.split.startswith("val"):
        sentences.append(
            "These are validation images: if they helped to choose a model or its settings, its figures are "
            "too good."
        )
    sentences += _sources(found)
    sentences.append(
        "All of this is about these two sets of weights: another training with another seed would give "
        "others (vitkit ablate compares ways to train over seeds)."
    )
    return [*sentences, *found.notes]


def _difference(found: ModelComparison) -> str:
    """Say whether one model is better, by how much, and how sure that is."""
    first, second, difference = found.first.label, found.second.label, found.difference
    if not found.is_told_apart:
        return (
            f"No difference: {second} and {first} have the same {found.score} on every single one of "
            f"{found.tested}."
        )
    better = "better" if difference.mean > 0 else "worse"
    low, high = (points(found, value, signed=True) for value in difference.interval)
    size = f"{second} is {points(found, abs(difference.mean))} points {better} than {first} in {found.score}"
    if difference.mean == 0:
        size = f"{second} and {first} have the same {found.score}"
    test = "Student's t of the images" if difference.flips.graded else "McNemar's exact test"
    sure = f"95 % interval of the difference {low} to {high} points; {test}, p {shown_p(difference.p)}"
    if difference.differs:
        return f"{size} on {found.tested} ({sure})."
    least = f"One of {points(found, difference.detectable)} points or more"
    would = f"{least} would have been found in 8 of 10 comparisons of this size."
    if difference.detectable >= 1:
        would = "These are too few images to find any difference."
    return f"No difference found: {size} on {found.tested} ({sure}). {would}"


def _flips(found: ModelComparison) -> str:
    """Say how many images tell the two apart."""
    flips, first, second = found.difference.flips, found.first.label, found.second.label
    neither = found.images - flips.first_only - flips.second_only - flips.both_right
    if flips.graded:
        return (
            f"{first} is better on {pluralize(flips.first_only, 'image')}, {second} on "
            f"{flips.second_only:,}; both are wholly right on {flips.both_right:,}."
        )
    return (
        f"{first} alone is right on {pluralize(flips.first_only, 'image')}, {second} alone on "
        f"{flips.second_only:,}; both are right on {flips.both_right:,}, neither on {neither:,}."
    )


def _sources(found: ModelComparison) -> list[str]:
    """Say whose evaluation was read and not made for the comparison."""
    stored = [side.label for side in (found.first, found.second) if side.was_stored]
    if not stored:
        return []
    return [f"Read from the run folder, and not computed again: the evaluation of {' and of '.join(stored)}."]


def _classes(found: ModelComparison) -> str:
    """Say in which classes the two models differ."""
    sure = [change for change in found.classes if change.differs]
    over = f"McNemar's exact test of each of {len(found.classes):,} classes, p by Holm"
    if not sure:
        return f"In no single class was a difference found ({over})."
    told = [
        f"{verb} {_named([change for change in sure if (change.gain > 0) == gained])}"
        for verb, gained in (("gained in", True), ("lost in", False))
        if any((change.gain > 0) == gained for change in sure)
    ]
    return f"{found.second.label} {' and '.join(told)} ({over})."


def _named(changes: Sequence[ClassChange]) -> str:
    """Name classes, those that changed most first, with the points by which they did."""
    ordered = sorted(changes, key=lambda change: -abs(change.gain))
    return join_names(
        [f"{change.name} ({100 * change.gain:+.1f} points)" for change in ordered], CLASSES_NAMED
    )


def what_flipped(found: ModelComparison) -> str:
    """Name what sets one model apart on an image: that it alone is right, or more right than the other."""
    return "is better" if found.difference.flips.graded else "alone is right"


def measure_table(found: ModelComparison) -> Table:
    """Make the table of both models side by side: architecture, numbers, calibration, speed."""
    sides = (found.first, found.second)
    rows: list[tuple[str, ...]] = [
        ("model", *(side.model or "–" for side in sides)),
        ("image size", *(format_size(side.image_size) for side in sides)),
        ("parameters", *(format_count(side.parameters) for side in sides)),
        ("FLOPs of an image", *(format_count(side.forward_flops) for side in sides)),
    ]
    if found.speeds is not None:
        rows.append(("images per second", *(f"{speed:,.0f}" for speed in found.speeds.images_per_second)))
    values = [dict(side.measures) for side in sides]
    names = dict.fromkeys([*values[0], *values[1]])
    rows += [(name, *(value.get(name, "–") for value in values)) for name in names]
    return Table(("", *(side.label for side in sides)), tuple(rows))


def class_table(found: ModelComparison, most: int | None = None) -> Table:
    """Make the table of the classes, those that lost most first.

    Args:
        found: the comparison.
        most: how many classes at most, of those that changed; None: all.
    """
    changes = sorted(found.classes, key=lambda change: (change.adjusted_p, -abs(change.gain)))
    if most is not None:
        changes = [change for change in changes if change.gain][:most]
    headings = (
        "class",
        "images",
        found.first.label,
        found.second.label,
        "difference",
        f"only {found.first.label}",
        f"only {found.second.label}",
        "p by Holm",
    )
    rows = tuple(
        (
            change.name,
            Number(f"{change.count:,}", change.count),
            Number(shown_score(found, change.first), change.first),
            Number(shown_score(found, change.second), change.second),
            Number(f"{points(found, change.gain, signed=True)}", change.gain),
            Number(f"{change.flips.first_only:,}", change.flips.first_only),
            Number(f"{change.flips.second_only:,}", change.flips.second_only),
            Number(shown_p(change.adjusted_p), change.adjusted_p),
        )
        for change in sorted(changes, key=lambda change: (change.gain, change.name))
    )
    return Table(headings, rows, sortable=True)


def speed_sentence(found: ModelComparison) -> str:
    """Say how fast both are, and how that was measured; empty where nothing was."""
    speeds = found.speeds
    if speeds is None:
        return ""
    low, high = speeds.ratio_quartiles
    return (
        f"{found.second.label} computes {speeds.ratio:.2f} times as many images per second as "
        f"{found.first.label} (middle half of {speeds.rounds} rounds: {low:.2f} to {high:.2f}), by "
        f"{speeds.clock}, in turns, in batches of {speeds.batch_size}, on {speeds.device} with "
        f"{pluralize(speeds.threads, 'thread')}."
    )


def option_table(found: ModelComparison) -> Table | None:
    """Make the table of the options in which two runs differ; None where there are none to show."""
    if not found.options:
        return None
    rows = []
    for line in found.options:
        name, _, values = line.partition(" ")
        one, _, other = values.partition(" -> ")
        rows.append((name, one, other))
    return Table(("option", found.first.label, found.second.label), tuple(rows))

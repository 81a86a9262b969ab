"""The result of a comparison of two models, as values, in sentences, and on a page."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitkit import config
from vitkit.config import Positive
from vitkit.data.sources import Samples
from vitkit.evaluation.paired import FEWEST_IMAGES, SURE, Flips, ModelDifference, count_flips, holm
from vitkit.models.config.card import TaskName
from vitkit.result import Block, Number, Photo, Photos, Plot, Result, Section, Table, Text
from vitkit.tasks import Answering, find_task
from vitkit.tasks.page import count_cell, describe_images, photos_of, points, shown_p, shown_score
from vitkit.text import format_count, format_size, join_names, pluralize

if TYPE_CHECKING:  # a refusal does not wait for matplotlib
    from matplotlib.figure import Figure

CLASSES_SHOWN = 6
"""Classes whose accuracy changed most that a terminal shows; the page has all."""
CLASSES_NAMED = 10
"""The most classes that a sentence names; the table has every class."""


PICTURES_SHOWN = 12
"""The most images on which one model alone is right that the page shows."""
CLASSES_DRAWN = 30
"""The most bars of the drawing by class; the table has every class."""
ABOUT_INTERVALS = Text(
    "In parentheses 95% intervals, each about one model alone: whether the two differ is said above, image "
    "by image, and not by whether these overlap.",
    "caption",
)
ABOUT_CLASSES = Text(
    "Difference in points, and the images that one model alone is right on. p: McNemar's exact test within "
    "the class, by Holm over all classes: below 0.05 a difference is taken to be there. Click a heading to "
    "sort.",
    "caption",
)
ABOUT_SURENESS = Text(
    "Images grouped by confidence (the probability given to the predicted class) into 15 bins of equal "
    "width: the fraction that is right, with its 95% interval, at the mean confidence of the bin. Points "
    "below the dashed line: too sure. Below: how many images have which confidence. The numbers stand side "
    "by side above.",
    "caption",
)

Both = tuple[tuple[Any, Any], tuple[Any, Any]]
"""Numbers and predictions of the first model, and of the second."""


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
    """The numbers of its evaluation as text, calibration included, each with its name."""
    numbers: Mapping[str, Any]
    """All numbers of its evaluation, as vitkit evaluate --json prints them."""
    was_stored: bool
    """Whether its evaluation was read from its run folder; else it was made for the comparison."""
    trained_on_tested: int | None
    """Number of tested images that it was trained on, pixel for pixel; None where nobody could look."""


@dataclass(frozen=True)
class ClassChange:
    """The images of a class under both models."""

    name: str
    count: int
    """Images of the class; all images, where an image has several labels."""
    first: float
    """The fraction of them that the first model gets right."""
    second: float
    flips: Flips
    adjusted_p: float
    """The p of its flips, adjusted by Holm's method over all classes."""

    @property
    def gain(self) -> float:
        """Return the second model's fraction minus the first model's."""
        return self.second - self.first


@dataclass(frozen=True)
class Speeds:
    """The speed of both models, measured in turns on one machine."""

    images_per_second: tuple[Positive, Positive]
    """The median over the rounds, of each model."""
    ratio: Positive
    """The second model's speed over the first model's, the median of the rounds."""
    ratio_quartiles: tuple[Positive, Positive]
    batch_size: int
    rounds: int
    threads: int
    device: str
    clock: str
    """The clock: processor time, wall time, or a GPU's own events."""


@dataclass(frozen=True, repr=False)
class ModelComparison(Result):
    """Two models on the same test images."""

    folder: Path
    """The folder of the page and of the evaluations that were made."""
    task: TaskName
    score: str
    """The name of the mean score of the images: accuracy."""
    data: str
    """The name of the data set."""
    split: str
    """Empty where the data has no splits and all of it is tested."""
    images: int
    unreadable: int
    first: Side
    second: Side
    difference: ModelDifference
    """The second model's score minus the first model's, of these two sets of weights, over the images."""
    classes: tuple[ClassChange, ...]
    """The classes with images, in the order of the first model."""
    speeds: Speeds | None
    """None where none were measured."""
    options: tuple[str, ...] | None
    """The options in which the two runs differ: "--seed 0 -> 1"; None where one of them is no run."""
    notes: tuple[str, ...]
    """Sentences that belong to the result, such as which run of a series was taken."""
    command: str
    """The command that makes the comparison again, without the paths of folders."""
    evaluations: Both = field(compare=False)
    samples: Samples | None = field(compare=False)
    """The images; None where they are not at hand."""

    @property
    def page(self) -> Path:
        """Return the path of the page."""
        return self.folder / "report.html"

    @property
    def labels(self) -> tuple[str, str]:
        """The names of the two models."""
        return self.first.label, self.second.label

    @property
    def tested(self) -> str:
        """Describe the images: "360 test images of digits"."""
        images = describe_images(self.images, self.split) if self.split else pluralize(self.images, "image")
        return f"{images} of {self.data}"

    @property
    def flipped(self) -> str:
        """The verb for a model that beats the other on an image."""
        return "is better" if self.difference.flips.graded else "alone is right"

    def heading(self) -> str:
        """Name the two models."""
        return f"{self.second.label} beside {self.first.label}"

    def headline(self) -> Sequence[str]:
        """Say the conclusions in sentences, the answer first."""
        sentences = [_difference(self), _flips(self)]
        if len(self.classes) > 1:
            sentences.append(_classes(self))
        sides = self.first, self.second
        both = {side.trained_on_tested for side in sides}
        if len(both) == 1 and any(both):
            sentences.append(
                f"Each of the two was trained on {sides[0].trained_on_tested:,} of these images, pixel for "
                "pixel: the figures of both are too good."
            )
        for side in sides:
            if side.trained_on_tested is None:
                sentences.append(f"Whether {side.label} was trained on some of these images is not known.")
            elif side.trained_on_tested and len(both) > 1:
                sentences.append(
                    f"{side.label} was trained on {side.trained_on_tested:,} of these images, pixel for "
                    "pixel: its figures are too good, and the comparison is unfair."
                )
        if self.split.startswith("val"):
            sentences.append(
                "These are validation images: if they helped to choose a model or its settings, its figures "
                "are too good."
            )
        stored = " and of ".join(side.label for side in sides if side.was_stored)
        if stored:
            sentences.append(f"Read from the run folder, and not computed again: the evaluation of {stored}.")
        sentences.append(
            "All of this is about these two sets of weights: another training with another seed would give "
            "others (vitkit ablate compares ways to train over seeds)."
        )
        return [*sentences, *self.notes]

    def summary(self) -> str:
        """Give the answer."""
        return self.headline()[0]

    def sections(self) -> Sequence[Section]:
        """Return both models side by side, image by image and class by class, and their options."""
        answering, (first, second) = find_task(self.task).answering, self.evaluations
        assert answering is not None  # both were evaluated
        sureness = answering.compare_sureness(first[0], second[0], self.labels)
        parts = [
            Section("Side by side", (measure_table(self), ABOUT_INTERVALS, speed_sentence(self))),
            *(_flipped(self, answering, number) for number in (0, 1)),
            Section("Class by class", (*_draw_flips(self), class_table(self), ABOUT_CLASSES)),
        ]
        if sureness is not None:
            title = "Are they as sure as they should be?"
            parts.append(Section(title, (sureness, ABOUT_SURENESS), page_only=True))
        if self.options:
            lines = (line.partition(" ") for line in self.options)
            values = ((name, each.partition(" -> ")) for name, _, each in lines)
            rows = tuple((name, before, after) for name, (before, _, after) in values)
            options: Block = Table(("option", *self.labels), rows, text=range(3))
        elif self.options is None:
            options = "At least one of the two is no run, so that its options are not recorded."
        else:
            options = "The two were trained with the same options."
        return [*parts, Section("Options that differ", (options,))]

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        nothing = ((None, None), (None, None))  # in place of the logits and the images
        plain = config.to_json(replace(self, evaluations=nothing, samples=None))
        return {name: value for name, value in plain.items() if name not in ("evaluations", "samples")}

    def following(self) -> Sequence[str]:
        """Return the command that opens the page, and the one that uses the better model."""
        better = self.second if self.difference.mean > 0 else self.first
        predict = f"vitkit predict {shlex.quote(better.given)} IMAGE_OR_FOLDER"
        return (f"open {self.page} in a browser", *([predict] if self.difference.differs else []))


def compare_classes(
    answering: Answering, first: tuple[Any, Any], second: tuple[Any, Any]
) -> tuple[ClassChange, ...]:
    """Compare two models class by class, matched by name.

    Args:
        answering: their task.
        first: numbers and predictions of the first model.
        second: numbers and predictions of the second model, of the same images in the same order.
    """
    of_first, of_second = (answering.right_by_class(*evaluation) for evaluation in (first, second))
    pairs = {
        name: (right.astype(float), of_second[name].astype(float))
        for name, right in of_first.items()
        if len(right)
    }
    flips = {name: count_flips(*pair) for name, pair in pairs.items()}
    adjusted = holm([change.p for change in flips.values()])
    return tuple(
        ClassChange(name, len(right), float(right.mean()), float(others.mean()), flips[name], p)
        for (name, (right, others)), p in zip(pairs.items(), adjusted, strict=True)
    )


def _difference(comparison: ModelComparison) -> str:
    """Say whether one model is better, by how much, and how sure that is."""
    (first, second), difference = comparison.labels, comparison.difference
    if not (difference.flips.first_only or difference.flips.second_only):
        return (
            f"No difference: {second} and {first} have the same {comparison.score} on every single one of "
            f"{comparison.tested}."
        )
    better = "better" if difference.mean > 0 else "worse"
    low, high = (points(comparison, value, signed=True) for value in difference.interval)
    gap = points(comparison, abs(difference.mean))
    size = f"{second} is {gap} points {better} than {first} in {comparison.score}"
    if difference.mean == 0:
        size = f"{second} and {first} have the same {comparison.score}"
    test = "Student's t of the images" if difference.flips.graded else "Bonett and Price's test"
    if difference.images < FEWEST_IMAGES:
        test = "sign test"
    sure = f"95 % interval of the difference {low} to {high} points; {test}, p {shown_p(difference.p)}"
    if difference.differs:
        return f"{size} on {comparison.tested} ({sure})."
    least = f"One of {points(comparison, difference.detectable)} points or more"
    would = f"{least} would have been found in 8 of 10 comparisons of this size."
    if difference.detectable >= 1:
        would = "These are too few images to find any difference."
    return f"No difference found: {size} on {comparison.tested} ({sure}). {would}"


def _flips(comparison: ModelComparison) -> str:
    """Say how many images one model alone gets right."""
    flips, (first, second) = comparison.difference.flips, comparison.labels
    neither = comparison.images - flips.first_only - flips.second_only - flips.both_right
    if flips.graded:
        return (
            f"{first} is better on {pluralize(flips.first_only, 'image')}, {second} on "
            f"{flips.second_only:,}; both are wholly right on {flips.both_right:,}."
        )
    return (
        f"{first} alone is right on {pluralize(flips.first_only, 'image')}, {second} alone on "
        f"{flips.second_only:,}; both are right on {flips.both_right:,}, neither on {neither:,}."
    )


def _classes(comparison: ModelComparison) -> str:
    """Say in which classes the two models differ, and by how many points, the largest change first."""
    sure = sorted(
        (change for change in comparison.classes if change.adjusted_p < SURE), key=lambda c: -abs(c.gain)
    )
    over = f"McNemar's exact test of each of {len(comparison.classes):,} classes, p by Holm"
    if not sure:
        return f"In no single class was a difference found ({over})."
    changes = []
    for verb, gained in (("gained in", True), ("lost in", False)):
        named = [f"{c.name} ({100 * c.gain:+.1f} points)" for c in sure if (c.gain > 0) == gained]
        changes += [f"{verb} {join_names(named, CLASSES_NAMED)}"] if named else []
    return f"{comparison.second.label} {' and '.join(changes)} ({over})."


def measure_table(comparison: ModelComparison) -> Table:
    """Make the table of both models side by side: numbers, calibration, architecture, speed."""
    sides = (comparison.first, comparison.second)
    values = [dict(side.measures) for side in sides]
    names = dict.fromkeys([*values[0], *values[1]])
    rows: list[tuple[str, ...]] = [
        *((name, *(value.get(name, "–") for value in values)) for name in names),
        ("model", *(side.model or "–" for side in sides)),
        ("image size", *(format_size(side.image_size) for side in sides)),
        ("parameters", *(format_count(side.parameters) for side in sides)),
        ("FLOPs of an image", *(format_count(side.forward_flops) for side in sides)),
    ]
    if comparison.speeds is not None:
        rows.append(
            ("images per second", *(f"{speed:,.0f}" for speed in comparison.speeds.images_per_second))
        )
    return Table(("", *comparison.labels), tuple(rows), text=range(3))


def class_table(comparison: ModelComparison) -> Table:
    """Make the table of the classes, those first that differ most surely."""
    first, second = comparison.labels
    only = (f"only {first}", f"only {second}")
    rows = (
        (
            change.name,
            Number(shown_score(comparison, change.first), change.first),
            Number(shown_score(comparison, change.second), change.second),
            Number(points(comparison, change.gain, signed=True), change.gain),
            Number(shown_p(change.adjusted_p), change.adjusted_p),
            count_cell(change.flips.first_only),
            count_cell(change.flips.second_only),
            count_cell(change.count),
        )
        for change in sorted(comparison.classes, key=lambda each: (each.adjusted_p, -abs(each.gain)))
    )
    headings = ("class", first, second, "difference", "p by Holm", *only, "images")
    return Table(headings, tuple(rows), sortable=True, most=CLASSES_SHOWN)


def speed_sentence(comparison: ModelComparison) -> str | None:
    """Say how fast both models are, and how that was measured; None where it was not."""
    speeds = comparison.speeds
    if speeds is None:
        return None
    low, high = speeds.ratio_quartiles
    return (
        f"{comparison.second.label} computes {speeds.ratio:.2f} times as many images per second as "
        f"{comparison.first.label} (middle half of {speeds.rounds} rounds: {low:.2f} to {high:.2f}), by "
        f"{speeds.clock}, in turns, in batches of {speeds.batch_size}, on {speeds.device} with "
        f"{pluralize(speeds.threads, 'thread')}."
    )


def _flipped(comparison: ModelComparison, answering: Answering, better: int) -> Section:
    """Show the images on which the first (0) or the second (1) model is better."""
    evaluations, samples, labels = comparison.evaluations, comparison.samples, comparison.labels
    scores = [answering.score_images(predictions) for _, predictions in evaluations]
    rows = np.flatnonzero(scores[better] > scores[1 - better])
    title, images = f"Images on which {labels[better]} {comparison.flipped}", pluralize(len(rows), "image")
    if not len(rows) or samples is None:
        why = f"{images}, which cannot be shown: they are not at hand." if len(rows) else "There is none."
        return Section(title, (why,), page_only=True)

    def load() -> list[Photo]:
        answers = zip(*(answering.show(*each, rows) for each in evaluations), strict=True)
        # A stable order, so that the same comparison shows the same pictures.
        surest = sorted(answers, key=lambda pair: -(pair[0].confidence + pair[1].confidence))
        of_key = {samples.key(pair[0].index): pair for pair in surest}
        photos = []
        for photo in photos_of(samples, (first for first, _ in surest), PICTURES_SHOWN):
            guesses = tuple(
                (label, answer.predicted, answer.confidence, number == better)
                for number, (label, answer) in enumerate(zip(labels, of_key[photo.key], strict=True))
            )
            photos.append(replace(photo, alt=f"An image of {photo.true}.", guesses=guesses))
        return photos

    caption = (
        f"{min(len(rows), PICTURES_SHOWN)} of {images}, those first on which both models together are "
        "surest: the true class, what each model says and how sure it is, the file. Where both are sure and "
        "disagree, look at the label too."
    )
    return Section(title, (Photos(load), Text(caption, "caption")), page_only=True)


def _draw_flips(comparison: ModelComparison) -> tuple[Plot | Text, ...]:
    """Draw how many images of each class one model alone gets right, with a caption; empty where none is."""
    changed = [change for change in comparison.classes if change.flips.first_only or change.flips.second_only]
    drawn = sorted(changed, key=lambda change: -(change.flips.first_only + change.flips.second_only))
    drawn = sorted(drawn[:CLASSES_DRAWN], key=lambda change: (change.gain, change.name))
    if not drawn:
        return ()
    (first, second), what = comparison.labels, comparison.flipped

    def draw() -> "Figure":
        from vitkit.analysis.study_figures import flip_figure

        return flip_figure(
            [change.name for change in drawn],
            [change.flips.first_only for change in drawn],
            [change.flips.second_only for change in drawn],
            (f"{first} {what}", f"{second} {what}"),
        )

    which = "" if len(drawn) == len(changed) else f"The {len(drawn)} classes with most such images. "
    caption = (
        f"{which}To the left the images of a class on which {first} {what}, to the right those on which "
        f"{second} {what}; the class that {second} lost most in stands first."
    )
    alt = f"For each class, the images on which {first} {what}, and those on which {second} {what}."
    return Plot(draw, "flips", alt), Text(caption, "caption")

"""The advice before training: ways to train, their cost and forecast, the choice among them, in sentences."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit import config
from vitkit.data.advice import SMALL_SIDE, advise_on_start, usual_side
from vitkit.data.check import DataCheck
from vitkit.data.layouts.repeats import describe_repeats
from vitkit.data.listing import class_numbers
from vitkit.data.sources import ImageData
from vitkit.errors import VitkitError
from vitkit.evaluation.fewshot.folds import FOLDS, Folded
from vitkit.jobs.advice.forecast import FEWEST, LARGEST_START, LEVEL, MOST, UNMEASURED
from vitkit.jobs.advice.probe import PIXEL_SIDE
from vitkit.runs.config import Run
from vitkit.runs.records import AdviceRecord, Forecast
from vitkit.runs.step_cost import Cost
from vitkit.shown import Shown
from vitkit.text import format_size, pluralize
from vitkit.weights.published import DEFAULT_SIDE

MARGIN = 0.01
"""A smaller difference of accuracies is no reason to compute more."""
UNBALANCED = 10
"""The most frequent class over the rarest, above which rare classes should weigh more in the loss."""


@dataclass(frozen=True)
class Option:
    """A way to train on the images: its start, its cost and its forecast."""

    start: str
    """The start as it was given; "" for new weights and for a published start."""
    run: Run
    """The options of the run, with the name of its model."""
    steps: int
    seconds: float
    """Seconds of the whole run, from the measured time of a step."""
    memory: int
    """The most bytes of a training step, beside PyTorch's own."""
    flops: float
    """FLOPs of the forward pass of one image."""
    folded: Folded | None = None
    """The probe of frozen features, or of small pictures; None without one."""
    forecast: Forecast | None = None
    """The forecast of the accuracy on the test images; None without one."""
    notes: tuple[str, ...] = ()
    published: str = ""
    """The published start whose fine-tuning was measured, and whose weights were not fetched."""

    @property
    def where(self) -> str:
        """Describe model and size: "ViT-S/16 at 224x224"."""
        return f"{self.run.model} at {format_size(self.run.preprocessing.image_size)}"

    @property
    def cost(self) -> str:
        """Describe steps, time and memory."""
        return str(Cost(self.run, self.steps, self.seconds, self.memory, self.flops))


def option_of(cost: Cost, start: str = "", **more: Any) -> Option:
    """Make an option of a run whose cost was measured; `more` are its other fields."""
    return Option(start, cost.run, cost.steps, cost.seconds, cost.memory, cost.flops, **more)


@dataclass(frozen=True, repr=False)
class Advice(Shown):
    """The result of `advise`: plain data, to be printed or written as JSON."""

    data: str
    name: str
    classes: int
    images: int
    """Training images."""
    tested: int
    """Test images; 0 where there are none."""
    check: DataCheck | None
    """None where there are too many images to look at each."""
    options: tuple[Option, ...]
    """The given starts, each at its sizes; without a start, published ones."""
    chosen: Option | None
    """The advised option; None where a start must be found first."""
    scratch: Option
    """Training from scratch by the recipe for the images; it has no forecast: no such runs were measured."""
    sentences: tuple[str, ...]
    """The advice."""
    default: str = ""
    """The name of the published start that is advised where none was given; its weights were not fetched."""

    def summary(self) -> str:
        """Tell the advice."""
        return " ".join(self.sentences)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return config.to_json(self)

    @property
    def can_go(self) -> bool:
        """Whether it can be followed: it names a start, or none was given and the images suffice without."""
        given = any(option.start for option in self.options)
        return self.chosen is not None or not (given or advise_on_start(self.data, self.images, self.classes))

    @property
    def record(self) -> AdviceRecord | None:
        """Return the record for the folder of a run that follows the advice; None without a forecast."""
        if self.chosen is None or self.chosen.forecast is None:
            return None
        return AdviceRecord(self.chosen.forecast, self.chosen.seconds, self.sentences)


def choose(options: tuple[Option, ...], pixels: Folded | None = None) -> Option | None:
    """Choose the cheapest option whose forecast does not differ from the highest one.

    A point, or a standard error of the best option's probe where that is more, is no difference. Cost is
    counted in FLOPs, not in seconds, so that the same command chooses the same option every time.

    Args:
        options: starts, each at a size.
        pixels: the probe of small pictures.

    Returns:
        The option; None without any forecast, or where small pictures alone do better than the best forecast.
    """
    best = max(options, key=_accuracy, default=None)
    if best is None or best.forecast is None:
        return None
    accuracy, images = best.forecast.accuracy, best.folded.images if best.folded is not None else 0
    if pixels is not None and pixels.interval[0] > accuracy:
        return None
    error = math.sqrt(accuracy * (1 - accuracy) / images) if images else 0.0
    close = [option for option in options if _accuracy(option) >= accuracy - max(MARGIN, error)]
    return min(close, key=lambda option: option.flops)


def _accuracy(option: Option) -> float:
    """Return the accuracy of an option's forecast; without one, less than any forecast's."""
    return -1.0 if option.forecast is None else option.forecast.accuracy


def advice_sentences(
    data: ImageData,
    sizes: Sequence[tuple[int, int]],
    leaks: Mapping[str, int],
    options: Sequence[Option],
    chosen: Option | None,
    scratch: Option,
    begin: str = "",
) -> Iterator[str]:
    """Say in sentences what to do, the most important first.

    Args:
        data: the images.
        sizes: (height, width) of some of them, in pixels.
        leaks: the number of images of the second split that are in the first too, by "train-test" and so on.
        options: the starts, given or published.
        chosen: the advised option.
        scratch: training from scratch.
        begin: where no start was given, a sentence on the published start to begin from.
    """
    few = advise_on_start(data.spec, len(data.splits["train"]), len(data.class_names))
    given = any(option.start for option in options)
    if chosen is None and given:
        yield from _none_is_good_enough(options, scratch)
    if few:
        yield few
    if chosen is not None:
        yield from _begin(chosen, options)
        yield from _about_small_pictures(chosen, scratch)
    elif not given:
        yield from _begin_from_published(begin, usual_side(sizes), enough=not few)
    yield (
        f"From scratch (recipe {scratch.run.recipe}, {scratch.where}, {scratch.cost}) there is no forecast: "
        "no such runs were measured."
    )
    yield from _about_classes(class_numbers(data.splits["train"].labels))
    for pair, count in leaks.items():
        yield (
            f"{describe_repeats(count, pair.split('-')[1])}, so that the accuracy will look better than it "
            "is: vitkit data check names them."
        )


def _begin(chosen: Option, options: Sequence[Option]) -> Iterator[str]:
    """Say which start to begin from, how, and the accuracy to expect."""
    assert chosen.forecast is not None and chosen.folded is not None
    among = f", chosen among {len(options)} that were tried" if len(options) > 1 else ""
    yield f"Begin from {chosen.start}{among}: {chosen.where}, {chosen.cost}."
    optimizer = chosen.run.optimizer
    if optimizer.freeze == "nothing":
        yield (
            f"Freeze nothing: the new head learns {optimizer.head_rate:g} times as fast as the last layer, "
            "lower layers more slowly."
        )
    folded = chosen.folded
    yield (
        f"Expect {chosen.forecast.percentages} of the test images to be right: "
        f"{_how_sure(chosen.forecast)}. The "
        f"start's frozen features tell {folded.accuracy:.0%} of "
        f"{pluralize(folded.images, 'training image')} right ({folded.method}, {FOLDS}-fold "
        "cross-validation)."
    )
    for note in chosen.notes:
        yield f"{chosen.start}: {note}."


def _how_sure(forecast: Forecast) -> str:
    """Say how often such an interval holds the accuracy."""
    if forecast.measured:
        return f"{LEVEL * 10:.0f} of 10 runs should lie inside"
    return (
        f"a guess, {UNMEASURED:g} times as wide as for the runs that were measured, which had {FEWEST} to "
        f"{MOST} training images and starts of fewer than {LARGEST_START:,} parameters"
    )


def _none_is_good_enough(options: Sequence[Option], scratch: Option) -> Iterator[str]:
    """Say that no start is advised, because small pictures alone do better than any forecast."""
    assert scratch.folded is not None
    best = max(options, key=_accuracy)
    assert best.forecast is not None
    which = best.start if len(options) == 1 else f"{best.start}, the best of {len(options)} that were tried"
    yield (
        f"No start is advised: small pictures of {PIXEL_SIDE}x{PIXEL_SIDE} pixels alone tell "
        f"{scratch.folded.accuracy:.0%} of {pluralize(scratch.folded.images, 'training image')} right, and "
        f"{best.forecast.percentages} is expected of fine-tuning {which}. Look for one that was trained on "
        "images more like these."
    )


def _about_small_pictures(chosen: Option, scratch: Option) -> Iterator[str]:
    """Warn of a start whose features tell the classes apart no better than small pictures do."""
    assert chosen.folded is not None and scratch.folded is not None
    features, pixels = chosen.folded.accuracy, scratch.folded.accuracy
    if features <= pixels:
        yield (
            f"Small pictures of {PIXEL_SIDE}x{PIXEL_SIDE} pixels alone tell {pixels:.0%} right: this start "
            "has learned little that helps here. Look for one that was trained on images more like these."
        )


def _begin_from_published(begin: str, side: int, enough: bool) -> Iterator[str]:
    """Say which published start to begin from, and what it gains on small images.

    Args:
        begin: the sentence on the start.
        side: pixels of the usual image; 0 where no image could be read.
        enough: whether there are enough images to train from scratch.
    """
    small = 0 < side <= SMALL_SIDE
    if small and enough:
        yield (
            f"Train from scratch first: these images are small, of about {side} pixels, and there are enough "
            "of them."
        )
    yield begin
    if small:
        yield (
            f"Such a start enlarges these images, of about {side} pixels, to {DEFAULT_SIDE}: that takes the "
            "time of large images and shows no more, so that only its earlier training can help."
        )


def _about_classes(labels: NDArray[np.int64]) -> Iterator[str]:
    """Say how to train on classes that are much rarer than others."""
    counts = np.unique(labels, return_counts=True)[1]
    if counts.max() > UNBALANCED * counts.min():
        yield (
            f"The classes are unbalanced, {counts.max() / counts.min():.0f} to 1: where every class counts "
            "alike, add --logit-adjustment 1 to the training, and look at the accuracy of each class."
        )


def refuse_to_go(advice: Advice) -> None:
    """Refuse to follow an advice that is to find a start first.

    Raises:
        VitkitError: it is; the message says how to give one.
    """
    if not advice.can_go:
        raise VitkitError(
            f"{advice.sentences[0]} Give one: vitkit advise {shlex.quote(advice.data)} "
            f"{advice.default or 'START'} --go."
        )

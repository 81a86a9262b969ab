"""The parts of a report that a task makes, as plain values: `vitkit.report` draws them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vitkit import result
from vitkit.models.config.card import LossFunction
from vitkit.result import Number, Table, Text

LOSS_LABELS: Mapping[LossFunction, str] = {
    "softmax": "cross entropy (nats)",
    "sigmoid": "binary cross entropy, summed over classes (nats)",
}
MANY_IMAGES = 5_000
"""Test images from which hundredths of a point are shown: with as many, the 95 % interval of an accuracy of
90 % is less than a point either way."""
MISTAKES_SHOWN = 24
ATTENTION_SHOWN = 12
"""The most images of the sections on mistakes and on attention, some rows of each."""


@dataclass(frozen=True)
class ShownImage:
    """An image of the evaluated split, and what is written below it."""

    index: int
    """Number of the image in its split."""
    true: str
    """The true classes of the image, in words."""
    predicted: str
    """The classes that the model predicts, in words."""
    confidence: float
    """The model's confidence in them, from 0 to 1."""


@dataclass(frozen=True)
class Pictures:
    """Images of the evaluated split with captions."""

    images: Sequence[ShownImage]
    """In the order in which they are tried: unreadable ones are passed over."""
    most: int
    """The largest number of images that are shown."""
    caption: str
    """Text below the images; `{count}` in it stands for the number of images that are shown."""
    none: str
    """Text in place of the images where there are none."""


Block = result.Block | Pictures


@dataclass(frozen=True)
class Section:
    """A part of the page with a title."""

    name: str
    """A word that no other section has, for links."""
    menu: str
    """One or two words, for the line of links."""
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Curve:
    """The validation metric that is drawn over the steps, beside the loss and the learning rate."""

    metric: str
    """Its name in metrics.jsonl."""
    title: str
    label: str
    """Label of its axis."""
    caption: str
    """The text that follows "Middle: "."""
    is_fraction: bool = True
    """Whether it is from 0 to 1, and written as a percentage; else it has any value."""
    loss: str = ""
    """The name of the loss in the caption beside; left out, the name of the loss in the model's card."""


@dataclass(frozen=True)
class TaskReport:
    """The part of the report that a task makes from the evaluations of a run."""

    answer: tuple[Text, ...]
    """The first paragraphs of the page: how good the model is."""
    facts: tuple[tuple[str, str], ...] = ()
    """A value and its name each, for the tiles at the head of the page."""
    splits: Table | None = None
    """A column for each evaluated split."""
    splits_caption: str = ""
    sections: tuple[Section, ...] = ()
    """In the order of the page, after the training curves."""
    attention: Pictures = Pictures((), 0, "", "No evaluation, no images to look at.")
    """The images whose attention is shown, if the model has attention over the image."""


def answer_texts(
    answer: str, result: Any, right: str, without: str, split: str, images: str
) -> tuple[Text, ...]:
    """Make the first paragraphs of the page: the answer, and why new images may not confirm it.

    Args:
        answer: how good the model is.
        result: its numbers.
        right: a clause on how good it is on training images among these; "" without one.
        without: the sentence on how good it is without them.
        split: that was evaluated.
        images: its images, as `describe_images` writes them.
    """
    texts, repeated = [Text(answer, "answer")], 0 if result.repeated is None else result.repeated.count
    if repeated:
        others = without if repeated < result.count else "there are no others."
        too = f"{repeated:,} of these images are training images too, pixel for pixel{right}: {others}"
        texts.append(Text(too, "warning"))
    if split != "test":
        texts.append(
            Text(
                f"**There is no evaluation on a test split**: these are {images}. If they helped to choose "
                "the model or its settings, the figures on new images are probably somewhat lower."
            )
        )
    return tuple(texts)


def describe_images(count: int, split: str) -> str:
    """Say how many images of which split: "360 test images"."""
    word = {"val": "validation"}.get(split, split)
    return f"{count:,} {word} image{'s' * (count != 1)}"


def expectation(interval: tuple[float, float]) -> str:
    """State what the interval of a fraction says of other images."""
    low, high = map(percent, interval)
    return f"On other images drawn in the same way, expect between {low} and {high} (95% confidence)."


def percent(fraction: float | None) -> str:
    """Write a fraction as a percentage with one digit after the point; a dash where there is none."""
    return "–" if fraction is None else f"{100 * fraction:.1f}%"


def fraction_cell(fraction: float | None) -> Number:
    """Make the cell of a fraction; one that is not defined is sorted below all others."""
    return Number(percent(fraction), -1.0 if fraction is None else round(fraction, 6))


def interval_cell(interval: tuple[float, float] | None) -> Number:
    """Make the cell of the interval of a fraction, sorted by its lower end."""
    if interval is None:
        return Number("–", -1.0)
    low, high = interval
    return Number(f"{percent(low)} – {percent(high)}", low)


def count_cell(count: int) -> Number:
    """Make the cell of a count."""
    return Number(f"{count:,}", count)


class OnImages(Protocol):
    """A value that was measured on a number of test images."""

    @property
    def images(self) -> int:
        """Return their number."""


def points(tested: OnImages, value: float, signed: bool = False) -> str:
    """Write a difference in points, hundredths of the score, as exactly as the images allow."""
    digits = 2 if tested.images >= MANY_IMAGES else 1
    # Rounded first: a loss of 0.001 points is no "-0.0".
    rounded = round(100 * value, digits) + 0.0
    return f"{rounded:+.{digits}f}" if signed else f"{rounded:.{digits}f}"


def shown_score(tested: OnImages, value: float | None) -> str:
    """Write a score as a percentage, as exactly as differences are."""
    digits = 2 if tested.images >= MANY_IMAGES else 1
    return "–" if value is None else f"{value:.{digits}%}"


def shown_p(p: float | None) -> str:
    """Write a p with two significant digits."""
    return "–" if p is None else "below 0.001" if p < 0.001 else f"{p:.2g}"

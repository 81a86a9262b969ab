"""The parts of a report that a task makes, as plain values: `vitkit.report` draws them."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitkit.data.channels import to_rgb
from vitkit.errors import DecodeError
from vitkit.evaluation.refusal import OthersRefused, RefusalRecord
from vitkit.models.config import LossFunction
from vitkit.result import Block, Caption, Cell, Number, Photo, Photos, Section, Text, table_of

if TYPE_CHECKING:
    from vitkit.data.sources import Samples

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
THUMBNAIL = 192
"""The most pixels of a side of a picture."""
NOT_AT_HAND = "The images were not at hand when this page was made"


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
class Chosen:
    """Images of the evaluated split whose attention is shown."""

    images: Sequence[ShownImage] = ()
    """In the order in which they are tried: unreadable ones are passed over."""
    caption: str = ""
    none: str = "No evaluation, no images to look at."
    """Text in place of the images where there are none."""


@dataclass(frozen=True)
class Curve:
    """The words for the monitor's metric, which is drawn over the steps beside loss and learning rate."""

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
    sections: tuple[Section, ...] = ()
    """In the order of the page, before the training curves."""
    attention: Chosen = Chosen()
    """If the model has attention over the image."""


def decode(samples: "Samples", index: int) -> NDArray[np.uint8] | None:
    """Decode an image `(H, W, C)`; None if the data is gone or cannot be read."""
    try:
        return samples.decode(index)
    except DecodeError:
        return None


def photos_of(samples: "Samples", images: Iterable[ShownImage], most: int) -> list[Photo]:
    """Show the readable ones among some images, up to a number."""
    readable = ((shown, decode(samples, shown.index)) for shown in images)
    photos = (photo_of(samples, shown, to_rgb(image)) for shown, image in readable if image is not None)
    return list(itertools.islice(photos, most))


def photo_of(samples: "Samples", shown: ShownImage, image: NDArray[np.uint8], beside: str = "") -> Photo:
    """Make a small picture of an image `(H, W, 3)`, and say what it shows and what was predicted.

    Args:
        samples: which name the image.
        shown: what it shows.
        image: its pixels.
        beside: the address of a second picture of it, where the model looks.
    """
    phrase = "with its attention map, " if beside else ""
    source = figures().image_data_uri(shrunk(image))
    alt = f"An image of {shown.true}, {phrase}predicted to be {shown.predicted}."
    guess = "", shown.predicted, shown.confidence, shown.true == shown.predicted
    return Photo(source, alt, samples.key(shown.index), shown.true, (guess,), beside)


def shrunk(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Make a picture smaller, where it is larger than a page shows it."""
    thumbnail = Image.fromarray(image)
    thumbnail.thumbnail((THUMBNAIL, THUMBNAIL))  # never enlarges
    return np.asarray(thumbnail)


def figures() -> ModuleType:
    """Import the figures and matplotlib, for which a terminal does not wait."""
    from vitkit.analysis import figures

    return figures


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
        caution = (
            f"**There is no evaluation on a test split**: these are {images}. If they helped to choose the "
            "model or its settings, the figures on new images are probably somewhat lower."
        )
        texts.append(Text(caution))
    return tuple(texts)


def describe_images(count: int, split: str) -> str:
    """Say how many images of which split: "360 test images"."""
    word = {"val": "validation"}.get(split, split)
    return f"{count:,} {word} image{'s' * (count != 1)}"


def expectation(interval: tuple[float, float]) -> str:
    """State what the interval of a fraction says of other images."""
    low, high = map(percent, interval)
    return f"On other images drawn in the same way, expect between {low} and {high} (95 % confidence)."


def percent(fraction: float | None) -> str:
    """Write a fraction as a percentage with one digit after the point; a dash where there is none."""
    return "–" if fraction is None or math.isnan(fraction) else f"{100 * fraction:.1f}%"


def fraction_cell(fraction: float | None) -> Number:
    """Make the cell of a fraction; one that is not defined is sorted below all others."""
    shown = percent(fraction)
    return Number(shown, -1.0 if fraction is None or shown == "–" else round(fraction, 6))


def interval_cell(interval: tuple[float, float] | None) -> Number:
    """Make the cell of the interval of a fraction, sorted by its lower end."""
    if interval is None:
        return Number("–", -1.0)
    low, high = interval
    return Number(f"{percent(low)} – {percent(high)}", low)


def count_cell(count: int) -> Number:
    """Make the cell of a count."""
    return Number(f"{count:,}", count)


def points(images: int, value: float, signed: bool = False) -> str:
    """Write a difference in points, hundredths of the score, as exactly as so many test images allow."""
    digits = 2 if images >= MANY_IMAGES else 1
    # Rounded first: a loss of 0.001 points is no "-0.0".
    rounded = round(100 * value, digits) + 0.0
    return f"{rounded:+.{digits}f}" if signed else f"{rounded:.{digits}f}"


def shown_score(images: int, value: float | None) -> str:
    """Write a score on so many test images as a percentage, as exactly as differences are."""
    digits = 2 if images >= MANY_IMAGES else 1
    return "–" if value is None else f"{value:.{digits}%}"


def shown_p(p: float | None) -> str:
    """Write a p with two significant digits."""
    return "–" if p is None else "below 0.001" if p < 0.001 else f"{p:.2g}"


REFUSED_SHOWN = 12
"""Images of each kind of mistake that are shown."""
Accepted = tuple[str, str, NDArray[np.uint8]]
"""An image of something else that is not refused: its name, the guess, and its pixels `(H, W, C)`."""


def refusal_section(
    record: RefusalRecord | None,
    samples: "Samples | None",
    others: OthersRefused | None = None,
    accepted: Sequence[Accepted] = (),
) -> Section:
    """Make the section.

    Args:
        record: of the model's own images; None where it is not at hand.
        samples: the images of the record's split; None where they are not at hand.
        others: the images of something else that were measured; None without any.
        accepted: some of these that are not refused.
    """
    blocks: list[Block] = []
    if record is not None:
        blocks.append(Text(f"It refuses {record.sentence()}."))
    if others is not None:
        blocks.append(Text(f"It refuses **{others.sentence()}**."))
    elif record is not None and record.unseen:
        blocks.append(Text(f"It refuses **{record.unseen_sentence()}**."))
    else:
        blocks.append(
            "How many images of something else it refuses is not measured yet: vitkit evaluate RUN --others "
            "FOLDER measures it, with a folder of such images."
        )
    blocks.append(
        Caption(
            "An image is refused if it is stranger than nearly all of the model's own images, by the "
            "distance of its features from the class means and by the energy of its logits. Its own images "
            "are held out, or of a head in closed form each scored without itself; each half is judged by "
            "the other."
        )
    )
    if accepted:
        blocks += [
            Photos(lambda: [_photo(*image) for image in accepted]),
            Caption("Images of something else that are not refused, and the guess."),
        ]
    if record is not None and samples is not None and record.strangest:

        def load() -> Sequence[Photo]:
            readable = ((index, decode(samples, index)) for index in record.strangest if index < len(samples))
            shown = ((index, image) for index, image in readable if image is not None)
            names = list(record.images)
            return [
                _photo(samples.key(index), names[int(samples.labels[index])], image)
                for index, image in itertools.islice(shown, REFUSED_SHOWN)
            ]

        blocks += [Photos(load), Caption("The model's own images that are refused, the strangest first.")]
    if record is not None:
        columns: dict[str, Callable[[str], Cell]] = {
            "class": lambda name: name,
            "images": lambda name: count_cell(record.images[name]),
            "refused": lambda name: fraction_cell(record.refused.get(name, 0) / record.images[name]),
        }
        if record.unseen:
            columns["refused without the class"] = lambda name: fraction_cell(
                record.unseen[name] / record.unseen_images[name] if record.unseen_images.get(name) else None
            )
        names = [name for name, count in record.images.items() if count]
        blocks.append(table_of(names, columns, sortable=True))
    return Section("None of these", tuple(blocks), name="refusal", menu="Refusal")


def _photo(key: str, said: str, image: NDArray[np.uint8]) -> Photo:
    source = figures().image_data_uri(shrunk(to_rgb(image)))
    return Photo(source, f"An image: {said}.", key, said)

"""The card of a model: what travels with the weights so that they can be used anywhere."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from vitkit.config import difference, to_json
from vitkit.data.config import Augmentation, Preprocessing, Splits
from vitkit.models.config.card import Card
from vitkit.models.config.card import LossFunction as LossFunction
from vitkit.models.config.card import Task as Task
from vitkit.models.config.image_config import ImageConfig
from vitkit.text import without_places
from vitkit.weights.assumptions import Assumption

BUILT_IN = "digits"
"""The data argument of the images that come with scikit-learn: a name and no path."""


@dataclass(frozen=True)
class TrainingData:
    """The images that a model was trained on, and how they were cut into splits."""

    spec: str
    """The data argument: an absolute path, digits; or, of a model that was given away, the name alone."""
    name: str
    splits: Splits
    fingerprint: str
    """The hash of all keys and labels, by which changed data is noticed."""

    @property
    def has_place(self) -> bool:
        """Whether `spec` says where the images are."""
        return without_places(self.spec) != self.spec or self.spec == BUILT_IN


@dataclass(frozen=True)
class ModelCard(Card):
    """Everything recorded about a model besides its weights and architecture."""

    preprocessing: Preprocessing | None = None
    """The way from an image file to the model's input; the same in training, evaluation and prediction."""
    augmentation: Augmentation | None = None
    """The augmentation that training added."""
    data: TrainingData | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)
    """The provenance of the weights: the run or the file, the versions. It decides nothing."""
    assumed: tuple[Assumption, ...] = ()
    """The assumptions about images that the file of the weights does not record."""

    def history(self) -> dict[str, Any]:
        """Return the origin together with the loss and the data of the training, as people are shown it."""
        history = {key: value for key, value in self.origin.items() if key == "recipe"}
        if self.task is not None:
            if self.task.loss != "none":
                history["loss"] = self.task.loss
            if self.task.name != Task().name:
                history["task"] = self.task.name
        if self.data is not None:
            recorded = to_json(self.data)
            splits = {key: value for key, value in recorded["splits"].items() if value is not None}
            history["data"] = recorded | {"splits": splits}  # options that were left out say nothing
        return history | dict(self.origin)


def to_give_away(card: ModelCard) -> ModelCard:
    """Return a card that names its data and its start without the folders they are in."""
    data = card.data
    if data is not None and data.has_place and data.spec != BUILT_IN:
        name = without_places(data.spec)
        # A folder of that name is not the built-in data: nothing else ends with a slash.
        data = replace(data, spec=f"{name}/" if name == BUILT_IN else name)
    return replace(card, data=data, origin=without_places(card.origin))


class Described(Protocol):
    """A model, whatever computes it: its configuration and its card."""

    @property
    def config(self) -> Any:
        """Return the family's configuration, an `ImageConfig`."""

    @property
    def card(self) -> Card:
        """Return the name and the classes; a `ModelCard` where more is recorded."""


def card_of(model: Described) -> ModelCard:
    """Return the card of a model; if it was never saved or trained, it holds at most the classes."""
    card = model.card
    return card if isinstance(card, ModelCard) else ModelCard(card.name, card.class_names, card.task)


def preprocessing_of(model: Described) -> Preprocessing:
    """Return the preprocessing that turns images into the model's input.

    Size and channels are the model's, which may differ from what its weights were made for.
    A card that records nothing gives what the original evaluates with: images stretched, not antialiased.
    """
    return fit_preprocessing(card_of(model).preprocessing, model.config)


def fit_preprocessing(recorded: Preprocessing | None, config: ImageConfig) -> Preprocessing:
    """Fit a recorded preprocessing to a model's size and channels; the original's where none is recorded."""
    if recorded is None:
        recorded = Preprocessing(config.image_size, antialias=False)
    decode = replace(recorded.decode, channels=config.in_channels)
    return replace(recorded, image_size=config.image_size, decode=decode)


def fraction_of(side: int, resized: int) -> float:
    """Compute the crop_fraction with which `side`, divided by it and rounded down, is `resized`."""
    fraction = side / resized
    return fraction if math.floor(side / fraction) == resized else math.nextafter(fraction, 0)


def changed_pixels(before: Preprocessing, after: Preprocessing) -> list[str]:
    """Describe the fields in which two preprocessings differ; none where both make the same pixels.

    The rule of decoding is left out: no library's format records it.
    """
    old, new = _without_idle_fields(before), _without_idle_fields(replace(after, decode=before.decode))
    if all(old.resized(axis) == new.resized(axis) for axis in (0, 1)):
        new = replace(new, crop_fraction=old.crop_fraction)  # the same resized sides from another fraction
    lines = difference(to_json(old), to_json(new))
    return [f"preprocessing's {line.replace('->', 'becomes')}" for line in lines]


def changed_pixels_noted(model: Described, written: Preprocessing, file: str) -> list[str]:
    """Note what a file cannot record of a model's preprocessing; no note if the card has none."""
    is_recorded = card_of(model).preprocessing is not None
    changes = changed_pixels(preprocessing_of(model), written) if is_recorded else []
    return [f"{file} cannot say: {'; '.join(changes)}"] if changes else []


def border_colour(mean: tuple[float, ...]) -> tuple[int, int, int]:
    """Turn the mean of pixels in [0, 1] into red, green and blue in 0..255: timm's border around images."""
    levels = [min(max(round(255 * value), 0), 255) for value in mean]
    return (levels[0], levels[1], levels[2]) if len(levels) == 3 else (levels[0],) * 3


def notable_fields(preprocessing: Preprocessing) -> dict[str, Any]:
    """Return size, way of resizing and antialiasing as plain data, and fields that are not at defaults."""
    usual = to_json(Preprocessing(preprocessing.image_size))
    always = ("image_size", "resize", "antialias")
    return {
        name: value
        for name, value in to_json(preprocessing).items()
        if name in always or value != usual[name]
    }


def _without_idle_fields(preprocessing: Preprocessing) -> Preprocessing:
    """Reset the fields that this way of resizing does not use to their defaults."""
    resize = preprocessing.resize
    idle: dict[str, Any] = {}
    if resize in ("stretch", "none"):
        idle["crop_fraction"] = 0.875
    if resize in ("stretch", "crop"):
        idle["crop_offset"] = "even"
    if resize not in ("longest", "none") and (resize == "stretch" or preprocessing.crop_fraction <= 1):
        idle["border"] = (0, 0, 0)
    return replace(preprocessing, **idle)

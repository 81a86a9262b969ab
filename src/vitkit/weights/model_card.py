"""The card of a model: what travels with the weights so that they can be used anywhere.

It stands in `model.json` beside the architecture, in a run folder and in an exported one. It needs no
torch: what predicts from an exported folder reads it too.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from vitkit._version import __version__
from vitkit.config import difference, from_json, to_json
from vitkit.data.config import Augmentation, Preprocessing, Splits
from vitkit.errors import VitkitError
from vitkit.models.config import Card, Interpolation, ModelConfig, Task
from vitkit.models.zoo import FAMILIES
from vitkit.text import tree_levels, without_places

_log = logging.getLogger("vitkit")

FORMAT = "vitkit-model"
FORMAT_VERSION = 1
"""Another number is a format that this vitkit does not read."""
NOVELTY = "novelty."
"""Before the names of a `Novelty`'s tensors in the file of a model's weights."""
UNSAID = ("None", "False")
"""Values of options that were left out, as text: a fraction of 0 equals False."""
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
        return Path(self.spec).is_absolute() or self.spec == BUILT_IN


@dataclass(frozen=True)
class Assumption:
    """A property of images that a file does not record, and the value that was assumed."""

    what: Literal["pixel statistics", "resizing"]
    taken: str
    """The assumed value and the library whose custom it is, as text."""

    def sentence(self) -> str:
        """State the assumed value and the command that records another, as a clause after the file's path."""
        remedy = (
            "vitkit convert FILE OUT --image-mean R G B --image-std R G B"
            if self.what == "pixel statistics"
            else "vitkit convert FILE OUT, then edit preprocessing in OUT/model.json and empty its assumed"
        )
        return f"its file does not say its {self.what}; assumed: {self.taken}. To state others: {remedy}"


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
            # Options that were left out say nothing.
            splits = {key: value for key, value in recorded["splits"].items() if str(value) not in UNSAID}
            history["data"] = recorded | {"splits": splits}
        return history | dict(self.origin)


def to_give_away(card: ModelCard) -> ModelCard:
    """Return a card that names its data and its start without the folders they are in."""
    if (data := card.data) is not None and data.has_place and data.spec != BUILT_IN:
        name = without_places(data.spec)
        # A folder of that name is not the built-in data: nothing else ends with a slash.
        data = replace(data, spec=f"{name}/" if name == BUILT_IN else name)
    return replace(card, data=data, origin=without_places(card.origin))


class Described(Protocol):
    """A model, whatever computes it: its configuration and its card."""

    @property
    def config(self) -> Any:
        """Return the family's configuration, a `ModelConfig`."""

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


def fit_preprocessing(recorded: Preprocessing | None, config: ModelConfig) -> Preprocessing:
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


def assumed_statistics(mean: tuple[float, ...], std: tuple[float, ...], custom: str) -> Assumption:
    """Record that the mean and std of pixels are not in the file."""
    taken = f"pixel mean {by_channel(mean)} and std {by_channel(std)}, {custom}"
    return Assumption("pixel statistics", taken)


def assumed_resizing(preprocessing: Preprocessing, custom: str) -> Assumption:
    """Record that the resizing to the model's size is not in the file."""
    kind = f"by {preprocessing.interpolation} interpolation"
    if preprocessing.resize == "stretch":
        return Assumption("resizing", f"images stretched {kind}, {custom}")
    side = preprocessing.resized(0)
    way = f"the shortest side resized to {side} {kind} and the middle cut out"
    return Assumption("resizing", f"{way}, {custom}")


def card_of_state_dict(
    config: ModelConfig, preprocessing: Preprocessing, whose: str, rule: Interpolation
) -> ModelCard:
    """Make the card of a state dict alone, which its authors' own arithmetic and images are assumed of."""
    assumed = (
        assumed_statistics(config.image_mean, config.image_std, f"ImageNet's, as {whose} own"),
        assumed_resizing(preprocessing, f"as {whose} evaluation does"),
    )
    notes = [f"a state dict alone: {whose} arithmetic (exact GELU, epsilon {config.norm_eps:g})"]
    return ModelCard(
        preprocessing=preprocessing,
        assumed=assumed,
        origin={"notes": notes},
        position_interpolation=rule,
    )


def by_channel(numbers: tuple[float, ...]) -> str:
    """Write a number for each channel of images, or one where all are equal."""
    return f"{numbers[0]:g}" if len(set(numbers)) == 1 else ", ".join(f"{number:g}" for number in numbers)


def describe(model: Described) -> dict[str, Any]:
    """Return the contents of `model.json`, but for the checksum of the weights."""
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "vitkit_version": __version__,
        "family": model.config.family,
        "architecture": to_json(model.config),
        **to_json(to_give_away(card_of(model))),
    }


def read_description(data: Mapping[str, Any], path: Path) -> tuple[ModelConfig, ModelCard]:
    """Read architecture and card from the contents of the `model.json` at `path`.

    Raises:
        VitkitError: it is of another format, or of another version of it.
    """
    if data.get("format") != FORMAT:
        raise VitkitError(f"{path} is not a description of a vitkit model (its 'format' is not '{FORMAT}').")
    if data.get("format_version") != FORMAT_VERSION:
        raise VitkitError(
            f"{path} was written by vitkit {data.get('vitkit_version')} in another format than this vitkit "
            f"({__version__}) reads: make the model again, or pip install -U vitkit."
        )
    family = data.get("family")
    if not isinstance(family, str) or family not in FAMILIES:
        raise VitkitError(f"{path}: family: expected one of {', '.join(FAMILIES)}, found {family!r}.")
    fields = data.get("architecture", {})
    architecture: ModelConfig = from_json(FAMILIES[family], fields, f"{path}: architecture")
    fields = {key: value for key, value in data.items() if key in ModelCard.__dataclass_fields__}
    card = from_json(ModelCard, fields, str(path))
    if card.class_names and len(card.class_names) != architecture.num_classes:
        raise VitkitError(
            f"{path}: {len(card.class_names)} class names for a model of {architecture.num_classes} classes."
        )
    if card.levels is not None:
        count, depth = len(card.levels.thresholds), len(tree_levels(card.class_names))
        if count != depth:
            raise VitkitError(f"{path}: levels: {count} thresholds for class names of {depth} levels.")
    return architecture, card


def log_notes(path: str | Path, notes: Sequence[str], left_out: Mapping[str, Sequence[str]]) -> None:
    """Log notes on a checkpoint as warnings, and the tensors that were left out on purpose as information."""
    for reason, keys in left_out.items():
        _log.info("%s: left out on purpose, %s: %s", path, reason, ", ".join(keys))
    for note in notes:
        _log.warning("%s: %s", path, note)

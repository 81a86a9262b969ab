"""The card of a model: what travels with the weights so that they can be used anywhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from vitkit.config import to_json
from vitkit.data.sources_config import Splits
from vitkit.data.transforms_config import Augmentation, Preprocessing
from vitkit.models.card import Card
from vitkit.models.card import LossFunction as LossFunction
from vitkit.models.card import Task as Task
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
        """Whether it is said where the images are."""
        return without_places(self.spec) != self.spec or self.spec == BUILT_IN


@dataclass(frozen=True)
class ModelCard(Card):
    """Everything known about a model besides its weights and architecture."""

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
            history["loss"] = self.task.loss
            if self.task.name != Task().name:
                history["task"] = self.task.name
        if self.data is not None:
            recorded = to_json(self.data)
            splits = {key: value for key, value in recorded["splits"].items() if value is not None}
            history["data"] = recorded | {"splits": splits}  # options that were left out say nothing
        return history | dict(self.origin)


def to_give_away(card: ModelCard) -> ModelCard:
    """Return a card that tells nobody where on a disk its data and its start are, but their names."""
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
        """Return the name and the classes; a `ModelCard` where more is known of the model."""


def card_of(model: Described) -> ModelCard:
    """Return what is known about a model; one that was never saved or trained knows at most its classes."""
    card = model.card
    return card if isinstance(card, ModelCard) else ModelCard(card.name, card.class_names, card.task)

"""What travels with weights so that they can be used anywhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vitkit.errors import VitkitError

LossFunction = Literal["softmax", "sigmoid"]
"""What turned logits into a loss: softmax cross entropy, or one binary cross entropy for each class."""


@dataclass(frozen=True)
class Assumption:
    """Something that a file does not say about its images, and what was taken in its place."""

    what: Literal["pixel statistics", "resizing"]
    taken: str
    """In words, with whose custom it is."""

    def sentence(self) -> str:
        """What was taken, and what states it, in words that follow the file's path and have no full stop."""
        remedy = (
            "vitkit convert FILE OUT --image-mean R G B --image-std R G B"
            if self.what == "pixel statistics"
            else "vitkit convert FILE OUT, then edit preprocessing in OUT/model.json and empty its assumed"
        )
        return f"its file does not say its {self.what}; assumed: {self.taken}. To state others: {remedy}"


@dataclass(frozen=True)
class ModelCard:
    """What a model knows about itself beside its weights and architecture.

    The models' room holds these as plain data: it is the data's room that understands preprocessing.
    """

    name: str = ""
    """A name of the zoo, or empty."""
    class_names: tuple[str, ...] = ()
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    """From an image file to the model's input; the same in training, evaluation and prediction."""
    augmentation: Mapping[str, Any] = field(default_factory=dict)
    """What training did to the images besides."""
    origin: Mapping[str, Any] = field(default_factory=dict)
    """Where the weights come from: the run or the file, the data, the versions."""
    assumed: tuple[Assumption, ...] = ()
    """What the file that the weights come from does not say about its images."""

    @property
    def loss(self) -> LossFunction:
        """The loss that the model was trained with, which decides what its logits mean; softmax where
        `origin` records none.

        Raises:
            VitkitError: the origin records another one.
        """
        recorded = self.origin.get("loss", "softmax")
        if recorded == "softmax" or recorded == "sigmoid":
            found: LossFunction = recorded
            return found
        raise VitkitError(
            f"model.json: origin: loss: expected 'softmax' or 'sigmoid', found {str(recorded)[:100]!r}. "
            "Put the original file back, or correct the entry."
        )

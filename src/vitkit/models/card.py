"""What travels with weights so that they can be used anywhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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

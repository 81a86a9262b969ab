"""The card of a model: its name, and the meaning of its logits.

`vitkit.weights.model_card` adds what files record besides: the images, the training, the weights' origin.
"""

from dataclasses import dataclass, field
from typing import Literal

from vitkit.models.config.vit_config import Interpolation

LossFunction = Literal["softmax", "sigmoid"]
"""The loss of the training, which decides what logits mean: softmax cross entropy, or one binary cross
entropy for each class."""

TaskName = Literal["classification", "multi-label", "masked-patches", "simmim", "mae"]
"""The names of tasks; `vitkit.tasks` has a value for each of them."""


@dataclass(frozen=True)
class Task:
    """The task that a model was trained for, and its loss."""

    name: TaskName = "classification"
    loss: LossFunction | Literal["none"] = "softmax"
    """none where the model has no logits."""


@dataclass(frozen=True)
class Card:
    """A model's name and the meaning of its logits."""

    name: str = ""
    """A name of the zoo's grammar, such as "ViT-B/16"; empty where no name stands for the model's shapes."""
    class_names: tuple[str, ...] = ()
    """The name of each logit's class, in order; empty where they are not recorded."""
    task: Task | None = None
    """The task that the model was trained for; None where nothing records it."""
    position_interpolation: Interpolation = field(default="original", kw_only=True)
    """The rule by which the library that the weights come from resizes position embeddings."""

    @property
    def loss(self) -> LossFunction:
        """The loss that decides what the logits mean; softmax where no task or no loss is recorded."""
        return "softmax" if self.task is None or self.task.loss == "none" else self.task.loss

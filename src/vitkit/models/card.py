"""What a model's logits stand for: the part of its card that describes the model itself.

`vitkit.weights.card` adds what files say besides: the images, the training, the origin of the weights.
"""

from dataclasses import dataclass
from typing import Literal

LossFunction = Literal["softmax", "sigmoid"]
"""What turned logits into a loss: softmax cross entropy, or one binary cross entropy for each class."""

TaskName = Literal["classification", "multi-label"]
"""What can be learned; `vitkit.tasks` has the table of what each of them means."""


@dataclass(frozen=True)
class Task:
    """What a model learned to do."""

    name: TaskName = "classification"
    loss: LossFunction = "softmax"


@dataclass(frozen=True)
class Card:
    """A model's name and the meaning of its logits."""

    name: str = ""
    """A name of the zoo, or empty."""
    class_names: tuple[str, ...] = ()
    task: Task | None = None
    """What the model was trained for; None where nothing records it."""

    @property
    def loss(self) -> LossFunction:
        """The loss that decides what the logits mean; softmax where no task is recorded."""
        return Task().loss if self.task is None else self.task.loss

"""The tasks that can be learned, by name."""

from collections.abc import Mapping
from dataclasses import dataclass

from vitkit.errors import VitkitError
from vitkit.models.config import Card, TaskName
from vitkit.models.config import Task as LearnedTask
from vitkit.models.zoo import ModelConfig
from vitkit.tasks.answering import ClassificationAnswering, MultiLabelAnswering
from vitkit.tasks.learning import CLASSIFICATION, MAE, MASKED_PATCHES, MULTI_LABEL, SIMMIM, Learning

Answering = ClassificationAnswering | MultiLabelAnswering
"""The half of a task that a finished model needs."""


@dataclass(frozen=True)
class Task:
    """A task in two halves."""

    learning: Learning
    """The half that a trainer uses."""
    answering: Answering | None
    """The half that a finished model uses; None where it answers nothing, as after self-supervision."""


TASKS: Mapping[TaskName, Task] = {
    "classification": Task(CLASSIFICATION, ClassificationAnswering()),
    "multi-label": Task(MULTI_LABEL, MultiLabelAnswering()),
    "masked-patches": Task(MASKED_PATCHES, None),
    "simmim": Task(SIMMIM, None),
    "mae": Task(MAE, None),
}


def find_task(name: TaskName) -> Task:
    """Return the task of a name.

    Raises:
        VitkitError: no task has it; a model of a later version may say so.
    """
    if name not in TASKS:
        raise VitkitError(f"Expected one of the tasks {', '.join(TASKS)}, found {name}.")
    return TASKS[name]


def task_of(model_card: Card) -> Task:
    """Return the task that a model was trained for, by its card; classification where it records none."""
    return find_task((model_card.task or LearnedTask()).name)


def answers(model_card: Card, config: ModelConfig) -> bool:
    """Whether a model with this card and configuration has answers."""
    task = task_of(model_card)
    return task.answering is not None and not task.learning.explain_unfit(config, None)


def answering_of(model_card: Card) -> Answering:
    """Return how a model answers, by its card.

    Raises:
        VitkitError: it answers nothing.
    """
    task = task_of(model_card)
    if task.answering is None:
        raise VitkitError(
            f"The model {model_card.name or 'of this file'} learned {task.learning.name}: it gives features "
            "and answers nothing. Fine-tune it on images with classes first (vitkit finetune)."
        )
    return task.answering

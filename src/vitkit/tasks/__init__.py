"""The tasks that can be learned. This table is the only place in the code that knows a task by its name."""

from collections.abc import Mapping
from typing import Any

from vitkit.errors import VitkitError
from vitkit.models import card
from vitkit.models.card import Card, TaskName
from vitkit.tasks.classification import ClassificationTask
from vitkit.tasks.multi_label import MultiLabelTask
from vitkit.tasks.task import Task

TASKS: Mapping[TaskName, Task[Any, Any]] = {
    task.name: task for task in (ClassificationTask(), MultiLabelTask())
}


def find_task(name: TaskName) -> Task[Any, Any]:
    """Return the task of a name.

    Raises:
        VitkitError: no task has it; a model of a later version may say so.
    """
    if name not in TASKS:
        raise VitkitError(f"Expected one of the tasks {', '.join(TASKS)}, found {name}.")
    return TASKS[name]


def learned_by(known: Card) -> card.Task:
    """Return what a model's card says that it learned; classification where nothing records it."""
    return known.task or card.Task()


def task_of(known: Card) -> Task[Any, Any]:
    """Return the task that a model was trained for, by its card."""
    return find_task(learned_by(known).name)

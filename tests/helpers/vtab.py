"""Scores of VTAB-1k tasks by hand, and the options of the smallest runs."""

from pathlib import Path
from typing import Any

from vitkit.data.layouts.vtab_tasks import VTAB_TASKS
from vitkit.jobs import vtab as job
from vitkit.jobs.vtab import TaskScore, Vtab

SMALL: dict[str, Any] = {"image_size": 8, "steps": 4, "batch_size": 16, "workers": 0, "threads": 1}


ARGUMENTS = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def vtab(*given: Any, **options: Any) -> Vtab:
    """Do the study, and no plan of it."""
    result = job.vtab(*given, **options)
    assert isinstance(result, Vtab)
    return result


def arguments(start: Path, root: Path, out: Path) -> list[str]:
    return ["vtab", str(start), "--root", str(root), "--out", str(out), *ARGUMENTS]


def score(folder: str, accuracy: float, low: float, high: float) -> TaskScore:
    task = next(task for task in VTAB_TASKS if task.folder == folder)
    counts = {"images": 100, "unreadable": 0, "repeated": 0}
    others: Any = {"majority": 0.5, "verdict": "better than guessing", "learning_rate": 0.01, **counts}
    return TaskScore(task=task, accuracy=accuracy, interval=(low, high), **others)

"""The tasks of VTAB-1k that a folder holds, and the lists of images that each stage of a task needs."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from vitkit.data.layouts.split_lists import find_lists, find_usual_splits
from vitkit.data.layouts.vtab_tasks import VTAB_TASKS, TaskFolder, task_of_folder
from vitkit.data.listing import SPLITS
from vitkit.errors import VitkitError
from vitkit.text import join_names

EXPECTED = (
    "Expected a folder for each task, such as cifar/ and dtd/, with images/, train800.txt, val200.txt, "
    "train800val200.txt and test.txt in it"
)


@dataclass(frozen=True)
class TaskData:
    """The images of a task."""

    folder: TaskFolder
    path: Path
    lists: dict[str, Path]

    @property
    def all_training(self) -> Path:
        """All training images, and the test images."""
        return self.lists["train800val200"]  # the folder itself where its files are named train- and test-

    @property
    def most_training(self) -> Path:
        """Most of the training images, and the others to validate on."""
        return self.lists["train800"]

    def stages(self, sweep: bool) -> list[Path]:
        """Return the data that is trained on."""
        return [self.most_training, self.all_training] if sweep else [self.all_training]


@dataclass(frozen=True)
class FoundTasks:
    """The tasks below a folder."""

    tasks: tuple[TaskData, ...]
    absent: tuple[TaskFolder, ...]
    not_asked: tuple[TaskFolder, ...]


def find_tasks(root: Path, names: Sequence[TaskFolder], sweep: bool) -> FoundTasks:
    """Find the tasks below a folder, in the order of the paper's Table 9.

    Args:
        root: the folder.
        asked: the tasks that are wanted; none: all that are there.
        sweep: whether the 800 and 200 images are needed as well.

    Raises:
        VitkitError: no task is there, one that is asked for is not, or one lacks a list.
    """
    try:
        folders = sorted(entry for entry in root.expanduser().iterdir() if entry.is_dir())
    except OSError as error:
        raise VitkitError(f"{root} cannot be listed: {error.strerror or error}. {EXPECTED}.") from error
    of_task = dict[TaskFolder, Path]()
    for folder in folders:
        task = task_of_folder(folder.name)
        if task is not None and task.folder in of_task:
            raise VitkitError(
                f"{of_task[task.folder]} and {folder} are both {task.title}. Remove or rename one of them."
            )
        if task is not None:
            of_task[task.folder] = folder
    if not of_task:
        shown = (
            f"found {join_names([folder.name for folder in folders], 5)}" if folders else "found no folder"
        )
        raise VitkitError(f"{root} holds no task of VTAB-1k. {EXPECTED}, {shown}.")
    missing = [name for name in names if name not in of_task]
    if missing:
        raise VitkitError(
            f"{root} has no folder for {join_names(missing)}, only for {join_names(list(of_task))}."
        )
    order = [task.folder for task in VTAB_TASKS]
    chosen = [name for name in order if name in of_task and (not names or name in names)]
    return FoundTasks(
        tuple(_with_lists(name, of_task[name], sweep) for name in chosen),
        tuple(name for name in order if name not in of_task),
        tuple(name for name in order if name in of_task and name not in chosen),
    )


def _with_lists(task: TaskFolder, folder: Path, sweep: bool) -> TaskData:
    """Find the lists of a task. Raises VitkitError: one is missing that is needed."""
    lists = find_lists(folder)
    needed = ["train800val200", "test", *(["train800", "val200"] if sweep else [])]
    missing = [f"{name}.txt" for name in needed if name not in lists]
    usual = find_usual_splits(folder) if "train800val200" not in lists else set()
    if usual == {"train", "test"} and not sweep:
        return TaskData(task, folder, {"train800val200": folder})
    if "train" in usual:
        raise VitkitError(_explain_usual(folder, usual))
    if missing:
        raise VitkitError(
            f"{folder} has no {' and no '.join(missing)}. Put the lists there (or Parquet files of these "
            f"names), or leave the task out with --tasks."
        )
    return TaskData(task, folder, lists)


def _explain_usual(folder: Path, splits: Set[str]) -> str:
    """Say what is lacking of a task whose Parquet files are named train-, val- and test-."""
    present = join_names([f"{name}-" for name in SPLITS if name in splits])
    if "test" not in splits:
        return f"{folder} has Parquet files named {present}, and none named test-: put the test images there."
    if "val" not in splits:
        return (
            f"{folder} has Parquet files named {present}: a sweep needs 800 of the training images apart "
            "from 200 others, in files named train800- and val200- beside train800val200-. Leave --sweep "
            "out, or leave the task out with --tasks."
        )
    return (
        f"{folder} has Parquet files named {present}: the protocol trains on the first two together. "
        "Name them train800- and val200-, and put all of their images into a file named train800val200- as "
        "well; or leave the task out with --tasks."
    )

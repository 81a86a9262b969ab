"""Read and write the files of a run folder.

config.json                 the run, written before anything else
data.json                   counts, class names, how splits were made, files that could not be read
image-files.npy             size and time of every image file
metrics.jsonl               loss, learning rate and validation by step: the same bytes however often it was
                            resumed
speed.jsonl                 images/s and memory, by the clock
checkpoints/                what a resume needs
model.safetensors, model.json   the finished model: enough to predict anywhere
evaluation/                 numbers and logits by split
report.html
.lock                       held by the process that trains
"""

import errno
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.data.decode_config import DEFAULT_RULE
from vitkit.data.listing import absolute_spec
from vitkit.data.sources_config import Splits
from vitkit.durable import refuse_links, replace_json, require_regular_file
from vitkit.errors import VitkitError
from vitkit.models.card import Card
from vitkit.runs.config import Run
from vitkit.runs.data_record import DataRecord
from vitkit.runs.destination import make_folder
from vitkit.tasks import find_task, task_of
from vitkit.tasks.answering import Answering, Result, SplitPredictions
from vitkit.weights.card import BUILT_IN, Described, ModelCard, TrainingData, card_of
from vitkit.weights.preprocessing import preprocessing_of
from vitkit.weights.pretraining import TRAINING_IMAGES

if TYPE_CHECKING:
    from vitkit.data.sources import ImageData


_held: set[int] = set()
"""Descriptors of the locks that this process holds."""
_opening = threading.Lock()
"""Held while a lock is opened and noted in `_held`, and during a fork: no process inherits one in between."""


def _drop_inherited() -> None:
    """Close the locks of the parent in a process that was just forked."""
    while _held:
        os.close(_held.pop())
    _opening.release()


# A lock of `flock` lasts until every process that has it open has closed it, so that workers which outlive a
# parent that was killed would keep its folder. A record lock of `fcntl` stays with its process, but it does
# not keep two threads apart, is lost when any part of the process reads the file, and is not seen by vitkit's
# earlier versions.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_drop_inherited
    )


@contextmanager
def lock_run_folder(folder: Path) -> Iterator[Path]:
    """Hold a run folder for one process, and give it; it is made where there is none.

    The lock ends with the process, however it ends, and though processes that it started live on: a killed
    run can be continued at once.

    Raises:
        VitkitError: another process trains in it, it cannot be locked, or a link in it leads out of it.
    """
    with _try_lock(folder) as is_ours:
        if not is_ours:
            raise VitkitError(
                f"Another process is training in {folder}. Wait for it, stop it, or choose another --out."
            )
        yield folder


@contextmanager
def claim_run_folder(
    run: Run, data_name: str, holds: Callable[[Path], bool], ending: str = ""
) -> Iterator[Path]:
    """Choose the folder below `runs/` of a run that was given none, and hold it as `lock_run_folder` does.

    It is the one that holds this run already, else the first that is new. Those that another process holds
    are passed over, so that runs begun at the same time take different ones.

    Args:
        run: named by its model.
        data_name: name of its images.
        holds: whether a folder that is there holds this run.
        ending: of the folder's name.

    Raises:
        VitkitError: as `holds`; or a folder cannot be locked.
    """
    there = itertools.takewhile(Path.is_dir, numbered_folders(run, data_name, ending))
    begun = ((folder, holds) for folder in there)
    new = ((folder, is_new_folder) for folder in numbered_folders(run, data_name, ending))
    for folder, fits in itertools.chain(begun, new):
        if fits(folder):
            with _try_lock(folder) as is_ours:
                if is_ours and fits(folder):  # it may have been begun since
                    yield folder
                    return


def is_new_folder(folder: Path) -> bool:
    """Whether a run may begin in a folder: there is none, or it holds nothing but hidden files."""
    if not folder.is_dir():
        return not os.path.lexists(folder)
    return all(path.name[0] == "." for path in folder.iterdir())


@contextmanager
def _try_lock(folder: Path) -> Iterator[bool]:
    """Lock a folder, which is made where there is none; gives False where another process holds it."""
    import fcntl

    make_folder(folder)
    path = folder / ".lock"
    with _opening:
        try:
            # A link could lead out of the folder, and opening a pipe would wait.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise VitkitError(
                f"{path} cannot be locked: expected a regular file, found a link. Remove it."
            ) from None
        _held.add(descriptor)
    try:
        require_regular_file(descriptor, path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_ours = False
        except OSError as error:  # some network disks have no locks
            raise VitkitError(
                f"{path} cannot be locked: {error.strerror}. Choose a folder on another disk with --out."
            ) from error
        else:
            refuse_links(folder)
            is_ours = True
        yield is_ours
    finally:
        if descriptor in _held:  # a forked process has closed it
            _held.remove(descriptor)
            os.close(descriptor)


def write_evaluation(run: Path, split: str, result: Result, predictions: SplitPredictions) -> None:
    """Keep an evaluation in the run folder: the numbers as JSON, the predictions as arrays.

    Raises:
        VitkitError: a link leads out of the run folder.
    """
    refuse_links(run)
    folder = run / "evaluation"
    folder.mkdir(exist_ok=True)
    replace_json(folder / f"{split}.json", result.to_json())
    predictions.save(folder / f"{split}.npz")


def read_evaluations(run: Path, answering: Answering[Any, Any]) -> dict[str, tuple[Any, Any]]:
    """Read the evaluations that were kept, by split: numbers and predictions of the task.

    Raises:
        VitkitError: one is damaged.
    """
    found = {}
    for split in ("test", "val", "train"):
        with suppress(FileNotFoundError):  # not evaluated on this split
            found[split] = answering.read_evaluation(run / "evaluation" / f"{split}.json")
    return found


def open_model_data(model: Described, spec: str | None = None, max_pixels: int | None = None) -> "ImageData":
    """Open the data a model was trained on, cut as it was then; or other data under its class names.

    Raises:
        VitkitError: the model does not know where its data is, or the data is not there any more.
    """
    rule, learning = preprocessing_of(model).decode, task_of(model.card).learning
    if max_pixels is not None:
        rule = replace(rule, max_pixels=max_pixels)
    names = model.card.class_names or None
    record = card_of(model).data
    if spec is not None and not is_training_data(model.card, spec):
        # Nothing of it was trained on: all of it is there to evaluate, unless it has splits of its own.
        # Of the way the training data was cut, only how labels are written holds for other data.
        separator = None if record is None else record.splits.label_separator
        whole = Splits(val_fraction=0, test_fraction=0, label_separator=separator)
        return learning.open_data(spec, whole, rule, names)
    if record is None:
        raise VitkitError("The model does not say which data it was trained on: give it with --data.")
    if spec is None and not record.has_place:
        raise VitkitError(
            f"The model does not say where its data is (its name is {record.name!r}): give it with --data."
        )
    place = record.spec if spec is None else spec
    data = learning.open_data(place, record.splits, rule, names)
    if record.fingerprint != data.fingerprint():
        raise VitkitError(
            f"The images in {place} are not those the model was trained with: files were added, "
            "removed or moved, and its test images cannot be told from its training images any more. Bring "
            "them back, or give other images with --data."
        )
    return data


def is_training_data(card: Card, spec: str) -> bool:
    """Whether a data argument names the images that a model was trained on.

    A model that was given away does not say where they are, and they may have been moved: then the images are
    listed and compared.
    """
    record = card.data if isinstance(card, ModelCard) else None
    if record is None or absolute_spec(spec) == record.spec:
        return record is not None
    if record.spec == BUILT_IN or (record.has_place and os.access(record.spec, os.F_OK)):
        return False
    try:
        data = task_of(card).learning.open_data(spec, record.splits, DEFAULT_RULE, card.class_names or None)
    except VitkitError:  # no such classes, say
        return False
    return data.fingerprint() == record.fingerprint


def numbered_folders(run: Run, data_name: str, ending: str = "") -> Iterator[Path]:
    """Yield the folders below `runs/` that a run may be kept in where none is given; there is no last one."""
    # The name of a start's model is what its file says, with whatever characters.
    model = re.sub(r"[/\0-\x1f\x7f]", "-", run.model)
    name = f"{data_name}-{model}{ending}"
    for number in itertools.count(1):
        yield Path("runs") / (name if number == 1 else f"{name}-{number}")


def run_card(run: Run, data: "ImageData | DataRecord", fingerprint: str, name: str) -> ModelCard:
    """Make the card of a model called `name` that a run trains; its origin is completed when the run ends."""
    return ModelCard(
        name=name,
        class_names=data.class_names,
        task=find_task(run.task).learning.learned(run.objective),
        preprocessing=run.preprocessing,
        augmentation=run.augmentation,
        data=TrainingData(run.data, data.name, run.splits, fingerprint),
        origin={"recipe": run.recipe, **_new_weights(run, data)},
    )


def _new_weights(run: Run, data: "ImageData | DataRecord") -> dict[str, int]:
    """Give the number of training images of a run from scratch; nothing where early versions lack it."""
    if run.start.start:
        return {}  # the images of its start are those of the pre-training
    images = data.images if isinstance(data, DataRecord) else {k: len(v) for k, v in data.splits.items()}
    return {TRAINING_IMAGES: images["train"]} if "train" in images else {}

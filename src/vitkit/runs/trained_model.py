"""Read and write the card, the images and the evaluations of the model that a run trains."""

import hashlib
import io
import itertools
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitkit.config import read, write
from vitkit.data.config import DEFAULT_RULE, Splits
from vitkit.data.decode.image import decode
from vitkit.data.paths import absolute_spec
from vitkit.durable import (
    refuse_link,
    refuse_links,
    remove_leftovers,
    replace_file,
    replace_json,
    sync_folder,
)
from vitkit.errors import DecodeError, VitkitError
from vitkit.models.config.card import Card
from vitkit.models.zoo import ModelConfig, changed_name
from vitkit.result import Result
from vitkit.runs.config import Run
from vitkit.runs.data_record import DataRecord
from vitkit.runs.records import StartRecord
from vitkit.tasks import Answering, find_task, task_of
from vitkit.weights.model_card import BUILT_IN, Described, ModelCard, TrainingData, card_of, preprocessing_of
from vitkit.weights.published import TRAINING_IMAGES

if TYPE_CHECKING:
    from vitkit.data.sources import ImageData

OTHER_IMAGES = "images.json"
"""The file that says, in a folder below evaluation/, which images the numbers beside it are of."""


@dataclass(frozen=True)
class OtherImages:
    """The contents of `images.json`."""

    place: str
    """A hash of their path: `evaluation/` is given away with a model and does not say where images are."""
    fingerprint: str


EXAMPLES = "evaluation/examples.png"
"""The picture of the predictions of a model without answers, in its run folder."""


def write_evaluation(run: Path, split: str, result: Result, predictions: Any) -> None:
    """Write an evaluation into the run folder: the numbers as JSON, the predictions as arrays.

    Args:
        run: the folder.
        split: of the run's images; of others, what `name_other_images` returns, "/" and the split.
        result, predictions: the numbers, and what they are counted from.

    Raises:
        VitkitError: a link leads out of the run folder.
    """
    refuse_links(run)
    folder = run / "evaluation"
    folder.mkdir(exist_ok=True)
    numbers = folder / f"{split}.json"
    # The numbers are there only beside the arrays that they are counted from: after a kill between two files
    # the split counts as not evaluated.
    numbers.unlink(missing_ok=True)
    sync_folder(numbers.parent)
    predictions.save(numbers)
    replace_json(numbers, result.to_json())


def name_other_images(run: Path, data: "ImageData") -> str:
    """Make the folder below evaluation/ for numbers on images that are not the run's own; return its name.

    The same path gets the same folder again, and another path of the same name gets the next number.

    Raises:
        VitkitError: a link leads out of the run folder.
    """
    refuse_links(run)
    place = hashlib.sha256(os.fsencode(absolute_spec(data.spec))).hexdigest()
    for number in itertools.count(1):
        name = (data.name or "images") + (f"-{number}" if number > 1 else "")
        folder, record = run / "evaluation" / name, None
        with suppress(VitkitError):  # a damaged record is another's
            record = read(OtherImages, folder / OTHER_IMAGES)
        if record is None and not folder.exists():
            folder.mkdir(parents=True)
        elif record is None or record.place != place:
            continue
        refuse_link(folder)
        remove_leftovers(folder)
        write(folder / OTHER_IMAGES, OtherImages(place, data.fingerprint()))
        return name
    raise AssertionError("The numbers have no end.")


def read_evaluations(run: Path, answering: Answering) -> dict[str, tuple[Any, Any]]:
    """Read the evaluations in a run folder by split: the task's numbers and predictions.

    Raises:
        VitkitError: one is damaged.
    """
    evaluations = {}
    for split in ("test", "val", "train"):
        with suppress(FileNotFoundError):  # not evaluated on this split
            evaluations[split] = answering.read_evaluation(run / "evaluation" / f"{split}.json")
    return evaluations


def write_examples(run: Path, picture: NDArray[np.uint8]) -> Path:
    """Write a picture `(H, W, 3)` of a model's predictions into the run folder.

    Raises:
        VitkitError: a link leads out of the run folder.
    """
    refuse_links(run)
    path = run / EXAMPLES
    path.parent.mkdir(exist_ok=True)
    content = io.BytesIO()
    Image.fromarray(picture).save(content, format="PNG")
    replace_file(path, [content.getvalue()])
    return path


def read_examples(run: Path) -> NDArray[np.uint8] | None:
    """Read the picture of a model's predictions; None where it is missing or damaged."""
    path = run / EXAMPLES
    with suppress(DecodeError):
        return decode(path, DEFAULT_RULE) if path.is_file() else None
    return None


def open_model_data(model: Described, spec: str | None = None, max_pixels: int | None = None) -> "ImageData":
    """Open the data that a model was trained on, with the splits of its training; or other data under its
    class names.

    Raises:
        VitkitError: the model has no record of its data or its path, or the data has changed or is gone.
    """
    rule, learning = preprocessing_of(model).decode, task_of(model.card).learning
    if max_pixels is not None:
        rule = replace(rule, max_pixels=max_pixels)
    names = model.card.class_names or None
    record = card_of(model).data
    if spec is not None and not is_training_data(model.card, spec):
        # All of it is evaluated, unless it has splits of its own: the model was not trained on it. Of the
        # splits of training, only the separator of labels holds for other data.
        separator = None if record is None else record.splits.label_separator
        uncut = Splits(val_fraction=0, test_fraction=0, label_separator=separator)
        return learning.open_data(spec, uncut, rule, names)
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
            f"The images in {place} have changed since the model was trained: files were added, removed or "
            "moved, so that it is unclear which are test images. Bring them back, or give other images with "
            "--data."
        )
    return data


def is_training_data(card: Card, spec: str) -> bool:
    """Whether a data argument names the images that a model was trained on.

    A model that was given away lacks their path, and they may have been moved: then the images are listed and
    compared.
    """
    record = card.data if isinstance(card, ModelCard) else None
    if record is None:
        return False
    if absolute_spec(spec) == record.spec:
        return True
    if record.spec == BUILT_IN or (record.has_place and os.access(record.spec, os.F_OK)):
        return False
    try:
        data = task_of(card).learning.open_data(spec, record.splits, DEFAULT_RULE, card.class_names or None)
    except VitkitError:  # no such classes, say
        return False
    return data.fingerprint() == record.fingerprint


def run_card(run: Run, data: DataRecord, config: ModelConfig, start: StartRecord | None) -> ModelCard:
    """Make the card of the model that a run trains; its origin is completed when the run ends.

    Args:
        run, data, config, start: the run, the records of its images and its start, and its architecture.
    """
    origin: dict[str, Any] = {"recipe": run.recipe}
    if start is not None:
        origin["start"] = dict(start.origin)
    elif "train" in data.images:  # else the weights were pre-trained on the images of the start
        origin[TRAINING_IMAGES] = data.images["train"]
    return ModelCard(
        # An option may have changed the architecture; with a start, whose name may be any, none may.
        name=run.model if run.start.start else changed_name(run.model, config),
        class_names=data.class_names,
        task=find_task(run.task).learning.learned(run.objective),
        preprocessing=run.preprocessing,
        augmentation=run.augmentation,
        data=TrainingData(run.data, data.name, run.splits, data.fingerprint),
        origin=origin,
        position_interpolation="original" if start is None else start.position_interpolation,
    )

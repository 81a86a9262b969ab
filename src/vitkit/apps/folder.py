"""A run folder, read back.

config.json                 the run, written before anything else
data.json                   counts, class names, how splits were made, files that could not be read
metrics.jsonl               loss, rate and validation by step: the same bytes however often it was resumed
speed.jsonl                 images/s and memory, by the clock
checkpoints/                what a resume needs
model.safetensors, model.json   the finished model: enough to predict anywhere
evaluation/                 numbers and logits by split
report.html
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from vitkit.apps.run import Run
from vitkit.config import from_json, to_json
from vitkit.data.listing import expanded
from vitkit.data.sources import ImageData, Splits, open_data
from vitkit.data.transforms import Preprocessing, read_preprocessing
from vitkit.durable import replace_json
from vitkit.errors import VitkitError
from vitkit.evaluation.classify import Classification, Predictions
from vitkit.models.image_model import ImageModel


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Hold a run folder for one process.

    Raises:
        VitkitError: another process trains in it.
    """
    import fcntl

    descriptor = os.open(run / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise VitkitError(
                f"Another process is training in {run}. Wait for it, stop it, or choose another --out."
            ) from None
        yield
    finally:
        os.close(descriptor)


def describe_data(data: ImageData, fingerprint: str) -> dict[str, Any]:
    """What `data.json` holds, before any file was found unreadable."""
    counts = {}
    for split, samples in data.splits.items():
        numbers = np.bincount(samples.labels, minlength=len(data.class_names)).tolist()
        counts[split] = dict(zip(data.class_names, numbers, strict=True))
    return {
        "name": data.name,
        "spec": data.spec,
        "kind": data.kind,
        "class_names": list(data.class_names),
        "counts": counts,
        "notes": list(data.notes),
        "rejects": {},
        "fingerprint": fingerprint,
    }


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of a run folder; empty if there is none.

    Raises:
        VitkitError: it is damaged.
    """
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise VitkitError(f"{path} cannot be read: {error}") from error
    return data


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a log; a line that was cut short by a crash is left out."""
    if not path.exists():
        return []
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):
            lines.append(json.loads(line))
    return lines


def write_evaluation(run: Path, split: str, result: Classification, predictions: Predictions) -> None:
    """Keep an evaluation in the run folder: the numbers as JSON, the logits as arrays."""
    folder = run / "evaluation"
    folder.mkdir(exist_ok=True)
    replace_json(folder / f"{split}.json", result.to_json())
    predictions.save(folder / f"{split}.npz")


def read_evaluations(run: Path) -> dict[str, tuple[Classification, Predictions]]:
    """The evaluations that were kept, by split."""
    found = {}
    for split in ("test", "val", "train"):
        path = run / "evaluation" / f"{split}.json"
        if path.exists():
            result = from_json(Classification, read_json(path), str(path))
            found[split] = (result, Predictions.load(path.with_suffix(".npz")))
    return found


def preprocessing_of(model: ImageModel) -> Preprocessing:
    """How images become the model's input; without a record, as the original evaluates: stretched."""
    return read_preprocessing(model.card.preprocessing, model.config.image_size, "model.json: preprocessing")


def data_of(model: ImageModel, spec: str | None = None) -> ImageData:
    """The data a model was trained on, cut as it was then; or other data under its class names.

    Raises:
        VitkitError: the model does not know where its data is, or the data is not there any more.
    """
    rule = preprocessing_of(model).decode
    names = model.card.class_names or None
    record = model.card.origin.get("data", {})
    if spec is not None and not _same_place(spec, record.get("spec")):
        # Nothing of it was trained on: all of it is there to evaluate, unless it has splits of its own.
        return open_data(spec, Splits(val_fraction=0, test_fraction=0), rule, names)
    if not record:
        raise VitkitError("The model does not say which data it was trained on: give it with --data.")
    splits = from_json(Splits, record["splits"], "model.json: origin: data: splits")
    data = open_data(record["spec"], splits, rule, names)
    if record.get("fingerprint") != data.fingerprint():
        raise VitkitError(
            f"The images in {record['spec']} are not those the model was trained with: files were added, "
            "removed or moved, and its test images cannot be told from its training images any more. Bring "
            "them back, or give other images with --data."
        )
    return data


def place(spec: str) -> str:
    """A data argument as it is written down: paths absolute, so that they hold from any folder."""
    return spec if spec == "digits" or not spec else str(expanded(spec).resolve())


def _same_place(spec: str, recorded: str | None) -> bool:
    return recorded is not None and place(spec) == recorded


def run_origin(run: Run, data: ImageData, fingerprint: str) -> dict[str, Any]:
    """What a model says about the run it comes from."""
    place = {"spec": run.data, "name": data.name, "splits": to_json(run.splits), "fingerprint": fingerprint}
    return {"recipe": run.recipe, "loss": run.objective.loss, "data": place}

"""`vitkit evaluate`: how good a model is on images it was not trained on."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.markup import escape

from vitkit.apps import console
from vitkit.apps.folder import data_of, preprocessing_of, write_evaluation
from vitkit.apps.machine import find_device
from vitkit.data.loader import evaluation_batches
from vitkit.data.sources import ImageData
from vitkit.errors import VitkitError
from vitkit.evaluation.classify import Classification, Predictions, classification, predict
from vitkit.models.image_model import ImageModel
from vitkit.models.weights import load_model


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found."""

    split: str
    data: ImageData
    result: Classification
    predictions: Predictions
    rejects: dict[str, str]
    """Key and reason of every image that could not be read: they are counted, not scored."""


def evaluate(
    path: str | Path,
    data: str | None = None,
    split: str | None = None,
    *,
    device: str = "auto",
    batch_size: int = 128,
    workers: int = 0,
) -> Evaluation:
    """Evaluate a checkpoint.

    Args:
        path: anything `load_model` reads. A run folder knows its data.
        data: other data, by the class names of the model; left out, the data it was trained on, cut as then.
        split: left out, "test" if there is one, else "val".

    Raises:
        VitkitError: the data is not there, has classes the model does not know, or lacks the split.
    """
    place = find_device(device)
    model = load_model(path).to(place)
    images = data_of(model, data)
    if split is None:
        split = next((name for name in ("test", "val") if name in images.splits), None)
        if split is None and data is not None:
            split = "train"  # data of one piece
    if split is None or split not in images.splits:
        raise VitkitError(
            f"{images.spec} has no {split or 'test or validation'} split, only {', '.join(images.splits)}. "
            "Choose one with --split."
        )
    if workers < 0:
        raise VitkitError(f"workers is 0 or more, found {workers}.")
    rejects: dict[str, str] = {}
    result, predictions = evaluate_split(
        model, images, split, place, rejects, batch_size=batch_size, workers=workers
    )
    return Evaluation(split, images, result, predictions, rejects)


def evaluate_split(
    model: ImageModel,
    data: ImageData,
    split: str,
    device: torch.device,
    rejects: dict[str, str],
    *,
    batch_size: int = 128,
    workers: int = 0,
) -> tuple[Classification, Predictions]:
    """Every image of a split once, with a progress bar; unreadable files are added to `rejects`."""
    samples = data.splits[split]
    batches = evaluation_batches(samples, preprocessing_of(model), batch_size, workers, rejects)
    with console.counting(f"evaluating {split}", len(samples)) as advance:
        predictions = predict(model, batches, device=device, progress=advance)
    return classification(predictions, data.class_names), predictions


def main(arguments: list[str]) -> None:
    def command(
        model: Annotated[str, tyro.conf.Positional],
        data: str | None = None,
        split: str | None = None,
        json_output: Annotated[bool, tyro.conf.arg(name="json")] = False,
        device: str = "auto",
        batch_size: int = 128,
        workers: int = 0,
    ) -> None:
        """Evaluate a model on images it was not trained on.

        Args:
            model: run folder, or any checkpoint that vitkit convert reads.
            data: other images than those the model was trained with; classes are matched by name.
            split: test, val or train; left out, test if there is one.
            json_output: print all numbers as JSON.
            device: auto, cpu, cuda.
            batch_size: images at a time.
            workers: processes that decode images.
        """
        found = evaluate(model, data, split, device=device, batch_size=batch_size, workers=workers)
        result, run = found.result, Path(model)
        is_run = (run / "config.json").exists() and data is None
        if is_run:
            try:
                write_evaluation(run, found.split, result, found.predictions)
            except OSError as error:  # somebody else's run, say: the numbers are printed all the same
                is_run = False
                console.err.print(f"Not kept in {run}: {error.strerror}.", markup=False)
        if json_output:
            record = {"split": found.split, "rejects": found.rejects, **result.to_json()}
            console.out.print_json(json.dumps(record))
            return
        low, high = result.accuracy_interval
        top5 = "" if result.top5_accuracy is None else f", top-5 {result.top5_accuracy:.2%}"
        console.out.print(
            f"[bold]{result.accuracy:.2%}[/] accuracy{top5} on {result.count:,} {found.split} images of "
            f"{escape(found.data.name)} (95 % interval {low:.1%} to {high:.1%}); loss {result.loss:.4f}, "
            f"balanced accuracy {result.balanced_accuracy:.2%}, "
            f"calibration error {result.calibration_error:.2%}"
        )
        if found.rejects:
            console.out.print(f"{len(found.rejects)} images could not be read and count for nothing:")
            for key, reason in list(found.rejects.items())[:10]:
                console.out.print(f"  {key}: {reason}", markup=False)
        if is_run:
            console.out.print(
                f"Kept in {run / 'evaluation'}. Next: vitkit report {shlex.quote(model)}", markup=False
            )
        else:
            console.out.print(f"Next: vitkit predict {shlex.quote(model)} IMAGE_OR_FOLDER", markup=False)

    tyro.cli(command, args=arguments, prog="vitkit evaluate")

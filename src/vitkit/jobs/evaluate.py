"""`vitkit evaluate`: how good a model is on images it was not trained on."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.markup import escape

from vitkit.cli import console
from vitkit.cli.download import download
from vitkit.data.loader import WORKER_TIMEOUT, evaluation_batches
from vitkit.data.sources import ImageData
from vitkit.errors import VitkitError
from vitkit.evaluation.classify import Classification, Predictions, classification, predict
from vitkit.jobs.machine import find_device
from vitkit.jobs.predict import NOT_SAID, SizeOption, said, without_predictions
from vitkit.jobs.run_config import is_run
from vitkit.jobs.run_folder import data_of, place, write_evaluation
from vitkit.models.image_model import ImageModel
from vitkit.weights import load_model
from vitkit.weights.card import card_of
from vitkit.weights.preprocessing import preprocessing_of

NAMES_SHOWN = 10


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found."""

    split: str
    data: ImageData
    result: Classification
    predictions: Predictions
    rejects: dict[str, str]
    """Key and reason of every image that could not be read: they are counted, not scored."""
    whole: bool = False
    """All of some data without splits that the model was not trained on; `split` is then "train"."""


def evaluate(
    path: str | Path,
    data: str | None = None,
    split: str | None = None,
    *,
    device: str = "auto",
    batch_size: int = 128,
    workers: int = 0,
    image_size: int | tuple[int, int] | None = None,
    num_heads: int | None = None,
) -> Evaluation:
    """Evaluate a checkpoint.

    Args:
        path: anything `load_model` reads. A run folder knows its data.
        data: other data, by the class names of the model; left out, the data it was trained on, cut as then.
        split: left out, "test" if there is one, else "val".
        device: where it computes: "auto" (a GPU if there is one), "cpu", "cuda".
        batch_size: images at a time.
        workers: processes that decode images.
        image_size, num_heads: as for `load_model`.

    Raises:
        VitkitError: the model names no classes; the data is not there, has classes the model does not know,
            or lacks the split.
    """
    found_device = find_device(device)
    model = load_model(path, image_size=image_size, num_heads=num_heads).to(found_device)
    reason = without_predictions(model.config)
    if reason:
        raise VitkitError(f"{path} {reason}.")
    images = data_of(model, data)
    if not model.card.class_names:
        _match_by_order(path, model, images)
    recorded = card_of(model).data
    trained_on = data is None or (recorded is not None and place(data) == recorded.spec)
    if split is None:
        split = next((name for name in ("test", "val") if name in images.splits), None)
        if split is None and data is not None:
            split = "train"  # data of one piece
    if split is None or split not in images.splits:
        raise VitkitError(_no_split(images, split, trained_on))
    if workers < 0:
        raise VitkitError(f"workers is 0 or more, found {workers}.")
    rejects: dict[str, str] = {}
    result, predictions = evaluate_split(
        model, images, split, found_device, rejects, batch_size=batch_size, workers=workers
    )
    whole = not trained_on and list(images.splits) == ["train"]
    return Evaluation(split, images, result, predictions, rejects, whole)


def _match_by_order(path: str | Path, model: ImageModel, data: ImageData) -> None:
    """Say that a model without class names takes the classes in their order, if that can be."""
    names, outputs = data.class_names, model.config.num_classes
    shown = ", ".join(names[:NAMES_SHOWN]) + (", ..." if len(names) > NAMES_SHOWN else "")
    if len(names) != outputs:
        raise VitkitError(
            f"{path} has {outputs:,} outputs and no class names, and {data.spec} has {len(names):,} classes: "
            f"{shown}. Classes are matched to such outputs in alphabetical order, so there must be "
            "one for each output."
        )
    console.err.print(
        f"{path} has no class names: the classes of {data.spec} are matched to its outputs in alphabetical "
        f"order: {shown}.",
        markup=False,
        soft_wrap=True,
    )


def _no_split(data: ImageData, split: str | None, trained_on: bool) -> str:
    """Why there is nothing to evaluate on, and what to do."""
    splits = list(data.splits)
    if splits == ["train"] and trained_on:
        return (
            f"{data.spec} has no {split or 'test or validation'} split: the model was trained on all of it. "
            "Give other images with --data, or evaluate on these with --split train."
        )
    if len(splits) == 1:
        whole = "it has no splits" if splits == ["train"] else f"its only split is {splits[0]}"
        return f"{data.spec} has no {split} split, {whole}. Leave out --split to evaluate on all of it."
    wanted = split or "test or validation"
    return f"{data.spec} has no {wanted} split, only {', '.join(splits)}. Choose one with --split."


def evaluate_split(
    model: ImageModel,
    data: ImageData,
    split: str,
    device: torch.device,
    rejects: dict[str, str],
    *,
    batch_size: int = 128,
    workers: int = 0,
    worker_timeout: float = WORKER_TIMEOUT,
    folder: Path | None = None,
) -> tuple[Classification, Predictions]:
    """Every image of a split once, with a progress bar; unreadable files are added to `rejects`.

    Logits too many for memory are kept in a file in `folder`, or in the system's folder for temporary files.
    """
    samples = data.splits[split]
    batches = evaluation_batches(
        samples, preprocessing_of(model), batch_size, workers, rejects, worker_timeout=worker_timeout
    )
    with console.counting(f"evaluating {split}", len(samples)) as advance:
        predictions = predict(
            model, batches, device=device, progress=advance, loss=model.card.loss, folder=folder
        )
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
        image_size: SizeOption = NOT_SAID,
        num_heads: int | None = None,
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
            image_size: height and width; position embeddings are resized.
            num_heads: of the attention, where the file does not say it.
        """
        download(model)
        found = evaluate(
            model,
            data,
            split,
            device=device,
            batch_size=batch_size,
            workers=workers,
            image_size=said(image_size),
            num_heads=num_heads,
        )
        result, run = found.result, Path(model)
        kept = is_run(run) and data is None and image_size == NOT_SAID
        if kept:
            try:
                write_evaluation(run, found.split, result, found.predictions)
            except OSError as error:  # somebody else's run, say: the numbers are printed all the same
                kept = False
                console.err.print(f"Not kept in {run}: {error.strerror}.", markup=False)
        if json_output:
            record = {"split": found.split, "rejects": found.rejects, **result.to_json()}
            console.print_json(record)
            return
        split_words = "" if found.whole else f"{found.split} "
        low, high = result.accuracy_interval
        top5 = "" if result.top5_accuracy is None else f", top-5 {result.top5_accuracy:.2%}"
        console.out.print(
            f"[bold]{result.accuracy:.2%}[/] accuracy{top5} on {result.count:,} {split_words}images of "
            f"{escape(found.data.name)} (95 % interval {low:.1%} to {high:.1%}); loss {result.loss:.4f}, "
            f"balanced accuracy {result.balanced_accuracy:.2%}, "
            f"calibration error {result.calibration_error:.2%}"
        )
        if found.rejects:
            console.out.print(f"{len(found.rejects)} images could not be read and count for nothing:")
            for key, reason in list(found.rejects.items())[:10]:
                console.out.print(f"  {key}: {reason}", markup=False)
        if kept:
            following = f"Kept in {run / 'evaluation'}. Next: vitkit report {shlex.quote(model)}"
        else:
            following = f"Next: vitkit predict {shlex.quote(model)} IMAGE_OR_FOLDER"
        console.out.print(following, markup=False, soft_wrap=True)

    tyro.cli(command, args=arguments, prog="vitkit evaluate")

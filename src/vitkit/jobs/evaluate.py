"""Evaluate a model on images that it was not trained on.

The protocols by name are ImageNet's own validation images, ReaL, V2, -A, -R, -Sketch and ObjectNet.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.imagenet import WithoutBorder, imagenet_wnids, is_wnid, list_labelled, read_wnids
from vitkit.data.imagenet_config import PROTOCOLS
from vitkit.data.layouts.repeats import Images, repeats_of_training
from vitkit.data.listing import SPLITS
from vitkit.data.slices import parse_split
from vitkit.data.sources import ImageData
from vitkit.data.stream.loader import evaluation_batches
from vitkit.durable import replace_json
from vitkit.errors import VitkitError
from vitkit.evaluation import run_model
from vitkit.evaluation.protocols import (
    ProtocolResult,
    count_right,
    five_likeliest,
    outputs_of_classes,
)
from vitkit.jobs.engines import Ready, load_by_options
from vitkit.jobs.functions import from_options
from vitkit.jobs.options import EvaluateOptions, MeasuringOptions, ProtocolOptions
from vitkit.listener import SILENT, Listener, added_up
from vitkit.models.config.card import Card
from vitkit.runs.finish import evaluate_split, find_training_images, with_repeats
from vitkit.runs.folder import Place, kind_of
from vitkit.runs.processes import join_processes, lost_processes_explained, take_threads
from vitkit.runs.trained_model import (
    is_training_data,
    name_other_images,
    open_model_data,
    write_evaluation,
)
from vitkit.shown import Rows, Shown
from vitkit.tasks import answering_of
from vitkit.tasks.answering import Answering
from vitkit.weights.loading import log_notes
from vitkit.weights.model_card import Described, card_of, preprocessing_of
from vitkit.world import prepared_together

NAMES_SHOWN = 10
"""The most class names in a message."""


@dataclass(frozen=True, repr=False)
class Evaluation(Shown):
    """The result of an evaluation."""

    split: str
    data: ImageData
    answering: Answering[Any, Any]
    """The answering half of the model's task, which presents the numbers."""
    model: Place
    """The path of the model, and its kind."""
    result: Any
    """The numbers of the task: `vitkit.evaluation.classify.Classification` for classification."""
    predictions: Any
    """The predictions behind the numbers: `vitkit.evaluation.predictions.Predictions` for classification."""
    rejects: dict[str, str]
    """Key and reason of every unreadable image, which is counted and not scored."""
    whole: bool = False
    """Whether the data has no splits and is not the training data: `split` is "train" and means all."""
    trained_on: bool = True
    """Whether the model was trained on this data, `split` included or not."""
    card: Card = field(default_factory=Card, repr=False)
    """The model's, which says what its outputs mean."""

    def summary(self) -> str:
        """Say the numbers in a sentence, as the command line prints them."""
        split = "" if self.whole else f"{self.split} "
        return "".join(self.answering.summary(self.result, f"{split}images of {self.data.name}"))

    def in_rows(self) -> tuple[Sequence[str], Rows]:
        """Return the table of the task, if it has one."""
        details = self.answering.details(self.result)
        return ((), ()) if details is None else (details.headings, details.rows)


def run_evaluate(options: EvaluateOptions) -> Evaluation:
    """Evaluate a checkpoint, by default on the data that its run folder or export records.

    Each process that torchrun starts computes a part of the batches, and all of them get the same numbers.

    Raises:
        VitkitError: the model names no classes; the data is not there, has classes that the model lacks, or
            has no such split.
    """
    world = join_processes(options.listener.warn)
    if not world.writes:
        options = replace(options, listener=SILENT)  # process 0 speaks
    listener, place = options.listener, kind_of(options.path)
    take_threads(world)
    with lost_processes_explained(world):
        with prepared_together(world):
            ready = load_for_evaluation(options, place)
            data, split, trained_on = _open_images(ready, options)
        rejects: dict[str, str] = {}
        result, predictions = evaluate_split(
            ready.model,
            data,
            split,
            ready.device,
            rejects,
            batch_size=options.batch_size,
            workers=options.workers,
            worker_timeout=options.worker_timeout,
            precision=ready.precision,
            listener=listener,
            world=world,
        )
    model = ready.model
    answering, recorded = answering_of(model.card), card_of(model).data
    whole = not trained_on and split == "train" and list(data.splits) == ["train"]
    if world.writes and trained_on:
        others = () if parse_split(split)[0] == "train" else (split,)
        repeated = find_training_images(data, others, listener)
        result = with_repeats(result, predictions, repeated, split, answering, listener)
    elif world.writes and recorded is not None:
        rows = find_among_others(model, data.splits[split], listener)
        repeated = {} if rows is None else {split: rows}
        shown = data.name if whole else split
        where = f"the training images of {recorded.name}"
        result = with_repeats(result, predictions, repeated, split, answering, listener, shown, where)
    return Evaluation(
        split, data, answering, place, result, predictions, rejects, whole, trained_on, model.card
    )


def _open_images(ready: Ready, options: EvaluateOptions) -> tuple[ImageData, str, bool]:
    """Open the images of an evaluation; return the name of the split too, and whether the model was trained
    on this data.

    Raises:
        VitkitError: as `run_evaluate`.
    """
    model, listener = ready.model, options.listener
    reason = answering_of(model.card).explain_unfit(model.config)
    if reason:
        raise VitkitError(f"{options.path} {reason}.")
    with listener.progress("listing images"):
        data = open_model_data(model, options.data, options.max_pixels)
    if not model.card.class_names:
        listener.note(_match_by_order(str(options.path), model, data))
    trained_on = options.data is None or is_training_data(model.card, options.data)
    data, split = choose_split(data, options.split, options.data is not None, trained_on)
    return data, split, trained_on


def choose_split(data: ImageData, split: str | None, given: bool, trained_on: bool) -> tuple[ImageData, str]:
    """Choose the images of an evaluation.

    Args:
        data: images with their splits.
        split: the name of a split or of a part of one; None for test, else val, else all of other data.
        given: whether a person gave the data; else the model records it.
        trained_on: whether the model was trained on it.

    Returns:
        The data, cut to the part of a split that is named; and the name of the split.

    Raises:
        VitkitError: there is no such split.
    """
    if split is None:
        split = next((name for name in ("test", "val") if name in data.splits), None)
        if split is None and given:
            split = "train"  # data without splits
    if split is not None:
        name, part = parse_split(split)
        split = f"{name}{part or ''}"
        data = data.with_part(split)
    if split is None or split not in data.splits:
        raise VitkitError(_no_split(data, split, trained_on))
    return data, split


evaluate = from_options(EvaluateOptions)(run_evaluate)


def load_for_evaluation(options: MeasuringOptions, place: Place | None = None) -> Ready:
    """Load the model of an evaluation with its engine, device and precision, and log the notes on it.

    Args:
        options: the options of the evaluation.
        place: the path of the model and its kind, where it was looked at already.
    """
    ready = load_by_options(options, place or options.path, "evaluation")
    log_notes(options.path, ready.notes, ready.left_out)
    return ready


def find_among_others(model: Described, others: Images, listener: Listener) -> NDArray[np.int64] | None:
    """Return the rows of data that are training images of a model; None if they cannot be compared."""
    try:
        trained = open_model_data(model).splits["train"]
    except VitkitError:
        listener.note(
            "Nobody can say whether some of these images were trained on: the training images are not where "
            "they were, or have changed."
        )
        return None
    with listener.progress("looking for training images among these"):
        return repeats_of_training({"train": trained, "others": others}, ("others",)).get("others")


def keep_evaluation(options: EvaluateOptions, evaluation: Evaluation) -> Path | None:
    """Keep the evaluation of a run in its folder, if PyTorch computed its model unchanged.

    The report shows the numbers on the run's own images, and another evaluation of the run is compared with
    them. Numbers on other images go into a folder of their name, with a list of the mistakes.

    Returns:
        The folder that holds it; None if it is of another model or of a part of a split, if the run has not
        finished, or if its folder may not be written.
    """
    run, split = Path(options.path), evaluation.split
    if (
        options.engine not in (None, "torch")
        or evaluation.model.kind != "run"
        or split not in SPLITS
        or any(option is not None for option in (options.image_size, options.max_pixels))
    ):
        return None
    try:
        if options.data is not None and not evaluation.trained_on:
            name = name_other_images(run, evaluation.data)
            split = f"{name}/{'all' if evaluation.whole else split}"
            replace_json(run / "evaluation" / f"{split}.mistakes.json", list_mistakes(evaluation))
        write_evaluation(run, split, evaluation.result, evaluation.predictions)
    except OSError as error:  # somebody else's run, say: the numbers are printed all the same
        options.listener.note(f"Not kept in {run}: {error.strerror}.")
        return None
    except VitkitError as error:
        options.listener.note(f"Not kept: {error}")
        return None
    return (run / "evaluation" / f"{split}.json").parent


def list_mistakes(evaluation: Evaluation) -> list[dict[str, Any]]:
    """List the images on which a model is not wholly right, each with what the model takes for likeliest."""
    answering, predictions = evaluation.answering, evaluation.predictions
    samples, card = evaluation.data.splits[evaluation.split], evaluation.card
    return [
        {
            "image": samples.key(int(predictions.ids[row])),
            **answering.guess_json(answering.guesses(predictions.logits[row : row + 1], card, 1)[0]),
        }
        for row in np.flatnonzero(answering.score_images(predictions) < 1).tolist()
    ]


def _match_by_order(path: str, model: Described, data: ImageData) -> str:
    """Say that a model without class names takes the classes in alphabetical order.

    Raises:
        VitkitError: the model has another number of outputs.
    """
    names, outputs = data.class_names, model.config.num_classes
    shown = ", ".join(names[:NAMES_SHOWN]) + (", ..." if len(names) > NAMES_SHOWN else "")
    if len(names) != outputs:
        raise VitkitError(
            f"{path} has {outputs:,} outputs and no class names, and {data.spec} has {len(names):,} classes: "
            f"{shown}. Classes are matched to such outputs in alphabetical order, so there must be "
            "one for each output."
        )
    return (
        f"{path} has no class names: the classes of {data.spec} are matched to its outputs in alphabetical "
        f"order: {shown}."
    )


def _no_split(data: ImageData, split: str | None, trained_on: bool) -> str:
    """Say which split is missing, and how to choose another."""
    splits = list(data.splits)
    if splits == ["train"] and trained_on:
        return (
            f"{data.spec} has no {split or 'test or validation'} split: the model was trained on all of it. "
            "Give other images with --data, or evaluate on these with --split train."
        )
    if len(splits) == 1:
        whole = "it has no splits" if splits == ["train"] else f"its only split is {splits[0]}"
        return f"{data.spec} has no {split} split, {whole}. Leave out --split to evaluate on all of it."
    missing = split or "test or validation"
    return f"{data.spec} has no {missing} split, only {', '.join(splits)}. Choose one with --split."


def run_evaluate_protocol(options: ProtocolOptions) -> ProtocolResult:
    """Evaluate a model of ImageNet's classes by the protocol of a test set for such models.

    Raises:
        VitkitError: the model has other classes; or data or labels have another layout.
    """
    return run_protocol(options)[0]


evaluate_protocol = from_options(ProtocolOptions)(run_evaluate_protocol)


def run_protocol(options: ProtocolOptions) -> tuple[ProtocolResult, dict[str, str]]:
    """Evaluate a model by the protocol of the options.

    Returns:
        The numbers; and the key and reason of every image that could not be read.

    Raises:
        VitkitError: as `evaluate_protocol`.
    """
    name, listener = options.protocol, options.listener
    protocol, wnids = PROTOCOLS[name], imagenet_wnids()
    given = None if options.wnids is None else read_wnids(str(options.wnids))
    with listener.progress("listing images"):
        images = list_labelled(
            name, str(options.data), None if options.labels is None else str(options.labels)
        )
    ready = load_for_evaluation(options)
    model = ready.model
    reason = answering_of(model.card).explain_unfit(model.config)
    if reason:
        raise VitkitError(f"{options.path} {reason}.")
    names = model.card.class_names
    columns, note = outputs_of_classes(str(options.path), model.config.num_classes, names, given)
    candidates = np.array([wnids.index(wnid) for wnid in imagenet_wnids(protocol.mark)])
    rule = preprocessing_of(model).decode
    if options.max_pixels is not None:
        rule = replace(rule, max_pixels=options.max_pixels)
    # `count_right` looks the classes up: an image may have several right ones, which a label cannot say.
    labels = np.zeros(len(images.numbers), np.int64)
    samples = WithoutBorder(images.files, images.numbers, labels, rule, protocol.border)
    rejects: dict[str, str] = {}
    batches = evaluation_batches(
        samples,
        preprocessing_of(model),
        options.batch_size,
        options.workers,
        rejects,
        worker_timeout=options.worker_timeout,
    )
    with listener.progress(f"evaluating {name}", len(samples)) as progress:
        logits = run_model.predict(
            model,
            batches,
            device=ready.device,
            precision=ready.precision,
            columns=columns[candidates],
            progress=added_up(progress),
        )
    output_names = [names[column] for column in columns] if names and not is_wnid(names[columns[0]]) else []
    return count_right(
        name, images, logits.ids, five_likeliest(logits), candidates, note, output_names
    ), rejects

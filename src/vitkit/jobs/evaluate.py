"""Evaluate a model on images that it was not trained on.

The protocols by name are ImageNet's own validation images, ReaL, V2, -A, -R, -Sketch and ObjectNet.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from vitkit.config import to_json, write
from vitkit.data.config import PROTOCOLS, WORKER_TIMEOUT, ProtocolName, parse_split
from vitkit.data.decode.image import decode
from vitkit.data.layouts.image_paths import NamedImage, find_images
from vitkit.data.layouts.repeats import repeats_of_training
from vitkit.data.listing import SPLITS
from vitkit.data.sources import ImageData, Samples
from vitkit.data.stream.loader import evaluation_batches
from vitkit.errors import VitkitError
from vitkit.evaluation import protocols, run_model
from vitkit.evaluation.refusal import OthersRefused
from vitkit.jobs.engines import load_ready
from vitkit.jobs.options import ModelOptions, StrPath
from vitkit.jobs.predict import Predictor, predict_named
from vitkit.listener import AUTOMATIC, SILENT, Listener, added_up, hushed
from vitkit.models.config import Card
from vitkit.result import ROWS_SHOWN, Block, Plot, Result, Section, Text, unreadable
from vitkit.runs import processes, steps, trained_model
from vitkit.runs.folder import Place, kind_of
from vitkit.tasks import Answering, answering_of
from vitkit.tasks.page import REFUSED_SHOWN, Accepted, refusal_section
from vitkit.text import join_names
from vitkit.weights.model_card import Described, card_of
from vitkit.world import prepared_together


@dataclass(frozen=True, repr=False)
class Evaluation(Result):
    """The result of an evaluation."""

    split: str
    data: ImageData
    model: Place
    """The path of the model, and its kind."""
    result: Any
    """The numbers of the task: `vitkit.evaluation.classify.Classification` for classification."""
    predictions: Any
    """The predictions behind the numbers: `vitkit.evaluation.predictions.Predictions` for classification."""
    rejects: dict[str, str]
    """Key and reason of every unreadable image, which is counted and not scored."""
    trained_on: bool = True
    """Whether the model was trained on this data, `split` included or not."""
    card: Card = field(default_factory=Card)
    """The model's, which says what its outputs mean."""
    as_saved: bool = True
    """Whether PyTorch computed the model, with the image size and the limit of pixels it was saved with."""
    folder: Path | None = None
    """The folder that `keep_evaluation` kept it in."""
    page: Path | None = None
    others: OthersRefused | None = None
    """The images of something else that it refuses, where some were given."""
    accepted: Sequence[Accepted] = ()
    """Some of them that it does not refuse."""

    @property
    def answering(self) -> Answering:
        """The answering half of the model's task."""
        return answering_of(self.card)

    @property
    def whole(self) -> bool:
        """Whether the data has no splits and is not the training data: `split` is "train" and means all."""
        return is_whole(self.data, self.split, self.trained_on)

    @property
    def images(self) -> str:
        """The noun of the images: "test images of digits"."""
        return f"{'' if self.whole else f'{self.split} '}images of {self.data.name}"

    def heading(self) -> str:
        """Say which model was measured on which images."""
        return f"{self.model.path.name} on {self.images}"

    def headline(self) -> Sequence[str]:
        """Say the numbers in a sentence, as the command line prints them."""
        return (str(self.result.sentence(self.images)),)

    def sections(self) -> Sequence[Section]:
        """Return what the report of a run shows of its own images: classes, mistakes, calibration."""
        split = self.data.name if self.whole else self.split
        evaluated = {split: (self.result, self.predictions)}
        rejects = unreadable(self.rejects, "are excluded")
        sections = self.answering.report(evaluated, split, self.data.splits[self.split]).sections
        if self.others is not None:
            sections = (*sections, refusal_section(None, None, self.others, self.accepted))
        return (*sections, Section("Images that could not be read", rejects)) if rejects else sections

    def blocks(self) -> Sequence[Block]:
        """Return the numbers in a sentence, the figures of the page, the table of the task, if it has one,
        and unreadable images."""
        details = self.answering.details(self.result)
        tables = () if details is None else (replace(details, most=ROWS_SHOWN),)
        plots = [block for section in self.sections() for block in section.blocks if isinstance(block, Plot)]
        rejects, files = unreadable(self.rejects, "are excluded"), []
        model = shlex.quote(self.model.name)
        if self.page is not None:
            is_own = self.page.parent == self.folder
            linked = f" (vitkit report {model} writes the run's own with a link to it)" if is_own else ""
            files.append(f"Page: {self.page}{linked}")
        if self.folder is not None:
            what = "" if self.trained_on else ": every class and confusion, and which images were mistaken"
            files.append(f"Kept in {self.folder}{what}.")
        refused = [] if self.others is None else [f"Refused: {self.others.sentence()}."]
        return [Text(self.summary(), "answer"), *refused, *plots, *tables, *rejects, *files]

    def following(self) -> Sequence[str]:
        """Return the command that makes use of the numbers, or of the model."""
        model = shlex.quote(self.model.name)
        if self.folder is not None and self.trained_on:
            return (f"vitkit report {model}",)
        return (f"vitkit predict {model} IMAGE_OR_FOLDER",)

    def to_json(self) -> dict[str, Any]:
        """Return the numbers, and what they are of."""
        return {
            "model": self.model.name,
            "data": self.data.name,
            "split": "all" if self.whole else self.split,
            "rejects": self.rejects,
            "kept_in": None if self.folder is None else str(self.folder),
            "page": None if self.page is None else str(self.page),
            **({} if self.others is None else {"others": to_json(self.others)}),
            **self.result.to_json(),
        }


def evaluate(
    path: StrPath,
    data: StrPath | None = None,
    *,
    split: str | None = None,
    others: StrPath | None = None,
    refuse: float | None = None,
    batch_size: int = 128,
    workers: int = 0,
    worker_timeout: float = WORKER_TIMEOUT,
    quiet: bool = False,
    listener: Listener = AUTOMATIC,
    **model: Unpack[ModelOptions],
) -> Evaluation:
    """Evaluate a model on images it was not trained on.

    Args:
        path: a run folder, any checkpoint that `vitkit convert` reads, or a folder of `vitkit export`.
        data: other images than the model's own: "digits", a folder, a .csv or .parquet files. Classes are
            matched by name.
        split: images to evaluate on: test, val or train, or a part of them such as "test[:10%]" or
            "train[-500:]", which has the same fraction of every class; left out, test if there is one.
        others: images of something else, such as a folder of photos, none of which is of the model's classes:
            how many of them it refuses is measured too.
        refuse: share of the model's own images that may be refused, as for `vitkit.predict_images`.
        batch_size: images that are computed at a time.
        workers: processes that decode images; with 0 the main process decodes.
        worker_timeout: seconds to wait for a batch before the process that loads it is considered stuck; 0
            waits for ever.
        quiet: print nothing but warnings.
        listener: hears the progress and remarks; left out, a notebook shows them and a script is silent.
        model: how the model is read and computed, as `vitkit.jobs.options.ModelOptions` describes it.

    Returns:
        The numbers. Each process that torchrun starts computes a part of the batches, and all of them get
        the same numbers.

    Raises:
        VitkitError: the model names no classes; the data is not there, has classes that the model lacks, or
            has no such split.
    """
    listener, data = hushed(listener, quiet), None if data is None else str(data)
    world, place = processes.join_processes(listener.warn), kind_of(path)
    listener = listener if world.writes else SILENT  # process 0 speaks
    processes.divide_threads(world)
    with processes.lost_processes_explained(world):
        with prepared_together(world):
            ready = load_ready(place, "evaluation", **model)
            if refuse is not None and others is None:
                raise VitkitError(
                    "refuse (--refuse) is for others (--others): give images of something else."
                )
            predictor, named = None, list[NamedImage]()
            if others is not None:
                predictor = Predictor(ready, refuse=refuse)
                predictor.require_refusal()
                with listener.progress("listing other images"):
                    named = list(find_images((str(others),)))
            with listener.progress("listing images"):
                images = trained_model.open_model_data(ready.model, data, ready.preprocessing.decode)
            require_class_for_each_output(place.name, ready.model, images)
            if not ready.model.card.class_names:
                listener.note(
                    f"{place.name} has no class names: the classes of {images.spec} are matched to its "
                    f"outputs in alphabetical order: {join_names(images.class_names)}."
                )
            is_own = data is None or trained_model.is_training_data(ready.model.card, data)
            images, split = choose_split(images, split, data is not None, is_own)
        rejects: dict[str, str] = {}
        loading: Any = {"batch_size": batch_size, "workers": workers, "worker_timeout": worker_timeout}
        result, predictions = steps.evaluate_split(
            ready.model,
            images,
            split,
            ready.device,
            rejects,
            **loading,
            precision=ready.precision,
            listener=listener,
            world=world,
            own=is_own,
        )
    if world.writes:
        result = without_training_images(
            ready.model, images, split, is_own, result, predictions, listener, place.path
        )
    refused, accepted = None, list[Accepted]()
    if world.writes and others is not None and predictor is not None:
        refused, accepted = measure_others(predictor, others, named, batch_size, listener)
    options = model.get("image_size"), model.get("max_pixels")
    return Evaluation(
        others=refused,
        accepted=accepted,
        split=split,
        data=images,
        model=place,
        result=result,
        predictions=predictions,
        rejects=rejects,
        trained_on=is_own,
        card=ready.model.card,
        as_saved=model.get("engine") in (None, "torch") and options == (None, None),
    )


def require_class_for_each_output(name: str, model: Described, images: ImageData) -> None:
    """Refuse images of another number of classes than a model without class names has outputs.

    Args:
        name: the model's, as it was given.
        model: with its card.
        images: to evaluate it on.
    """
    names, outputs = images.class_names, model.config.num_classes
    if not model.card.class_names and len(names) != outputs:
        raise VitkitError(
            f"{name} has {outputs:,} outputs and no class names, and {images.spec} has {len(names):,} "
            f"classes: {join_names(names)}. Classes are matched to such outputs in alphabetical order, so "
            "there must be one for each output. Give other images with --data."
        )


def measure_others(
    predictor: Predictor, others: StrPath, named: Sequence[NamedImage], batch_size: int, listener: Listener
) -> tuple[OthersRefused, list[Accepted]]:
    """Count how many images of something else a model refuses.

    Args:
        predictor: the model.
        others, named: the path of the images, and the images in it.
        batch_size, listener: as for `evaluate`.

    Returns:
        The count, and some that are not refused, the most typical first: name, guess and pixels.

    Raises:
        VitkitError: there is no image, or none can be read.
    """
    with listener.progress("predicting other images", len(named)) as progress:
        predicted = list(predict_named(predictor, named, 1, batch_size, progress))
    readable = [row for row, image in enumerate(predicted) if image.reason is None]
    if not readable:
        reason = f" ({predicted[0].reason})" if predicted else ""
        raise VitkitError(f"No image in {others} can be read{reason}: give a folder of images.")
    missed = [row for row in readable if not predicted[row].guesses.refused]
    missed.sort(key=lambda row: -(predicted[row].guesses.typicality or 0))
    rule, accepted = predictor.preprocessing.decode, list[Accepted]()
    for row in missed[:REFUSED_SHOWN]:
        guess = predicted[row].guesses[0]
        pixels = decode(named[row].content(), rule)
        accepted.append((predicted[row].name, f"{guess.name} {guess.probability:.1%}", pixels))
    count = len(readable) - len(missed)
    unreadable = len(predicted) - len(readable)
    return OthersRefused(Path(others).name, len(readable), count, predictor.refuse, unreadable), accepted


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
    if split is not None and split in data.splits:
        return data, split
    splits, missing = list(data.splits), split or "test or validation"
    instead = f", only {', '.join(splits)}. Choose one with --split."
    if splits == ["train"] and trained_on:
        instead = (
            ": the model was trained on all of it. Give other images with --data, or evaluate on these with "
            "--split train."
        )
    elif len(splits) == 1:
        whole = "it has no splits" if splits == ["train"] else f"its only split is {splits[0]}"
        instead = f", {whole}. Leave out --split to evaluate on all of it."
    raise VitkitError(f"{data.spec} has no {missing} split{instead}")


def is_whole(data: ImageData, split: str, trained_on: bool) -> bool:
    """Whether a split is all of the data: it has no splits, and is not the data that was trained on."""
    return not trained_on and split == "train" and list(data.splits) == ["train"]


def without_training_images(
    model: Described,
    images: ImageData,
    split: str,
    trained_on: bool,
    result: Any,
    predictions: Any,
    listener: Listener,
    folder: Path,
) -> Any:
    """Add the numbers without the images that the model was trained on, and warn of them.

    Args:
        model: with its card.
        images, split: that were evaluated.
        trained_on: whether the model was trained on this data.
        result, predictions: the numbers, and what they are counted from.
        listener: is warned, also where the training images cannot be compared.
        folder: of the model; a head in closed form has the hashes of its images in it.
    """
    answering, recorded = answering_of(model.card), card_of(model).data
    is_training = trained_on and parse_split(split)[0] == "train"
    # What `vitkit extend` added may be of any split, and of any data.
    of_head = None if is_training else _images_of_head(model, folder, images.splits[split], listener)
    shown, where = images.name if is_whole(images, split, trained_on) else split, "the images of its head"
    if trained_on:
        others = () if is_training else (split,)
        with listener.progress("looking for training images among the others"):
            repeated = repeats_of_training(images.splits, others, images.same, images.shared.digests)
        rows = repeated.get(split, np.array([], np.int64))
        if of_head is None or np.isin(of_head, rows).all():
            return steps.with_repeats(result, predictions, repeated, split, answering, listener)
        of_head = np.union1d(rows, of_head)
    if of_head is not None:
        repeated = {split: of_head}
        return steps.with_repeats(result, predictions, repeated, split, answering, listener, shown, where)
    if recorded is None:
        return result
    try:
        trained = trained_model.open_model_data(model).splits["train"]
    except VitkitError:
        listener.note(
            "Nobody can say whether some of these images were trained on: the training images are not where "
            "they were, or have changed."
        )
        return result
    with listener.progress("looking for training images among these"):
        alike = repeats_of_training({"train": trained, "others": images.splits[split]}, ("others",))
    where = f"the training images of {recorded.name}"
    repeated = {split: alike["others"]} if alike else {}
    return steps.with_repeats(result, predictions, repeated, split, answering, listener, shown, where)


def _images_of_head(
    model: Described, folder: Path, samples: Samples, listener: Listener
) -> NDArray[np.int64] | None:
    """Find the images that a head in closed form was solved from; None where that cannot be told."""
    from vitkit.models.image_model import ImageModel  # it imports torch, for which no exported model waits
    from vitkit.runs import closed_form

    if closed_form.HEAD not in card_of(model).origin or not isinstance(model, ImageModel):
        return None
    try:
        learned = closed_form.read_model(folder)[1].classes_by_hash()
    except VitkitError:  # its images were left behind, say
        return None
    return np.flatnonzero([digest in learned for digest in closed_form.hash_images(samples, listener)])


def keep_evaluation(evaluation: Evaluation, listener: Listener = AUTOMATIC) -> Path | None:
    """Keep the evaluation of a run in its folder, if PyTorch computed its model unchanged.

    The report shows the numbers on the run's own images, and another evaluation of the run is compared with
    them. Numbers on other images go into a folder of their name, with a list of the mistakes.

    Returns:
        The folder that holds it; None if it is of another model or of a part of a split, if the run has not
        finished, or if its folder may not be written.
    """
    run, split = evaluation.model.path, evaluation.split
    if not evaluation.as_saved or evaluation.model.kind != "run" or split not in SPLITS:
        return None
    try:
        if not evaluation.trained_on:
            name = trained_model.name_other_images(run, evaluation.data)
            split = f"{name}/{'all' if evaluation.whole else split}"
            answering, predictions = evaluation.answering, evaluation.predictions
            samples, card = evaluation.data.splits[evaluation.split], evaluation.card
            # The images on which the model is not wholly right, with what it takes for likeliest.
            rows = np.flatnonzero(answering.score_images(predictions) < 1).tolist()
            names = (samples.key(int(predictions.ids[row])) for row in rows)
            guesses = (answering.guesses(predictions.logits[row : row + 1], card, 1)[0] for row in rows)
            guessed = zip(names, map(answering.guess_json, guesses), strict=True)
            mistakes = [{"image": name, **guess} for name, guess in guessed]
            write(run / "evaluation" / f"{split}.mistakes.json", mistakes)
        trained_model.write_evaluation(run, split, evaluation.result, evaluation.predictions)
    except (OSError, VitkitError) as error:  # somebody else's run, say: the numbers are printed all the same
        reason = f" in {run}: {error.strerror}." if isinstance(error, OSError) else f": {error}"
        listener.note(f"Not kept{reason}")
        return None
    return (run / "evaluation" / f"{split}.json").parent


def keep_with_page(
    evaluation: "Evaluation", *, out: StrPath | None = None, listener: Listener = AUTOMATIC
) -> "Evaluation":
    """Keep an evaluation, and write its page: how good the model is, where it fails, and whether it is sure.

    Args:
        evaluation: the numbers and the images.
        out: file for the page of the numbers and the mistakes; left out, one is written below the run folder
            where the images are not the run's own, or others were measured, and its report links it.
        listener: hears why it cannot be kept.

    Returns:
        The same, with its folder and its page; the page of the run's own images is the report.
    """
    folder = keep_evaluation(evaluation, listener)
    others = evaluation.others
    if out is None and (folder is None or (evaluation.trained_on and others is None)):
        return replace(evaluation, folder=folder)
    name = "all" if evaluation.whole else evaluation.split
    if evaluation.trained_on and others is not None:  # beside the report, which links it
        name = f"others/{others.name}"
    path = Path(out or Path(folder or "") / f"{name}.html")
    from vitkit.report.template import write_page  # it imports jinja2, for which no evaluation waits

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return replace(evaluation, folder=folder, page=write_page(evaluation, path))
    except OSError as error:  # a full disk, say: the numbers are printed all the same
        listener.warn(f"No page is written to {path}: {error.strerror or error}.")
        return replace(evaluation, folder=folder)


def evaluate_protocol(
    path: StrPath,
    data: StrPath,
    protocol: ProtocolName,
    *,
    labels: StrPath | None = None,
    wnids: StrPath | None = None,
    batch_size: int = 128,
    workers: int = 0,
    worker_timeout: float = WORKER_TIMEOUT,
    quiet: bool = False,
    listener: Listener = AUTOMATIC,
    **model: Unpack[ModelOptions],
) -> protocols.ProtocolResult:
    """Evaluate a model of ImageNet's classes by the protocol of a test set for such models.

    Args:
        path, batch_size, workers, worker_timeout, quiet, listener, model: as for `vitkit.evaluate`.
        data: the folder of the test set's images.
        protocol: test set by whose rules the images are scored, for models of ImageNet's classes.
        labels: with a protocol, real.json of imagenet-real or the folder mappings of objectnet; left out,
            beside the images.
        wnids: with a protocol, the WordNet ids of the model's outputs in order: a file with an id at the
            beginning of each line, or a folder of class folders; left out, the model's class names or
            ImageNet's usual order.

    Raises:
        VitkitError: the model has other classes; or data or labels have another layout.

    Unstable: its parameters and what it returns may change in any release.
    """
    listener, place = hushed(listener, quiet), kind_of(path)
    rules, all_wnids = PROTOCOLS[protocol], protocols.imagenet_wnids()
    given = None if wnids is None else protocols.read_wnids(str(wnids))
    with listener.progress("listing images"):
        images = protocols.list_labelled(protocol, str(data), None if labels is None else str(labels))
    ready = load_ready(place, "evaluation", **model)
    names = ready.model.card.class_names
    columns, note = protocols.outputs_of_classes(place.name, ready.model.config.num_classes, names, given)
    candidates = np.array([all_wnids.index(wnid) for wnid in protocols.imagenet_wnids(rules.mark)])
    rule = ready.preprocessing
    # `count_right` looks the classes up: an image may have several right ones, which a label cannot say.
    unlabelled = np.zeros(len(images.numbers), np.int64)
    samples = Samples(images.files, images.numbers, unlabelled, rule.decode, border=rules.border)
    rejects: dict[str, str] = {}
    batches = evaluation_batches(samples, rule, batch_size, workers, rejects, worker_timeout=worker_timeout)
    computing: Any = {"device": ready.device, "precision": ready.precision, "columns": columns[candidates]}
    with listener.progress(f"evaluating {protocol}", len(samples)) as progress:
        logits = run_model.predict(ready.model, batches, **computing, progress=added_up(progress))
    is_named = bool(names) and not protocols.is_wnid(names[columns[0]])
    output_names = [names[column] for column in columns] if is_named else []
    likeliest = protocols.five_likeliest(logits)
    counted = protocols.count_right(protocol, images, logits.ids, likeliest, candidates, note, output_names)
    return replace(counted, rejects=rejects)

"""Compare two models on the same images.

The folder of a comparison:

study.json                  the split, and the hashes of the images and the models: a study without arms
speeds.json                 the speeds that were measured
first/evaluation/, second/evaluation/   numbers and logits of evaluations made for the comparison
report.html

The same command again reads what is there, and ends with the same page.
"""

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, Unpack

import numpy as np
import torch

from vitkit.config import IN_MEMORY_ALONE, read, write
from vitkit.data.config import parse_split
from vitkit.data.sources import ImageData, Samples
from vitkit.data.stream.loader import evaluation_batches
from vitkit.durable import hash_file, remove_leftovers
from vitkit.engines.folder import EngineModel, read_description_of
from vitkit.engines.libraries import DESCRIPTION
from vitkit.errors import VitkitError
from vitkit.evaluation import run_model, statistics
from vitkit.evaluation.features import FeatureExtractor
from vitkit.jobs import bench, evaluate
from vitkit.jobs.engines import Ready, load_ready
from vitkit.jobs.options import MachineOptions, StrPath, StudyOptions, require_at_least
from vitkit.jobs.study import study
from vitkit.listener import Listener
from vitkit.models.config import Precision, TaskName
from vitkit.models.measure import forward_flops, parameters
from vitkit.result import Block, Caption, Cell, Number, Photo, Photos, Plot, Section, Table, Text
from vitkit.runs.config import changed_options, name_options, parse_run, read_config
from vitkit.runs.folder import Place, kind_of, numbered_folders, require_folder
from vitkit.runs.machine import require_threads
from vitkit.runs.series_record import explain_no_model, read_series
from vitkit.runs.steps import evaluate_split
from vitkit.runs.timing import Clock, use_threads
from vitkit.runs.trained_model import is_training_data, open_model_data, write_evaluation
from vitkit.tasks import Answering, answering_of, find_task, task_of
from vitkit.tasks.page import count_cell, describe_images, photos_of, points, shown_p, shown_score
from vitkit.text import distinct_ends, format_count, format_size, join_names, pluralize, without_places
from vitkit.weights.model_card import card_of, preprocessing_of

KIND = "comparison"
SPEEDS = "speeds.json"
PARTS = ("first", "second")
"""The folders of the two evaluations in the folder of the comparison."""
SPEED_BATCH = 32
"""Images of a timed batch: enough for the speed of large batches, and few enough for several rounds of a
large model within seconds."""

CONFIRMED_BY = 16
"""Images by which a stored evaluation is compared with the model: enough to notice other weights."""
LOGIT_SLACK = 0.05
"""Mean distance between stored and newly computed logits, over the standard deviation of the stored ones, up
to which only the numerics are taken to differ. bfloat16 moved the logits of ViT-64x4x4/4 on digits by 0.002,
and another seed of the same training by 0.12 to 0.14 (a Xeon with AMX, 23 November 2026)."""


CLASSES_SHOWN = 6
"""Classes whose accuracy changed most that a terminal shows; the page has all."""
CLASSES_NAMED = 10
"""The most classes that a sentence names; the table has every class."""
PICTURES_SHOWN = 12
"""The most images on which one model alone is right that the page shows."""
CLASSES_DRAWN = 30
"""The most bars of the drawing by class; the table has every class."""
ABOUT_INTERVALS = Caption(
    "95 % intervals in parentheses are each about one model: whether the two differ is said above, by image."
)
ABOUT_CLASSES = Caption(
    "Difference in points, and the images that one model alone is right on. p: McNemar's exact test within "
    "the class, by Holm over all classes: there is a difference below 0.05. Click a heading to sort."
)
ABOUT_SURENESS = Caption(
    "Images in 15 bins of equal width by confidence (the probability of the predicted class): the fraction "
    "that is right, with its 95 % interval, at the bin's mean confidence. Points below the dashed line: too "
    "sure. Below: how many images have which confidence."
)


@dataclass(frozen=True)
class Side:
    """One of the two models."""

    given: str
    """The path or name that a person gave."""
    label: str
    """Its name in tables and sentences."""
    model: str
    """The name of its architecture."""
    image_size: tuple[int, int]
    """Height and width in pixels."""
    parameters: int
    forward_flops: int
    """FLOPs of the forward pass of one image, with the head."""
    score: float
    """The mean score of the images, from 0 to 1."""
    numbers: Any
    """All numbers of its evaluation, which vitkit evaluate --json prints."""
    was_stored: bool
    """Whether its evaluation was read from its run folder; else it was made for the comparison."""
    trained_on_tested: int | None
    """Number of tested images that it was trained on, pixel for pixel; None without its training images."""
    predictions: Any = field(compare=False, metadata=IN_MEMORY_ALONE)


@dataclass(frozen=True)
class ClassChange:
    """The images of a class under both models."""

    name: str
    count: int
    """Images of the class; all images, where an image has several labels."""
    first: float
    """The fraction of them that the first model gets right."""
    second: float
    flips: statistics.Flips
    adjusted_p: float
    """The p of its flips, adjusted by Holm's method over all classes."""

    @property
    def gain(self) -> float:
        """Return the second model's fraction minus the first model's."""
        return self.second - self.first


@dataclass(frozen=True, repr=False)
class ModelComparison(study.StudyResult):
    """Two models on the same test images."""

    task: TaskName
    score: str
    """The name of the mean score of the images: accuracy."""
    data: str
    """The name of the data set."""
    split: str
    """Empty where the data has no splits and all of it is tested."""
    images: int
    unreadable: int
    first: Side
    second: Side
    difference: statistics.ModelDifference
    """The second model's score minus the first model's, of these two sets of weights, over the images."""
    classes: tuple[ClassChange, ...]
    """The classes with images, in the order of the first model."""
    speeds: bench.Bench | None
    """The speed of both, measured in turns on one machine; None where none was measured."""
    options: tuple[str, ...] | None
    """The options in which the two runs differ: "--seed 0 -> 1"; None where one of them is no run."""
    notes: tuple[str, ...]
    """Sentences that belong to the result, such as which run of a series was taken."""
    samples: Samples = field(compare=False, metadata=IN_MEMORY_ALONE)
    """The images."""

    @property
    def labels(self) -> tuple[str, str]:
        """The names of the two models."""
        return self.first.label, self.second.label

    @property
    def tested(self) -> str:
        """Describe the images: "360 test images of digits"."""
        images = describe_images(self.images, self.split) if self.split else pluralize(self.images, "image")
        return f"{images} of {self.data}"

    def heading(self) -> str:
        """Name the two models and the images."""
        return f"{self.second.label} beside {self.first.label} on {self.tested}"

    def headline(self) -> Sequence[str]:
        """Say the conclusions in sentences, the answer first."""
        flips, (first, second) = self.difference.flips, self.labels
        neither = self.images - flips.first_only - flips.second_only - flips.both_right
        of_images = (
            f"{first} alone is right on {pluralize(flips.first_only, 'image')}, {second} alone on "
            f"{flips.second_only:,}; both are right on {flips.both_right:,}, neither on {neither:,}."
        )
        if flips.graded:
            of_images = (
                f"{first} is better on {pluralize(flips.first_only, 'image')}, {second} on "
                f"{flips.second_only:,}; both are wholly right on {flips.both_right:,}."
            )
        sentences = [_difference(self), of_images]
        if len(self.classes) > 1:
            sentences.append(_classes(self))
        sides = self.first, self.second
        is_fair = self.first.trained_on_tested == self.second.trained_on_tested
        for side in sides:
            if side.trained_on_tested is None:
                sentences.append(f"Whether {side.label} was trained on some of these images is not known.")
            elif side.trained_on_tested:
                sentences.append(
                    f"{side.label} was trained on {side.trained_on_tested:,} of these images, pixel for "
                    f"pixel: its figures are too good{'' if is_fair else ', and the comparison is unfair'}."
                )
        if self.split.startswith("val"):
            sentences.append(
                "These are validation images: if they helped to choose a model or its settings, its figures "
                "are too good."
            )
        stored = " and of ".join(side.label for side in sides if side.was_stored)
        if stored:
            sentences.append(f"Read from the run folder, and not computed again: the evaluation of {stored}.")
        sentences.append(
            "All of this is about these two sets of weights: another training with another seed would give "
            "others (vitkit ablate compares ways to train over seeds)."
        )
        return [*sentences, *self.notes]

    def summary(self) -> str:
        """Give the answer."""
        return self.headline()[0]

    def sections(self) -> Sequence[Section]:
        """Return both models side by side, image by image and class by class, and their options."""
        answering = find_task(self.task).answering
        assert answering is not None  # both were evaluated
        sureness = answering.compare_sureness(self.first.numbers, self.second.numbers, self.labels)
        speed = None
        if self.speeds is not None:
            on, (_, second) = self.speeds.machine, self.speeds.records
            low, high = second.ratio_quartiles
            speed = (
                f"{self.second.label} computes {second.ratio:.2f} times as many images per second as "
                f"{self.first.label} (middle half of {second.rounds} rounds: {low:.2f} to {high:.2f}), by "
                f"{on['clock']}, in turns, in batches of {second.batch_size}, on {on['device']} with "
                f"{pluralize(on['threads'], 'thread')}."
            )
        parts = [
            Section("Side by side", (measure_table(self, answering), ABOUT_INTERVALS, speed)),
            *(_flipped(self, answering, number) for number in (0, 1)),
            Section("Class by class", (*_draw_classes(self), class_table(self), ABOUT_CLASSES)),
        ]
        if sureness is not None:
            title = "Are they as sure as they should be?"
            parts.append(Section(title, (sureness, ABOUT_SURENESS), page_only=True))
        if self.options:
            lines = (line.split(" ", 1) for line in self.options)
            rows = tuple((name, *values.split(" -> ", 1)) for name, values in lines)
            options: Block = Table(("option", *self.labels), rows, left=range(3))
        elif self.options is None:
            options = "At least one of the two is no run, so that its options are not recorded."
        else:
            options = "The two were trained with the same options."
        return [*parts, Section("Options that differ", (options,))]

    def following(self) -> Sequence[str]:
        """Name the page, and the command that uses the better model."""
        better = self.second if self.difference.mean > 0 else self.first
        predict = f"vitkit predict {shlex.quote(better.given)} IMAGE_OR_FOLDER"
        return [*super().following(), *([predict] if self.difference.differs else [])]


@dataclass(frozen=True)
class Contender:
    """A model that is compared, ready to compute."""

    given: str
    """The path or name that a person gave."""
    label: str
    """Its name in tables and sentences."""
    place: Place
    """The path of the model itself; where a series was given, its first run."""
    ready: Ready
    note: str = ""
    """A sentence on the run of a series that was taken; empty where a model was given."""

    def fingerprint(self) -> str:
        """Hash everything beside the images that the logits depend on."""
        model = self.ready.model
        if isinstance(model, EngineModel):  # the description holds the hashes of the graph's files
            return hash_file(self.place.path / DESCRIPTION)[1]
        device: Any = self.ready.device
        extractor = FeatureExtractor(model, preprocessing_of(model), device, self.ready.precision)
        return extractor.fingerprint(head=True)


Pair: TypeAlias = tuple[Contender, Contender]


@dataclass(frozen=True)
class Tested:
    """The images that both models are tested on."""

    split: str
    name: str
    """The name of the data set."""
    whole: bool
    """Whether the data has no splits and is not the training data: `split` is "train" and means all."""
    fingerprint: str
    """The hash of all keys and labels of the data set."""
    data: tuple[ImageData, ImageData]
    """The images with the classes and the decoding rule of each model."""


def compare(
    first: StrPath,
    second: StrPath,
    data: str | None = None,
    *,
    split: str | None = None,
    out: StrPath | None = None,
    speed_seconds: float = 5.0,
    batch_size: int = 128,
    workers: int = 0,
    precision: Precision = "auto",
    command: str = "vitkit.compare(...)",
    **machine: Unpack[MachineOptions],
) -> ModelComparison:
    """Compare two models on the same images: which is better, how sure that is, and where they differ.

    The stored evaluations of two runs are read if they are of the same test images; otherwise, or with other
    images, both models are evaluated with the same loader, each with its own preprocessing. A page is written
    into the folder of the comparison, with pictures of the images that one model alone gets right. The same
    call goes on with a comparison that was stopped.

    Args:
        first: a run folder, a series, any checkpoint, a folder of vitkit export, an address or a published
            name.
        second: another model of the same classes; differences are its numbers minus the first model's.
        data: images to test on: digits, a folder, a .csv or .parquet files; left out, the images of the first
            model that records its own.
        split: images that both are tested on: test, val or train, or a part of them such as "test[:10%]";
            left out, test if there is one.
        out: folder of the page and of the evaluations; left out, runs/compare-FIRST-SECOND.
        speed_seconds: seconds for which the speed of both is measured, in turns; 0 measures none.
        batch_size: images that are computed at a time.
        workers: processes that decode images; with 0 the main process decodes.
        precision: number format of the computation: float32, bfloat16, or auto: bfloat16 on a GPU that has
            it, else float32.
        command: makes the comparison again; its record has it.
        machine: what computes, and who hears of it: `device`, `threads`, `quiet` and `listener`.

    Raises:
        VitkitError: a model or the images are not there; the two models differ in task or classes, or could
            not read the same images; or `out` holds something else.
    """
    require_at_least(0, workers=workers)
    require_at_least(1, batch_size=batch_size)
    if not 0 <= speed_seconds < math.inf:
        raise VitkitError(f"speed_seconds is 0 or more, found {speed_seconds}.")
    options = StudyOptions(command=command, **machine)
    require_threads(options.threads)
    given, listener = require_folder(out), options.listener
    with use_threads(options.threads):
        with listener.progress("loading the models"):
            pair = load_contenders(str(first), str(second), options.device, precision)
        with listener.progress("listing images"):
            tested = open_tested(pair, data, split)
        hashes = {"images": tested.fingerprint}
        for name, contender in zip(PARTS, pair, strict=True):
            hashes[f"weights, device or version of PyTorch of the {name} model"] = contender.fingerprint()
        begun = study.new_study(KIND, command, {"split": tested.split, "hashes": hashes}, ())
        # A label is a file or a folder of any depth, with any characters.
        labels = "-".join(re.sub(r"[^\w.+-]", "-", contender.label) for contender in pair)
        with begun.claim(given, partial(numbered_folders, "compare", labels)) as folder:
            first_side, second_side = (
                _evaluate(contender, own, tested, folder / name, batch_size, workers, listener)
                for name, contender, own in zip(PARTS, pair, tested.data, strict=True)
            )
            _require_same_answers(first_side, second_side, tested)
            speeds = read(bench.Bench, folder / SPEEDS) if speed_seconds else None
            if speed_seconds and (speeds is None or speeds.machine["threads"] != torch.get_num_threads()):
                speeds = _measure_speeds(pair, speed_seconds, listener)
                write(folder / SPEEDS, speeds.to_json())
            answering, differing = answering_of(pair[0].ready.model.card), None
            if all(contender.place.config is not None for contender in pair):
                there, here = (without_places(read_config(contender.place.path)) for contender in pair)
                recorded, run = str(pair[0].place.path / "config.json"), parse_run(here, pair[1].place.path)
                differing = tuple(name_options(changed_options(there["run"], recorded, run)))
            scores = (answering.score_images(side.predictions) for side in (first_side, second_side))
            comparison = ModelComparison(
                folder=folder,
                task=task_of(pair[0].ready.model.card).learning.name,
                score=answering.image_score,
                data=tested.name,
                split="" if tested.whole else tested.split,
                images=first_side.numbers.count,
                unreadable=first_side.numbers.bad,
                first=first_side,
                second=second_side,
                difference=statistics.model_difference(*scores),
                classes=compare_classes(answering, first_side, second_side),
                speeds=speeds,
                options=differing,
                notes=tuple(contender.note for contender in pair if contender.note),
                samples=tested.data[0].splits[tested.split],
            )
            with listener.progress("writing the page"):
                study.publish(comparison, (), options)
            return comparison


def _evaluate(
    contender: Contender,
    data: ImageData,
    tested: Tested,
    folder: Path,
    batch_size: int,
    workers: int,
    listener: Listener,
) -> Side:
    """Read the evaluation of a model from its run folder or from the comparison's; else make it.

    Args:
        contender: the model.
        data: the images with its classes and decoding rule.
        tested: what is tested of them.
        folder: the model's folder in the comparison's, which keeps an evaluation that is made.
        batch_size, workers, listener: as for `compare`.
    """
    model = contender.ready.model
    answering, recorded = answering_of(model.card), card_of(model).data
    is_own = recorded is not None and recorded.fingerprint == data.fingerprint()  # the same splits
    places = [contender.place.path] if is_own and contender.place.kind == "run" else []
    for place in (*places, folder):
        try:
            result, predictions = answering.read_evaluation(place / "evaluation" / f"{tested.split}.json")
            _refuse_outdated(contender.ready, data, tested.split, place, result, predictions, batch_size)
            break
        except FileNotFoundError:
            continue
        except VitkitError as error:
            listener.note(f"Evaluated again: {error}")
    else:
        place = folder
        listener.note(f"{contender.label} is evaluated on {tested.name}.")
        loading: Any = {"batch_size": batch_size, "workers": workers, "precision": contender.ready.precision}
        result, predictions = evaluate_split(
            model, data, tested.split, contender.ready.device, {}, **loading, listener=listener
        )
        result = evaluate.without_training_images(
            model, data, tested.split, is_own, result, predictions, listener, contender.place.path
        )
        folder.mkdir(exist_ok=True)
        write_evaluation(folder, tested.split, result, predictions)
        remove_leftovers(folder / "evaluation")  # a killed process leaves gigabytes of logits
    trained_on_tested = None if result.repeated is None else result.repeated.count
    if is_own and parse_split(tested.split)[0] == "train":
        trained_on_tested = result.count
    return Side(
        given=contender.given,
        label=contender.label,
        model=model.card.name,
        image_size=model.config.image_size,
        parameters=parameters(model.config),
        forward_flops=forward_flops(model.config, head=True),
        score=float(answering.score_images(predictions).mean()),
        numbers=result,
        was_stored=place != folder,
        trained_on_tested=trained_on_tested,
        predictions=predictions,
    )


def _refuse_outdated(
    ready: Ready, data: ImageData, split: str, place: Path, result: Any, predictions: Any, batch_size: int
) -> None:
    """Refuse a stored evaluation that is not of the images and weights that are there now.

    A folder that was given away may hold the evaluation of other weights than the ones beside it: some images
    are computed again.

    Raises:
        VitkitError: it is of other images, classes or weights.
    """
    samples, ids, refused = data.splits[split], predictions.ids, f"the evaluation in {place}"
    if (
        result.class_names != data.class_names
        or len(ids) + len(predictions.bad) != len(samples)
        or ids.max(initial=-1) >= len(samples)
        or not np.array_equal(predictions.labels, samples.labels[ids])
    ):
        raise VitkitError(f"{refused} is not of the {split} images and classes that are there now.")
    rows = np.unique(np.linspace(0, len(ids) - 1, CONFIRMED_BY).astype(np.int64))
    batches = evaluation_batches(samples, preprocessing_of(ready.model), batch_size, indices=ids[rows])
    stored = predictions.logits[rows]
    fresh = run_model.predict(
        ready.model, batches, loss=ready.model.card.loss, device=ready.device, precision=ready.precision
    )
    if (  # a file that has become unreadable has no row
        not np.array_equal(fresh.ids, ids[rows])
        or np.abs(fresh.logits - stored).mean() > LOGIT_SLACK * stored.std()
    ):
        raise VitkitError(f"{refused} differs from the model's answers now: its weights have been replaced.")


def _require_same_answers(first: Side, second: Side, tested: Tested) -> None:
    """Refuse the predictions of two models that could not read the same images."""
    ids, others = first.predictions.ids, second.predictions.ids
    if not np.array_equal(ids, others):
        raise VitkitError(
            f"The two models could not read the same {tested.split} images: "
            f"{len(np.setdiff1d(ids, others)):,} were read for {first.label} alone and "
            f"{len(np.setdiff1d(others, ids)):,} for {second.label} alone. Repair those files, or give "
            "other images with --data."
        )


def _measure_speeds(pair: Pair, seconds: float, listener: Listener) -> bench.Bench:
    """Time both models in turns, each on images of its own size and kind."""
    device = torch.device(pair[0].ready.device)
    clock = Clock(device, torch.get_num_threads())
    if any(isinstance(contender.ready.model, EngineModel) for contender in pair):
        clock = Clock(torch.device("cpu"), max(2, clock.threads))  # engines have threads of their own
    ways = []
    for name, contender in zip(PARTS, pair, strict=True):
        ready, generator = contender.ready, torch.Generator().manual_seed(0)
        config, is_engine = ready.model.config, isinstance(ready.model, EngineModel)
        precision: Any = read_description_of(contender.place.path).precision if is_engine else ready.precision
        shape = SPEED_BATCH, config.in_channels, *config.image_size
        images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        ways.append(bench.Contestant(name, "vitkit", precision, None, partial(_compute, ready, images)))
    with listener.progress("measuring the speed of both"):
        timed = bench.compare("", config, "inference", ways, PARTS[:1], images, clock, seconds, {})
        speeds = tuple(
            replace(speed, model=contender.label, image_size=contender.ready.model.config.image_size)
            for speed, contender in zip(timed, pair, strict=True)
        )
    machine = bench.describe_machine(device, torch.get_num_threads())
    return bench.Bench({**machine, "clock": clock.name}, speeds)


def _compute(ready: Ready, images: torch.Tensor, _: torch.Tensor) -> None:
    """Compute the logits of the model's own images, as an evaluation does; the last argument is not used."""
    with run_model.output_function(ready.model, torch.device(ready.device), ready.precision) as compute:
        compute(images)()


def load_contenders(first: str, second: str, device: str, precision: Precision) -> Pair:
    """Load the two models, which have to answer the same question.

    Raises:
        VitkitError: a model is not there or has no answers; or they have different tasks.
    """
    labelled = zip((first, second), make_labels(first, second), strict=True)
    left, right = (_load(given, label, device, precision) for given, label in labelled)
    tasks = [task_of(contender.ready.model.card).learning.name for contender in (left, right)]
    if tasks[0] != tasks[1]:
        raise VitkitError(
            f"Two models are compared by one task: {first} learned {tasks[0]} and {second} {tasks[1]}. Name "
            "two models of the same task."
        )
    return left, right


def make_labels(first: str, second: str) -> tuple[str, str]:
    """Shorten two paths to their last parts, as many as it takes to tell them apart."""
    label, other = distinct_ends((first, second))
    return (label, other) if label != other else (f"{label} (first)", f"{label} (second)")


def _load(given: str, label: str, device: str, precision: Precision) -> Contender:
    """Load a model; of a series, the first run's."""
    place, note = kind_of(given), ""
    if place.kind == "series":
        series = read_series(given)  # which has compared the names of folders with what its options make
        if not series.ended:
            raise VitkitError(explain_no_model(place.path, series))
        member = series.members[0]
        place = kind_of(place.path / member.folder)
        if len(series.members) > 1:
            note = (
                f"{label} is a series of {len(series.members)} runs: its first one, {member.folder}, stands "
                "for it. Over all seeds, vitkit ablate compares ways to train."
            )
    ready = load_ready(place, "evaluation", device=device, precision=precision)
    return Contender(given, label, place, ready, note)


def open_tested(pair: Pair, spec: str | None, split: str | None) -> Tested:
    """Open the images of a comparison, with the splits of the first model that was trained on them.

    Raises:
        VitkitError: no images are given and neither model records its own; the images are not there, or have
            other classes than the models; or there is no such split.
    """
    owners = [contender for contender in pair if card_of(contender.ready.model).data is not None]
    if spec is not None:
        owners = [owner for owner in owners if is_training_data(owner.ready.model.card, spec)]
    elif not owners:
        raise VitkitError(
            f"Neither {pair[0].given} nor {pair[1].given} says which images it was trained on: give "
            "images to test on with --data."
        )
    # Images that neither model was trained on: a model without class names decides the order of the classes.
    by_names = sorted(pair, key=lambda contender: bool(contender.ready.model.card.class_names))
    missing = list[VitkitError]()
    for opener in owners or by_names[:1]:
        try:
            images = open_model_data(opener.ready.model, spec)
            break
        except VitkitError as error:
            if spec is not None:
                raise
            missing.append(error)
    else:
        raise VitkitError(
            "A comparison needs the images, and they are not at hand: bring them back, or give others with "
            f"--data. {missing[0]}"
        )
    models = [contender.ready.model for contender in pair]
    names = [model.card.class_names or images.class_names for model in models]
    for contender, model in zip(pair, models, strict=True):
        evaluate.require_class_for_each_output(contender.given, model, images)
    extra = [sorted({*own} - {*others}) for own, others in (names, names[::-1])]
    if any(extra):
        sides = zip(pair, extra, strict=True)
        shown = [f"{contender.label} alone has {join_names(own, 5)}" for contender, own in sides if own]
        raise VitkitError(
            f"Two models are compared on the same classes, matched by their names: {'; '.join(shown)}. Name "
            "two models of the same classes."
        )
    images, chosen = evaluate.choose_split(images, split, spec is not None, bool(owners))
    whole = evaluate.is_whole(images, chosen, bool(owners))
    first, second = (
        images.seen_by(preprocessing_of(model).decode, own) for model, own in zip(models, names, strict=True)
    )
    return Tested(chosen, images.name, whole, images.fingerprint(), (first, second))


def compare_classes(answering: Answering, first: Side, second: Side) -> tuple[ClassChange, ...]:
    """Compare two models class by class, matched by name."""
    of_first, of_other = (
        answering.right_by_class(side.numbers, side.predictions) for side in (first, second)
    )
    present = ((name, right) for name, right in of_first.items() if len(right))
    pairs = {name: (right.astype(float), of_other[name].astype(float)) for name, right in present}
    flips = {name: statistics.count_flips(*pair) for name, pair in pairs.items()}
    adjusted = statistics.holm([change.p for change in flips.values()])
    return tuple(
        ClassChange(name, len(right), float(right.mean()), float(others.mean()), flips[name], p)
        for (name, (right, others)), p in zip(pairs.items(), adjusted, strict=True)
    )


def _difference(comparison: ModelComparison) -> str:
    """Say whether one model is better, by how much, and how sure that is."""
    (first, second), difference = comparison.labels, comparison.difference
    if not (difference.flips.first_only or difference.flips.second_only):
        return (
            f"No difference: {second} and {first} have the same {comparison.score} on every single one of "
            f"{comparison.tested}."
        )
    better = "better" if difference.mean > 0 else "worse"
    low, high = (points(comparison.images, value, signed=True) for value in difference.interval)
    gap = points(comparison.images, abs(difference.mean))
    size = f"{second} is {gap} points {better} than {first} in {comparison.score}"
    if difference.mean == 0:
        size = f"{second} and {first} have the same {comparison.score}"
    test = "Student's t of the images" if difference.flips.graded else "Bonett and Price's test"
    if difference.images < statistics.FEWEST_IMAGES:
        test = "sign test"
    sure = f"95 % interval of the difference {low} to {high} points; {test}, p {shown_p(difference.p)}"
    if difference.differs:
        return f"{size} on {comparison.tested} ({sure})."
    least = f"One of {points(comparison.images, difference.detectable)} points or more"
    would = f"{least} would have been found in 8 of 10 comparisons of this size."
    if difference.detectable >= 1:
        would = "These are too few images to find any difference."
    return f"No difference found: {size} on {comparison.tested} ({sure}). {would}"


def _classes(comparison: ModelComparison) -> str:
    """Say in which classes the two models differ, and by how many points, the largest change first."""
    changed = (change for change in comparison.classes if change.adjusted_p < statistics.SURE)
    sure = sorted(changed, key=lambda change: -abs(change.gain))
    over = f"McNemar's exact test of each of {len(comparison.classes):,} classes, p by Holm"
    if not sure:
        return f"In no single class was a difference found ({over})."
    changes = []
    for verb, gained in (("gained in", True), ("lost in", False)):
        named = [f"{c.name} ({100 * c.gain:+.1f} points)" for c in sure if (c.gain > 0) == gained]
        changes += [f"{verb} {join_names(named, CLASSES_NAMED)}"] if named else []
    return f"{comparison.second.label} {' and '.join(changes)} ({over})."


def measure_table(comparison: ModelComparison, answering: Answering) -> Table:
    """Make the table of both models side by side: numbers, calibration, architecture, speed."""
    sides = (comparison.first, comparison.second)
    values = [dict(answering.measures(side.numbers)) for side in sides]
    names = dict.fromkeys([*values[0], *values[1]])
    rows: list[tuple[str, ...]] = [
        *((name, *(value.get(name, "–") for value in values)) for name in names),
        ("model", *(side.model or "–" for side in sides)),
        ("image size", *(format_size(side.image_size) for side in sides)),
        ("parameters", *(format_count(side.parameters) for side in sides)),
        ("FLOPs of an image", *(format_count(side.forward_flops) for side in sides)),
    ]
    if comparison.speeds is not None:
        speeds = (f"{speed.images_per_second:,.0f}" for speed in comparison.speeds.records)
        rows.append(("images per second", *speeds))
    return Table(("", *comparison.labels), tuple(rows), left=range(3))


def class_table(comparison: ModelComparison) -> Table:
    """Make the table of the classes, those first that differ most surely."""
    rows: list[tuple[Cell, ...]] = []
    images = comparison.images
    for change in sorted(comparison.classes, key=lambda each: (each.adjusted_p, -abs(each.gain))):
        scores = (Number(shown_score(images, score), score) for score in (change.first, change.second))
        gain = Number(points(images, change.gain, signed=True), change.gain)
        p = Number(shown_p(change.adjusted_p), change.adjusted_p)
        counts = map(count_cell, (change.flips.first_only, change.flips.second_only, change.count))
        rows.append((change.name, *scores, gain, p, *counts))
    only = (f"only {label}" for label in comparison.labels)
    headings = ("class", *comparison.labels, "difference", "p by Holm", *only, "images")
    return Table(headings, tuple(rows), sortable=True, most=CLASSES_SHOWN)


def _flipped(comparison: ModelComparison, answering: Answering, better: int) -> Section:
    """Show the images on which the first (0) or the second (1) model is better."""
    sides, samples, labels = (comparison.first, comparison.second), comparison.samples, comparison.labels
    scores = [answering.score_images(side.predictions) for side in sides]
    rows = np.flatnonzero(scores[better] > scores[1 - better])
    verb = "is better" if comparison.difference.flips.graded else "alone is right"
    title = f"Images on which {labels[better]} {verb}"
    if not len(rows):
        return Section(title, ("There is none.",), page_only=True)

    def load() -> list[Photo]:
        answers = zip(*(answering.show(side.numbers, side.predictions, rows) for side in sides), strict=True)
        # A stable order, so that the same comparison shows the same pictures.
        surest = sorted(answers, key=lambda pair: -(pair[0].confidence + pair[1].confidence))
        of_key = {samples.key(pair[0].index): pair for pair in surest}
        photos = []
        for photo in photos_of(samples, (first for first, _ in surest), PICTURES_SHOWN):
            guesses = tuple(
                (label, answer.predicted, answer.confidence, number == better)
                for number, (label, answer) in enumerate(zip(labels, of_key[photo.key], strict=True))
            )
            photos.append(replace(photo, alt=f"An image of {photo.true}.", guesses=guesses))
        return photos

    caption = (
        f"{min(len(rows), PICTURES_SHOWN)} of {pluralize(len(rows), 'image')}, those first on which both "
        "models together are surest: the true class, what each model says and how sure it is, the file. "
        "Where both are sure and disagree, look at the label too."
    )
    return Section(title, (Photos(load), Caption(caption)), page_only=True)


def _draw_classes(comparison: ModelComparison) -> tuple[Plot | Text | None, ...]:
    """Draw the differences of the classes that differ most, with a caption; None where none does."""

    def moved(change: ClassChange) -> int:
        return change.flips.first_only + change.flips.second_only

    # A single image has no interval.
    changed = [change for change in comparison.classes if moved(change) and change.count > 1]
    drawn = sorted(changed, key=moved, reverse=True)[:CLASSES_DRAWN]
    differences = []
    for change in sorted(drawn, key=lambda change: (change.gain, change.name)):
        flips = change.flips.first_only, change.flips.second_only, change.count
        differences.append((change.name, change.gain, statistics.bonett_price(*flips)[0]))
    which = "" if len(drawn) == len(changed) else f" of the {len(drawn)} classes with most changed images"
    caption = f"The differences{which} in points, with their 95 % intervals, the largest loss first."
    axis = f"{comparison.second.label} less {comparison.first.label}, in points"
    return study.draw_differences(differences, axis, caption), Caption(caption) if drawn else None

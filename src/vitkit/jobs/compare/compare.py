"""Compare two models on the same images.

The folder of a comparison:

compare.json                what is compared, by hashes, and the speeds that were measured
first/evaluation/, second/evaluation/   numbers and logits of evaluations made for the comparison
report.html

The same command again reads what is there, and ends with the same page.
"""

import itertools
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from vitkit._version import __version__
from vitkit.config import read, write
from vitkit.data.config import parse_split
from vitkit.data.sources import ImageData
from vitkit.data.stream.loader import evaluation_batches
from vitkit.durable import hash_file, remove_leftovers
from vitkit.engines.libraries import DESCRIPTION
from vitkit.engines.runners import EngineModel
from vitkit.errors import VitkitError
from vitkit.evaluation import run_model
from vitkit.evaluation.features import FeatureExtractor
from vitkit.evaluation.paired import model_difference
from vitkit.jobs.compare.result import ModelComparison, Side, Speeds, compare_classes
from vitkit.jobs.engines import Ready, load_ready
from vitkit.jobs.evaluate import choose_split, is_whole, without_training_images
from vitkit.jobs.options import StrPath, require_at_least
from vitkit.listener import Listener, hushed
from vitkit.models.config.compute_config import Precision
from vitkit.models.measure import forward_flops, parameters
from vitkit.notebook import AUTOMATIC
from vitkit.report.template import write_page
from vitkit.runs.config import changed_options, name_options, parse_run, shown_command
from vitkit.runs.folder import Owner, Place, claim, kind_of, require_folder
from vitkit.runs.machine import require_threads
from vitkit.runs.series_record import explain_no_model, read_series
from vitkit.runs.steps import evaluate_split
from vitkit.runs.timing import Clock, Turn, spread, take_turns, use_threads
from vitkit.runs.trained_model import is_training_data, open_model_data, write_evaluation
from vitkit.tasks import Answering, answering_of, learned_by
from vitkit.text import distinct_ends, join_names, without_places
from vitkit.training.checkpoint import processor_name
from vitkit.weights.model_card import TrainingData, card_of, preprocessing_of

RECORD = "compare.json"
PARTS = ("first", "second")
"""The folders of the two evaluations in the folder of the comparison."""
FACTS = {
    **{name: f"weights, device or version of PyTorch of the {name} model" for name in PARTS},
    "images": "images",
    "split": "split",
}
"""The facts of a comparison by their names in its record."""
SPEED_BATCH = 32
"""Images of a timed batch: enough for the speed of large batches, and few enough for several rounds of a
large model within seconds."""

CONFIRMED_BY = 16
"""Images by which a stored evaluation is compared with the model: enough to notice other weights."""
LOGIT_SLACK = 0.05
"""Mean distance between stored and newly computed logits, over the standard deviation of the stored ones, up
to which only the numerics are taken to differ. bfloat16 moved the logits of ViT-64x4x4/4 on digits by 0.002,
and another seed of the same training by 0.12 to 0.14 (a Xeon with AMX, 23 November 2026)."""


@dataclass(frozen=True)
class Record:
    """The contents of `compare.json`."""

    vitkit_version: str
    facts: Mapping[str, str]
    """The hashes of models and images, and the split, which decide every number but the speeds."""
    speeds: Speeds | None = None
    """None before they are measured."""


Evaluated: TypeAlias = tuple[Side, Any, Any]
"""A model that was evaluated: its description, the numbers and the predictions."""


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
    data: ImageData | None = None
    """The tested images, with its own classes and decoding rule; None where they are not at hand, and stored
    evaluations alone are compared."""

    @property
    def answering(self) -> Answering:
        """Return the answering half of the model's task."""
        return answering_of(self.ready.model.card)

    @property
    def trained_on(self) -> TrainingData | None:
        """Return the training images as the card records them."""
        return card_of(self.ready.model).data

    def fingerprint(self) -> str:
        """Hash everything beside the images that the logits depend on."""
        model = self.ready.model
        if isinstance(model, EngineModel):  # the description holds the hashes of the graph's files
            return hash_file(self.place.path / DESCRIPTION)[1]
        device: Any = self.ready.device
        extractor = FeatureExtractor(model, preprocessing_of(model), device, self.ready.precision)
        return extractor.fingerprint(head=True)


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
    missing: str = ""
    """Why the images are not at hand; empty where they are."""


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
    device: str = "auto",
    precision: Precision = "auto",
    threads: int | None = None,
    quiet: bool = False,
    listener: Listener = AUTOMATIC,
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
        data: other images than those that the models were trained with: digits, a folder, a .csv or .parquet
            files; left out, the images of the first model that records its own.
        split: images that both are tested on: test, val or train, or a part of them such as "test[:10%]";
            left out, test if there is one.
        out: folder of the page and of the evaluations; left out, runs/compare-FIRST-SECOND.
        speed_seconds: seconds for which the speed of both is measured, in turns; 0 measures none.
        batch_size: images that are computed at a time.
        workers: processes that decode images; with 0 the main process decodes.
        device: where to compute: auto (a GPU if there is one), cpu, gpu or cuda:1.
        precision: number format of the computation: float32, bfloat16, or auto: bfloat16 on a GPU that has
            it, else float32.
        threads: CPU threads; left out, as many as PyTorch chooses.
        quiet: print nothing but warnings.
        listener: hears the progress and remarks; left out, a notebook shows them and a script is silent.

    Raises:
        VitkitError: a model or the images are not there; the two models differ in task or classes, or could
            not read the same images; or `out` holds something else.
    """
    require_at_least(0, workers=workers)
    require_at_least(1, batch_size=batch_size)
    if not 0 <= speed_seconds < math.inf:
        raise VitkitError(f"speed_seconds is 0 or more, found {speed_seconds}.")
    require_threads(threads)
    given, listener = None if out is None else Path(out), hushed(listener, quiet)
    options = {"--data": data, "--split": split}
    named = [part for name, value in options.items() if value is not None for part in (name, value)]
    if given is not None:
        require_folder(given)
    with use_threads(threads):
        with listener.progress("loading the models"):
            pair = load_contenders(str(first), str(second), device, precision)
        with listener.progress("listing images"):
            tested, pair = open_tested(pair, data, split, listener)
        facts = {name: contender.fingerprint() for name, contender in zip(PARTS, pair, strict=True)}
        facts |= {"images": tested.fingerprint, "split": tested.split}

        def changes(folder: Path) -> list[str]:
            begun = read(Record, folder / RECORD)
            there = {} if begun is None else begun.facts
            return [f"other {fact}" for name, fact in FACTS.items() if there.get(name) != facts[name]]

        with claim(Owner("comparison", RECORD, changes), given, lambda: _numbered(pair)) as folder:
            remove_leftovers(folder)
            record = read(Record, folder / RECORD)
            if record is None:  # first of all, so that the same call recognises an interrupted comparison
                record = Record(__version__, facts)
                write(folder / RECORD, record)
            evaluated = [
                _evaluate(contender, tested, folder / name, batch_size, workers, listener)
                for name, contender in zip(PARTS, pair, strict=True)
            ]
            _require_same_answers(pair, tested, *(predictions for _, _, predictions in evaluated))
            speeds = record.speeds
            if speed_seconds and (speeds is None or speeds.threads != torch.get_num_threads()):
                speeds = _measure_speeds(pair, speed_seconds, listener)
                write(folder / RECORD, replace(record, speeds=speeds))
            command = shown_command(shlex.join(["vitkit", "compare", str(first), str(second), *named]))
            measured = speeds if speed_seconds else None
            comparison = _compare(folder, pair, tested, evaluated, measured, command)
            with listener.progress("writing the page"):
                write_page(comparison, comparison.page, command=command)
            return comparison


def _numbered(pair: tuple[Contender, Contender]) -> Iterator[Path]:
    """Yield folders below `runs/` for a comparison whose folder is not given."""
    # A label is a file or a folder of any depth, with any characters.
    names = [re.sub(r"[^\w.+-]", "-", contender.label) for contender in pair]
    name = f"compare-{'-'.join(names)}"
    for number in itertools.count(1):
        yield Path("runs") / (name if number == 1 else f"{name}-{number}")


def _evaluate(
    contender: Contender, tested: Tested, folder: Path, batch_size: int, workers: int, listener: Listener
) -> Evaluated:
    """Read the evaluation of a model from its run folder or from the comparison's; else make it.

    Args:
        contender: the model.
        tested: the images.
        folder: the model's folder in the comparison's, which keeps an evaluation that is made.
        batch_size, workers, listener: as for `compare`.
    """
    answering, data, model = contender.answering, contender.data, contender.ready.model
    own = tested.fingerprint if data is None else data.fingerprint()
    recorded = contender.trained_on
    is_own = recorded is not None and recorded.fingerprint == own  # cut in the same way
    places = [contender.place.path] if is_own and contender.place.kind == "run" else []
    for place in (*places, folder):
        try:
            result, predictions = answering.read_evaluation(place / "evaluation" / f"{tested.split}.json")
        except FileNotFoundError:
            continue
        except VitkitError as error:
            listener.note(f"Evaluated again: {error}")
            continue
        outdated = _explain_outdated(contender, tested, result, predictions, batch_size)
        if not outdated:
            break
        listener.note(f"The evaluation in {place} {outdated}: evaluated again.")
    else:
        place = folder
        if data is None:
            raise VitkitError(
                f"{contender.given} has no stored evaluation of {tested.split} that can be used, and the "
                f"images are not at hand. Bring them back, or give other images with --data. {tested.missing}"
            )
        listener.note(f"{contender.label} is evaluated on {tested.name}.")
        result, predictions = evaluate_split(
            model,
            data,
            tested.split,
            contender.ready.device,
            {},
            batch_size=batch_size,
            workers=workers,
            precision=contender.ready.precision,
            listener=listener,
        )
        result = without_training_images(model, data, tested.split, is_own, result, predictions, listener)
        folder.mkdir(exist_ok=True)
        write_evaluation(folder, tested.split, result, predictions)
        remove_leftovers(folder / "evaluation")  # a killed process leaves gigabytes of logits
    trained_on_tested = None if result.repeated is None else result.repeated.count
    side = Side(
        given=contender.given,
        label=contender.label,
        model=model.card.name,
        image_size=model.config.image_size,
        parameters=parameters(model.config),
        forward_flops=forward_flops(model.config, head=True),
        score=float(answering.score_images(predictions).mean()),
        measures=answering.measures(result),
        numbers=result.to_json(),
        was_stored=place != folder,
        trained_on_tested=result.count
        if is_own and parse_split(tested.split)[0] == "train"
        else trained_on_tested,
    )
    return side, result, predictions


def _explain_outdated(
    contender: Contender, tested: Tested, result: Any, predictions: Any, batch_size: int
) -> str:
    """Say why a stored evaluation is not of the images and weights that are there now; "" where it is.

    A folder that was given away may hold the evaluation of other weights than the ones beside it: some images
    are computed again. Where the images are not at hand, nobody can look.
    """
    card, data, ids = contender.ready.model.card, contender.data, predictions.ids
    if data is None:
        same = result.class_names == card.class_names
    else:
        samples = data.splits[tested.split]
        same = (
            result.class_names == data.class_names
            and len(ids) + len(predictions.bad) == len(samples)
            and ids.max(initial=-1) < len(samples)
            and np.array_equal(predictions.labels, samples.labels[ids])
        )
    if not same:
        return f"is not of the {tested.split} images and classes that are there now"
    if data is None:
        return ""
    rows = np.unique(np.linspace(0, len(ids) - 1, CONFIRMED_BY).astype(np.int64))
    rule = preprocessing_of(contender.ready.model)
    batches = evaluation_batches(samples, rule, batch_size, indices=ids[rows])
    ready, stored = contender.ready, predictions.logits[rows]
    fresh = run_model.predict(
        ready.model, batches, loss=card.loss, device=ready.device, precision=ready.precision
    )
    if (  # a file that has become unreadable has no row
        not np.array_equal(fresh.ids, ids[rows])
        or np.abs(fresh.logits - stored).mean() > LOGIT_SLACK * stored.std()
    ):
        return "differs from the model's answers now, so that its weights have been replaced since"
    return ""


def _require_same_answers(pair: tuple[Contender, Contender], tested: Tested, first: Any, second: Any) -> None:
    """Refuse the predictions of two models whose images or labels differ."""
    if not np.array_equal(first.ids, second.ids):
        alone = [len(np.setdiff1d(*ids)) for ids in ((first.ids, second.ids), (second.ids, first.ids))]
        raise VitkitError(
            f"The two models could not read the same {tested.split} images: {alone[0]:,} were read for "
            f"{pair[0].label} alone and {alone[1]:,} for {pair[1].label} alone. Repair those files, or give "
            "other images with --data."
        )
    # Where the images are at hand, the labels have been compared with theirs.
    if tested.missing and not np.array_equal(first.labels, second.labels):
        raise VitkitError(
            f"The stored evaluations of {pair[0].given} and {pair[1].given} hold other labels for the same "
            "images. Bring the images back, so that both can be evaluated, or give others with --data."
        )


def _compare(
    folder: Path,
    pair: tuple[Contender, Contender],
    tested: Tested,
    evaluated: Sequence[Evaluated],
    speeds: Speeds | None,
    command: str,
) -> ModelComparison:
    """Compare two models by their evaluations."""
    answering, (first, second) = pair[0].answering, evaluated
    options = None
    if all(contender.place.is_run for contender in pair):
        there, here = (without_places(contender.place.require_config()) for contender in pair)
        recorded, run = str(pair[0].place.path / "config.json"), parse_run(here, pair[1].place.path)
        options = tuple(name_options(changed_options(there["run"], recorded, run)))
    return ModelComparison(
        folder=folder,
        task=learned_by(pair[0].ready.model.card).name,
        score=answering.image_score,
        data=tested.name,
        split="" if tested.whole else tested.split,
        images=first[1].count,
        unreadable=first[1].bad,
        first=first[0],
        second=second[0],
        difference=model_difference(*(answering.score_images(each[2]) for each in (first, second))),
        classes=compare_classes(answering, first[1:], second[1:]),
        speeds=speeds,
        options=options,
        notes=tuple(contender.note for contender in pair if contender.note),
        command=command,
        evaluations=(first[1:], second[1:]),
        samples=None if pair[0].data is None else pair[0].data.splits[tested.split],
    )


def _measure_speeds(pair: tuple[Contender, Contender], seconds: float, listener: Listener) -> Speeds:
    """Time both models in turns, each on images of its own size and kind."""
    device = torch.device(pair[0].ready.device)
    clock = Clock(device, torch.get_num_threads())
    if any(isinstance(contender.ready.model, EngineModel) for contender in pair):
        clock = Clock(torch.device("cpu"), max(2, clock.threads))  # engines have threads of their own
    turns = {name: Turn(_step(contender)) for name, contender in zip(PARTS, pair, strict=True)}
    times: dict[str, list[float]] = {}
    with listener.progress("measuring the speed of both"):
        take_turns(turns, clock, seconds, times)
    first, second = (times[name] for name in PARTS)
    low, ratio, high = spread([a / b for a, b in zip(first, second, strict=True)])
    return Speeds(
        images_per_second=(SPEED_BATCH / spread(first)[1], SPEED_BATCH / spread(second)[1]),
        ratio=ratio,
        ratio_quartiles=(low, high),
        batch_size=SPEED_BATCH,
        rounds=len(first),
        threads=torch.get_num_threads(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name(),
        clock=clock.name,
    )


def _step(contender: Contender) -> Any:
    """Make the timed step: a batch of images to logits, as an evaluation computes it."""
    model, device = contender.ready.model, torch.device(contender.ready.device)
    shape = (SPEED_BATCH, model.config.in_channels, *model.config.image_size)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))

    def step() -> None:
        with run_model.output_function(model, device, contender.ready.precision) as compute:
            compute(images)

    return step


def load_contenders(
    first: str, second: str, device: str, precision: Precision
) -> tuple[Contender, Contender]:
    """Load the two models, which have to answer the same question.

    Raises:
        VitkitError: a model is not there or has no answers; or they have different tasks.
    """
    labels = make_labels(first, second)
    pair = (_load(first, labels[0], device, precision), _load(second, labels[1], device, precision))
    tasks = [learned_by(contender.ready.model.card).name for contender in pair]
    if tasks[0] != tasks[1]:
        raise VitkitError(
            f"Two models are compared by one task: {first} learned {tasks[0]} and {second} {tasks[1]}. Name "
            "two models of the same task."
        )
    return pair


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


def open_tested(
    pair: tuple[Contender, Contender], spec: str | None, split: str | None, listener: Listener
) -> tuple[Tested, tuple[Contender, Contender]]:
    """Open the images of a comparison, with the splits of the first model that was trained on them.

    The stored evaluations alone are compared where the images are not at hand, and both models were trained
    and tested on the same ones.

    Raises:
        VitkitError: no images are given and neither model records its own; the images are not there, or have
            other classes than the models; or there is no such split.
    """
    owners = [contender for contender in pair if contender.trained_on is not None]
    if spec is not None:
        owners = [owner for owner in owners if is_training_data(owner.ready.model.card, spec)]
    elif not owners:
        raise VitkitError(
            f"Neither {pair[0].given} nor {pair[1].given} says which images it was trained on: give "
            "images to test on with --data."
        )
    # Images that neither was trained on have an order of classes of their own, which is that of a model
    # without class names.
    by_names = sorted(pair, key=lambda contender: bool(contender.ready.model.card.class_names))
    missing: VitkitError | None = None
    for opener in owners or by_names[:1]:
        try:
            images = open_model_data(opener.ready.model, spec)
            break
        except VitkitError as error:
            missing = missing or error
            if spec is not None:
                raise
    else:
        first, second = (contender.trained_on for contender in pair)
        assert missing is not None
        files = [contender.place.path / "evaluation" / f"{split or 'test'}.json" for contender in pair]
        is_stored = all(file.is_file() for file in files)
        if first is None or second is None or first.fingerprint != second.fingerprint or not is_stored:
            raise missing
        listener.note(
            "Without pictures: the images are not where they were, or have changed. The stored evaluations "
            "of both are compared."
        )
        return Tested(split or "test", first.name, False, first.fingerprint, str(missing)), pair
    models = [contender.ready.model for contender in pair]
    names = [model.card.class_names or images.class_names for model in models]
    for contender, model, own in zip(pair, models, names, strict=True):
        if len(own) != model.config.num_classes:
            raise VitkitError(
                f"{contender.given} has {model.config.num_classes:,} outputs and no class names, and the "
                f"images have {len(own):,} classes: expected one class for each output. Give other images "
                "with --data."
            )
    extra = [sorted({*own} - {*others}) for own, others in (names, names[::-1])]
    if any(extra):
        sides = zip(pair, extra, strict=True)
        shown = [f"{contender.label} alone has {join_names(own, 5)}" for contender, own in sides if own]
        raise VitkitError(
            f"Two models are compared on the same classes, matched by their names: {'; '.join(shown)}. Name "
            "two models of the same classes."
        )
    images, chosen = choose_split(images, split, spec is not None, bool(owners))
    tested = Tested(chosen, images.name, is_whole(images, chosen, bool(owners)), images.fingerprint())
    first_tested, second_tested = (
        replace(contender, data=images.seen_by(preprocessing_of(model).decode, own))
        for contender, model, own in zip(pair, models, names, strict=True)
    )
    return tested, (first_tested, second_tested)

"""Compare two models on the same images.

The folder of a comparison:

compare.json                what is compared, by hashes, and the speeds that were measured
first/evaluation/, second/evaluation/   numbers and logits of evaluations made for the comparison
report.html

The same command again reads what is there, and ends with the same page.
"""

import hashlib
import itertools
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit._version import __version__
from vitkit.config import read, write
from vitkit.data.config import parse_split
from vitkit.data.sources import ImageData, Samples
from vitkit.data.stream.loader import evaluation_batches
from vitkit.durable import hash_file, remove_leftovers, replace_file
from vitkit.engines.engine_model import EngineModel
from vitkit.engines.libraries import DESCRIPTION
from vitkit.errors import VitkitError
from vitkit.evaluation.features import FeatureExtractor
from vitkit.evaluation.paired import model_difference
from vitkit.evaluation.run_model import output_function
from vitkit.jobs.compare.result import ModelComparison, Side, Speeds, compare_classes, render
from vitkit.jobs.engines import Ready, load_ready
from vitkit.jobs.evaluate import choose_split, is_whole, without_training_images
from vitkit.jobs.options import StrPath
from vitkit.listener import Listener, hushed
from vitkit.models.config.compute_config import Precision
from vitkit.models.measure import forward_flops, parameters
from vitkit.notebook import AUTOMATIC
from vitkit.runs.config import changed_options, name_options, parse_run, shown_command
from vitkit.runs.destination import require_folder
from vitkit.runs.finish import evaluate_split
from vitkit.runs.folder import Owner, Place, claim, kind_of
from vitkit.runs.machine import require_threads
from vitkit.runs.series_record import explain_no_model, read_series
from vitkit.runs.timing import Clock, Turn, spread, take_turns, use_threads
from vitkit.runs.trained_model import is_training_data, open_model_data, write_evaluation
from vitkit.tasks import Answering, answering_of, learned_by, task_of
from vitkit.text import distinct_ends, join_names, without_places
from vitkit.training.checkpoint import processor_name
from vitkit.weights.loading import log_notes
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


@dataclass(frozen=True)
class _Evaluation:
    """The answers of one model to the images."""

    result: Any
    predictions: Any
    was_stored: bool
    """Whether it was read from a run folder."""
    trained_on_tested: int | None
    """Number of tested images that the model was trained on; None where nobody could look."""


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
    def class_names(self) -> tuple[str, ...]:
        """Return the names of the classes; none where the model records none."""
        return self.ready.model.card.class_names

    @property
    def trained_on(self) -> TrainingData | None:
        """Return the training images as the card records them."""
        return card_of(self.ready.model).data

    def samples(self, tested: "Tested") -> Samples | None:
        """Return the tested images as the model reads them."""
        return None if self.data is None else self.data.splits[tested.split]

    def fingerprint(self) -> str:
        """Hash everything beside the images that the logits depend on."""
        model = self.ready.model
        if isinstance(model, EngineModel):  # the description holds the hashes of the graph's files
            return hash_file(self.place.path / DESCRIPTION)[1]
        device: Any = self.ready.device
        body = FeatureExtractor(model, preprocessing_of(model), device, self.ready.precision)
        digest = hashlib.sha256(body.fingerprint().encode())
        for name, tensor in sorted(model.state_dict().items()):
            if name.startswith("head."):  # which the hash of features leaves out
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


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


def compare(
    first: StrPath,
    second: StrPath,
    data: str | None = None,
    *,
    split: str | None = None,
    out: str | None = None,
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
    if workers < 0:
        raise VitkitError(f"workers is 0 or more, found {workers}.")
    if batch_size < 1:
        raise VitkitError(f"batch_size is at least 1, found {batch_size}.")
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
            evaluations = [
                _evaluate(contender, tested, folder / name, batch_size, workers, listener)
                for name, contender in zip(PARTS, pair, strict=True)
            ]
            _require_same_answers(pair, tested, evaluations)
            speeds = record.speeds
            if speed_seconds and (speeds is None or speeds.threads != torch.get_num_threads()):
                speeds = _measure_speeds(pair, speed_seconds, listener)
                write(folder / RECORD, replace(record, speeds=speeds))
            return _conclude(
                folder,
                pair,
                tested,
                evaluations,
                speeds if speed_seconds else None,
                shown_command(shlex.join(["vitkit", "compare", str(first), str(second), *named])),
                listener,
            )


def _conclude(
    folder: Path,
    pair: tuple[Contender, Contender],
    tested: Tested,
    evaluations: Sequence[_Evaluation],
    speeds: Speeds | None,
    command: str,
    listener: Listener,
) -> ModelComparison:
    """Compare two models by their evaluations, and write the page."""
    first, second = evaluations
    answering = pair[0].answering
    scores = [answering.score_images(evaluation.predictions) for evaluation in evaluations]
    sides = [
        _side(contender, answering, evaluation)
        for contender, evaluation in zip(pair, evaluations, strict=True)
    ]
    both = ((first.result, first.predictions), (second.result, second.predictions))
    comparison = ModelComparison(
        folder=folder,
        task=learned_by(pair[0].ready.model.card).name,
        score=answering.image_score,
        data=tested.name,
        split="" if tested.whole else tested.split,
        images=first.result.count,
        unreadable=first.result.bad,
        first=sides[0],
        second=sides[1],
        difference=model_difference(scores[0], scores[1]),
        classes=compare_classes(answering, *both),
        speeds=speeds,
        options=_differing_options(pair),
        notes=tuple(contender.note for contender in pair if contender.note),
        command=command,
    )
    with listener.progress("writing the page"):
        page = render(comparison, answering, both, pair[0].samples(tested))
        replace_file(comparison.page, [page.encode()])
    return comparison


def _numbered(pair: tuple[Contender, Contender]) -> Iterator[Path]:
    """Yield folders below `runs/` for a comparison whose folder is not given."""
    # A label is a file or a folder of any depth, with any characters.
    names = [re.sub(r"[^\w.+-]", "-", contender.label) for contender in pair]
    name = f"compare-{'-'.join(names)}"
    for number in itertools.count(1):
        yield Path("runs") / (name if number == 1 else f"{name}-{number}")


def _evaluate(
    contender: Contender,
    tested: Tested,
    folder: Path,
    batch_size: int,
    workers: int,
    listener: Listener,
) -> _Evaluation:
    """Read the evaluation of a model from its run folder or from the comparison's; else make it.

    Args:
        contender: the model.
        tested: the images.
        folder: the model's folder in the comparison's, which keeps an evaluation that is made.
        batch_size, workers, listener: as for `compare`.
    """
    answering = contender.answering
    trained_on, data, model = contender.trained_on, contender.data, contender.ready.model
    own = tested.fingerprint if data is None else data.fingerprint()
    is_own = trained_on is not None and trained_on.fingerprint == own  # cut in the same way
    places = [contender.place.path] if is_own and contender.place.kind == "run" else []
    for place in (*places, folder):
        try:
            result, predictions = answering.read_evaluation(place / "evaluation" / f"{tested.split}.json")
        except FileNotFoundError:
            continue
        except VitkitError as error:
            listener.note(f"Evaluated again: {error}")
            continue
        if not _is_of_these_images(contender, tested, result, predictions):
            listener.note(
                f"The evaluation in {place} is not of the {tested.split} images and classes that are there "
                "now: evaluated again."
            )
        elif place != folder and not _is_confirmed(contender, tested, predictions, batch_size):
            listener.note(
                f"The evaluation in {place} differs from the model's answers now: evaluated again. Its "
                "weights have been replaced since."
            )
        else:
            return _Evaluation(result, predictions, place != folder, _trained_on(result, is_own, tested))
    if data is None:
        raise VitkitError(
            f"{contender.given} has no stored evaluation of {tested.split} that can be used, and the images "
            "are not at hand. Bring them back, or give other images with --data."
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
    return _Evaluation(result, predictions, False, _trained_on(result, is_own, tested))


def _trained_on(result: Any, is_own: bool, tested: Tested) -> int | None:
    """Return the number of tested images that a model was trained on; None where nobody could look."""
    if is_own and parse_split(tested.split)[0] == "train":
        count: int = result.count
        return count
    return None if result.repeated is None else int(result.repeated.count)


def _is_confirmed(contender: Contender, tested: Tested, predictions: Any, batch_size: int) -> bool:
    """Whether a model still gives the logits of its stored evaluation, on some of the images.

    A folder that was given away may hold the evaluation of other weights than the ones beside it. Where the
    images are not at hand, nobody can check.
    """
    samples, model, answering = contender.samples(tested), contender.ready.model, contender.answering
    if samples is None:
        return True
    rows = np.unique(np.linspace(0, len(predictions) - 1, CONFIRMED_BY).astype(np.int64))
    batches = evaluation_batches(samples, preprocessing_of(model), batch_size, indices=predictions.ids[rows])
    predict = answering.predictor(learned_by(model.card))
    fresh = predict(model, batches, device=contender.ready.device, precision=contender.ready.precision)
    if not np.array_equal(fresh.ids, predictions.ids[rows]):  # a file has become unreadable
        return False
    stored = predictions.logits[rows]
    return bool(np.abs(fresh.logits - stored).mean() <= LOGIT_SLACK * stored.std())


def _is_of_these_images(contender: Contender, tested: Tested, result: Any, predictions: Any) -> bool:
    """Whether a stored evaluation has the images and labels that are there now."""
    names = contender.class_names if contender.data is None else contender.data.class_names
    samples = contender.samples(tested)
    if result.class_names != names:
        return False
    if samples is None:
        return True
    ids = predictions.ids
    if len(ids) + len(predictions.bad) != len(samples) or ids.max(initial=-1) >= len(samples):
        return False
    now = labels_by_name(samples.labels[ids], names)
    return np.array_equal(labels_by_name(predictions.labels, names), now)


def _require_same_answers(
    pair: tuple[Contender, Contender], tested: Tested, evaluations: list[_Evaluation]
) -> None:
    """Refuse two evaluations whose images or labels differ."""
    first, second = (evaluation.predictions.ids for evaluation in evaluations)
    if not np.array_equal(first, second):
        alone = [len(np.setdiff1d(first, second)), len(np.setdiff1d(second, first))]
        raise VitkitError(
            f"The two models could not read the same {tested.split} images: {alone[0]:,} were read for "
            f"{pair[0].label} alone and {alone[1]:,} for {pair[1].label} alone. Repair those files, or give "
            "other images with --data."
        )
    names, others = (evaluation.result.class_names for evaluation in evaluations)
    labels = labels_by_name(evaluations[0].predictions.labels, names)
    other_labels = labels_by_name(evaluations[1].predictions.labels, others)
    if {*names} != {*others} or not np.array_equal(labels, other_labels):
        raise VitkitError(
            f"The stored evaluations of {pair[0].given} and {pair[1].given} hold other labels for the same "
            "images. Bring the images back, so that both can be evaluated, or give others with --data."
        )


def _side(contender: Contender, answering: Any, evaluation: _Evaluation) -> Side:
    """Describe a model by its architecture and its evaluation."""
    model = contender.ready.model
    return Side(
        given=contender.given,
        label=contender.label,
        model=model.card.name,
        image_size=model.config.image_size,
        parameters=parameters(model.config),
        forward_flops=forward_flops(model.config, head=True),
        score=float(answering.score_images(evaluation.predictions).mean()),
        measures=answering.measures(evaluation.result),
        numbers=evaluation.result.to_json(),
        was_stored=evaluation.was_stored,
        trained_on_tested=evaluation.trained_on_tested,
    )


def _differing_options(pair: tuple[Contender, Contender]) -> tuple[str, ...] | None:
    """List the options in which two runs differ; None where either model is no run."""
    first, second = (contender.place for contender in pair)
    if not (first.is_run and second.is_run):
        return None
    recorded, config = (without_places(place.require_config()) for place in (first, second))
    changes = changed_options(
        recorded["run"], str(first.path / "config.json"), parse_run(config, second.path)
    )
    return tuple(name_options(changes))


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
    medians = [SPEED_BATCH / spread(rounds)[1] for rounds in (first, second)]
    return Speeds(
        images_per_second=(medians[0], medians[1]),
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
        with output_function(model, device, contender.ready.precision) as compute:
            compute(images)

    return step


def load_contenders(
    first: str, second: str, device: str, precision: Precision
) -> tuple[Contender, Contender]:
    """Load the two models, which have to answer the same question.

    Raises:
        VitkitError: a model is not there or has no answers; or they have different tasks or classes.
    """
    labels = make_labels(first, second)
    pair = (_load(first, labels[0], device, precision), _load(second, labels[1], device, precision))
    tasks = [learned_by(contender.ready.model.card).name for contender in pair]
    if tasks[0] != tasks[1]:
        raise VitkitError(
            f"Two models are compared by one task: {first} learned {tasks[0]} and {second} {tasks[1]}. Name "
            "two models of the same task."
        )
    names = [contender.class_names for contender in pair]
    if all(names):
        _require_same_classes(*pair, *names)
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
    log_notes(given, ready.notes, ready.left_out)
    contender = Contender(given, label, place, ready, note)
    reason = contender.answering.explain_unfit(ready.model.config)
    if reason:
        raise VitkitError(f"{given} {reason}.")
    return contender


def _require_same_classes(
    first: Contender, second: Contender, names: tuple[str, ...], others: tuple[str, ...]
) -> None:
    """Refuse two models of different classes; the order of the classes may differ."""
    alone = (first.label, {*names} - {*others}), (second.label, {*others} - {*names})
    if {*names} != {*others}:
        sides = [f"{label} alone has {join_names(sorted(extra), 5)}" for label, extra in alone if extra]
        raise VitkitError(
            f"Two models are compared on the same classes, matched by their names: {'; '.join(sides)}. Name "
            "two models of the same classes."
        )


def open_tested(
    pair: tuple[Contender, Contender], spec: str | None, split: str | None, listener: Listener
) -> tuple[Tested, tuple[Contender, Contender]]:
    """Open the images of a comparison, with the splits of the first model that was trained on them.

    Raises:
        VitkitError: no images are given and neither model records its own; the images are not there, or have
            other classes than the models; or there is no such split.
    """
    owner, opened = _open_own(pair, spec)
    if owner is None:  # neither was trained on them, so that all of them may be tested
        assert spec is not None
        data = [open_model_data(contender.ready.model, spec) for contender in pair]
    elif opened is None:
        return _not_at_hand(pair, owner, split or "test", listener), pair
    else:
        trained_on = owner.trained_on
        assert trained_on is not None  # it is the owner of the images
        data = []
        for contender in pair:
            if contender is owner:
                data.append(opened)
                continue
            model, path = contender.ready.model, spec or trained_on.spec
            rule, names = preprocessing_of(model).decode, contender.class_names or None
            learning = task_of(model.card).learning
            data.append(learning.open_data(path, trained_on.splits, rule, names))
    for contender, listed in zip(pair, data, strict=True):
        outputs = contender.ready.model.config.num_classes
        if len(listed.class_names) != outputs:
            raise VitkitError(
                f"{contender.given} has {outputs:,} outputs and no class names, and the images have "
                f"{len(listed.class_names):,} classes: expected one class for each output. Give other images "
                "with --data."
            )
    _require_same_classes(*pair, data[0].class_names, data[1].class_names)
    given, is_owned = spec is not None, owner is not None
    (images, chosen), (others, _) = (choose_split(listed, split, given, is_owned) for listed in data)
    whole = is_whole(images, chosen, is_owned)
    tested = Tested(chosen, images.name, whole, images.fingerprint())
    _require_same_images(tested, images, others)
    return tested, (replace(pair[0], data=images), replace(pair[1], data=others))


def _open_own(
    pair: tuple[Contender, Contender], spec: str | None
) -> tuple[Contender | None, ImageData | None]:
    """Find the first model that was trained on the images, and open them with the splits of its training.

    Returns:
        The model, or None where neither was trained on them; the images, or None where they are not at hand.

    Raises:
        VitkitError: no images are given, and neither model records its own.
    """
    if spec is not None:
        owner = next((model for model in pair if is_training_data(model.ready.model.card, spec)), None)
        return owner, None if owner is None else open_model_data(owner.ready.model, spec)
    owners = [contender for contender in pair if contender.trained_on is not None]
    if not owners:
        raise VitkitError(
            f"Neither {pair[0].given} nor {pair[1].given} says which images it was trained on: give "
            "images to test on with --data."
        )
    for owner in owners:
        try:
            return owner, open_model_data(owner.ready.model)
        except VitkitError:
            continue
    return owners[0], None


def _not_at_hand(
    pair: tuple[Contender, Contender], owner: Contender, split: str, listener: Listener
) -> Tested:
    """Compare by stored evaluations alone, where both models were trained and tested on the same images.

    Raises:
        VitkitError: they were not; the message is that of opening the images.
    """
    first, second = (contender.trained_on for contender in pair)
    stored = all((contender.place.path / "evaluation" / f"{split}.json").is_file() for contender in pair)
    if first is None or second is None or first.fingerprint != second.fingerprint or not stored:
        open_model_data(owner.ready.model)  # raises the error that says why
        raise VitkitError(f"The images of {owner.given} have just come back: run the same command again.")
    listener.note(
        "Without pictures: the images are not where they were, or have changed. The stored evaluations of "
        "both are compared."
    )
    return Tested(split, first.name, False, first.fingerprint)


def _require_same_images(tested: Tested, first: ImageData, second: ImageData) -> None:
    """Refuse two listings of the same data that differ in their images or labels."""
    samples, others = first.splits[tested.split], second.splits[tested.split]
    keys, other_keys = ([listed.key(i) for i in range(len(listed))] for listed in (samples, others))
    labels = labels_by_name(samples.labels, first.class_names)
    if keys != other_keys or not np.array_equal(labels, labels_by_name(others.labels, second.class_names)):
        raise VitkitError(
            f"The {tested.split} images of {tested.name} are not listed alike for the two models: expected "
            "the same images and labels. Give images with --data, or another --split."
        )


def labels_by_name(labels: NDArray[Any], class_names: tuple[str, ...]) -> NDArray[np.int64]:
    """Number the true labels of images by the alphabet of their names, `(N, A)`, so that they do not depend
    on the order of the classes; of several labels they are 0 and 1 in the order of that alphabet."""
    order = np.argsort(np.array(class_names))
    numbers = labels[:, order] if labels.ndim == 2 else np.argsort(order)[labels][:, None]
    return numbers.astype(np.int64)

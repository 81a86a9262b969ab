"""Compare two models on the same images.

The folder of a comparison:

compare.json                what is compared, by hashes, and the speeds that were measured
first/evaluation/, second/evaluation/   numbers and logits of evaluations made for the comparison
report.html

The same command again reads what is there, and ends with the same page.
"""

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitkit._version import __version__
from vitkit.config import read, write
from vitkit.data.slices import parse_split
from vitkit.data.stream.loader import evaluation_batches
from vitkit.durable import remove_leftovers, replace_file
from vitkit.engines.engine_model import EngineModel
from vitkit.errors import VitkitError
from vitkit.evaluation.paired import model_difference
from vitkit.evaluation.run_model import output_function
from vitkit.jobs.compare.contenders import Contender, Tested, labels_by_name, load_contenders, open_tested
from vitkit.jobs.compare.options import CompareOptions
from vitkit.jobs.compare.result import ModelComparison, Side, Speeds, compare_classes
from vitkit.jobs.evaluate import find_among_others
from vitkit.jobs.functions import from_options
from vitkit.models.measure import forward_flops, parameters
from vitkit.runs.config import changed_options, name_options, parse_run, shown_command
from vitkit.runs.destination import require_folder
from vitkit.runs.finish import evaluate_split, find_training_images, with_repeats
from vitkit.runs.folder import Owner, claim
from vitkit.runs.machine import require_threads
from vitkit.runs.timing import Clock, Turn, spread, take_turns, use_threads
from vitkit.runs.trained_model import write_evaluation
from vitkit.tasks import learned_by
from vitkit.text import without_places
from vitkit.training.checkpoint import processor_name
from vitkit.weights.model_card import preprocessing_of

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


def run_compare(options: CompareOptions) -> ModelComparison:
    """Compare two models on the same images: which is better, how sure that is, and where they differ.

    The stored evaluations of two runs are read if they are of the same test images. Otherwise both models
    are evaluated with the same loader, each with its own preprocessing. A page is written into the folder of
    the comparison, with pictures of the images that one model alone gets right.

    Raises:
        VitkitError: a model or the images are not there; the two models differ in task or classes, or could
            not read the same images; or `out` holds something else.
    """
    require_threads(options.threads)
    if options.out is not None:
        require_folder(Path(options.out))
    with use_threads(options.threads):
        with options.listener.progress("loading the models"):
            pair = load_contenders(options)
        with options.listener.progress("listing images"):
            tested = open_tested(pair, options)
        facts = {name: contender.fingerprint() for name, contender in zip(PARTS, pair, strict=True)}
        facts |= {"images": tested.fingerprint, "split": tested.split}

        def changes(folder: Path) -> list[str]:
            begun = read(Record, folder / RECORD)
            there = {} if begun is None else begun.facts
            return [f"other {fact}" for name, fact in FACTS.items() if there.get(name) != facts[name]]

        given = None if options.out is None else Path(options.out)
        with claim(Owner("comparison", RECORD, changes), given, lambda: _numbered(pair)) as folder:
            return _complete(folder, pair, tested, facts, options)


compare = from_options(CompareOptions)(run_compare)


def _complete(
    folder: Path,
    pair: tuple[Contender, Contender],
    tested: Tested,
    facts: Mapping[str, str],
    options: CompareOptions,
) -> ModelComparison:
    """Compare two models in a folder that this process holds, and write the page."""
    remove_leftovers(folder)
    record = read(Record, folder / RECORD)
    if record is None:  # first of all, so that the same command recognises an interrupted comparison
        record = Record(__version__, facts)
        write(folder / RECORD, record)
    evaluations = [
        _evaluate(contender, number, tested, folder / PARTS[number], options)
        for number, contender in enumerate(pair)
    ]
    _require_same_answers(pair, tested, evaluations)
    speeds = record.speeds
    if options.speed_seconds and (speeds is None or speeds.threads != torch.get_num_threads()):
        speeds = _measure_speeds(pair, options)
        write(folder / RECORD, replace(record, speeds=speeds))
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
        speeds=speeds if options.speed_seconds else None,
        options=_differing_options(pair),
        notes=tuple(contender.note for contender in pair if contender.note),
        command=_command(options),
    )
    from vitkit.jobs.compare.page import render  # imports matplotlib, for which a refusal does not wait

    with options.listener.progress("writing the page"):
        page = render(comparison, answering, both, tested.samples(0))
        replace_file(comparison.page, [page.encode()])
    return comparison


def _command(options: CompareOptions) -> str:
    """Write the command of a comparison as its page shows it."""
    named = {"--data": options.data, "--split": options.split}
    given = [part for name, value in named.items() if value is not None for part in (name, value)]
    return shown_command(shlex.join(["vitkit", "compare", str(options.first), str(options.second), *given]))


def _numbered(pair: tuple[Contender, Contender]) -> Iterator[Path]:
    """Yield folders below `runs/` for a comparison whose folder is not given."""
    # A label is a file or a folder of any depth, with any characters.
    names = [re.sub(r"[^\w.+-]", "-", contender.label) for contender in pair]
    name = f"compare-{'-'.join(names)}"
    for number in itertools.count(1):
        yield Path("runs") / (name if number == 1 else f"{name}-{number}")


def _evaluate(
    contender: Contender, number: int, tested: Tested, folder: Path, options: CompareOptions
) -> _Evaluation:
    """Read the evaluation of a model from its run folder or from the comparison's; else make it.

    Args:
        contender: the model.
        number: 0 for the first model, 1 for the second.
        tested: the images.
        folder: the model's folder in the comparison's, which keeps an evaluation that is made.
        options: batch size and workers, and who hears the progress.
    """
    listener, answering = options.listener, contender.answering
    is_own = tested.is_of(contender, number)
    places = [contender.place.path] if is_own and contender.place.kind == "run" else []
    for place in (*places, folder):
        try:
            result, predictions = answering.read_evaluation(place / "evaluation" / f"{tested.split}.json")
        except FileNotFoundError:
            continue
        except VitkitError as error:
            listener.note(f"Evaluated again: {error}")
            continue
        if not _is_of_these_images(contender, number, tested, result, predictions):
            listener.note(
                f"The evaluation in {place} is not of the {tested.split} images and classes that are there "
                "now: evaluated again."
            )
        elif place != folder and not _is_confirmed(contender, number, tested, predictions, options):
            listener.note(
                f"The evaluation in {place} differs from the model's answers now: evaluated again. Its "
                "weights have been replaced since."
            )
        else:
            return _Evaluation(result, predictions, place != folder, _trained_on(result, is_own, tested))
    if tested.data is None:
        raise VitkitError(
            f"{contender.given} has no stored evaluation of {tested.split} that can be used, and the images "
            "are not at hand. Bring them back, or give other images with --data."
        )
    data, model = tested.data[number], contender.ready.model
    listener.note(f"{contender.label} is evaluated on {tested.name}.")
    result, predictions = evaluate_split(
        model,
        data,
        tested.split,
        contender.ready.device,
        {},
        batch_size=options.batch_size,
        workers=options.workers,
        precision=contender.ready.precision,
        listener=listener,
    )
    where, shown = "train", tested.name if tested.whole else tested.split
    if is_own:
        others = () if parse_split(tested.split)[0] == "train" else (tested.split,)
        rows = find_training_images(data, others, listener)
    elif contender.trained_on is not None:
        where = f"the training images of {contender.trained_on.name}"
        repeated = find_among_others(model, data.splits[tested.split], listener)
        rows = {} if repeated is None else {tested.split: repeated}
    else:
        rows = {}
    result = with_repeats(result, predictions, rows, tested.split, answering, listener, shown, where)
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


def _is_confirmed(
    contender: Contender, number: int, tested: Tested, predictions: Any, options: CompareOptions
) -> bool:
    """Whether a model still gives the logits of its stored evaluation, on some of the images.

    A folder that was given away may hold the evaluation of other weights than the ones beside it. Where the
    images are not at hand, nobody can check.
    """
    samples, model, answering = tested.samples(number), contender.ready.model, contender.answering
    if samples is None:
        return True
    rows = np.unique(np.linspace(0, len(predictions) - 1, CONFIRMED_BY).astype(np.int64))
    batches = evaluation_batches(
        samples, preprocessing_of(model), options.batch_size, indices=predictions.ids[rows]
    )
    predict = answering.predictor(learned_by(model.card))
    fresh = predict(model, batches, device=contender.ready.device, precision=contender.ready.precision)
    if not np.array_equal(fresh.ids, predictions.ids[rows]):  # a file has become unreadable
        return False
    stored = predictions.logits[rows]
    return bool(np.abs(fresh.logits - stored).mean() <= LOGIT_SLACK * stored.std())


def _is_of_these_images(
    contender: Contender, number: int, tested: Tested, result: Any, predictions: Any
) -> bool:
    """Whether a stored evaluation has the images and labels that are there now."""
    names = contender.class_names if tested.data is None else tested.data[number].class_names
    samples = tested.samples(number)
    if result.class_names != names:
        return False
    if samples is None:
        return True
    ids = predictions.ids
    if len(ids) + len(predictions.bad) != len(samples) or ids.max(initial=-1) >= len(samples):
        return False
    labels = labels_by_name(samples, names)[ids]
    return np.array_equal(contender.answering.truth(predictions, names), labels)


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
    truths = [
        contender.answering.truth(evaluation.predictions, evaluation.result.class_names)
        for contender, evaluation in zip(pair, evaluations, strict=True)
    ]
    if {*evaluations[0].result.class_names} != {*evaluations[1].result.class_names} or not np.array_equal(
        truths[0], truths[1]
    ):
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


def _measure_speeds(pair: tuple[Contender, Contender], options: CompareOptions) -> Speeds:
    """Time both models in turns, each on images of its own size and kind."""
    device = torch.device(pair[0].ready.device)
    clock = Clock(device, torch.get_num_threads())
    if any(isinstance(contender.ready.model, EngineModel) for contender in pair):
        clock = Clock(torch.device("cpu"), max(2, clock.threads))  # engines have threads of their own
    turns = {name: Turn(_step(contender)) for name, contender in zip(PARTS, pair, strict=True)}
    times: dict[str, list[float]] = {}
    with options.listener.progress("measuring the speed of both"):
        take_turns(turns, clock, options.speed_seconds, times)
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

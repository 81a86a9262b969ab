"""Measure the few-shot accuracy of checkpoints: classes are learned from a few images by frozen features."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.analysis.drawing import save_figure
from vitkit.analysis.study_figures import fewshot_plot
from vitkit.config import from_json
from vitkit.data.config import DecodeRule
from vitkit.data.paths import absolute_spec
from vitkit.data.sources import Samples
from vitkit.durable import refuse_link, replace_file, replace_json
from vitkit.errors import VitkitError
from vitkit.evaluation.features import (
    FeatureCache,
    FeatureExtractor,
    Features,
    cached_features,
    explain_no_features,
)
from vitkit.evaluation.fewshot.data import (
    ComputeFeatures,
    FewShotData,
    Shots,
    count_repeated,
    open_fewshot_data,
    shot_features,
    test_features,
)
from vitkit.evaluation.fewshot.scores import measure
from vitkit.jobs.fewshot.options import FewShotOptions
from vitkit.jobs.fewshot.result import (
    FewShot,
    FewShotModel,
    fewshot_page,
    pretraining_figure,
    remarks,
    short_names,
)
from vitkit.jobs.functions import from_options
from vitkit.listener import SILENT
from vitkit.runs.checkpoints import identify_any, load_model
from vitkit.runs.folder import kind_of
from vitkit.runs.machine import find_device
from vitkit.runs.processes import await_message, join_processes, lost_processes_explained, take_threads
from vitkit.runs.trained_model import is_training_data
from vitkit.text import pluralize, without_places
from vitkit.weights.files.cache import cache_folder
from vitkit.weights.model_card import TrainingData, fit_preprocessing, preprocessing_of
from vitkit.weights.published import pretraining_images
from vitkit.world import World, prepared_together


def run_fewshot(options: FewShotOptions) -> FewShot:
    """Measure how well classes are learned from a few images of each, by the features of frozen checkpoints.

    The shots are drawn once for all checkpoints. The test images are the test split, else the validation
    split, else a fifth of the images, cut off with seed 0. Each model computes the features of these images
    once. The protocol of "ridge" is the paper's (4.1), as in big_vision `evaluators/fewshot_lsr.py`.

    Each of the processes that torchrun starts computes a part of the features, the first one learns from
    them, and all of them get the same numbers.

    Raises:
        VitkitError: a checkpoint cannot be loaded or has no pooling; or there is no data, or no test image.
    """
    world = join_processes(options.listener.warn)
    if not world.writes:
        options = replace(options, listener=SILENT)  # process 0 alone shows messages
    listener, options = options.listener, replace(options, shots=sorted(set(options.shots)))
    take_threads(world)
    with lost_processes_explained(world):
        with prepared_together(world):
            device = find_device(options.device)
            checkpoints = _identify(options)
            for checkpoint in checkpoints:
                if checkpoint.trained_on_these:
                    listener.note(
                        f"{checkpoint.start} was trained on {options.data}: the shots are training images of "
                        "its own."
                    )
            trained_on = [c.trained_on for c in checkpoints if c.trained_on is not None]
            data = open_fewshot_data(options.data, trained_on, world)
            for note in data.data.notes:
                listener.note(note)
        measured = []
        for checkpoint in checkpoints:
            with prepared_together(world):
                extractor = _load_extractor(options, checkpoint, device)
            decoded = data.decoded_by(checkpoint.rule)
            if world.writes:
                measured.append(_measure(options, checkpoint, decoded, extractor, world))
                world.tell(None)
            else:
                _compute_parts(options, decoded, extractor, world)
        if not world.writes:
            return from_json(FewShot, await_message(world), "the numbers of process 0")
        fewshot = _summarise(options, data, measured)
        world.tell(fewshot.to_json())
    for sentence in remarks(fewshot):
        listener.note(sentence)
    return fewshot


fewshot = from_options(FewShotOptions)(run_fewshot)


def keep_fewshot(options: FewShotOptions, fewshot: FewShot, out: str | None = None) -> list[Path]:
    """Write the numbers as JSON, the accuracy against the number of shots as PNG and SVG, and a page of both.

    Args:
        options: of the measurement.
        fewshot: the numbers.
        out: the folder; left out, fewshot/ in the run folder, or in the working folder.

    Returns:
        The files; none if the default folder cannot be written.

    Raises:
        OSError: the folder of `out` cannot be written.
    """
    folder = Path("fewshot") if out is None else Path(out)
    if out is None and len(options.checkpoints) == 1 and kind_of(options.checkpoints[0]).is_run:
        folder = Path(options.checkpoints[0]) / "fewshot"
    stem = folder / fewshot.data_name
    curves = {model.name: model.scores for model in fewshot.models}
    try:
        if out is None:
            refuse_link(folder)  # the run may be somebody else's
        folder.mkdir(parents=True, exist_ok=True)
        numbers = stem.with_name(stem.name + ".json")
        replace_json(numbers, _without_places(fewshot).to_json())
        images = f"{pluralize(fewshot.test_images, f'{fewshot.test_split} image')} of {fewshot.data_name}"
        figures = list(save_figure(fewshot_plot(curves, images, fewshot.chance, fewshot.seeds), stem))
        by_images = pretraining_figure(fewshot)
        if by_images is not None:
            figures += save_figure(by_images, stem.with_name(stem.name + "-pretraining"))
        page = stem.with_name(stem.name + ".html")
        replace_file(page, [fewshot_page(fewshot).encode()])
        return [numbers, *figures, page]
    except OSError as error:
        if out is not None:
            raise
        options.listener.note(f"Not written to {folder}: {error.strerror}. Choose a folder with --out.")
    except VitkitError as error:
        if out is not None:
            raise
        options.listener.note(f"Not written: {error}")
    return []


def _without_places(fewshot: FewShot) -> FewShot:
    """Remove the paths of checkpoints and data, so that the numbers may be given away.

    Names of classes and keys of images stay, though they may begin with a slash.
    """
    models = tuple(replace(model, start=without_places(model.start)) for model in fewshot.models)
    return replace(fewshot, data=without_places(fewshot.data), models=models)


@dataclass(frozen=True)
class _Checkpoint:
    """The description of a checkpoint before its weights are read."""

    start: str
    name: str
    rule: DecodeRule
    """The rule by which its images are decoded."""
    trained_on: TrainingData | None
    trained_on_these: bool
    architecture: str
    pretraining_images: int | None


@dataclass(frozen=True)
class _Measured:
    """The accuracy of a checkpoint; its shots, test labels and rejected files."""

    model: FewShotModel
    shots: Shots
    test_labels: NDArray[np.int64]
    repeated: int
    rejects: dict[str, str]


def _identify(options: FewShotOptions) -> list[_Checkpoint]:
    """Describe the checkpoints, before time is spent on any.

    Raises:
        VitkitError: one cannot be loaded, or has no pooling.
    """
    models = []
    for start, name in zip(options.checkpoints, short_names(options.checkpoints), strict=True):
        identity = identify_any(start, options.load_options)
        reason = explain_no_features(identity.config)
        if reason:
            raise VitkitError(f"{start} {reason}.")
        record = identity.card.data
        rule = fit_preprocessing(identity.card.preprocessing, identity.config).decode
        same = is_training_data(identity.card, options.data)
        if record is not None and same:  # the images may have been moved since
            record = replace(record, spec=absolute_spec(options.data))
        architecture = identity.card.name or identity.config.family
        images = pretraining_images(start, identity.card)
        models.append(_Checkpoint(start, name, rule, record, same, architecture, images))
    # An image that is too large for a checkpoint is left out for all: the shots must be the same.
    smallest = min(model.rule.max_pixels for model in models)
    return [replace(model, rule=replace(model.rule, max_pixels=smallest)) for model in models]


def _measure(
    options: FewShotOptions,
    checkpoint: _Checkpoint,
    data: FewShotData,
    extractor: FeatureExtractor,
    world: World,
) -> _Measured:
    """Measure a checkpoint, while the other processes compute their parts of the features."""
    listener = options.listener
    compute = _feature_computer(options, checkpoint, extractor, world)
    draws = data.draws(options.seeds)
    shots = shot_features(data, draws, max(options.shots), compute)
    test, test_row = test_features(data, compute)
    fits = len(options.methods) * len(options.shots) * options.seeds
    with listener.progress(f"learning from shots, {checkpoint.name}", fits) as progress:
        scores = measure(
            draws,
            options.shots,
            options.methods,
            shots.features,
            test,
            data.classes,
            unreadable=list(shots.unreadable),
            l2=options.l2,
            neighbours=options.neighbours,
            progress=progress,
        )
    rejects = {data.pool.key(index): reason for index, reason in shots.unreadable.items()}
    bad = np.flatnonzero(~test_row.readable).tolist()
    rejects |= {data.test.key(index): reason for index, reason in zip(bad, test_row.reasons, strict=True)}
    width = test.rows.shape[1]
    model = FewShotModel(
        checkpoint.start,
        checkpoint.name,
        width,
        checkpoint.trained_on_these,
        scores,
        checkpoint.architecture,
        checkpoint.pretraining_images,
    )
    return _Measured(model, shots, test.labels, count_repeated(data, shots, test, test_row.pixels), rejects)


def _load_extractor(
    options: FewShotOptions, checkpoint: _Checkpoint, device: torch.device
) -> FeatureExtractor:
    """Load the model of a checkpoint, to compute its features."""
    model = load_model(
        checkpoint.start,
        image_size=options.image_size,
        num_heads=options.num_heads,
        position_interpolation=options.position_interpolation,
    )
    preprocessing = replace(preprocessing_of(model), decode=checkpoint.rule)
    return FeatureExtractor(model.to(device), preprocessing, device, options.precision)


def _compute_parts(
    options: FewShotOptions, data: FewShotData, extractor: FeatureExtractor, world: World
) -> None:
    """Compute parts of the features of a checkpoint, until process 0 sends no more images."""
    while (message := await_message(world)) is not None:
        which, indices = message
        samples = data.test if which == data.test_split else data.pool
        extractor.compute(
            samples,
            np.array(indices, np.int64),
            batch_size=options.batch_size,
            workers=options.workers,
            world=world,
        )


def _feature_computer(
    options: FewShotOptions, checkpoint: _Checkpoint, extractor: FeatureExtractor, world: World
) -> ComputeFeatures:
    """Make the function that computes the features of a checkpoint, or reads them from the cache."""
    listener = options.listener
    cache = FeatureCache(cache_folder() / "features", listener.note) if options.cache else None
    fingerprint = extractor.fingerprint() if cache is not None else ""

    def compute(samples: Samples, indices: NDArray[np.int64], which: str) -> Features:
        def anew() -> Features:
            world.tell((which, indices.tolist()))  # the others compute their parts
            with listener.progress(f"features of {which}, {checkpoint.name}", len(indices)) as progress:
                return extractor.compute(
                    samples,
                    indices,
                    batch_size=options.batch_size,
                    workers=options.workers,
                    progress=progress,
                    world=world,
                )

        return anew() if cache is None else cached_features(fingerprint, samples, indices, cache, anew)

    return compute


def _summarise(options: FewShotOptions, data: FewShotData, measured: Sequence[_Measured]) -> FewShot:
    """Make the result of all checkpoints, which have the same shots and test images."""
    first, names = measured[0], data.data.class_names
    readable = np.bincount(data.pool.labels, minlength=data.classes)
    bad = data.pool.labels[np.array(list(first.shots.unreadable), np.int64)]
    readable -= np.bincount(bad, minlength=data.classes)
    most = max(options.shots)
    tested = np.bincount(first.test_labels, minlength=data.classes)
    return FewShot(
        data=options.data,
        data_name=data.data.name,
        class_names=names,
        test_split=data.test_split,
        test_images=len(first.test_labels),
        chance=1 / data.classes,
        majority=float(tested.max() / tested.sum()),
        shots=tuple(options.shots),
        seeds=options.seeds,
        fewer={names[i]: int(readable[i]) for i in np.flatnonzero(readable < most).tolist()},
        repeated=first.repeated,
        rejects=first.rejects,
        notes=data.data.notes,
        models=tuple(measurement.model for measurement in measured),
    )

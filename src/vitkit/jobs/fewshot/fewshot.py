"""Measure the few-shot accuracy of checkpoints: classes are learned from a few images by frozen features."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vitkit.analysis.drawing import save_figure
from vitkit.analysis.study_figures import fewshot_plot, pretraining_plot
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
from vitkit.evaluation.fewshot.config import L2, METHODS, SHOTS, Method, listed
from vitkit.evaluation.fewshot.data import (
    ComputeFeatures,
    FewShotData,
    count_repeated,
    open_fewshot_data,
    shot_features,
    test_features,
)
from vitkit.evaluation.fewshot.methods import MAX_ITERATIONS
from vitkit.evaluation.fewshot.scores import FewShotScore, measure
from vitkit.jobs.options import LoadingOptions, StrPath, StrPaths, as_names, require_at_least
from vitkit.listener import SILENT, Listener, hushed
from vitkit.models.config.compute_config import Precision
from vitkit.notebook import AUTOMATIC
from vitkit.report.template import Part, render_page
from vitkit.result import Block, Cell, Number, Plot, Result, Table, Text, unreadable
from vitkit.runs.checkpoints import identify_any, load_model
from vitkit.runs.folder import kind_of
from vitkit.runs.machine import find_device
from vitkit.runs.processes import await_message, divide_threads, join_processes, lost_processes_explained
from vitkit.runs.trained_model import is_training_data
from vitkit.tasks.page import fraction_cell
from vitkit.text import distinct_ends, join_names, pluralize, without_places
from vitkit.weights.files.hub import cache_folder
from vitkit.weights.format_names import LoadOptions
from vitkit.weights.model_card import TrainingData, fit_preprocessing, preprocessing_of
from vitkit.weights.published import pretraining_images
from vitkit.world import World, prepared_together

HARDEST_SHOWN = 3
"""Classes with the lowest accuracy that are named for each model."""
DRAWS_SHOWN = 5
"""Accuracies of single draws that the table has room for."""


@dataclass(frozen=True)
class FewShotModel:
    """The few-shot accuracy of one checkpoint."""

    start: str
    """The given path or address."""
    name: str
    """A short name, different from the other checkpoints'."""
    features: int
    """D, the number of features of an image."""
    trained_on_these: bool
    """Whether the model was trained on this data."""
    scores: tuple[FewShotScore, ...]
    """The scores of each method and number of shots."""
    architecture: str = ""
    """The name of the model, such as "ViT-B/16"."""
    pretraining_images: int | None = None
    """Number of images of the first training of its weights; None if unknown."""

    def of_method(self, method: Method) -> tuple[FewShotScore, ...]:
        """Return the scores of one method, by the number of shots."""
        return tuple(score for score in self.scores if score.method == method)

    @property
    def best(self) -> FewShotScore:
        """The best score among the methods, with the most shots."""
        most = max(score.shots for score in self.scores)
        return max((score for score in self.scores if score.shots == most), key=lambda score: score.mean)


@dataclass(frozen=True, repr=False)
class FewShot(Result):
    """The few-shot accuracy of checkpoints, all with the same shots and the same test images."""

    data: str
    """The given path or address."""
    data_name: str
    class_names: tuple[str, ...]
    test_split: str
    test_images: int
    """Test images that could be read."""
    chance: float
    """Accuracy of guessing every class with the same probability."""
    majority: float
    """Accuracy of always naming the most frequent class of the test images."""
    shots: tuple[int, ...]
    seeds: int
    fewer: Mapping[str, int]
    """Number of readable images in classes with fewer than the most shots: all of them are shots."""
    repeated: int
    """Test images that are among the shots, pixel for pixel."""
    rejects: Mapping[str, str]
    """Key and reason of images that could not be read: shots were replaced by others of their class, test
    images left out."""
    notes: tuple[str, ...]
    """Sentences about the data."""
    models: tuple[FewShotModel, ...]

    def summary(self) -> str:
        """Give the best accuracy of each checkpoint."""
        best = "; ".join(
            f"{model.name} {model.best.mean:.1%} ({model.best.method}, {pluralize(model.best.shots, 'shot')})"
            for model in self.models
        )
        return f"{best}; on {self.test_images:,} {self.test_split} images of {self.data_name}"

    @property
    def tested(self) -> str:
        """Describe the test images: "360 test images of digits"."""
        return f"{pluralize(self.test_images, f'{self.test_split} image')} of {self.data_name}"

    def blocks(self) -> Sequence[Block]:
        """Return a row for each checkpoint, method and number of shots, and what guessing and classes are."""
        blocks: list[Block] = [score_table(self), describe_guessing(self)]
        for model in self.models if len(self.class_names) > 2 else ():
            best = model.best
            classes = zip(best.class_accuracy, self.class_names, strict=True)
            scored = sorted((accuracy, name) for accuracy, name in classes if accuracy is not None)
            hardest = ", ".join(f"{name} {accuracy:.0%}" for accuracy, name in scored[:HARDEST_SHOWN])
            blocks.append(f"Hardest for {model.name} ({best.method}, {best.shots:,} shots): {hardest}.")
        return [*blocks, *unreadable(self.rejects, "were left out")]


def score_table(fewshot: FewShot) -> Table:
    """Make the table of accuracies: a row for each method, checkpoint and number of shots."""
    several = len(fewshot.models) > 1
    rows: list[tuple[Cell, ...]] = []
    for method in dict.fromkeys(score.method for score in fewshot.models[0].scores):
        for model in fewshot.models:
            for score in model.of_method(method):
                low, high = score.shown_interval or (None, None)
                rows.append(
                    (
                        method,
                        *([model.name] if several else []),
                        Number(f"{score.shots:,}", score.shots),
                        Number(f"{score.mean:.2%}", score.mean),
                        "" if score.deviation is None else f"{score.deviation:.2%}",
                        "" if low is None else f"{low:.1%} to {high:.1%}",
                        " ".join(f"{accuracy:.1%}" for accuracy in score.accuracies[:DRAWS_SHOWN]),
                    )
                )
    first = ("method", *(["checkpoint"] if several else []))
    headings = (*first, "shots", "accuracy", "deviation", "95 % over draws", "each draw")
    return Table(headings, tuple(rows), text=range(len(first)))


def describe_guessing(fewshot: FewShot) -> str:
    """Say on which images the checkpoints were tested, and how often guessing is right on them."""
    return (
        f"On {fewshot.test_images:,} {fewshot.test_split} images of {fewshot.data_name} in "
        f"{len(fewshot.class_names):,} classes: a class drawn at random is right for {fewshot.chance:.1%}, "
        f"always naming the most frequent class for {fewshot.majority:.1%}."
    )


def pretraining_curves(fewshot: FewShot) -> dict[str, list[tuple[int, FewShotModel]]]:
    """Order the checkpoints of each architecture by the number of images of their pre-training.

    Empty where fewer than two such numbers are known.
    """
    sized = [(entry.pretraining_images, entry) for entry in fewshot.models if entry.pretraining_images]
    if len({images for images, _ in sized}) < 2:
        return {}
    curves: dict[str, list[tuple[int, FewShotModel]]] = {}
    for images, model in sorted(sized, key=lambda pair: pair[0]):
        curves.setdefault(model.architecture or model.name, []).append((images, model))
    return curves


def remarks(fewshot: FewShot) -> Iterator[str]:
    """Yield sentences that a reader of the numbers should know: few images, copies, poor fits."""
    most = max(fewshot.shots)
    if fewshot.fewer:
        shown = join_names([f"{name} ({count})" for name, count in fewshot.fewer.items()])
        classes = pluralize(len(fewshot.fewer), "class has", "classes have")
        yield f"{classes} fewer than {most} images to draw from, and all of them are shots: {shown}."
    if fewshot.repeated:
        images = pluralize(fewshot.repeated, "test image is", "test images are")
        yield (
            f"{images} among the shots, pixel for pixel: the accuracy is too good by them. vitkit data check "
            "names the copies."
        )
    for model in fewshot.models:
        failed = sum(not converged for score in model.scores for converged in score.converged)
        if failed:
            yield (
                f"{model.name}: logistic regression did not converge in {MAX_ITERATIONS:,} iterations in "
                f"{pluralize(failed, 'fit')}; its numbers are of the last iteration."
            )
        interval = model.best.interval
        if interval is not None and interval[0] <= max(fewshot.chance, fewshot.majority):
            yield (
                f"{model.name}: by these draws, the best of its numbers with "
                f"{pluralize(model.best.shots, 'shot')} is not significantly better than guessing."
            )


def fewshot_page(fewshot: FewShot) -> str:
    """Make the page of a result, as an HTML document."""
    best = max(fewshot.models, key=lambda model: model.best.mean)
    scores = [(model.name, model.best) for model in fewshot.models]
    described = "; ".join(
        f"{name}: {score.mean:.1%} with {pluralize(score.shots, 'shot')} by {score.method}"
        for name, score in scores
    )
    figure, by_images = accuracy_figure(fewshot), pretraining_figure(fewshot)
    pretrained = "; ".join(
        f"{model.name}, pre-trained on {images:,} images: {model.best.mean:.1%}"
        for models in pretraining_curves(fewshot).values()
        for images, model in models
    )
    parts: list[Part] = [
        (
            "Accuracy by the number of images",
            (
                *(Text(remark, "warning") for remark in remarks(fewshot)),
                Plot(figure, "fewshot", described),
                None if by_images is None else Plot(by_images, "images", pretrained),
                score_table(fewshot),
                Text(
                    "Mean accuracy over the draws of the shots, their standard deviation, and the 95% "
                    "interval of the mean by Student's t; every checkpoint meets the same shots and the same "
                    "test images.",
                    "caption",
                ),
            ),
        ),
        (
            "Class by class",
            (
                Text(
                    "Each accuracy is the mean over the draws, by the best method with the most shots.",
                    "caption",
                ),
                _class_table(fewshot),
            ),
        ),
    ]
    if fewshot.notes:
        parts.append(("Data", fewshot.notes))
    answer = (_answer(best, fewshot.tested, len(fewshot.models) > 1), describe_guessing(fewshot))
    return render_page(f"Few-shot accuracy on {fewshot.data_name}", answer, parts)


def accuracy_figure(fewshot: FewShot) -> Figure:
    """Draw accuracy against the number of shots."""
    curves = {model.name: model.scores for model in fewshot.models}
    return fewshot_plot(curves, fewshot.tested, fewshot.chance, fewshot.seeds)


def pretraining_figure(fewshot: FewShot) -> Figure | None:
    """Draw accuracy against the number of images of the pre-training; None where fewer than two are known."""
    curves = pretraining_curves(fewshot)
    if not curves:
        return None
    method = fewshot.models[0].scores[0].method  # ridge is the first, unless it was left out
    scores = {
        name: [(images, model.of_method(method)) for images, model in models]
        for name, models in curves.items()
    }
    return pretraining_plot(scores, fewshot.tested, method, fewshot.chance, fewshot.seeds)


def _answer(best: FewShotModel, images: str, several: bool) -> str:
    score = best.best
    shown, interval = score.shown_interval, ""
    if shown is not None:
        interval = f" (95% interval of the mean over draws: {shown[0]:.1%} to {shown[1]:.1%})"
    which = f"The best of the checkpoints is {best.name}: with" if several else "With"
    return (
        f"{which} {pluralize(score.shots, 'image')} of each class, {score.method} on frozen features is "
        f"right on {score.mean:.1%} of {images}{interval}."
    )


def _class_table(fewshot: FewShot) -> Table:
    """Make a row for each class, in rising order of the first checkpoint's accuracy."""
    best = [model.best for model in fewshot.models]
    headings = [
        f"{model.name} ({score.method}, {pluralize(score.shots, 'shot')})"
        for model, score in zip(fewshot.models, best, strict=True)
    ]
    of_first = best[0].class_accuracy  # None of a class without test images, which comes last
    order = sorted(range(len(of_first)), key=lambda i: (of_first[i] is None, of_first[i] or 0.0))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (fewshot.class_names[i], *(fraction_cell(score.class_accuracy[i]) for score in best)) for i in order
    )
    return Table(("class", *headings), rows)


@dataclass(frozen=True)
class _Learning:
    """The ways in which classes are learned from the shots."""

    shots: tuple[int, ...]
    seeds: int
    methods: Sequence[Method]
    l2: float
    neighbours: int | None

    def __post_init__(self) -> None:
        if not self.shots or min(self.shots) < 1:
            raise VitkitError(f"shots are numbers of images from 1, found {listed(self.shots)}.")
        if not self.methods or not set(self.methods) <= set(METHODS):
            raise VitkitError(f"methods are among {listed(METHODS)}, found {listed(self.methods)}.")
        require_at_least(1, seeds=self.seeds, neighbours=self.neighbours)
        if not 0 < self.l2 < float("inf"):
            raise VitkitError(f"l2 is a number above 0, found {self.l2}.")


def fewshot(
    starts: StrPaths,
    data: str,
    *,
    shots: Sequence[int] = SHOTS,
    seeds: int = 3,
    methods: Sequence[Method] = METHODS,
    l2: float = L2,
    neighbours: int | None = None,
    batch_size: int = 128,
    workers: int = 0,
    device: str = "auto",
    precision: Precision = "auto",
    cache: bool = True,
    quiet: bool = False,
    listener: Listener = AUTOMATIC,
    **load: Unpack[LoadingOptions],
) -> FewShot:
    """Measure how well classes are learned from a few images, by the features of frozen checkpoints.

    Args:
        starts: run folders, or any checkpoints that `vitkit convert` reads; several are compared on the same
            images.
        data: images with labels: "digits" (built in), a folder of class folders, a .csv or a folder of
            .parquet. The shots are drawn from its training images.
        shots: numbers of images of each class to learn from.
        seeds: number of times the shots are drawn: with the seeds 0, 1, 2 and so on.
        methods: ridge (the paper's few-shot accuracy: least squares in closed form), knn (nearest neighbours
            by cosine), logistic (regression).
        l2: strength of the L2 penalty of ridge; the original code uses 1024.
        neighbours: number of neighbours of knn; left out, it is chosen on the shots.
        batch_size: images that are computed at a time.
        workers: processes that decode images; with 0 the main process decodes.
        device: where to compute: "auto" (a GPU if there is one), "cpu", "gpu" or "cuda:1".
        precision: number format of the computation: float32, bfloat16, or auto: bfloat16 on a GPU that has
            it, else float32.
        cache: keep the features of images in the user's cache folder, and use the features that are there.
        quiet: print nothing but warnings.
        listener: hears the progress and remarks; left out, a notebook shows them and a script is silent.
        load: how checkpoints are read, as `vitkit.jobs.options.LoadingOptions` describes it.

    Returns:
        The numbers. The shots are drawn once for all checkpoints. The test images are the test split, else
        the validation split, else a fifth of the images, cut off with seed 0. The protocol of "ridge" is the
        paper's (4.1), as in big_vision `evaluators/fewshot_lsr.py`. Each of the processes that torchrun
        starts computes a part of the features, the first one learns from them, and all get the same numbers.

    Raises:
        VitkitError: a checkpoint cannot be loaded or has no pooling; or there is no data, or no test image.
    """
    names = as_names(starts)
    if not names:
        raise VitkitError("Which model? Give a run folder, a checkpoint or an address, or several.")
    if not data:
        raise VitkitError("Which images? Give data: a path, or digits for the built-in ones.")
    learning = _Learning(tuple(sorted(set(shots))), seeds, methods, l2, neighbours)
    listener = hushed(listener, quiet)
    world = join_processes(listener.warn)
    listener = listener if world.writes else SILENT  # process 0 alone shows messages
    divide_threads(world)
    with lost_processes_explained(world):
        with prepared_together(world):
            place = find_device(device)
            checkpoints = _identify(names, data, LoadOptions(**load))
            for checkpoint in checkpoints:
                if checkpoint.model.trained_on_these:
                    start = checkpoint.model.start
                    listener.note(f"{start} was trained on {data}: the shots are training images of its own.")
            trained_on = [c.trained_on for c in checkpoints if c.trained_on is not None]
            opened = open_fewshot_data(data, trained_on, world)
            for note in opened.data.notes:
                listener.note(note)
        measured = []
        for checkpoint in checkpoints:
            with prepared_together(world):
                model = load_model(checkpoint.model.start, **load).to(place)
                rule = replace(preprocessing_of(model), decode=checkpoint.rule)
                extractor = FeatureExtractor(model, rule, place, precision, batch_size, workers)
            decoded = opened.decoded_by(checkpoint.rule)
            if world.writes:
                compute = _feature_computer(checkpoint.model.name, extractor, cache, world, listener)
                measured.append(_measure(learning, checkpoint.model, data, decoded, compute, listener))
                world.tell(None)
            else:  # until process 0 sends no more images
                while (message := await_message(world)) is not None:
                    which, indices = message
                    samples = decoded.test if which == decoded.test_split else decoded.pool
                    extractor.compute(samples, np.array(indices, np.int64), world=world)
        if not world.writes:
            return from_json(FewShot, await_message(world), "the numbers of process 0")
        # All have the same shots and test images.
        result = replace(measured[0], models=tuple(each.models[0] for each in measured))
        world.tell(result.to_json())
    for sentence in remarks(result):
        listener.note(sentence)
    return result


def keep_fewshot(
    fewshot: "FewShot", *, out: StrPath | None = None, listener: Listener = AUTOMATIC
) -> list[Path]:
    """Write the numbers as JSON, the accuracy against the number of shots as PNG and SVG, and a page of both.

    Args:
        fewshot: the numbers.
        out: folder for the numbers and the plot; left out, fewshot/ in the run folder, or in the working
            folder.
        listener: hears why the default folder cannot be written.

    Returns:
        The files; none if the default folder cannot be written.

    Raises:
        OSError: the folder of `out` cannot be written.
    """
    folder = Path("fewshot") if out is None else Path(out)
    if out is None and len(fewshot.models) == 1 and kind_of(fewshot.models[0].start).is_run:
        folder = Path(fewshot.models[0].start) / "fewshot"
    stem = folder / fewshot.data_name
    try:
        if out is None:
            refuse_link(folder)  # the run may be somebody else's
        folder.mkdir(parents=True, exist_ok=True)
        numbers = stem.with_name(stem.name + ".json")
        # No paths, so that the numbers may be given away; names of classes may begin with a slash, and stay.
        models = tuple(replace(model, start=without_places(model.start)) for model in fewshot.models)
        given_away = replace(fewshot, data=without_places(fewshot.data), models=models)
        replace_json(numbers, given_away.to_json())
        figures = list(save_figure(accuracy_figure(fewshot), stem))
        by_images = pretraining_figure(fewshot)
        if by_images is not None:
            figures += save_figure(by_images, stem.with_name(stem.name + "-pretraining"))
        page = stem.with_name(stem.name + ".html")
        replace_file(page, [fewshot_page(fewshot).encode()])
        return [numbers, *figures, page]
    except (OSError, VitkitError) as error:
        if out is not None:
            raise
        reason = error.strerror if isinstance(error, OSError) else error
        listener.note(f"Not written to {folder}: {reason}. Choose a folder with --out.")
    return []


@dataclass(frozen=True)
class _Checkpoint:
    """A checkpoint before its weights are read."""

    model: FewShotModel
    """Its description, without scores."""
    rule: DecodeRule
    """The rule by which its images are decoded."""
    trained_on: TrainingData | None


def _identify(starts: Sequence[str], data: str, load: LoadOptions) -> list[_Checkpoint]:
    """Describe the checkpoints, before time is spent on any.

    Raises:
        VitkitError: one cannot be loaded, or has no pooling.
    """
    models = []
    for start, name in zip(starts, distinct_ends(starts), strict=True):
        identity = identify_any(start, load)
        reason = explain_no_features(identity.config)
        if reason:
            raise VitkitError(f"{start} {reason}.")
        record = identity.card.data
        rule = fit_preprocessing(identity.card.preprocessing, identity.config).decode
        same = is_training_data(identity.card, data)
        if record is not None and same:  # the images may have been moved since
            record = replace(record, spec=absolute_spec(data))
        architecture = identity.card.name or identity.config.family
        images = pretraining_images(start, identity.card)
        described = FewShotModel(start, name, 0, same, (), architecture, images)
        models.append(_Checkpoint(described, rule, record))
    # An image that is too large for a checkpoint is left out for all: the shots must be the same.
    smallest = min(model.rule.max_pixels for model in models)
    return [replace(model, rule=replace(model.rule, max_pixels=smallest)) for model in models]


def _measure(
    learning: _Learning,
    model: FewShotModel,
    spec: str,
    data: FewShotData,
    compute: ComputeFeatures,
    listener: Listener,
) -> FewShot:
    """Measure a checkpoint, while the other processes compute their parts of the features."""
    draws, most = data.draws(learning.seeds), max(learning.shots)
    shots = shot_features(data, draws, most, compute)
    test, computed = test_features(data, compute)
    fits = len(learning.methods) * len(learning.shots) * learning.seeds
    with listener.progress(f"learning from shots, {model.name}", fits) as progress:
        scores = measure(
            draws,
            learning.shots,
            learning.methods,
            shots.features,
            test,
            data.classes,
            unreadable=list(shots.unreadable),
            l2=learning.l2,
            neighbours=learning.neighbours,
            progress=progress,
        )
    rejects = {data.pool.key(index): reason for index, reason in shots.unreadable.items()}
    bad = np.flatnonzero(~computed.readable).tolist()
    rejects |= {data.test.key(index): reason for index, reason in zip(bad, computed.reasons, strict=True)}
    names, tested = data.data.class_names, np.bincount(test.labels, minlength=data.classes)
    readable = np.bincount(np.delete(data.pool.labels, list(shots.unreadable)), minlength=data.classes)
    return FewShot(
        data=spec,
        data_name=data.data.name,
        class_names=names,
        test_split=data.test_split,
        test_images=len(test.labels),
        chance=1 / data.classes,
        majority=float(tested.max() / tested.sum()),
        shots=learning.shots,
        seeds=learning.seeds,
        fewer={names[i]: int(readable[i]) for i in np.flatnonzero(readable < most).tolist()},
        repeated=count_repeated(data, shots, test, computed.pixels),
        rejects=rejects,
        notes=data.data.notes,
        models=(replace(model, features=test.rows.shape[1], scores=scores),),
    )


def _feature_computer(
    name: str, extractor: FeatureExtractor, cached: bool, world: World, listener: Listener
) -> ComputeFeatures:
    """Make the function that computes the features of a checkpoint, or reads them from the cache."""
    cache = FeatureCache(cache_folder() / "features", listener.note) if cached else None
    fingerprint = extractor.fingerprint() if cache is not None else ""

    def compute(samples: Samples, indices: NDArray[np.int64], which: str) -> Features:
        def anew() -> Features:
            world.tell((which, indices.tolist()))  # the others compute their parts
            with listener.progress(f"features of {which}, {name}", len(indices)) as progress:
                return extractor.compute(samples, indices, progress, world)

        return cached_features(fingerprint, samples, indices, cache, anew)

    return compute

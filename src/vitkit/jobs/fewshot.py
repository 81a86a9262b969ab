"""Measure the few-shot accuracy of checkpoints: classes are learned from a few images by frozen features."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from vitkit.analysis import figures
from vitkit.config import write
from vitkit.data import paths, sources
from vitkit.data.config import Preprocessing
from vitkit.durable import cache_folder, refuse_link
from vitkit.errors import VitkitError
from vitkit.evaluation import features
from vitkit.evaluation.fewshot import methods as protocol
from vitkit.evaluation.fewshot.config import L2, METHODS, SHOTS, Learning, Method
from vitkit.jobs.options import LoadingOptions, StrPath, StrPaths, as_names
from vitkit.listener import AUTOMATIC, SILENT, Listener, hushed
from vitkit.models.config import Precision
from vitkit.models.image_model import ImageModel
from vitkit.report.template import write_page
from vitkit.result import Block, Caption, Cell, Number, Plot, Result, Section, Table, Text, unreadable
from vitkit.runs import machine, processes, trained_model
from vitkit.runs.closed_form import HEAD
from vitkit.runs.folder import kind_of
from vitkit.runs.start import identify_any, load_model
from vitkit.tasks.page import count_cell, fraction_cell
from vitkit.text import distinct_ends, join_names, pluralize, without_places
from vitkit.weights import format_names, model_card
from vitkit.weights.loading import Identity
from vitkit.weights.published import pretraining_images
from vitkit.world import ALONE, World, prepared_together

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
    scores: tuple[protocol.FewShotScore, ...]
    """The scores of each method and number of shots."""
    architecture: str = ""
    """The name of the model, such as "ViT-B/16"."""
    pretraining_images: int | None = None
    """Number of images of the first training of its weights; None if unknown."""

    @property
    def best(self) -> protocol.FewShotScore:
        """The best score among the methods, with the most shots."""
        most = max(score.shots for score in self.scores)
        return max((score for score in self.scores if score.shots == most), key=lambda score: score.mean)

    @property
    def best_way(self) -> str:
        """The method and the number of shots of the best score."""
        return f"{self.best.method}, {pluralize(self.best.shots, 'shot')}"


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

    @property
    def tested(self) -> str:
        """Describe the test images: "360 test images of digits"."""
        return f"{pluralize(self.test_images, f'{self.test_split} image')} of {self.data_name}"

    def heading(self) -> str:
        """Say which checkpoints were measured on which images."""
        return f"Few-shot accuracy of {join_names([model.name for model in self.models])} on {self.data_name}"

    def headline(self) -> Sequence[str]:
        """Give the best accuracy, how often guessing is right, and the hardest classes."""
        best = max(self.models, key=lambda model: model.best.mean)
        score, interval = best.best, ""
        if score.shown_interval is not None:
            low, high = score.shown_interval
            interval = f" (95 % interval of the mean over draws: {low:.1%} to {high:.1%})"
        which = f"The best of the checkpoints is {best.name}: with" if len(self.models) > 1 else "With"
        sentences = [
            f"{which} {pluralize(score.shots, 'image')} of each class, {score.method} on frozen features is "
            f"right on {score.mean:.1%} of {self.tested}{interval}.",
            f"In {len(self.class_names):,} classes, a class drawn at random is right for {self.chance:.1%}, "
            f"always naming the most frequent class for {self.majority:.1%}.",
        ]
        for model in self.models if len(self.class_names) > 2 else ():
            classes = zip(model.best.class_accuracy, self.class_names, strict=True)
            scored = sorted((accuracy, name) for accuracy, name in classes if accuracy is not None)
            hardest = ", ".join(f"{name} {accuracy:.0%}" for accuracy, name in scored[:HARDEST_SHOWN])
            sentences.append(f"Hardest for {model.name} ({model.best_way}): {hardest}.")
        return sentences

    def sections(self) -> Sequence[Section]:
        """Return the accuracies of each checkpoint, drawn and as a table, and those of its classes."""
        warnings = [Text(remark, "warning") for remark in remarks(self)]
        explained = (
            "Mean accuracy over the draws of the shots, their standard deviation, and the 95 % interval of "
            "the mean by Student's t; every checkpoint meets the same shots and the same test images."
        )
        of_classes = "Each accuracy is the mean over the draws, by the best method with the most shots."
        accuracies: list[Block] = [*plots_of(self).values(), score_table(self), Caption(explained)]
        accuracies += unreadable(self.rejects, "were left out")
        columns = zip(*(model.best.class_accuracy for model in self.models), strict=True)
        by_class = zip(self.class_names, columns, strict=True)
        # In rising order of the first checkpoint's accuracy; there is none of a class without test images.
        order = sorted(by_class, key=lambda row: (row[1][0] is None, row[1][0] or 0.0))
        headings = ("class", *(f"{model.name} ({model.best_way})" for model in self.models))
        classes = Table(headings, tuple((name, *map(fraction_cell, each)) for name, each in order))
        parts = (
            Section("Before the numbers are used", warnings, page_only=True),
            Section("Accuracy by the number of images", accuracies),
            Section("Class by class", (Caption(of_classes), classes), page_only=True),
            Section("Data", self.notes, page_only=True),
        )
        return [part for part in parts if part.blocks]


def score_table(fewshot: FewShot) -> Table:
    """Make the table of accuracies: a row for each method, checkpoint and number of shots."""
    several = len(fewshot.models) > 1
    rows: list[tuple[Cell, ...]] = []
    scores = [(model.name, score) for model in fewshot.models for score in model.scores]
    methods = list(dict.fromkeys(score.method for _, score in scores))
    for name, score in sorted(scores, key=lambda pair: methods.index(pair[1].method)):
        low, high = score.shown_interval or (None, None)
        measured = (
            count_cell(score.shots),
            Number(f"{score.mean:.2%}", score.mean),
            "" if score.deviation is None else f"{score.deviation:.2%}",
            "" if low is None else f"{low:.1%} to {high:.1%}",
            " ".join(f"{accuracy:.1%}" for accuracy in score.accuracies[:DRAWS_SHOWN]),
        )
        rows.append((score.method, *([name] if several else []), *measured))
    first = ("method", *(["checkpoint"] if several else []))
    headings = (*first, "shots", "accuracy", "deviation", "95 % over draws", "each draw")
    return Table(headings, tuple(rows), left=range(len(first)))


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
        if model.trained_on_these:
            yield f"{model.name} was trained on this data: the shots are training images of its own."
        failed = sum(not converged for score in model.scores for converged in score.converged)
        if failed:
            yield (
                f"{model.name}: logistic regression did not converge in {protocol.MAX_ITERATIONS:,} "
                f"iterations in {pluralize(failed, 'fit')}; its numbers are of the last iteration."
            )
        interval = model.best.interval
        if interval is not None and interval[0] <= max(fewshot.chance, fewshot.majority):
            yield (
                f"{model.name}: by these draws, the best of its numbers with "
                f"{pluralize(model.best.shots, 'shot')} is not significantly better than guessing."
            )


def plots_of(fewshot: FewShot) -> dict[str, Plot]:
    """Draw accuracy against the number of shots and, where two such numbers are known, against the number of
    images of the pre-training, a curve for each architecture; by the endings of the names of their files."""
    tested, chance, seeds = fewshot.tested, fewshot.chance, fewshot.seeds
    scores = {model.name: model.scores for model in fewshot.models}
    alt = "; ".join(f"{model.name}: {model.best.mean:.1%} ({model.best_way})" for model in fewshot.models)
    plots = {"": Plot(lambda: figures.fewshot_plot(scores, tested, chance, seeds), "fewshot", alt)}
    sized = [(model.pretraining_images, model) for model in fewshot.models if model.pretraining_images]
    if len({images for images, _ in sized}) > 1:
        method = fewshot.models[0].scores[0].method  # ridge is the first, unless it was left out
        curves: dict[str, list[tuple[int, Sequence[protocol.FewShotScore]]]] = {}
        for images, model in sorted(sized, key=lambda pair: pair[0]):
            curve = curves.setdefault(model.architecture or model.name, [])
            curve.append((images, [score for score in model.scores if score.method == method]))
        alt = "; ".join(
            f"{model.name}, pre-trained on {images:,} images: {model.best.mean:.1%}"
            for images, model in sized
        )
        plots["-pretraining"] = Plot(
            lambda: figures.pretraining_plot(curves, tested, method, chance, seeds), "images", alt
        )
    return plots


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
        starts computes a part of the features, and all of them get the same numbers.

    Raises:
        VitkitError: a checkpoint cannot be loaded or has no pooling; or there is no data, or no test image.
    """
    names = as_names(starts)
    if not names:
        raise VitkitError("Which model? Give a run folder, a checkpoint or an address, or several.")
    if not data:
        raise VitkitError("Which images? Give data: a path, or digits for the built-in ones.")
    learning = Learning(tuple(sorted(set(shots))), seeds, methods, l2, neighbours)
    listener = hushed(listener, quiet)
    world = processes.join_processes(listener.warn)
    listener = listener if world.writes else SILENT  # process 0 alone shows messages
    processes.divide_threads(world)
    with processes.lost_processes_explained(world):
        with prepared_together(world):
            place = machine.find_device(device)
            options = format_names.LoadOptions(**load)
            described = [
                identify(*pair, data, options) for pair in zip(names, distinct_ends(names), strict=True)
            ]
            opened, max_pixels = open_shared(data, [identity for _, identity in described], world)
            for note in opened.data.notes:
                listener.note(note)
        measured = []
        for each, _ in described:
            with prepared_together(world):
                model = load_model(each.start, **load).to(place)
                rule = limited(model, max_pixels)
                extractor = features.FeatureExtractor(model, rule, place, precision, batch_size, workers)
            # All processes learn from the same features, since they could only wait meanwhile, and need no
            # message for the result; one reports an error.
            with prepared_together(world):
                measured.append(measure(learning, each, opened, extractor, cache, listener, world))
    # All have the same shots and test images.
    result = replace(measured[0], models=tuple(each.models[0] for each in measured))
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
    if out is None and len(fewshot.models) == 1 and kind_of(fewshot.models[0].start).config is not None:
        folder = Path(fewshot.models[0].start) / "fewshot"
    stem = folder / fewshot.data_name
    try:
        if out is None:
            refuse_link(folder)  # the run may be somebody else's
        folder.mkdir(parents=True, exist_ok=True)
        numbers = Path(f"{stem}.json")
        # No paths, so that the numbers may be given away; names of classes may begin with a slash, and stay.
        models = tuple(replace(model, start=without_places(model.start)) for model in fewshot.models)
        given_away = replace(fewshot, data=without_places(fewshot.data), models=models)
        write(numbers, given_away.to_json())
        plots = plots_of(fewshot).items()
        saved = [figures.save_figure(plot.draw(), Path(f"{stem}{end}")) for end, plot in plots]
        return [numbers, *chain(*saved), write_page(fewshot, Path(f"{stem}.html"))]
    except (OSError, VitkitError) as error:
        if out is not None:
            raise
        reason = error.strerror if isinstance(error, OSError) else error
        listener.note(f"Not written to {folder}: {reason}. Choose a folder with --out.")
    return []


def identify(
    start: str, name: str, data: str, load: format_names.LoadOptions
) -> tuple[FewShotModel, Identity]:
    """Describe a checkpoint, without scores, before time is spent on any.

    Raises:
        VitkitError: it cannot be loaded, or has no pooling.
    """
    identity = identify_any(start, load)
    card, config = identity.card, identity.config
    if reason := features.explain_no_features(config):
        raise VitkitError(f"{start} {reason}.")
    # Features come before the head: one in closed form alone was made of its data.
    same = trained_model.is_training_data(card, data) and HEAD not in card.origin
    images = pretraining_images(start, card)
    return FewShotModel(start, name, 0, same, (), card.name or config.family, images), identity


def open_shared(
    data: str, identities: Sequence[Identity], world: World = ALONE
) -> tuple[protocol.FewShotData, int]:
    """Open images for several checkpoints; return the most pixels of an image that all of them read, too.

    An image that is too large for a checkpoint is left out for all: the shots must be the same.
    """
    trained_on, max_pixels = [], []
    for card, config in ((identity.card, identity.config) for identity in identities):
        if card.data is not None:  # these images may have been moved since
            same = trained_model.is_training_data(card, data)
            trained_on.append(replace(card.data, spec=paths.absolute_spec(data)) if same else card.data)
        max_pixels.append(model_card.fit_preprocessing(card.preprocessing, config).decode.max_pixels)
    return protocol.open_fewshot_data(data, trained_on, world), min(max_pixels, default=0)


def limited(model: ImageModel, max_pixels: int) -> Preprocessing:
    """Return a model's preprocessing, for images with so many pixels at most."""
    rule = model_card.preprocessing_of(model)
    return replace(rule, decode=replace(rule.decode, max_pixels=max_pixels))


def measure(
    learning: Learning,
    model: FewShotModel,
    data: protocol.FewShotData,
    extractor: features.FeatureExtractor,
    cached: bool,
    listener: Listener,
    world: World = ALONE,
) -> FewShot:
    """Measure a checkpoint.

    Args:
        learning: the ways to learn.
        model: its description.
        data: the images.
        extractor: computes its features.
        cached: whether stored features are used, and features stored.
        listener: hears the progress.
        world: the processes that compute them together.
    """
    data = data.decoded_by(extractor.preprocessing.decode)
    cache = features.FeatureCache(cache_folder() / "features", listener.note) if cached else None
    fingerprint = extractor.fingerprint() if cached else ""

    def compute(samples: sources.Samples, indices: NDArray[np.int64], which: str) -> features.Features:
        def anew() -> features.Features:
            with listener.progress(f"features of {which}, {model.name}", len(indices)) as progress:
                return extractor.compute(samples, indices, progress, world)

        return features.cached_features(fingerprint, samples, indices, cache, anew, world)

    measured = protocol.measure_data(data, learning, compute, listener, model.name)
    lost, test, computed = measured.unreadable, measured.test, measured.computed
    rejects = {data.pool.key(index): reason for index, reason in lost.items()}
    bad = np.flatnonzero(~computed.readable).tolist()
    rejects |= {data.test.key(index): reason for index, reason in zip(bad, computed.reasons, strict=True)}
    names, tested = data.data.class_names, np.bincount(test.labels)
    readable = np.bincount(np.delete(data.pool.labels, list(lost)), minlength=data.classes)
    few = np.flatnonzero(readable < max(learning.shots)).tolist()
    return FewShot(
        data=data.data.spec,
        data_name=data.data.name,
        class_names=names,
        test_split=data.test_split,
        test_images=len(test.labels),
        chance=1 / data.classes,
        majority=float(tested.max() / tested.sum()),
        shots=learning.shots,
        seeds=learning.seeds,
        fewer={names[i]: int(readable[i]) for i in few},
        repeated=protocol.count_repeated(data, measured),
        rejects=rejects,
        notes=data.data.notes,
        models=(replace(model, features=test.rows.shape[1], scores=measured.scores),),
    )

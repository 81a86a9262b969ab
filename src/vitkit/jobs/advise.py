"""Advise, before anyone waits for a run, on the start to begin from, by a probe of its frozen features."""

import math
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.data import check, listing, paths
from vitkit.data.config import DEFAULT_RULE, DecodeRule, Preprocessing, Splits
from vitkit.data.sources import ImageData, Samples
from vitkit.data.stream.loader import evaluation_batches
from vitkit.errors import VitkitError
from vitkit.evaluation.features import FeatureCache, FeatureExtractor, cached_features, explain_no_features
from vitkit.evaluation.fewshot.methods import FITS, FOLDS, Folded, cross_validate, mixed_order
from vitkit.jobs import finetune, recipes
from vitkit.jobs.options import StrPath, StrPaths, as_names
from vitkit.jobs.train_run import train_run
from vitkit.listener import AUTOMATIC, Listener, hushed
from vitkit.models.zoo import ModelConfig
from vitkit.report.template import write_page
from vitkit.result import Result, Section, table_of
from vitkit.runs import budget, machine, plan, processes, trained_model
from vitkit.runs.config import Run, StartConfig, full_name
from vitkit.runs.start import find_start, load_model
from vitkit.tasks import find_task
from vitkit.text import format_bytes, format_duration, format_size, pluralize
from vitkit.weights.files.download import cache_folder
from vitkit.weights.published import DEFAULT_SIDE
from vitkit.world import ALONE

PAGE = "advice.html"
"""The page of the advice that a run followed, beside the run's own."""
MARGIN = 0.01
"""A smaller difference of accuracies is no reason to compute more."""
UNBALANCED = 10
"""The most frequent class over the rarest, above which rare classes should weigh more in the loss."""


@dataclass(frozen=True)
class Option(budget.Cost):
    """A way to train on the images: its start, its cost and its probe."""

    start: str = ""
    """The start as it was given; "" for new weights and for a published start."""
    folded: Folded | None = None
    """The probe of frozen features, or of small pictures; None without one."""
    notes: tuple[str, ...] = ()
    published: str = ""
    """The published start whose fine-tuning was measured, and whose weights were not fetched."""

    @property
    def where(self) -> str:
        """Describe model and size: "ViT-S/16 at 224x224"."""
        return f"{self.run.model} at {format_size(self.run.preprocessing.image_size)}"


@dataclass(frozen=True, repr=False)
class Advice(Result):
    """The result of `advise`: plain data, to be printed or written as JSON."""

    data: str
    name: str
    classes: int
    images: int
    """Training images."""
    tested: int
    """Test images; 0 where there are none."""
    options: tuple[Option, ...]
    """The given starts, each at its sizes; without a start, published ones."""
    chosen: Option | None
    """The advised option; None where a start must be found first."""
    scratch: Option
    """Training from scratch by the recipe for the images; small pictures are probed."""
    sentences: tuple[str, ...]
    """The advice."""
    default: str = ""
    """The name of the published start that is advised where none was given; its weights were not fetched."""
    folder: Path | None = None
    """The run that followed the advice."""

    def heading(self) -> str:
        """Name the images."""
        return f"How to train on {self.name}"

    def headline(self) -> Sequence[str]:
        """Tell the advice."""
        return self.sentences

    @property
    def can_go(self) -> bool:
        """Whether it can be followed: it names a start, or none was given and the images suffice without."""
        return self.chosen is not None or not check.advise_on_start(self.data, self.images, self.classes)

    def sections(self) -> Sequence[Section]:
        """Return what is in the images, and the ways to train on them."""
        tested = f", {self.tested:,} to test on" if self.tested else ""
        columns: dict[str, Callable[[Option], str]] = {
            "begin from": lambda way: "new weights" if way is self.scratch else way.start or way.published,
            "model": lambda way: way.where,
            "probe": lambda way: "" if way.folded is None else f"{way.folded.accuracy:.0%}",
            "steps": lambda way: f"{way.steps:,}",
            "time": lambda way: format_duration(way.seconds),
            "memory": lambda way: format_bytes(way.memory),
        }
        counted = f"{self.name}: {self.images:,} training images{tested}, {self.classes:,} classes"
        table = replace(table_of((*self.options, self.scratch), columns), left=(0, 1))
        return (Section("Ways to train", (counted, table)),)

    def following(self) -> Sequence[str]:
        """Return the command that follows the advice, or the one that makes it possible."""
        images = shlex.quote(self.data)
        if self.folder is not None:
            pages = (self.folder / name for name in (PAGE, "report.html"))
            return tuple(f"open {page} in a browser" for page in pages)
        if self.can_go:
            starts = [option.start for option in self.options if option.start]
            return (f"vitkit advise {shlex.join(dict.fromkeys([self.data, *starts]))} --go   (trains so)",)
        if self.default:
            return (f"vitkit finetune {images}   (from {self.default})",)
        return (f"vitkit advise {images} START",)


def choose(options: Sequence[Option]) -> Option | None:
    """Choose the cheapest start whose probe does not differ from the best one.

    A point, or a standard error of the best probe where that is more, is no difference. Cost is counted in
    FLOPs, not in seconds, so that the same command chooses the same option every time.

    Args:
        options: starts, each at a size.

    Returns:
        The option; None where none was probed.
    """
    probed = [(option.folded, option) for option in options if option.folded is not None]
    if not probed:
        return None
    best = max((folded for folded, _ in probed), key=lambda folded: folded.accuracy)
    error = math.sqrt(best.accuracy * (1 - best.accuracy) / best.images)
    least = best.accuracy - max(MARGIN, error)
    return min((option for folded, option in probed if folded.accuracy >= least), key=lambda way: way.flops)


def advice_sentences(
    data: ImageData, side: int, options: Sequence[Option], chosen: Option | None, scratch: Option, begin: str
) -> Iterator[str]:
    """Say in sentences what to do, the most important first.

    Args:
        data: the images.
        side: of most of them, in pixels; 0 where none could be read.
        options: the starts, given or published.
        chosen: the advised option.
        scratch: training from scratch.
        begin: where no start was given, a sentence on the published start to begin from.
    """
    few = check.advise_on_start(data.spec, len(data.splits["train"]), len(data.class_names))
    if few:
        yield few
    if chosen is not None and chosen.folded is not None:
        folded, (low, high) = chosen.folded, chosen.folded.interval
        among = f", chosen among {len(options)} that were tried" if len(options) > 1 else ""
        yield f"Begin from {chosen.start}{among}: {chosen.where}, {chosen}."
        optimizer = chosen.run.optimizer
        if optimizer.freeze == "nothing":
            yield (
                f"Freeze nothing: the new head learns {optimizer.head_rate:g} times as fast as the last "
                "layer, lower layers more slowly."
            )
        yield (
            f"The start's frozen features tell {folded.accuracy:.0%} of "
            f"{pluralize(folded.images, 'training image')} right (95 % interval {low:.0%} to {high:.0%}; "
            f"{folded.method}, {FOLDS}-fold cross-validation). That is no forecast: what fine-tuning adds "
            "was not measured."
        )
        yield from (f"{chosen.start}: {note}." for note in chosen.notes)
        pixels = 0.0 if scratch.folded is None else scratch.folded.accuracy
        if folded.accuracy <= pixels:
            yield (
                f"Small pictures of {PIXEL_SIDE}x{PIXEL_SIDE} pixels alone tell {pixels:.0%} right: this "
                "start has learned little that helps here. Look for one that was trained on images more "
                "like these."
            )
    else:
        small = 0 < side <= check.SMALL_SIDE
        if small and not few:
            yield (
                f"Train from scratch first: these images are small, of about {side} pixels, and there are "
                "enough of them."
            )
        yield begin
        if small:
            yield (
                f"Such a start enlarges these images, of about {side} pixels, to {DEFAULT_SIDE}: that takes "
                "the time of large images and shows no more, so that only its earlier training can help."
            )
    yield f"From scratch: recipe {scratch.run.recipe}, {scratch.where}, {scratch}."
    counts = np.unique(listing.class_numbers(data.splits["train"].labels), return_counts=True)[1]
    if counts.max() > UNBALANCED * counts.min():
        yield (
            f"The classes are unbalanced, {counts.max() / counts.min():.0f} to 1: where every class counts "
            "alike, add --logit-adjustment 1 to the training, and look at the accuracy of each class."
        )


LARGER = 1.7
"""The larger of two sizes: the paper pre-trains at 224 pixels and fine-tunes at 384."""
PIXEL_SECONDS = 10.0
"""The most seconds for the probe of small pictures."""


def advise(
    data: str,
    starts: StrPaths = (),
    *,
    go: bool = False,
    out: StrPath | None = None,
    splits: Splits | None = None,
    decode: DecodeRule = DEFAULT_RULE,
    seconds: float = 60.0,
    device: str = "auto",
    threads: int | None = None,
    cache: bool = True,
    quiet: bool = False,
    command: str = "",
    listener: Listener = AUTOMATIC,
) -> Advice:
    """Say what to do with images and what to expect, before anyone waits for a run.

    Images are counted, this machine's speed is measured, and frozen features of each start are probed on
    training images. vitkit data check looks at every image.

    Args:
        data: images to train on: "digits" (built in), a folder of class folders or a .zip or .tar of one, a
            .csv, or a folder of .parquet files.
        starts: run folders, files or addresses of weights to begin from; the best of several is advised.
        go: train as advised; without a start, and with enough images, from scratch.
        out: run folder of --go; left out, runs/DATA-MODEL.
        splits: how missing splits are made.
        decode: how images are read where a start records no rule of its own.
        seconds: seconds for the features of all starts together; with more seconds, more images are probed.
        device: where to compute: "auto" (a GPU if there is one), "cpu", "gpu" or "cuda:1".
        threads: CPU threads; left out, as many as PyTorch chooses.
        cache: keep the features of images in the user's cache folder, and use the features that are there.
        quiet: print nothing but warnings.
        command: the command line, which a run folder records.
        listener: hears the progress and remarks; left out, a notebook shows them and a script is silent.

    Returns:
        The advice; `chosen.run` is the advised run, for `vitkit.train`. A probe is ridge regression and
        nearest neighbours with cross-validation. Without a start, published ones are compared by their cost.

    Raises:
        VitkitError: there is no such data or start, or too few images for a probe; or with `go` the advice is
            to find a start first.

    Unstable: its parameters and what it returns may change in any release.
    """
    if not data:
        raise VitkitError("Which images? Give a path, or digits for the built-in ones: vitkit advise DATA.")
    if not 0 < seconds < math.inf:
        raise VitkitError(f"seconds is a number above 0, found {seconds:g}.")
    if out is not None and not go:
        raise VitkitError("out is the folder of the run that --go begins: give --go as well.")
    processes.divide_threads(ALONE, threads)  # the speed depends on them
    listener, place, cut = hushed(listener, quiet), machine.find_device(device), splits or Splits()
    with listener.progress("looking at the starts"):
        # First, so that a wrong start is refused at once.
        runs = [_fitted_run(data, cut, start) for start in as_names(starts)]
    with listener.progress("listing images"):
        opened = find_task("classification").learning.open_data(data, cut, decode)
    sizes = check.sample_sizes(opened.splits["train"])
    variants = [sized for run in runs for sized in _with_sizes(run, opened, sizes)]
    each = seconds / max(len(variants), 1)
    base = recipes.recipe("digits" if opened.spec == "digits" else check.suggest_recipe(sizes))
    uncut = replace(cut, subset=None, subset_seed=None, levels=False) == Splits()
    splits = replace(base.splits, subset=cut.subset, levels=cut.levels) if uncut else cut
    run = replace(base, splits=splits)
    run = replace(run, data=paths.absolute_spec(opened.spec))
    folded = probe_pixels(opened, min(PIXEL_SECONDS, seconds), listener)
    config = _config(run, opened)
    cost = budget.measure_cost(run, opened, config, place, listener)
    named = replace(run, model=full_name(run, len(opened.class_names)), architecture=Run().architecture)
    if _config(named, opened) != config:  # a name cannot say a stem of convolutions
        named = run
    scratch = Option(**{**vars(cost), "run": named}, folded=folded)
    ways = tuple(_option(run, each, place, cache, listener) for run in variants)
    begin, default = "", None
    if not runs:
        default = finetune.measure_starts(Run(data=opened.spec), opened, {}, place, listener)
        ways = tuple(Option(**vars(cost), published=name) for name, cost in default.costs.items())
        images = shlex.quote(opened.spec)
        fetched = "" if default.is_here else f", and asks before it fetches {default.size}"
        begin = (
            f"Begin from {default.start.name}, {default.reason} vitkit finetune {images} does so{fetched}; "
            f"vitkit advise {images} {default.start.name} says what to expect of it."
        )
    chosen = choose(ways)
    parts = opened.splits
    sentences = tuple(advice_sentences(opened, check.usual_side(sizes), ways, chosen, scratch, begin))
    advice = Advice(
        data=data,
        name=opened.name,
        classes=len(opened.class_names),
        images=len(parts["train"]),
        tested=len(parts.get("test", ())),
        options=ways,
        chosen=chosen,
        scratch=scratch,
        sentences=sentences,
        default="" if default is None else default.start.name,
    )
    if not go:
        return advice
    listener.show([("advice", list(advice.sentences))])
    if not advice.can_go:
        start = f"{advice.default or 'START'} --go"
        raise VitkitError(f"{advice.sentences[0]} Give one: vitkit advise {shlex.quote(data)} {start}.")
    run = (chosen or scratch).run
    folder = train_run(run, out, device=device, threads=threads, command=command, listener=listener)
    write_page(advice, folder / PAGE, command=command)
    return replace(advice, folder=folder)


MOST_IMAGES = 4_000
"""More images take seconds in every fit, and move the accuracy by less than fine-tuning adds to it."""
LEAST_IMAGES = 2 * FOLDS
CHUNK = 128
"""Images between two looks at the clock; each chunk has a file of its own in the cache."""
PIXEL_SIDE = 12
"""Side in pixels of the small pictures of the probe without a start."""


def probe_pixels(data: ImageData, seconds: float, listener: Listener) -> Folded:
    """Probe training images by their pixels, as small pictures: the accuracy without any model."""
    rule = Preprocessing((PIXEL_SIDE, PIXEL_SIDE))

    def compute(samples: Samples, indices: NDArray[np.int64]) -> Chunk:
        rejects: dict[str, str] = {}
        batches = list(evaluation_batches(samples, rule, CHUNK, rejects=rejects, indices=indices))
        readable = np.concatenate([batch.mask.numpy() for batch in batches])
        pixels = np.concatenate([batch.images.numpy() for batch in batches])
        return pixels[readable].reshape(int(readable.sum()), -1).astype(np.float32), readable

    return _probe(data, compute, seconds, "small pictures", listener)


Chunk = tuple[NDArray[np.float32], NDArray[np.bool_]]
"""The rows of the readable images of a chunk, and whether each image is readable."""
Compute = Callable[[Samples, NDArray[np.int64]], Chunk]
"""A function of a split and the indices of a chunk in it."""


def _probe(data: ImageData, compute: Compute, seconds: float, what: str, listener: Listener) -> Folded:
    """Compute rows of training images until the seconds are over, and cross-validate classifiers of them."""
    samples = data.splits["train"]
    labels = listing.class_numbers(samples.labels)
    order = mixed_order(labels)[:MOST_IMAGES]
    rows: list[NDArray[np.float32]] = []
    readable_indices: list[NDArray[np.int64]] = []
    started = time.monotonic()
    with listener.progress(what, len(order)) as progress:
        for first in range(0, len(order), CHUNK):
            if rows and time.monotonic() - started > seconds:
                break
            chunk = order[first : first + CHUNK]
            chunk_rows, readable = compute(samples, chunk)
            rows.append(chunk_rows)
            readable_indices.append(chunk[readable])
            progress(first + len(chunk))
    features, indices = np.concatenate(rows), np.concatenate(readable_indices)
    if len(indices) < LEAST_IMAGES:
        raise VitkitError(
            f"Expected at least {LEAST_IMAGES} training images that can be read, found {len(indices)} in "
            f"{data.spec}: they are too few for a probe. Add images, or look at them with vitkit data check."
        )
    with listener.progress(f"cross-validation, {what}", FITS) as progress:
        return cross_validate(features, labels[indices], len(data.class_names), progress=progress)


def _fitted_run(data: str, splits: Splits, start: str) -> Run:
    """Make the run that fine-tunes a start by default.

    Raises:
        VitkitError: it is no start, or has no features.
    """
    run = Run(data=paths.absolute_spec(data), start=StartConfig(start), splits=splits)
    reason = explain_no_features(plan.describe_start(run).config)
    if reason:
        raise VitkitError(f"{start} {reason}.")
    return finetune.suit_start(run).run


def _with_sizes(run: Run, data: ImageData, sizes: Sequence[tuple[int, int]]) -> Iterator[Run]:
    """Yield a run at its start's size; and at a larger size, if most images have as many pixels."""
    yield run
    height, width = run.preprocessing.image_size
    larger = tuple(round(LARGER * side / 32) * 32 for side in (height, width))
    shorter = sorted(min(size) for size in sizes)
    if not height < larger[0] <= 2 * height or not shorter or shorter[len(shorter) // 2] < max(larger):
        return
    sized = replace(run, preprocessing=replace(run.preprocessing, image_size=(larger[0], larger[1])))
    if not _config(sized, data).cut_off:
        yield sized


def _config(run: Run, data: ImageData) -> ModelConfig:
    """Return the configuration of the model that a run trains."""
    return plan.resolve_start(run, plan.Opened(run, data))[-1]


def _option(run: Run, seconds: float, device: torch.device, cache: bool, listener: Listener) -> Option:
    """Probe training images by the features of a frozen start at a size, and measure the cost of fine-tuning
    it.

    Args:
        run: the fine-tuning of the start; the model is fitted to its image size.
        seconds: after which no further chunk of images is begun.
        device: where the features are computed.
        cache: whether features are kept in the user's cache folder, and taken from it.
        listener: hears the progress.

    Raises:
        VitkitError: the start cannot be loaded, or too few images can be read.
    """
    start, size, rule = run.start, run.preprocessing.image_size, run.start.position_interpolation
    data = find_task(run.task).learning.open_data(run.data, run.splits, run.preprocessing.decode)
    with listener.progress(f"reading {start.start}"):
        heads = start.num_heads
        model = load_model(start.start, image_size=size, num_heads=heads, position_interpolation=rule)
    extractor = FeatureExtractor(model.to(device), run.preprocessing, device, batch_size=CHUNK)
    stored = FeatureCache(cache_folder() / "features", listener.note) if cache else None
    fingerprint = extractor.fingerprint() if stored is not None else ""

    def compute(samples: Samples, indices: NDArray[np.int64]) -> Chunk:
        anew = partial(extractor.compute, samples, indices)
        features = cached_features(fingerprint, samples, indices, stored, anew)
        return features.rows, features.readable

    folded = _probe(data, compute, seconds, f"features by {start.start}", listener)
    cost = budget.measure_cost(run, data, _config(run, data), device, listener)
    seen = trained_model.is_training_data(find_start(start).card, run.data)
    notes = ("it was trained on these images, so that the probe finds too much",) if seen else ()
    return Option(**vars(cost), start=start.start, folded=folded, notes=notes)

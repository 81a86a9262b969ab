"""Advise, before anyone waits for a run, on the start to begin from, by a probe of its frozen features."""

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from vitkit.data.check import (
    SMALL_SIDE,
    DataCheck,
    advise_on_start,
    check_data,
    sample_sizes,
    suggest_recipe,
    usual_side,
)
from vitkit.data.config import DEFAULT_RULE, DecodeRule, Splits
from vitkit.data.layouts.repeats import describe_repeats, repeats_of_training
from vitkit.data.listing import class_numbers
from vitkit.data.paths import absolute_spec
from vitkit.data.sources import ImageData
from vitkit.errors import VitkitError
from vitkit.evaluation.features import explain_no_features
from vitkit.evaluation.fewshot.folds import FOLDS, Folded
from vitkit.jobs.advice.probe import PIXEL_SIDE, probe_features, probe_pixels
from vitkit.jobs.finetune_defaults import measure_starts, suit_start
from vitkit.jobs.options import StrPath, StrPaths, as_names
from vitkit.jobs.recipes import recipe
from vitkit.jobs.train_run import train_run
from vitkit.listener import Listener, hushed
from vitkit.models.zoo import ModelConfig
from vitkit.notebook import AUTOMATIC
from vitkit.result import Block, Result, table_of
from vitkit.runs.budget import Cost, measure_cost
from vitkit.runs.config import Run, StartConfig, full_name
from vitkit.runs.machine import find_device
from vitkit.runs.plan import Opened, describe_start, resolve_start
from vitkit.runs.processes import divide_threads
from vitkit.runs.start import find_start
from vitkit.runs.trained_model import is_training_data
from vitkit.tasks import find_task
from vitkit.text import format_bytes, format_duration, format_size, pluralize
from vitkit.weights.published import DEFAULT_SIDE
from vitkit.world import ALONE

MARGIN = 0.01
"""A smaller difference of accuracies is no reason to compute more."""
UNBALANCED = 10
"""The most frequent class over the rarest, above which rare classes should weigh more in the loss."""


@dataclass(frozen=True)
class Option(Cost):
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
    check: DataCheck | None
    """None where there are too many images to look at each."""
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

    def summary(self) -> str:
        """Tell the advice."""
        return " ".join(self.sentences)

    @property
    def can_go(self) -> bool:
        """Whether it can be followed: it names a start, or none was given and the images suffice without."""
        return self.chosen is not None or not advise_on_start(self.data, self.images, self.classes)

    def blocks(self) -> Sequence[Block]:
        """Return what is in the images, the ways to train on them, and the advice in sentences."""
        tested = f", {self.tested:,} to test on" if self.tested else ""
        warnings = () if self.check is None else self.check.warnings
        columns: dict[str, Callable[[Option], str]] = {
            "begin from": lambda way: "new weights" if way is self.scratch else way.start or way.published,
            "model": lambda way: way.where,
            "probe": lambda way: "" if way.folded is None else f"{way.folded.accuracy:.0%}",
            "steps": lambda way: f"{way.steps:,}",
            "time": lambda way: format_duration(way.seconds),
            "memory": lambda way: format_bytes(way.memory),
        }
        return (
            f"{self.name}: {self.images:,} training images{tested}, {self.classes:,} classes",
            *(f"! {warning}" for warning in warnings),
            replace(table_of((*self.options, self.scratch), columns), text=(0, 1)),
            *(f"- {sentence}" for sentence in self.sentences),
        )

    def following(self) -> Sequence[str]:
        """Return the command that follows the advice, or the one that makes it possible."""
        images = shlex.quote(self.data)
        if self.can_go:
            starts = [option.start for option in self.options if option.start]
            given = shlex.join(dict.fromkeys([self.data, *starts]))
            return (f"vitkit advise {given} --go   (trains so)",)
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
    data: ImageData,
    sizes: Sequence[tuple[int, int]],
    leaks: Mapping[str, int],
    options: Sequence[Option],
    chosen: Option | None,
    scratch: Option,
    begin: str = "",
) -> Iterator[str]:
    """Say in sentences what to do, the most important first.

    Args:
        data: the images.
        sizes: (height, width) of some of them, in pixels.
        leaks: the number of images of the second split that are in the first too, by "train-test" and so on.
        options: the starts, given or published.
        chosen: the advised option.
        scratch: training from scratch.
        begin: where no start was given, a sentence on the published start to begin from.
    """
    few = advise_on_start(data.spec, len(data.splits["train"]), len(data.class_names))
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
        side = usual_side(sizes)  # 0 where no image could be read
        small = 0 < side <= SMALL_SIDE
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
    counts = np.unique(class_numbers(data.splits["train"].labels), return_counts=True)[1]
    if counts.max() > UNBALANCED * counts.min():
        yield (
            f"The classes are unbalanced, {counts.max() / counts.min():.0f} to 1: where every class counts "
            "alike, add --logit-adjustment 1 to the training, and look at the accuracy of each class."
        )
    for pair, count in leaks.items():
        yield (
            f"{describe_repeats(count, pair.split('-')[1])}, so that the accuracy will look better than it "
            "is: vitkit data check names them."
        )


CHECKED, CHECKED_PIXELS = 100_000, 2e9
"""Images, and pixels of all images, up to which each image is decoded to find copies, leaks and bad files:
about a minute of a core, for 40,000 images of 224 pixels or 160 photos of 12 megapixels."""
LARGER = 1.7
"""The larger of two sizes: the paper pre-trains at 224 pixels and fine-tunes at 384."""
PIXEL_SECONDS = 10.0
"""The most seconds for the probe of small pictures."""


def advise(
    data: str,
    starts: StrPaths = (),
    *,
    splits: Splits | None = None,
    decode: DecodeRule = DEFAULT_RULE,
    seconds: float = 60.0,
    device: str = "auto",
    threads: int | None = None,
    cache: bool = True,
    quiet: bool = False,
    listener: Listener = AUTOMATIC,
) -> Advice:
    """Say what to do with images and what to expect, before anyone waits for a run.

    Images are counted and looked at, this machine's speed is measured, and frozen features of each start are
    probed on training images.

    Args:
        data: images to train on: "digits" (built in), a folder of class folders or a .zip or .tar of one, a
            .csv, or a folder of .parquet files.
        starts: run folders, files or addresses of weights to begin from; the best of several is advised.
        splits: how missing splits are made.
        decode: how images are read where a start records no rule of its own.
        seconds: seconds for the features of all starts together; with more seconds, more images are probed.
        device: where to compute: "auto" (a GPU if there is one), "cpu", "gpu" or "cuda:1".
        threads: CPU threads; left out, as many as PyTorch chooses.
        cache: keep the features of images in the user's cache folder, and use the features that are there.
        quiet: print nothing but warnings.
        listener: hears the progress and remarks; left out, a notebook shows them and a script is silent.

    Returns:
        The advice; `chosen.run` is the advised run, for `vitkit.train`. A probe is ridge regression and
        nearest neighbours with cross-validation. Without a start, published ones are compared by their cost.

    Raises:
        VitkitError: there is no such data or start, or too few images for a probe.
    """
    if not data:
        raise VitkitError("Which images? Give a path, or digits for the built-in ones: vitkit advise DATA.")
    if not 0 < seconds < math.inf:
        raise VitkitError(f"seconds is a number above 0, found {seconds:g}.")
    divide_threads(ALONE, threads)  # the speed depends on them
    listener, place, cut = hushed(listener, quiet), find_device(device), splits or Splits()
    with listener.progress("looking at the starts"):
        # First, so that a wrong start is refused at once.
        runs = [_fitted_run(data, cut, start) for start in as_names(starts)]
    with listener.progress("listing images"):
        opened = find_task("classification").learning.open_data(data, cut, decode)
    sizes = sample_sizes(opened.splits["train"])
    check, leaks = _look(opened, sizes, listener)
    variants = [sized for run in runs for sized in _with_sizes(run, opened, sizes)]
    each = seconds / max(len(variants), 1)
    base = recipe("digits" if opened.spec == "digits" else suggest_recipe(sizes))
    uncut = replace(cut, subset=None, subset_seed=None) == Splits()
    run = replace(
        base,
        data=absolute_spec(opened.spec),
        splits=replace(base.splits, subset=cut.subset) if uncut else cut,
    )
    folded = probe_pixels(opened, min(PIXEL_SECONDS, seconds), listener)
    config = _config(run, opened)
    cost = measure_cost(run, opened, config, place, listener)
    named = replace(run, model=full_name(run, len(opened.class_names)), architecture=Run().architecture)
    if _config(named, opened) != config:  # a name cannot say a stem of convolutions
        named = run
    scratch = Option(**{**vars(cost), "run": named}, folded=folded)
    ways = tuple(_option(run, each, place, cache, listener) for run in variants)
    begin, default = "", None
    if not runs:
        default = measure_starts(Run(data=opened.spec), opened, {}, place, listener)
        ways = tuple(Option(**vars(cost), published=name) for name, cost in default.costs.items())
        images = shlex.quote(opened.spec)
        fetched = "" if default.is_here else f", and asks before it fetches {default.size}"
        begin = (
            f"Begin from {default.start.name}, {default.reason} vitkit finetune {images} does so{fetched}; "
            f"vitkit advise {images} {default.start.name} says what to expect of it."
        )
    chosen = choose(ways)
    return Advice(
        data=data,
        name=opened.name,
        classes=len(opened.class_names),
        images=len(opened.splits["train"]),
        tested=len(opened.splits.get("test", ())),
        check=check,
        options=ways,
        chosen=chosen,
        scratch=scratch,
        sentences=tuple(advice_sentences(opened, sizes, leaks, ways, chosen, scratch, begin)),
        default="" if default is None else default.start.name,
    )


def follow(
    advice: "Advice",
    *,
    out: StrPath | None = None,
    device: str = "auto",
    threads: int | None = None,
    command: str = "",
    listener: Listener = AUTOMATIC,
) -> Path:
    """Train as advised.

    Without a start, and with enough images, it trains from scratch.

    Args:
        advice: by `advise`.
        out: run folder of --go; left out, runs/DATA-MODEL.
        device, threads, command, listener: as for `vitkit.train`.

    Returns:
        The run folder.

    Raises:
        VitkitError: the advice is to find a start first; else as `vitkit.train`.
    """
    if not advice.can_go:
        raise VitkitError(
            f"{advice.sentences[0]} Give one: vitkit advise {shlex.quote(advice.data)} "
            f"{advice.default or 'START'} --go."
        )
    option = advice.chosen or advice.scratch
    return train_run(option.run, out, device=device, threads=threads, command=command, listener=listener)


def _look(
    data: ImageData, sizes: Sequence[tuple[int, int]], listener: Listener
) -> tuple[DataCheck | None, dict[str, int]]:
    """Check every image where that takes a minute at most; return the check and the leaks into each split."""
    total = sum(map(len, data.splits.values()))
    pixels = total * np.prod(sizes, axis=1).mean() if sizes else 0.0
    if total <= CHECKED and pixels <= CHECKED_PIXELS:
        with listener.progress("looking at every image") as progress:
            check = check_data(data, progress)
        return check, {pair: count for pair, count in check.leaks.items() if pair.startswith("train-")}
    listener.note(
        f"{total:,} images are too many, or too large, to look at each before advice: vitkit data check does."
    )
    with listener.progress("comparing files"):
        repeated = repeats_of_training(data.splits, ("val", "test"), data.same)
    return None, {f"train-{split}": len(rows) for split, rows in repeated.items() if len(rows)}


def _fitted_run(data: str, splits: Splits, start: str) -> Run:
    """Make the run that fine-tunes a start by default.

    Raises:
        VitkitError: it is no start, or has no features.
    """
    run = Run(data=absolute_spec(data), start=StartConfig(start), splits=splits)
    reason = explain_no_features(describe_start(run).config)
    if reason:
        raise VitkitError(f"{start} {reason}.")
    return suit_start(run).run


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
    return resolve_start(run, Opened(run, data))[-1]


def _option(run: Run, seconds: float, device: torch.device, cache: bool, listener: Listener) -> Option:
    """Probe a start at a size, and measure the cost of fine-tuning it."""
    data = find_task(run.task).learning.open_data(run.data, run.splits, run.preprocessing.decode)
    folded = probe_features(run, data, seconds, device=device, cache=cache, listener=listener)
    cost = measure_cost(run, data, _config(run, data), device, listener)
    start = find_start(run.start)
    seen = is_training_data(start.card, run.data)
    notes = ("it was trained on these images, so that the probe finds too much",) if seen else ()
    return Option(**vars(cost), start=run.start.start, folded=folded, notes=notes)

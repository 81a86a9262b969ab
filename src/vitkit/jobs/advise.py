"""Advise, before anyone waits for a run, on the start to begin from, by the few-shot accuracy of its frozen
features."""

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from vitkit.data import check, listing, paths
from vitkit.data.config import DEFAULT_RULE, DecodeRule, Splits
from vitkit.data.sources import ImageData
from vitkit.errors import VitkitError
from vitkit.evaluation import statistics
from vitkit.evaluation.features import FeatureExtractor
from vitkit.evaluation.fewshot.config import Learning
from vitkit.evaluation.fewshot.methods import FewShotData
from vitkit.jobs import fewshot, finetune, recipes, try_starts
from vitkit.jobs.options import StrPath, StrPaths, as_names
from vitkit.jobs.train_run import train_run
from vitkit.listener import AUTOMATIC, Listener, hushed
from vitkit.models.zoo import ModelConfig
from vitkit.result import Result, Section, table_of
from vitkit.runs import budget, machine, plan, processes
from vitkit.runs.config import Run, StartConfig, full_name
from vitkit.runs.start import load_model
from vitkit.tasks import find_task
from vitkit.text import format_bytes, format_duration, format_size, pluralize
from vitkit.weights.format_names import LoadOptions
from vitkit.weights.published import DEFAULT_SIDE
from vitkit.world import ALONE

MARGIN = 0.01
"""A smaller difference of accuracies is no reason to compute more."""
UNBALANCED = 10
"""The most frequent class over the rarest, above which rare classes should weigh more in the loss."""


@dataclass(frozen=True)
class Option(budget.Cost):
    """A way to train on the images: its start, its cost, and what its frozen features tell."""

    start: str = ""
    """The start as it was given; "" for new weights and for a published start."""
    accuracy: float | None = None
    """The few-shot accuracy of its frozen features, from 0 to 1; None where none was measured."""
    tested: int = 0
    """Images that it was measured on."""
    notes: tuple[str, ...] = ()
    """Sentences on that accuracy."""
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
    """Training from scratch by the recipe for the images."""
    sentences: tuple[str, ...]
    """The advice."""
    default: str = ""
    """The name of the published start that is advised where none was given; its weights were not fetched."""
    folder: Path | None = None
    """The run that followed the advice."""

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
            "few-shot": lambda way: "" if way.accuracy is None else f"{way.accuracy:.0%}",
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
            return (f"open {self.folder / 'report.html'} in a browser",)
        if self.can_go:
            starts = [option.start for option in self.options if option.start]
            return (f"vitkit advise {shlex.join(dict.fromkeys([self.data, *starts]))} --go   (trains so)",)
        if self.default:
            return (f"vitkit finetune {images}   (from {self.default})",)
        return (f"vitkit advise {images} START",)


def choose(options: Sequence[Option]) -> Option | None:
    """Choose the cheapest start whose few-shot accuracy does not differ from the best one.

    A point, or a standard error of the best accuracy where that is more, is no difference. Cost is counted in
    FLOPs, not in seconds, so that the same command chooses the same option every time.

    Args:
        options: starts, each at a size.

    Returns:
        The option; None where no accuracy was measured.
    """
    measured = [(option.accuracy, option) for option in options if option.accuracy is not None]
    if not measured:
        return None
    accuracy, best = max(measured, key=lambda pair: pair[0])
    least = accuracy - max(MARGIN, math.sqrt(accuracy * (1 - accuracy) / best.tested))
    return min((option for own, option in measured if own >= least), key=lambda way: way.flops)


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
    if chosen is not None:
        among = f", chosen among {len(options)} that were tried" if len(options) > 1 else ""
        yield f"Begin from {chosen.start}{among}: {chosen.where}, {chosen}."
        optimizer = chosen.run.optimizer
        if optimizer.freeze == "nothing":
            yield (
                f"Freeze nothing: the new head learns {optimizer.head_rate:g} times as fast as the last "
                "layer, lower layers more slowly."
            )
        yield from chosen.notes
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

    Images are counted, this machine's speed is measured, and the few-shot accuracy of each start's frozen
    features, as vitkit starts --try measures it. vitkit data check looks at every image.

    Args:
        data: images to train on: "digits" (built in), a folder of class folders or a .zip or .tar of one, a
            .csv, or a folder of .parquet files.
        starts: run folders, files or addresses of weights to begin from; the best of several is advised.
        go: train as advised; without a start, and with enough images, from scratch.
        out: run folder of --go; left out, runs/DATA-MODEL.
        splits: how missing splits are made.
        decode: how images are read where a start records no rule of its own.
        seconds: seconds for the features of all starts together; with more seconds, more images are learned
            from, up to 25 of each class.
        device: where to compute: "auto" (a GPU if there is one), "cpu", "gpu" or "cuda:1".
        threads: CPU threads; left out, as many as PyTorch chooses.
        cache: keep the features of images in the user's cache folder, and use the features that are there.
        quiet: print nothing but warnings.
        command: the command line, which a run folder records.
        listener: hears the progress and remarks; left out, a notebook shows them and a script is silent.

    Returns:
        The advice; `chosen.run` is the advised run, for `vitkit.train`. Without a start, published ones are
        compared by their cost.

    Raises:
        VitkitError: there is no such data or start, or no image to test a start on; or with `go` the advice
            is to find a start first.

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
        described = [fewshot.identify(start, start, data, LoadOptions()) for start in as_names(starts)]
        given = Run(data=paths.absolute_spec(data), splits=cut)
        begun = (replace(given, start=StartConfig(model.start)) for model, _ in described)
        runs = [finetune.suit_start(each).run for each in begun]
    with listener.progress("listing images"):
        opened = find_task("classification").learning.open_data(data, cut, decode)
    sizes = check.sample_sizes(opened.splits["train"])
    pairs = zip(runs, described, strict=True)
    variants = [(sized, model) for run, (model, _) in pairs for sized in _with_sizes(run, opened, sizes)]
    base = recipes.recipe("digits" if opened.spec == "digits" else check.suggest_recipe(sizes))
    uncut = replace(cut, subset=None, subset_seed=None, levels=False) == Splits()
    splits = replace(base.splits, subset=cut.subset, levels=cut.levels) if uncut else cut
    run = replace(base, splits=splits)
    run = replace(run, data=paths.absolute_spec(opened.spec))
    config = _config(run, opened)
    cost = budget.measure_cost(run, opened, config, place, listener)
    named = replace(run, model=full_name(run, len(opened.class_names)), architecture=Run().architecture)
    if _config(named, opened) != config:  # a name cannot say a stem of convolutions
        named = run
    scratch = Option(**{**vars(cost), "run": named})
    begin, default = "", None
    if runs:
        shared = fewshot.open_shared(data, [identity for _, identity in described])
        each = seconds / len(variants)
        ways = tuple(_option(*way, *shared, opened, each, place, cache, listener) for way in variants)
    else:
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
    return replace(advice, folder=folder)


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


def _option(
    run: Run,
    described: fewshot.FewShotModel,
    shared: FewShotData,
    max_pixels: int,
    data: ImageData,
    seconds: float,
    device: torch.device,
    cache: bool,
    listener: Listener,
) -> Option:
    """Measure the few-shot accuracy of a frozen start at a size, and the cost of fine-tuning it.

    Args:
        run: the fine-tuning of the start; the model is fitted to its image size.
        described: the start.
        shared: the images that the accuracy is measured by, the same for all starts.
        max_pixels: of an image at most.
        data: the images that the run trains on.
        seconds: for the features: it decides how many images are used.
        device: where the features are computed.
        cache: whether features are kept in the user's cache folder, and taken from it.
        listener: hears the progress.

    Raises:
        VitkitError: the start cannot be loaded, or no test image can be read.
    """
    with listener.progress(f"reading {described.start}"):
        model = load_model(described.start, image_size=run.preprocessing.image_size).to(device)
    rule = fewshot.limited(model, max_pixels)
    extractor = FeatureExtractor(model, rule, device)
    images = int(seconds / try_starts.measure_pace(extractor, shared.decoded_by(rule.decode).test))
    part = try_starts.with_fewer(shared, min(max(images // 2, 1), try_starts.MOST_TEST_IMAGES))
    left = images - len(part.test)
    learning = Learning((try_starts.SHOTS,), try_starts.DRAWS, ("ridge",))
    if left < len(part.pool):
        shots = max(1, left // (learning.seeds * part.classes))
        learning = replace(learning, shots=(min(shots, try_starts.SHOTS),))
    measured = fewshot.measure(learning, described, part, extractor, cache, listener)
    score = measured.models[0].best
    interval = statistics.describe_interval(try_starts.accuracy_interval(score.right))
    result = (
        f"From {pluralize(score.shots, 'image')} of each class, its frozen features are right on "
        f"{score.mean:.0%} of {measured.tested} {interval}. That is no forecast: what fine-tuning adds was "
        "not measured."
    )
    notes = (result, *fewshot.remarks(measured))
    cost = budget.measure_cost(run, data, _config(run, data), device, listener)
    return Option(
        **vars(cost), start=described.start, accuracy=score.mean, tested=measured.test_images, notes=notes
    )

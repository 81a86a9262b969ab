"""Try starts on a person's images before any of them is fine-tuned: the tournament of `vitkit starts --try`.

It is `vitkit fewshot` with the same shots and the same test images for all, so that starts are compared image
by image, and with what each start costs.

Letters: S draws, N test images.
"""

import math
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.data import paths, sources
from vitkit.data.listing import class_numbers
from vitkit.errors import VitkitError
from vitkit.evaluation import features, statistics
from vitkit.evaluation.fewshot import methods as protocol
from vitkit.evaluation.fewshot.config import Learning
from vitkit.jobs import fewshot
from vitkit.jobs.options import LoadingOptions, StrPath, StrPaths, as_names
from vitkit.listener import AUTOMATIC, Listener, hushed
from vitkit.models import measure
from vitkit.models.config import Precision
from vitkit.models.zoo import ModelConfig
from vitkit.result import Cell, Facts, Number, Section, Text, table_of, unreadable
from vitkit.runs import machine
from vitkit.runs.plan import free_memory
from vitkit.runs.start import load_model
from vitkit.tasks.page import fraction_cell, interval_cell, points, shown_p
from vitkit.text import distinct_ends, format_bytes, format_duration, join_names, pluralize
from vitkit.weights import published
from vitkit.weights.files.download import fetch, is_local
from vitkit.weights.format_names import LoadOptions

CANDIDATES = (
    *("vit-ti16-augreg-in21k", "vit-s16-augreg-in21k", "vit-b16-augreg-in21k", "vit-s14-dinov2"),
    *("vit-s16-lingbot", "vit-s16-deit3-in21k-in1k", "vit-b16-siglip2-224", "vit-b16-clip-openai"),
)
"""The published starts that are tried where none is named, besides those on this disk: small ones of each
family with a free licence."""
SHOTS = 25
"""Images of each class to learn from: with 10, a start whose last blocks were destroyed came first on
pictures of animals, and was far behind once fine-tuned; with 25 it came third (docs/results/accuracy.md)."""
DRAWS = 5
"""Times that they are drawn."""
MOST_TEST_IMAGES = 1000
"""Test images; where there are more, a part with the same proportions of the classes is taken."""
BATCH = 8
"""Images at a time: a second or so on a CPU, by which a start's pace is measured first."""


@dataclass(frozen=True, kw_only=True)
class Tried(fewshot.FewShotModel):
    """A start that was tried."""

    licence: str
    """The licence of the published start that it is, or that it began from, however many runs ago; "" if
    unknown."""
    gflops: float
    """GFLOPs of the features of an image."""
    milliseconds: float
    """Time of an image here, reading it included."""
    minutes: float
    """Time of all of its features here, of which stored ones take none, and of learning from them."""
    interval: tuple[float, float]
    """95 % interval of its mean accuracy, over other draws and other test images."""
    to_best: statistics.PairedDifference | None = None
    """Its accuracy less that of the best start; None for the best."""
    adjusted_p: float = 1.0
    """The p of that difference, by Holm over all pairs of starts: the best was chosen by the same numbers."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Tournament(fewshot.FewShot):
    """Starts on the same images, the best first."""

    models: tuple[Tried, ...]
    """In falling order of accuracy."""
    left_out: Mapping[str, str]
    """The reason for each start that was not tried, or not to the end."""

    def headline(self) -> Sequence[str]:
        """Name the best start with its lead, its licence, and others that may be as good, with their cost."""
        (best, *others), images = self.models, pluralize(self.shots[0], "image")
        sentences = [
            f"Best is {best.name}: from {images} of each class it is right on {best.best.mean:.1%} of "
            f"{self.tested} {statistics.describe_interval(best.interval)}.",
            f"Its licence is {best.licence or 'not known: no published start is on record as its origin'}.",
        ]
        if others:
            gap = points(self.test_images, best.best.mean - others[0].best.mean)
            p = f"p {shown_p(others[0].adjusted_p)} by Holm over all pairs"
            sentences.append(f"It is {gap} points ahead of {others[0].name} ({p}).")
        if equals := [each for each in others if each.adjusted_p >= statistics.SURE]:
            cost = join_names([f"{each.name} ({each.gflops:.3g} GFLOPs)" for each in equals])
            sentences.append(f"No difference found from {cost}; {best.name} has {best.gflops:.3g} GFLOPs.")
        return (*sentences, *fewshot.remarks(self))

    def sections(self) -> Sequence[Section]:
        """Return the table of the starts, and the reasons of those that were left out."""
        columns: dict[str, Callable[[Tried], Cell]] = {
            "start": lambda each: each.name,
            "accuracy": lambda each: fraction_cell(each.best.mean),
            "95 % interval": lambda each: interval_cell(each.interval),
            "less the best": self._gap,
            "p": lambda each: "" if each.to_best is None else shown_p(each.adjusted_p),
            "GFLOPs": lambda each: Number(f"{each.gflops:.3g}", each.gflops),
            "ms": lambda each: Number(f"{each.milliseconds:.3g}", each.milliseconds),
            "min": lambda each: Number(f"{each.minutes:.1f}", each.minutes),
            "licence": lambda each: re.split(r" \(|, of ", each.licence)[0] or "not known",
        }
        explained = (
            f"All learn from the same {pluralize(self.seeds, 'draw')} of {self.shots[0]:,} images a class. "
            "Intervals cover the draws and the test images, p all pairs (Holm); GFLOPs and ms are an "
            "image's, min the minutes of all."
        )
        reasons = Facts((("left out", [f"{name}: {reason}" for name, reason in self.left_out.items()]),))
        table = replace(table_of(self.models, columns), left=(0, -1))
        return (Section("", (table, Text(explained), *unreadable(self.rejects, "were left out"), reasons)),)

    def _gap(self, tried: Tried) -> Cell:
        """Write the difference to the best start and its interval, in points."""
        if (gap := tried.to_best) is None:
            return ""
        shown, low, high = (points(self.test_images, x, signed=True) for x in (gap.mean, *gap.interval))
        return Number(f"{shown} ({low} to {high})", gap.mean)

    def following(self) -> Sequence[str]:
        """Return the command that fine-tunes the best start."""
        return (shlex.join(["vitkit", "finetune", self.models[0].start, self.data]),)


def try_starts(
    photos: StrPath,
    starts: StrPaths = (),
    *,
    minutes: float = 10.0,
    download: bool = False,
    shots: int = SHOTS,
    seeds: int = DRAWS,
    workers: int = 0,
    device: str = "auto",
    precision: Precision = "auto",
    cache: bool = True,
    quiet: bool = False,
    listener: Listener = AUTOMATIC,
    **load: Unpack[LoadingOptions],
) -> Tournament:
    """Try starts on images: how well their frozen features tell the classes apart, and what they cost.

    Args:
        photos: images with labels: "digits" (built in), a folder of class folders, a .csv or a folder of
            .parquet.
        starts: run folders, files or addresses of weights, names of `vitkit.starts` or patterns of them; left
            out, the published ones on this disk and a small one of each family.
        minutes: minutes for all starts together, without fetching them: they are tried in rising order of
            cost, and those that would take longer are left out.
        download: fetch the starts that are not on this disk; else they are left out.
        shots: images of each class to learn from.
        seeds: number of times the shots are drawn: with the seeds 0, 1, 2 and so on.
        workers: processes that decode images; with 0 the main process decodes.
        device: where to compute: "auto" (a GPU if there is one), "cpu", "gpu" or "cuda:1".
        precision: number format of the computation: float32, bfloat16, or auto: bfloat16 on a GPU that has
            it, else float32.
        cache: keep the features of images in the user's cache folder, and use the features that are there.
        quiet: print nothing but warnings.
        listener: hears the progress and remarks; left out, a notebook shows them and a script is silent.
        load: how checkpoints are read, as `vitkit.jobs.options.LoadingOptions` describes it.

    Returns:
        The starts in falling order of accuracy, and the reason for each that was left out. It is no forecast
        of fine-tuning, which changes the features too. Of more than 1,000 test images a part is taken.

    Raises:
        VitkitError: there is no such data, no test image, or every start was left out.

    Unstable: its parameters and what it returns may change in any release.
    """
    if not photos:
        raise VitkitError("Which images? Give a path, or digits for the built-in ones.")
    learning, data = Learning((shots,), seeds, ("ridge",)), str(photos)
    if data != "digits":
        paths.existing_path(data)  # before anything is fetched
    listener, place = hushed(listener, quiet), machine.find_device(device)
    names, left_out, described = list(dict.fromkeys(_expand(as_names(starts)))), dict[str, str](), []
    for start, name in zip(names, distinct_ends(names), strict=True):
        try:
            _fetch(start, download, listener)
            with listener.progress(f"looking at {start}"):
                described.append(fewshot.identify(start, name, data, LoadOptions(**load)))
        except VitkitError as error:
            # Which of the addresses did not answer, without what to do then, which is the same for all.
            reason = str(error).removeprefix(f"{start} is not on this machine. ")
            left_out[name] = reason.partition(" Nothing was changed.")[0]
    opened, max_pixels = fewshot.open_shared(data, [identity for _, identity in described])
    opened = with_fewer(opened, MOST_TEST_IMAGES)
    end, tried, result = time.monotonic() + 60 * minutes, list[Tried](), None
    # The cheapest first, so that an hour's start does not use up the minutes of all others.
    for model, identity in sorted(described, key=lambda each: measure.forward_flops(each[1].config)):
        begun = time.monotonic()
        try:
            require_memory(identity.config, free_memory(place))
            net = load_model(model.start, **load).to(place)
            rule = fewshot.limited(net, max_pixels)
            extractor = features.FeatureExtractor(net, rule, place, precision, BATCH, workers)
            pace = measure_pace(extractor, opened.decoded_by(rule.decode).test)
            takes = pace * (len(opened.test) + min(len(opened.pool), seeds * shots * opened.classes))
            if takes > (left := max(end - time.monotonic(), 0.0)):
                needs, has = format_duration(takes), format_duration(left)
                raise VitkitError(f"time: its features take about {needs}, and {has} of --minutes are left")
            measured = fewshot.measure(learning, model, opened, extractor, cache, listener)
            if result is not None and measured.test_images != result.test_images:
                raise VitkitError("it cannot read all the images that the others read")
        except (VitkitError, MemoryError, torch.OutOfMemoryError) as error:
            left_out[model.name] = str(error) or "the memory does not suffice"
            continue
        result = measured
        tried.append(
            Tried(
                **vars(measured.models[0]),
                licence=published.describe_origin_licence(model.start, identity.card),
                gflops=measure.forward_flops(identity.config) / 1e9,
                milliseconds=1000 * pace,
                minutes=(time.monotonic() - begun) / 60,
                interval=accuracy_interval(measured.models[0].best.right),
            )
        )
    if result is None:
        reasons = (f"{name}: {reason.rstrip('.')}." for name, reason in left_out.items())
        raise VitkitError(f"No start could be tried. {' '.join(reasons)}")
    return Tournament(**{**vars(result), "models": tuple(rank(tried))}, left_out=left_out)


def accuracy_interval(right: NDArray[np.bool_]) -> tuple[float, float]:
    """Compute the 95 % interval of the mean accuracy over other draws and other test images.

    It is no narrower than the exact interval of a single draw, which knows that a few images prove little
    even where all are right.

    Args:
        right: `(S, N)`, whether each prediction is right.
    """
    low, high = statistics.paired_difference(np.zeros(right.shape), right.astype(float)).interval
    least, most = statistics.binomial_interval(float(right.mean(0).sum()), right.shape[1])
    return max(0.0, min(low, least)), min(1.0, max(high, most))


def compare(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> statistics.PairedDifference:
    """Compare two starts over the same draws and test images, as `paired_difference` does.

    Interval and p are no smaller than by Bonett and Price of the images on which one start is right in more
    draws: equal predictions on a few images are no proof of equal starts. Fewer than six images show no
    difference.

    Args:
        first, second: `(S, N)`, whether each prediction is right.
    """
    difference = statistics.paired_difference(first.astype(float), second.astype(float))
    if (images := difference.images) < statistics.FEWEST_IMAGES:
        return replace(difference, interval=(-1.0, 1.0), p=1.0)
    gain = second.mean(0) - first.mean(0)  # (N,)
    first_only, second_only = (round(float(side.clip(min=0).sum())) for side in (-gain, gain))
    (least, most), p = statistics.bonett_price(first_only, second_only, images)
    low, high = difference.interval
    return replace(difference, interval=(min(low, least), max(high, most)), p=max(difference.p, p))


def rank(tried: Sequence[Tried]) -> list[Tried]:
    """Put starts into falling order of accuracy, each compared with the best by draw and image.

    The best is known by these numbers alone, so that each of its comparisons stands for all pairs: p is
    adjusted over all of them.

    Args:
        tried: at least one start.
    """
    ranked = sorted(tried, key=lambda each: (-each.best.mean, each.gflops))
    differences = [compare(first.best.right, second.best.right) for first, second in combinations(ranked, 2)]
    adjusted = statistics.holm([difference.p for difference in differences])
    # The first pairs are those with the best start.
    others = zip(ranked[1:], differences, adjusted, strict=False)
    return [ranked[0], *(replace(each, to_best=gap, adjusted_p=p) for each, gap, p in others)]


def _expand(names: Sequence[str]) -> Iterator[str]:
    """Yield the names with patterns resolved; without any, the candidates."""
    for name in names:
        is_pattern = re.search(r"[*?]", name) and not Path(name).exists()
        yield from (start.name for start in published.starts(name)) if is_pattern else (name,)
    if not names:
        yield from (start.name for start in published.starts() if is_local(start.name))
        yield from CANDIDATES


def _fetch(name: str, download: bool, listener: Listener) -> None:
    """Fetch a start that is not on this disk, where that is allowed.

    Raises:
        VitkitError: it may not be fetched, or cannot.
    """
    start = published.find_start_named(name)
    if not published.is_address(name) or is_local(name):
        return
    if not download:
        size = f" (about {start.megabytes:,.0f} MB at {start.address})" if start else ""
        raise VitkitError(f"not on this disk{size}; --yes fetches it")
    with listener.progress(f"fetching {name}", unit="bytes") as progress:
        fetch(name, progress)


def with_fewer(data: protocol.FewShotData, most: int) -> protocol.FewShotData:
    """Take a part of the test images where there are more, with the same proportions of the classes."""
    if len(data.test) <= most:
        return data
    rows = np.sort(protocol.mixed_order(class_numbers(data.test.labels))[:most])
    splits = {**data.data.splits, data.test_split: data.test.take(rows)}
    return replace(data, data=replace(data.data, splits=splits, same={}))


def require_memory(config: ModelConfig, free: int | None) -> None:
    """Refuse a start whose features take more than the free memory, in bytes; None if unknown."""
    memory = measure.inference_memory(config, BATCH)
    needed = memory.peak + memory.weights  # of the file and of the model, while it is loaded
    if free is not None and needed > free:
        needs, has = format_bytes(needed), format_bytes(free)
        raise VitkitError(f"memory: its features take {needs}, and {has} are free")


def measure_pace(extractor: features.FeatureExtractor, samples: sources.Samples) -> float:
    """Return the seconds that the features of an image take, after a first batch that warms up."""
    indices, seconds = np.arange(min(BATCH, len(samples))), math.inf
    for _ in range(2):
        began = time.monotonic()
        with suppress(VitkitError):  # images that cannot be read are told of later
            extractor.compute(samples, indices)
        seconds = min(seconds, time.monotonic() - began)
    return seconds / len(indices)

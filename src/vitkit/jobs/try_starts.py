"""Try starts on a person's images before any of them is fine-tuned: the tournament of `vitkit starts --try`.

Classes are learned from a few images by the frozen features of each start, with the same shots and the same
test images for all, so that starts are compared image by image.

Letters: S draws, N test images.
"""

import math
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.config import IN_MEMORY_ALONE
from vitkit.data import paths, sources
from vitkit.data.listing import class_numbers
from vitkit.errors import VitkitError
from vitkit.evaluation import features, statistics
from vitkit.evaluation.fewshot import methods as protocol
from vitkit.evaluation.fewshot.config import Learning, Method
from vitkit.jobs.fewshot import compute_features
from vitkit.jobs.options import LoadingOptions, StrPath, StrPaths, as_names, require_at_least
from vitkit.listener import AUTOMATIC, Listener, hushed
from vitkit.models import measure
from vitkit.models.config import Precision
from vitkit.models.zoo import ModelConfig
from vitkit.result import Cell, Facts, Number, Result, Section, Text, table_of
from vitkit.runs import machine, processes, trained_model
from vitkit.runs.plan import free_memory
from vitkit.runs.start import identify_any, load_model
from vitkit.tasks.page import points, shown_p
from vitkit.text import distinct_ends, format_bytes, format_duration, join_names, pluralize
from vitkit.weights import model_card, published
from vitkit.weights.files.download import fetch_any, is_local
from vitkit.weights.format_names import LoadOptions
from vitkit.weights.loading import Identity
from vitkit.world import ALONE

CANDIDATES = (
    *("vit-ti16-augreg-in21k", "vit-s16-augreg-in21k", "vit-b16-augreg-in21k", "vit-s14-dinov2"),
    *("vit-s16-lingbot", "vit-s16-deit3-in21k-in1k", "vit-b16-siglip2-224", "vit-b16-clip-openai"),
)
"""The published starts that are tried where none is named, besides those on this disk: small ones of each
family with a free licence."""
SHOTS = 25
"""Images of each class to learn from: with 10, a start whose last blocks were destroyed came first on
pictures of animals, and was far behind once fine-tuned; with 25 it came third (docs/results/accuracy.md)."""
PROBED = 8
"""Images by which a start's pace is measured before it computes all features: a second or so on a CPU."""


@dataclass(frozen=True)
class Tried:
    """A start that was tried."""

    start: str
    """The given path, address or name."""
    name: str
    """A short name, different from the others'."""
    published: str
    """The published start that it is, or that it began from, however many runs ago; "" if unknown."""
    licence: str
    """The licence of that published start; "" if unknown."""
    trained_on_these: bool
    """Whether it was trained on these images."""
    gflops: float
    """GFLOPs of the features of an image."""
    milliseconds: float
    """Time of an image here, reading it included."""
    seconds: float
    """Time that it took here in all; little where its features were stored before."""
    accuracies: tuple[float, ...]
    """The accuracy of each draw, on all test images."""
    accuracy: float
    """The mean over the draws."""
    interval: tuple[float, float]
    """95 % interval of it, over other draws and other test images."""
    right: Any = field(compare=False, repr=False, metadata=IN_MEMORY_ALONE)
    """`(S, N)`, whether each prediction is right."""
    to_best: statistics.PairedDifference | None = None
    """Its accuracy less that of the best start; None for the best."""
    adjusted_p: float | None = None
    """The p of that difference, by Holm over all pairs of starts: the best was chosen by the same numbers."""

    @property
    def differs(self) -> bool:
        """Whether it differs from the best start."""
        return self.adjusted_p is not None and self.adjusted_p < statistics.SURE


@dataclass(frozen=True, repr=False)
class Tournament(Result):
    """Starts on the same images, the best first."""

    photos: str
    """The given path."""
    data_name: str
    classes: int
    test_split: str
    test_images: int
    shots: int
    seeds: int
    method: Method
    minutes: float
    tried: tuple[Tried, ...]
    """In falling order of accuracy."""
    left_out: Mapping[str, str]
    """The reason for each start that was not tried, or not to the end."""

    def heading(self) -> str:
        """Name the images."""
        return f"Starts for {self.data_name}"

    @property
    def cheaper(self) -> Tried | None:
        """The start of the fewest FLOPs from which the best was not found to differ, where it is another one.

        FLOPs and not milliseconds: the same command must say the same every time.
        """
        cheapest = min((each for each in self.tried if not each.differs), key=lambda each: each.gflops)
        return None if cheapest.gflops == self.tried[0].gflops else cheapest

    def headline(self) -> Sequence[str]:
        """Name the best start with its lead, its licence, and a cheaper one that may be as good."""
        best, *others = self.tried
        tested = pluralize(self.test_images, f"{self.test_split} image")
        low, high = best.interval
        sentences = [
            f"Best is {best.name}: from {pluralize(self.shots, 'image')} of each class it is right on "
            f"{best.accuracy:.1%} of {tested} of {self.data_name} (95 % interval {low:.1%} to {high:.1%}).",
            *(self._lead(second) for second in others[:1]),
            f"Its licence is {_terms(best)}.",
        ]
        if (cheaper := self.cheaper) is not None:
            sentences.append(
                f"The cheapest that may be as good is {cheaper.name}, with {cheaper.gflops:.3g} GFLOPs an "
                f"image in place of {best.gflops:.3g}. Its licence is {_terms(cheaper)}."
            )
        own = [each.name for each in self.tried if each.trained_on_these]
        if own:
            sentences.append(f"Trained on these images, so that its shots tell it little: {join_names(own)}.")
        return sentences

    def _lead(self, second: Tried) -> str:
        """Say how far the best start is ahead of the next, and how sure that is."""
        assert second.to_best is not None and second.adjusted_p is not None
        images, difference = self.test_images, second.to_best
        low, high = (points(images, -end, signed=True) for end in reversed(difference.interval))
        sure = f"95 % interval {low} to {high}, p {shown_p(second.adjusted_p)} by Holm over all pairs"
        lead = f"{points(images, -difference.mean)} points ahead of {second.name} ({sure})"
        if second.differs:
            return f"It is {lead}."
        equals = join_names([each.name for each in self.tried[1:] if not each.differs])
        return f"No difference found from {equals}: it is {lead}."

    def sections(self) -> Sequence[Section]:
        """Return the table of the starts, and the reasons of those that were left out."""
        columns: dict[str, Callable[[Tried], Cell]] = {
            "start": lambda each: each.name,
            "accuracy": lambda each: Number(f"{each.accuracy:.1%} ({_ends(each.interval)})", each.accuracy),
            "less the best, points": self._gap,
            "p": lambda each: "" if each.adjusted_p is None else shown_p(each.adjusted_p),
            "GFLOPs": lambda each: Number(f"{each.gflops:.3g}", each.gflops),
            "ms": lambda each: Number(f"{each.milliseconds:.3g}", each.milliseconds),
            "min": lambda each: Number(f"{each.seconds / 60:.1f}", each.seconds),
            "licence": lambda each: each.licence or "not known",
        }
        if len(self.tried) == 1:
            del columns["less the best, points"], columns["p"]
        table = replace(table_of(self.tried, columns), left=(0, -1))
        explained = (
            f"{self.method} on frozen features, {pluralize(self.shots, 'image')} of each of {self.classes:,} "
            f"classes, {pluralize(self.seeds, 'draw')}: the same shots and test images for every start. "
            "95 % intervals, in parentheses, cover the draws and the test images; p by Holm over all pairs. "
            "GFLOPs and ms are of one image, min is what the start took here."
        )
        reasons = [("left out", [f"{name}: {reason}" for name, reason in self.left_out.items()])]
        return (Section("", (table, Text(explained), Facts(tuple(reasons)) if self.left_out else None)),)

    def _gap(self, tried: Tried) -> Cell:
        """Write the difference to the best start with its interval, in points."""
        if (difference := tried.to_best) is None:
            return ""
        gap, low, high = (
            points(self.test_images, value, signed=True) for value in (difference.mean, *difference.interval)
        )
        return Number(f"{gap} ({low} to {high})", difference.mean)

    def following(self) -> Sequence[str]:
        """Return the commands that fine-tune the best start, or a cheaper one."""
        command, cheaper = self._command(self.tried[0]), self.cheaper
        return (command,) if cheaper is None else (command, f"{self._command(cheaper)}   (cheaper)")

    def _command(self, tried: Tried) -> str:
        return shlex.join(["vitkit", "finetune", tried.start, self.photos])


def _ends(interval: tuple[float, float]) -> str:
    """Write the ends of an interval in per cent, without the sign: "67.3 to 73.8"."""
    return " to ".join(f"{100 * end:.1f}" for end in interval)


def _terms(tried: Tried) -> str:
    """Describe a start's licence, and whose it is."""
    if not tried.licence:
        return "not known: no published start is on record as its origin"
    whose = f", of {tried.published}" if tried.published not in ("", tried.name) else ""
    return published.describe_licence(tried.licence) + whose


def try_starts(
    photos: StrPath,
    starts: StrPaths = (),
    *,
    minutes: float = 10.0,
    download: bool = False,
    commercial: bool = False,
    shots: int = SHOTS,
    seeds: int = 5,
    method: Method = "ridge",
    test_images: int = 1000,
    batch_size: int = 32,
    workers: int = 0,
    device: str = "auto",
    threads: int | None = None,
    precision: Precision = "auto",
    cache: bool = True,
    quiet: bool = False,
    ask: "Callable[[str], bool] | None" = None,
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
        download: fetch the starts that are not on this disk, without asking; else they are left out.
        commercial: leave out starts whose licence is not known to allow commercial use.
        shots: images of each class to learn from.
        seeds: number of times the shots are drawn: with the seeds 0, 1, 2 and so on.
        method: ridge (the paper's few-shot accuracy), knn (nearest neighbours) or logistic (regression).
        test_images: the most test images; of more, a part with the same proportions of the classes is taken.
        batch_size: the most images that are computed at a time; fewer where the memory is short.
        workers: processes that decode images; with 0 the main process decodes.
        device: where to compute: "auto" (a GPU if there is one), "cpu", "gpu" or "cuda:1".
        threads: CPU threads; left out, as many as PyTorch chooses.
        precision: number format of the computation: float32, bfloat16, or auto: bfloat16 on a GPU that has
            it, else float32.
        cache: keep the features of images in the user's cache folder, and use the features that are there.
        quiet: print nothing but warnings.
        ask: is asked whether to fetch what is not on this disk, with a question.
        listener: hears the progress and remarks; left out, a notebook shows them and a script is silent.
        load: how checkpoints are read, as `vitkit.jobs.options.LoadingOptions` describes it.

    Returns:
        The starts in falling order of accuracy, and the reason for each that was left out. It is no forecast
        of fine-tuning, which changes the features too.

    Raises:
        VitkitError: there is no such data, no test image, or every start was left out.

    Unstable: its parameters and what it returns may change in any release.
    """
    if not photos:
        raise VitkitError("Which images? Give a path, or digits for the built-in ones.")
    if not 0 < minutes < math.inf:
        raise VitkitError(f"minutes is a number above 0, found {minutes:g}.")
    require_at_least(1, test_images=test_images, batch_size=batch_size)
    learning, spec = Learning((shots,), seeds, (method,)), str(photos)
    if spec != "digits":
        paths.existing_path(spec)  # before anything is fetched
    listener, place = hushed(listener, quiet), machine.find_device(device)
    processes.divide_threads(ALONE, threads)
    left_out: dict[str, str] = {}
    names = list(dict.fromkeys(_expand(as_names(starts))))
    listed = {name: published.find_start_named(name) for name in names}
    for name, start in listed.items():  # nor is fetched what may not be used
        if commercial and start is not None and start.licence not in published.FREE_LICENCES:
            left_out[name] = start.terms
    candidates = [name for name in names if name not in left_out]
    missing = [name for name in candidates if published.is_address(name) and not is_local(name)]
    allowed = download or (ask is not None and bool(missing) and ask(_question(missing)))
    identities: dict[str, Identity] = {}
    for name in candidates:
        try:
            if name in missing and not allowed:
                start = listed[name]
                size = f" (about {start.megabytes:,.0f} MB at {start.address})" if start else ""
                raise VitkitError(f"not on this disk{size}; --yes fetches it")
            if name in missing:
                with listener.progress(f"fetching {name}", unit="bytes") as progress:
                    fetch_any(name, progress)
            with listener.progress(f"looking at {name}"):
                identities[name] = _identify(name, commercial, LoadOptions(**load))
        except VitkitError as error:
            # Which of the addresses did not answer, without what to do then, which is the same for all.
            reason = str(error).removeprefix(f"{name} is not on this machine. ")
            left_out[name] = reason.partition(" Nothing was changed.")[0]
    if not identities:
        raise VitkitError(f"No start is left to try. {_listed(left_out)}")
    trained_on, pixels = [], []
    for identity in identities.values():
        card = identity.card
        if card.data is not None:  # these images may have been moved since
            same = trained_model.is_training_data(card, spec)
            trained_on.append(replace(card.data, spec=paths.absolute_spec(spec)) if same else card.data)
        pixels.append(model_card.fit_preprocessing(card.preprocessing, identity.config).decode.max_pixels)
    opened = _with_fewer(protocol.open_fewshot_data(spec, trained_on), test_images)
    end, max_pixels = time.monotonic() + 60 * minutes, min(pixels)

    def measure_start(name: str, config: ModelConfig) -> tuple[protocol.Measured, float]:
        images = choose_batch_size(config, batch_size, free_memory(place))
        model = load_model(name, **load).to(place)
        rule = model_card.preprocessing_of(model)
        rule = replace(rule, decode=replace(rule.decode, max_pixels=max_pixels))
        extractor = features.FeatureExtractor(model, rule, place, precision, images, workers)
        data = opened.decoded_by(rule.decode)
        pace = measure_pace(extractor, data.test)

        def require_time(images: int, which: str) -> None:
            # The test images follow the shots.
            takes = pace * (images + (len(data.test) if which == "shots" else 0))
            if takes > (left := max(end - time.monotonic(), 0.0)):
                needs, has = format_duration(takes), format_duration(left)
                raise VitkitError(f"time: its features take about {needs}, and {has} of --minutes are left")

        compute = compute_features(extractor, name, cache, listener, before=require_time)
        return protocol.measure_data(data, learning, compute, listener, name), pace

    tried = list[Tried]()
    short_names = dict(zip(names, distinct_ends(names), strict=True))
    # The cheapest first, so that an hour's start does not use up the minutes of all others.
    flops = {name: measure.forward_flops(identity.config) for name, identity in identities.items()}
    for name in sorted(identities, key=lambda name: flops[name]):
        (config, card), began = (identities[name].config, identities[name].card), time.monotonic()
        try:
            measured, pace = measure_start(name, config)
        except (VitkitError, MemoryError, torch.OutOfMemoryError) as error:
            left_out[name] = str(error) or "the memory does not suffice"
            continue
        (score,) = measured.scores
        if tried and score.right.shape != tried[0].right.shape:
            left_out[name] = "it cannot read all the images that the others read"
            continue
        origin = published.find_published_origin(name, card)
        tried.append(
            Tried(
                start=name,
                name=short_names[name],
                published="" if origin is None else origin.name,
                licence="" if origin is None else origin.licence,
                trained_on_these=trained_model.is_training_data(card, spec),
                gflops=flops[name] / 1e9,
                milliseconds=1000 * pace,
                seconds=time.monotonic() - began,
                accuracies=score.accuracies,
                accuracy=score.mean,
                interval=accuracy_interval(score.right),
                right=score.right,
            )
        )
    if not tried:
        raise VitkitError(f"No start could be tried. {_listed(left_out)}")
    return Tournament(
        photos=spec,
        data_name=opened.data.name,
        classes=opened.classes,
        test_split=opened.test_split,
        test_images=tried[0].right.shape[1],
        shots=shots,
        seeds=seeds,
        method=method,
        minutes=minutes,
        tried=tuple(rank(tried)),
        left_out={short_names[name]: reason for name, reason in left_out.items()},
    )


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
    ranked = sorted(tried, key=lambda each: (-each.accuracy, each.gflops))
    pairs = list(combinations(range(len(ranked)), 2))
    differences = [compare(ranked[first].right, ranked[second].right) for first, second in pairs]
    adjusted = statistics.holm([difference.p for difference in differences])
    to_best = {
        second: (difference, p)
        for (first, second), difference, p in zip(pairs, differences, adjusted, strict=True)
        if first == 0
    }
    compared = (to_best.get(number, (None, None)) for number in range(len(ranked)))
    return [
        replace(each, to_best=difference, adjusted_p=p)
        for each, (difference, p) in zip(ranked, compared, strict=True)
    ]


def _expand(names: Sequence[str]) -> Iterator[str]:
    """Yield the names with patterns resolved; without any, the candidates."""
    for name in names:
        is_pattern = re.search(r"[*?]", name) and not Path(name).exists()
        yield from (start.name for start in published.starts(name)) if is_pattern else (name,)
    if not names:
        yield from (start.name for start in published.starts() if is_local(start.name))
        yield from CANDIDATES


def _question(missing: Sequence[str]) -> str:
    """Ask whether to fetch starts, with the size of those whose size is in the table."""
    starts = [start for name in missing if (start := published.find_start_named(name)) is not None]
    size = f", about {sum(start.megabytes for start in starts):,.0f} MB" if starts else ""
    return f"Fetch {join_names(list(missing))}{size}? [y/N] "


def _identify(name: str, commercial: bool, options: LoadOptions) -> Identity:
    """Describe a checkpoint, before time is spent on it.

    Raises:
        VitkitError: it cannot be read, gives no features, or its licence is not wanted.
    """
    identity = identify_any(name, options)
    if reason := features.explain_no_features(identity.config):
        raise VitkitError(reason)
    origin = published.find_published_origin(name, identity.card)
    if commercial and (origin is None or origin.licence not in published.FREE_LICENCES):
        raise VitkitError(published.describe_licence("" if origin is None else origin.licence))
    return identity


def _listed(left_out: Mapping[str, str]) -> str:
    """Write the starts that were left out, each with its reason."""
    return " ".join(f"{name}: {reason.rstrip('.')}." for name, reason in left_out.items())


def _with_fewer(data: protocol.FewShotData, most: int) -> protocol.FewShotData:
    """Take a part of the test images where there are more, with the same proportions of the classes."""
    if len(data.test) <= most:
        return data
    rows = np.sort(protocol.mixed_order(class_numbers(data.test.labels))[:most])
    splits = {**data.data.splits, data.test_split: data.test.take(rows)}
    return replace(data, data=replace(data.data, splits=splits, same={}))


def choose_batch_size(config: ModelConfig, most: int, free: int | None) -> int:
    """Choose the largest batch that the free memory has room for, halving it while it is too large.

    Args:
        config: of the model.
        most: images.
        free: bytes; None if unknown.

    Raises:
        VitkitError: there is no room for a single image.
    """
    while free is not None:
        memory = measure.inference_memory(config, most)
        needed = memory.peak + memory.weights  # of the file and of the model, while it is loaded
        if needed <= free:
            break
        if most == 1:
            needs, has = format_bytes(needed), format_bytes(free)
            raise VitkitError(f"memory: its features take {needs}, and {has} are free")
        most //= 2
    return most


def measure_pace(extractor: features.FeatureExtractor, samples: sources.Samples) -> float:
    """Return the seconds that the features of an image take, after a first batch that warms up."""
    indices, seconds = np.arange(min(PROBED, len(samples))), math.inf
    for _ in range(2):
        began = time.monotonic()
        with suppress(VitkitError):  # images that cannot be read are told of later
            extractor.compute(samples, indices)
        seconds = min(seconds, time.monotonic() - began)
    return seconds / len(indices)

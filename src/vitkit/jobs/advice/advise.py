"""Advise, before anyone waits for a run, on the start to begin from and on the accuracy to expect."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from vitkit.data.advice import sample_sizes, suggest_recipe
from vitkit.data.check import DataCheck, check_data
from vitkit.data.config import DEFAULT_RULE, DecodeRule, Splits
from vitkit.data.layouts.repeats import repeats_of_training
from vitkit.data.paths import absolute_spec
from vitkit.data.sources import ImageData
from vitkit.errors import VitkitError
from vitkit.evaluation.features import explain_no_features
from vitkit.jobs.advice.choice import Advice, Option, advice_sentences, choose, option_of, refuse_to_go
from vitkit.jobs.advice.forecast import FINETUNED, evidence_of, predict
from vitkit.jobs.advice.probe import probe_features, probe_pixels
from vitkit.jobs.default_start import measure_starts
from vitkit.jobs.finetune_defaults import suit_start
from vitkit.jobs.options import StrPath, StrPaths, as_names
from vitkit.jobs.recipes import recipe
from vitkit.jobs.train import set_threads
from vitkit.jobs.train_run import train_run
from vitkit.listener import Listener, hushed
from vitkit.models.measure import parameters
from vitkit.models.zoo import ModelConfig
from vitkit.notebook import AUTOMATIC
from vitkit.runs.config import Run, StartConfig, full_name, new_model_config
from vitkit.runs.machine import find_device
from vitkit.runs.plan import Opened, describe_start, resolve_start
from vitkit.runs.start import find_start
from vitkit.runs.step_cost import count_images, measure_cost
from vitkit.runs.trained_model import is_training_data
from vitkit.tasks import find_task

CHECKED, CHECKED_PIXELS = 100_000, 2e9
"""Images, and pixels of all images, up to which each image is decoded to find copies, leaks and bad files:
about a minute of a core, for 40,000 images of 224 pixels or 160 photos of 12 megapixels."""
LARGER = 1.7
"""The larger of two sizes: the paper pre-trains at 224 pixels and fine-tunes at 384."""
UNTESTED = 1000
"""Test images of the forecast where the data has none."""
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
    set_threads(threads)  # the speed depends on them
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
    scratch = _scratch(opened, cut, sizes, min(PIXEL_SECONDS, seconds), place, listener)
    ways = tuple(_option(run, each, place, cache, listener) for run in variants)
    default = None
    if not runs:
        default = measure_starts(Run(data=opened.spec), opened, lambda run: run, place, listener)
    begin = ""
    if default is not None:
        ways = tuple(
            option_of(candidate.measured, published=candidate.start.name)
            for candidate in default.candidates
            if candidate.measured is not None
        )
        begin = default.advice(opened.spec)
    chosen = choose(ways, scratch.folded)
    return Advice(
        data=data,
        name=opened.name,
        classes=len(opened.class_names),
        images=len(opened.splits["train"]),
        tested=count_images(opened, "test"),
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
    """Train as advised; the run folder keeps the forecast, and the run ends with a comparison.

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
    refuse_to_go(advice)
    option = advice.chosen or advice.scratch
    return train_run(
        option.run,
        out,
        device=device,
        threads=threads,
        command=command,
        advice=advice.record,
        listener=listener,
    )


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
    planned, _, record = resolve_start(run, Opened(run, data))
    if record is not None:
        return record.config
    return new_model_config(planned, len(data.class_names))


def _option(run: Run, seconds: float, device: torch.device, cache: bool, listener: Listener) -> Option:
    """Probe a start at a size, and measure the cost of fine-tuning it."""
    data = find_task(run.task).learning.open_data(run.data, run.splits, run.preprocessing.decode)
    probe = probe_features(
        run.start, data, run.preprocessing, seconds, device=device, cache=cache, listener=listener
    )
    cost = measure_cost(run, data, _config(run, data), probe.image_seconds, device, listener)
    start = find_start(run.start)
    seen = is_training_data(start.card, run.data)
    notes = ("it was trained on these images, so that the probe finds too much",) if seen else ()
    forecast = predict(
        evidence_of(probe.folded),
        len(data.splits["train"]),
        count_images(data, "test") or UNTESTED,
        FINETUNED,
        parameters=parameters(start.config),
    )
    return option_of(cost, run.start.start, folded=probe.folded, forecast=forecast, notes=notes)


def _scratch(
    data: ImageData,
    splits: Splits,
    sizes: Sequence[tuple[int, int]],
    seconds: float,
    device: torch.device,
    listener: Listener,
) -> Option:
    """Measure the cost of training from scratch by the recipe for these images, and probe small pictures."""
    base = recipe("digits" if data.spec == "digits" else suggest_recipe(sizes))
    run = replace(
        base,
        data=absolute_spec(data.spec),
        splits=replace(base.splits, subset=splits.subset)
        if replace(splits, subset=None, subset_seed=None) == Splits()
        else splits,
    )
    probe = probe_pixels(data, seconds, listener)
    config = _config(run, data)
    cost = measure_cost(run, data, config, 0.0, device, listener)
    named = replace(run, model=full_name(run, len(data.class_names)), architecture=Run().architecture)
    if _config(named, data) != config:  # a name cannot say a stem of convolutions
        named = run
    return replace(option_of(cost, folded=probe.folded), run=named)

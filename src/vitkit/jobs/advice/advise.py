"""Advise, before anyone waits for a run, on the start to begin from and on the accuracy to expect."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from vitkit.data.advice import sample_sizes, suggest_recipe
from vitkit.data.check import DataCheck, check_data
from vitkit.data.config import Splits
from vitkit.data.layouts.repeats import repeats_of_training
from vitkit.data.paths import absolute_spec
from vitkit.data.sources import ImageData
from vitkit.errors import VitkitError
from vitkit.evaluation.features import explain_no_features
from vitkit.jobs.advice.choice import Advice, Option, advice_sentences, choose, option_of, refuse_to_go
from vitkit.jobs.advice.forecast import FINETUNED, evidence_of, predict
from vitkit.jobs.advice.options import AdviseOptions
from vitkit.jobs.advice.probe import probe_features, probe_pixels
from vitkit.jobs.default_start import measure_starts
from vitkit.jobs.finetune_defaults import suit_start
from vitkit.jobs.functions import from_options
from vitkit.jobs.options import as_names
from vitkit.jobs.recipes import recipe
from vitkit.jobs.train_run import train_run
from vitkit.listener import Listener
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


def run_advise(options: AdviseOptions) -> Advice:
    """Advise on how to train on images and on the accuracy to expect, before anyone waits for a run.

    The images are counted and checked, a few steps measure this machine's speed, and frozen features of each
    start are probed on training images for `seconds` at most, by ridge regression and nearest neighbours with
    cross-validation. `advice.chosen.run` is the advised run, for `vitkit.train`. Without a start, published
    ones are compared by their cost.

    Raises:
        VitkitError: there is no such data or start, or too few images for a probe.
    """
    listener, device = options.listener, find_device(options.device)
    with listener.progress("looking at the starts"):
        # First, so that a wrong start is refused at once.
        runs = [_fitted_run(options, start) for start in as_names(options.starts)]
    with listener.progress("listing images"):
        data = find_task("classification").learning.open_data(options.data, options.cut, options.decode)
    sizes = sample_sizes(data.splits["train"])
    check, leaks = _look(data, sizes, listener)
    variants = [sized for run in runs for sized in _with_sizes(run, data, sizes)]
    seconds = options.seconds / max(len(variants), 1)
    scratch = _scratch(options, data, sizes, device, listener)
    ways = tuple(_option(options, run, seconds, device, listener) for run in variants)
    default = None if runs else measure_starts(Run(data=data.spec), data, lambda run: run, device, listener)
    begin = ""
    if default is not None:
        ways = tuple(
            option_of(candidate.measured, published=candidate.start.name)
            for candidate in default.candidates
            if candidate.measured is not None
        )
        begin = default.advice(data.spec)
    chosen = choose(ways, scratch.folded)
    return Advice(
        data=options.data,
        name=data.name,
        classes=len(data.class_names),
        images=len(data.splits["train"]),
        tested=count_images(data, "test"),
        check=check,
        options=ways,
        chosen=chosen,
        scratch=scratch,
        sentences=tuple(advice_sentences(data, sizes, leaks, ways, chosen, scratch, begin)),
        default="" if default is None else default.start.name,
    )


advise = from_options(AdviseOptions)(run_advise)


def follow(
    advice: Advice,
    out: str | Path | None = None,
    *,
    device: str = "auto",
    threads: int | None = None,
    command: str = "",
    listener: Listener = AUTOMATIC,
) -> Path:
    """Train as advised; the run folder keeps the forecast, and the run ends with a comparison.

    Without a start, and with enough images, it trains from scratch.

    Args:
        advice: by `advise`.
        out, device, threads, command, listener: as for `vitkit.train`.

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


def _fitted_run(options: AdviseOptions, start: str) -> Run:
    """Make the run that fine-tunes a start by default.

    Raises:
        VitkitError: it is no start, or has no features.
    """
    run = Run(data=absolute_spec(options.data), start=StartConfig(start), splits=options.cut)
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


def _option(
    options: AdviseOptions, run: Run, seconds: float, device: torch.device, listener: Listener
) -> Option:
    """Probe a start at a size, and measure the cost of fine-tuning it."""
    data = find_task(run.task).learning.open_data(run.data, run.splits, run.preprocessing.decode)
    probe = probe_features(
        run.start, data, run.preprocessing, seconds, device=device, cache=options.cache, listener=listener
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
    options: AdviseOptions,
    data: ImageData,
    sizes: Sequence[tuple[int, int]],
    device: torch.device,
    listener: Listener,
) -> Option:
    """Measure the cost of training from scratch by the recipe for these images, and probe small pictures."""
    base = recipe("digits" if options.data == "digits" else suggest_recipe(sizes))
    run = replace(
        base,
        data=absolute_spec(options.data),
        splits=replace(base.splits, subset=options.cut.subset)
        if replace(options.cut, subset=None, subset_seed=None) == Splits()
        else options.cut,
    )
    probe = probe_pixels(data, min(PIXEL_SECONDS, options.seconds), listener)
    config = _config(run, data)
    cost = measure_cost(run, data, config, 0.0, device, listener)
    named = replace(run, model=full_name(run, len(data.class_names)), architecture=Run().architecture)
    if _config(named, data) != config:  # a name cannot say a stem of convolutions
        named = run
    return replace(option_of(cost, folded=probe.folded), run=named)

"""The length of a run that is given in minutes: measure how fast the machine trains, and fix the steps once.

The clock decides a number that is written into the run's configuration before the first step. A run that is
continued takes it from there, so that its bits depend on no clock.
"""

import bisect
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from vitkit.config import to_json
from vitkit.data.listing import pluralize
from vitkit.data.sources import FileSamples, ImageData, Samples
from vitkit.data.sources_config import NEWEST_RULE
from vitkit.errors import VitkitError
from vitkit.listener import SILENT, Listener
from vitkit.runs.build import (
    Parts,
    build_loader,
    build_parts,
    build_trainer,
    build_validation,
    model_config_of,
    read_images,
    with_absolute_paths,
)
from vitkit.runs.config import Run, changed_options, is_run, read_run
from vitkit.runs.folder import numbered_folders
from vitkit.runs.machine import choose_for, compute_as, deterministic, find_device
from vitkit.runs.outlook import measure_step, require_memory
from vitkit.runs.pixel_statistics import with_measured_pixels
from vitkit.runs.records import StartRecord
from vitkit.runs.start import settle_start
from vitkit.tasks import find_task
from vitkit.training.checkpoint import save_checkpoint
from vitkit.training.optim import learning_rate
from vitkit.training.trainer import Trainer
from vitkit.training.trainer_config import TrainingConfig

MEASURED_SECONDS, MOST_STEPS = 8.0, 30
"""Steps are timed for about so long, and so many at most: the first seconds of a machine say enough."""
SAMPLE = 1024
"""Training images that the timed steps are made of at most: more would have to be decoded first."""
VALIDATED = 256
"""Validation images on which a validation is timed."""

Fit = Callable[[Run, int, int], Run]
"""A function that gives a run another number of steps, which is its second argument; the third is the number
of its training images."""


@dataclass(frozen=True)
class Pace:
    """The seconds that parts of a run take on this machine."""

    step: float
    """An update, with reading its images."""
    validation: float
    """A validation over all its images, and the checkpoint that is written after it."""


def with_steps(run: Run, steps: int, num_images: int) -> Run:
    """Give a run another number of steps; warm-up and the steps of the head alone keep their part of it."""
    before = run.training.total_steps(num_images)
    optimizer = replace(
        run.optimizer,
        warmup_steps=round(run.optimizer.warmup_steps * steps / before),
        head_first=round(run.optimizer.head_first * steps / before),
    )
    return replace(run, optimizer=optimizer, training=replace(run.training, steps=steps))


def settle_minutes(
    run: Run,
    out: Path | None,
    *,
    device: str = "auto",
    ending: str = "",
    recorded: Callable[[Path], Run | None] | None = None,
    fit: Fit = with_steps,
    again: bool = False,
    listener: Listener = SILENT,
) -> Run:
    """Turn the minutes of a run into a number of steps, which it keeps.

    Args:
        run: left as it is where it has no `training.minutes`, or the steps beside them.
        out: its folder. Where a run has begun there, its steps are taken.
        device: where it computes.
        ending: of the name of its folder, where none is given.
        recorded: reads the run that has begun in a folder, None where none has; left out, an ordinary one.
        fit: puts the steps into the run.
        again: whether its steps are others, those of a recipe, and are to be chosen.
        listener: hears what was measured.

    Raises:
        VitkitError: the images, the start or the machine do not allow the run, or not even one step.
    """
    if run.training.minutes is None or (run.training.steps is not None and not again):
        return run
    read = recorded or _recorded_run
    begun = None if out is None else read(out)
    rule = run.splits.rule or (NEWEST_RULE if begun is None else begun.splits.rule)
    with listener.progress("listing images"):  # cut as the run will cut them
        splits = replace(run.splits, rule=rule)
        data = find_task(run.task).learning.open_data(run.data, splits, run.preprocessing.decode)
    count = len(data.splits["train"])
    if begun is not None and begun.training.steps is not None:
        # Where the minutes are others, the folder refuses the run by that difference alone.
        return fit(run, begun.training.steps, count)
    named, record = settle_start(run, data.class_names, out)
    if out is None:
        for folder in numbered_folders(named, data.name, ending):
            if not folder.is_dir():
                break
            there = read(folder)
            if there is not None and there.training.steps is not None:
                if None not in (there.start.image_mean, there.start.image_std):
                    # The record has what was measured; that of a series leaves measuring to its runs.
                    named = with_measured_pixels(named, data, SILENT)
                same = with_absolute_paths(fit(named, there.training.steps, count))
                if not changed_options(to_json(there), str(folder), same):
                    return fit(run, there.training.steps, count)
    pace = measure_pace(named, data, record, find_device(device), listener)
    steps = _choose_steps(run.training, pace, count, listener)
    for evaluator in run.evaluators.values():
        listener.note(
            f"The {evaluator.describe()}, measured on the way, is not counted in these minutes: the run "
            "takes longer by it."
        )
    return fit(run, steps, count)


def _choose_steps(training: TrainingConfig, pace: Pace, num_images: int, listener: Listener) -> int:
    """Count the steps that fit into the minutes of a run, and say so.

    Raises:
        VitkitError: not even one does.
    """
    minutes = training.minutes or 0.0
    if pace.step > 60 * minutes:
        raise VitkitError(
            f"A single step takes {pace.step:.2g} s here, longer than {minutes:g} minutes: give more "
            "--minutes, a smaller --batch-size or a smaller model."
        )
    steps = steps_within(60 * minutes, pace, training, num_images)
    interval = replace(training, steps=steps).evaluation_interval(num_images)
    pauses = pluralize(math.ceil(steps / interval), "pause")
    found = f"{minutes:g} minutes are {pluralize(steps, 'step')} of {pace.step:.2g} s and {pauses} of"
    found += f" {pace.validation:.2g} s for validation and checkpoint, as measured now"
    listener.show([("minutes", [found, "whoever resumes the run keeps its steps"])])
    return steps


def steps_within(seconds: float, pace: Pace, training: TrainingConfig, num_images: int) -> int:
    """Count the steps that can be made in so many seconds with the validations among them, at least 1."""

    def cost(steps: int) -> float:
        interval = replace(training, steps=steps).evaluation_interval(num_images)
        return steps * pace.step + math.ceil(steps / interval) * pace.validation

    most = max(1, math.floor(seconds / max(pace.step, 1e-9)))
    return max(1, bisect.bisect_right(range(1, most + 1), seconds, key=cost))


def measure_pace(
    run: Run, data: ImageData, start: StartRecord | None, device: torch.device, listener: Listener
) -> Pace:
    """Time steps, a validation and a checkpoint of a run on a sample of its images.

    The weights are new ones and the folder is a temporary one: nothing of the run is touched.
    """
    precision, exact = run.training.precision, run.training.exact
    config = model_config_of(run, len(data.class_names), start)
    require_memory(config, run, device)  # before anything of the run is built
    with (
        tempfile.TemporaryDirectory() as folder,
        deterministic(device),
        listener.progress("measuring the speed"),
    ):
        parts = build_parts(run, data, Path(folder), SILENT, start)
        compute_as(parts.model, choose_for(config, device, precision, phase="training", exact=exact))
        trainer = build_trainer(parts, device)
        sample = read_images(_sample(parts), SILENT)
        trainer.loader = build_loader(sample)
        step = _time_steps(trainer, run, parts)
        began = time.monotonic()
        save_checkpoint(Path(folder), trainer.state, trainer.environment, 1)
        saving = time.monotonic() - began
        return Pace(step, saving + (_time_validation(sample, parts, trainer) if "val" in data.splits else 0))


def _time_steps(trainer: Trainer, run: Run, parts: Parts) -> float:
    """Give the seconds of a step: the median of some, or an estimate where a step takes very long."""
    batch_size, targets = run.training.batch_size, parts.data.splits["train"].targets
    guess = measure_step(parts.model, trainer, batch_size, targets)
    if guess > MEASURED_SECONDS:
        return guess
    count = 2 + min(MOST_STEPS, int(MEASURED_SECONDS / max(guess, 1e-6)))
    # Behind the steps of the head alone, which are faster: most of the run is like these.
    first, ends = run.optimizer.head_first, [time.monotonic()]
    for number, batch in enumerate(trainer.loader.batches(0, count)):
        trainer.update(batch, first + number, learning_rate(run.optimizer, 0, 1))
        ends.append(time.monotonic())
    # The first one waits for memory and for whoever decodes.
    return float(np.median(np.diff(ends)[1:]))


def _time_validation(sample: Parts, parts: Parts, trainer: Trainer) -> float:
    """Give the seconds of a validation over all its images, from a sample of them."""
    evaluators = find_task(parts.run.task).learning.evaluators(build_validation(sample, trainer.device))
    began = time.monotonic()
    for evaluator in evaluators.values():
        evaluator.measure(trainer.evaluated_model, trainer.evaluated_objective)
    seconds = time.monotonic() - began
    return seconds * len(parts.data.splits["val"]) / len(sample.data.splits["val"])


def _sample(parts: Parts) -> Parts:
    """Take images from all over the training and validation splits; they are kept in memory, or read again
    and again, as the whole splits are."""
    data, loading = parts.data, parts.run.loading
    splits = {
        "train": _some(data.splits["train"], max(SAMPLE, 2 * parts.run.training.batch_size)),
        **({"val": _some(data.splits["val"], VALIDATED)} if "val" in data.splits else {}),
    }
    part = len(splits["train"]) / len(data.splits["train"])
    limited = replace(loading, memory_gib=loading.memory_gib * part, bad_quota=1.0)
    run = replace(parts.run, loading=limited)
    return replace(parts, run=run, data=replace(data, splits=splits))


def _some(samples: Samples, count: int) -> Samples:
    """Take so many images of a split, evenly spread over it."""
    assert isinstance(samples, FileSamples)  # as they are listed: nothing is decoded yet
    chosen = np.unique(np.linspace(0, len(samples) - 1, min(count, len(samples))).astype(np.int64))
    return FileSamples(samples.files, samples.numbers[chosen], samples.labels[chosen], samples.rule)


def _recorded_run(folder: Path) -> Run | None:
    return read_run(folder) if is_run(folder) else None

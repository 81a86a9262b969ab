"""Turn the minutes of a run into steps: time the steps on this machine, and fix their number once.

The number is written into the run's configuration before the first step. A run that is continued takes it
from there, so that its bits depend on no clock.
"""

import bisect
import math
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from vitkit.data.sources import ImageData, Samples
from vitkit.data.stream.batch import Batch
from vitkit.errors import VitkitError
from vitkit.listener import SILENT, Listener
from vitkit.models.zoo import ModelConfig
from vitkit.runs.build import (
    Parts,
    build_loader,
    build_parts,
    build_trainer,
    build_validation,
    read_images,
)
from vitkit.runs.config import Run
from vitkit.runs.machine import choose_for, compute_as, deterministic
from vitkit.runs.records import StartRecord
from vitkit.tasks import find_task
from vitkit.text import pluralize
from vitkit.training.checkpoint import commit, make_folder, take_snapshot
from vitkit.training.config import TrainingConfig
from vitkit.training.gradients import out_of_memory_explained
from vitkit.training.optim import learning_rate
from vitkit.training.trainer import Trainer
from vitkit.world import world_of_environment

MEASURED_SECONDS, MOST_STEPS = 8.0, 30
"""Steps are timed for about `MEASURED_SECONDS`, and at most `MOST_STEPS` + 1 of them: enough for a median."""
SAMPLE = 1024
"""The most training images of the timed steps, unless two batches are more: all have to be decoded first."""
TRIAL_IMAGES = 64
"""Images on which a first step is timed: with more of them a person would wait longer for the estimate."""
VALIDATED = 256
"""The most images on which a validation is timed; the time is scaled up to all validation images."""


@dataclass(frozen=True)
class Pace:
    """The seconds of a step and of a validation on this machine."""

    step: float
    """An update, with reading its images."""
    validation: float
    """A validation on all validation images, and the checkpoint after it."""


def with_steps(run: Run, steps: int, num_images: int) -> Run:
    """Give a run another number of steps; the warm-up stays the same fraction."""
    before = run.training.total_steps(num_images)
    optimizer = replace(run.optimizer, warmup_steps=round(run.optimizer.warmup_steps * steps / before))
    return replace(run, optimizer=optimizer, training=replace(run.training, steps=steps))


def choose_steps(training: TrainingConfig, pace: Pace, num_images: int, listener: Listener) -> int:
    """Count the steps that fit into the minutes of a run, and show the number.

    Raises:
        VitkitError: a single step takes longer.
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
    line = (
        f"{minutes:g} minutes are {pluralize(steps, 'step')} of {pace.step:.2g} s and {pauses} of "
        f"{pace.validation:.2g} s for validation and checkpoint, as measured now"
    )
    listener.show([("minutes", [line, "resuming the run keeps this number of steps"])])
    return steps


def steps_within(seconds: float, pace: Pace, training: TrainingConfig, num_images: int) -> int:
    """Count the steps that fit into so many seconds, with the validations between them; at least 1."""

    def cost(steps: int) -> float:
        interval = replace(training, steps=steps).evaluation_interval(num_images)
        return steps * pace.step + math.ceil(steps / interval) * pace.validation

    most = max(1, math.floor(seconds / max(pace.step, 1e-9)))  # the 1e-9 keeps it from a division by 0
    # The interval between validations grows every 50 steps (`evaluation_interval`), so that a longer run may
    # take less time; between two such steps `cost` rises. The search goes from the longest run down.
    for first in range((most - 1) // 50 * 50, -1, -50):
        fitting = bisect.bisect_right(range(first + 1, min(first + 50, most) + 1), seconds, key=cost)
        if fitting:
            return first + fitting
    return 1


def measure_pace(
    run: Run,
    data: ImageData,
    config: ModelConfig,
    start: StartRecord | None,
    device: torch.device,
    listener: Listener,
) -> Pace:
    """Time steps, a validation and a checkpoint of a run on a sample of its images.

    A model of its own is trained, in a temporary folder: the run stays as it is. It has new weights, even if
    the run has a start: the time does not depend on them. Of several processes, process 0 times its own part
    of a batch; the sums over all processes are not timed.
    """
    world = world_of_environment()
    training = run.training
    each, micro = training.batch_size, training.micro_batch_size
    training = replace(
        training,
        batch_size=-(-each // world.size),
        micro_batch_size=None if micro is None else -(-micro // world.size),
    )
    run = replace(run, training=training)
    precision, exact = run.training.precision, run.training.exact
    with (
        tempfile.TemporaryDirectory() as folder,
        deterministic(device),
        listener.progress("measuring the speed"),
    ):
        compute = choose_for(config, device, precision, phase="training", exact=exact)
        parts = build_parts(run, data, Path(folder), SILENT, compute, config, start, drawn=True)
        compute_as(parts.model, compute)
        trainer = build_trainer(parts, device)
        sample = read_images(_sample(parts), SILENT)
        trainer.loader = build_loader(sample)
        step = _time_steps(trainer, run, parts)
        began = time.monotonic()
        # Into a temporary folder, whose disk may be faster than the run's.
        make_folder(Path(folder))
        commit(Path(folder), take_snapshot(trainer.state, trainer.environment), 1)
        saving = time.monotonic() - began
        if "val" not in data.splits:
            return Pace(step, saving)
        measured = find_task(run.task).learning.evaluators(build_validation(sample, device))
        began = time.monotonic()
        for evaluator in measured.values():
            evaluator.measure(trainer.evaluated_model, trainer.evaluated_objective)
        part = len(sample.data.splits["val"]) / len(data.splits["val"])
        return Pace(step, saving + (time.monotonic() - began) / part / world.size)


def _time_steps(trainer: Trainer, run: Run, parts: Parts) -> float:
    """Time a step: the median of several, or an estimate where a step takes very long."""
    guess = 0.0
    if trainer.device.type != "cuda":  # by two passes of the run's own objective over a few black images
        training, config, targets = run.training, parts.model.config, parts.data.splits["train"].targets
        count = min(training.batch_size, training.micro_batch_size or training.batch_size, TRIAL_IMAGES)
        shape = torch.Size((count, config.in_channels, *config.image_size))
        some = {
            name: torch.from_numpy(np.resize(values[:count], (count, *values.shape[1:])))
            for name, values in targets.items()
        }
        ids = torch.arange(count)
        batch = Batch(torch.zeros(shape, dtype=torch.uint8), some, ids >= 0, ids)
        with out_of_memory_explained(count, shape):
            for _ in range(2):  # the first pass is slower: it allocates memory
                began = time.monotonic()
                with trainer.autocast():
                    loss, _metrics = trainer.objective(parts.model, batch, 0, trainer.total_steps)
                loss.backward()
                guess = (time.monotonic() - began) * training.batch_size / count
        trainer.trained.zero_grad()
    if guess > MEASURED_SECONDS:
        return guess
    # The first step is not counted, at least one other is. The 1e-6 keeps it from a division by 0.
    count = 2 + min(MOST_STEPS, int(MEASURED_SECONDS / max(guess, 1e-6)))
    ends = [time.monotonic()]
    for number, batch in enumerate(trainer.loader.batches(0, count)):
        # Any learning rate would do: the time does not depend on it.
        trainer.update(batch, number, learning_rate(run.optimizer, 0, 1))
        ends.append(time.monotonic())
    # The first step is excluded: it waits for memory and for the workers that decode.
    return float(np.median(np.diff(ends)[1:]))


def _sample(parts: Parts) -> Parts:
    """Take images from all over the training and validation splits.

    The memory limit shrinks in proportion, so that they are kept in memory, or read again for each epoch, as
    the images of the run will be.
    """
    data, loading = parts.data, parts.run.loading
    splits = {
        # Two batches at least, so that not every step has the same images.
        "train": _some(data.splits["train"], max(SAMPLE, 2 * parts.run.training.batch_size)),
        **({"val": _some(data.splits["val"], VALIDATED)} if "val" in data.splits else {}),
    }
    part = len(splits["train"]) / len(data.splits["train"])
    # Unreadable files are for the run to refuse, not for this measurement.
    limited = replace(loading, memory_gib=loading.memory_gib * part, bad_quota=1.0)
    run = replace(parts.run, loading=limited)
    return replace(parts, run=run, data=replace(data, splits=splits))


def _some(samples: Samples, count: int) -> Samples:
    """Take so many images of a split, evenly spread over it."""
    chosen = np.unique(np.linspace(0, len(samples) - 1, min(count, len(samples))).astype(np.int64))
    return samples.take(chosen)

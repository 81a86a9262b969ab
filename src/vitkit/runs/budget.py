"""Turn the minutes of a run into steps, and estimate its cost: time and memory of a step on this machine.

The number of steps that fits into the minutes is written into the run's configuration before the first step.
A run that is continued takes it from there, so that its bits depend on no clock.
"""

import bisect
import itertools
import math
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch.optim import Optimizer

from vitkit.data.sources import ImageData
from vitkit.data.stream.loader import TrainLoader
from vitkit.errors import VitkitError
from vitkit.evaluation.fewshot.config import FewShotTracking
from vitkit.kernels.block import Outline
from vitkit.listener import SILENT, Listener
from vitkit.models import image_model, measure, zoo
from vitkit.models.build import build_model
from vitkit.models.config import Compute
from vitkit.runs import build, timing
from vitkit.runs.config import Run
from vitkit.runs.machine import choose_for, compute_as, deterministic
from vitkit.text import format_bytes, format_duration, pluralize
from vitkit.training import checkpoint, gradients, optim
from vitkit.training.config import TrainingConfig
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
    run: Run, data: ImageData, config: zoo.ModelConfig, device: torch.device, listener: Listener
) -> Pace:
    """Time steps, a validation and a checkpoint of a run on a sample of its images.

    A model of its own is trained, in a temporary folder: the run stays as it is. It has new weights, even if
    the run has a start: the time does not depend on them. Of several processes, process 0 times its own part
    of a batch; the sums over all processes are not timed.
    """
    world, training = world_of_environment(), run.training
    micro = training.micro_batch_size and -(-training.micro_batch_size // world.size)
    each = -(-training.batch_size // world.size)
    training = replace(training, batch_size=each, micro_batch_size=micro)
    run = replace(run, training=training, fewshot=FewShotTracking())  # `choose_length` warns of it
    said = listener.progress("measuring the speed")
    with tempfile.TemporaryDirectory() as folder, deterministic(device, training.fast), said:
        compute = choose_way(run, config, device)
        parts = build.build_parts(run, data, Path(folder), SILENT, compute, config, device)
        sample = build.read_images(_sample(parts), SILENT)
        trainer = build.build_trainer(sample)
        step = _time_steps(trainer, run, sample)
        began = time.monotonic()
        # Into a temporary folder, whose disk may be faster than the run's.
        checkpoint.make_folder(Path(folder))
        checkpoint.commit(Path(folder), checkpoint.take_snapshot(trainer.state, trainer.environment), 1)
        saving = time.monotonic() - began
        if "val" not in data.splits:
            return Pace(step, saving)
        began = time.monotonic()
        for evaluator in trainer.evaluators.values():
            evaluator.measure(trainer.evaluated_model, trainer.evaluated_objective)
        part = len(sample.data.splits["val"]) / len(data.splits["val"])
        return Pace(step, saving + (time.monotonic() - began) / part / world.size)


def _time_steps(trainer: Trainer, run: Run, parts: build.Parts) -> float:
    """Time a step: the median of several, or an estimate where a step takes very long."""
    guess, training, batches = 0.0, run.training, trainer.loader.batches(0, MOST_STEPS + 2)
    first = next(batches)
    if trainer.device.type != "cuda":  # by two passes of the run's own objective over a few images
        count = min(training.batch_size, training.micro_batch_size or training.batch_size, TRIAL_IMAGES)
        some = first.slice(0, count, None)
        with gradients.out_of_memory_explained(count, first.images.shape):
            for _ in range(2):  # the first pass is slower: it allocates memory
                began = time.monotonic()
                with trainer.autocast():
                    loss, _metrics = trainer.objective(parts.model, some, 0, trainer.total_steps)
                loss.backward()
                guess = (time.monotonic() - began) * training.batch_size / count
        trainer.trained.zero_grad()
    if guess > MEASURED_SECONDS:
        return guess
    # The first step is not counted, at least one other is. The 1e-6 keeps it from a division by 0.
    count = 1 + min(MOST_STEPS, int(MEASURED_SECONDS / max(guess, 1e-6)))
    ends = [time.monotonic()]
    for number, batch in enumerate(itertools.chain([first], itertools.islice(batches, count))):
        # Any learning rate takes as long; with 0 nothing diverges while it is timed.
        trainer.launch(batch, number, 0.0).read()
        ends.append(time.monotonic())
    # The first step is excluded: it waits for memory.
    return float(np.median(np.diff(ends)[1:]))


def _sample(parts: build.Parts) -> build.Parts:
    """Take images from all over the training and validation splits.

    The memory limit shrinks in proportion, so that they are kept in memory, or read again for each epoch, as
    the images of the run will be.
    """
    data, loading = parts.data, parts.run.loading
    # Two training batches at least, so that not every step has the same images.
    most = {"train": max(SAMPLE, 2 * parts.run.training.batch_size), "val": VALIDATED}
    used = [(split, samples) for split, samples in data.splits.items() if split in most]
    splits = {split: samples.take(samples.spread(most[split])) for split, samples in used}
    part = len(splits["train"]) / len(data.splits["train"])
    # Unreadable files are for the run to refuse, not for this measurement.
    limited = replace(loading, memory_gib=loading.memory_gib * part, bad_quota=1.0)
    run = replace(parts.run, loading=limited)
    return replace(parts, run=run, data=replace(data, splits=splits))


ENOUGH_SECONDS = 0.5
"""A shorter step is timed again with more images, up to the batch."""
FIRST_IMAGES = 2
"""Images of the first timed step: so few that no model takes minutes over them."""
LOADED_IMAGES = 32
"""Training images that are decoded to measure the time of one."""


@dataclass(frozen=True)
class Cost:
    """The cost of a run on this machine."""

    run: Run
    steps: int
    seconds: float
    """Seconds of the whole run, from the measured time of a step."""
    memory: int
    """The most bytes of a training step, beside PyTorch's own."""
    flops: float
    """FLOPs of the forward pass of one image."""

    def __str__(self) -> str:
        """Describe steps, time and memory."""
        return (
            f"{pluralize(self.steps, 'step')} of {pluralize(self.run.training.batch_size, 'image')}, about "
            f"{format_duration(self.seconds)}, {format_bytes(self.memory)} of memory"
        )


def measure_cost(
    run: Run, data: ImageData, config: zoo.ModelConfig, device: torch.device, listener: Listener
) -> Cost:
    """Measure the time of a run's steps, and estimate its memory.

    Args:
        run: the options of the run.
        data: its images.
        config: the configuration of its model.
        device: where it would be trained.
        listener: hears the progress.
    """
    train_images, training = len(data.splits["train"]), run.training
    steps = training.total_steps(train_images)
    with listener.progress(f"measuring the speed of {run.model}"):
        # New weights do not change the time.
        model = build_model(config).to(device)
        compute_as(model, choose_way(run, config, device))
        scales = optim.rate_scales(model, run.optimizer)
        for parameter, scale in scales.items():
            parameter.requires_grad_(scale > 0)  # a frozen layer takes less time
        optimizer = optim.create_optimizer(model, run.optimizer, scales)
        compute = image_seconds(model, optimizer, training.micro_batch_size or training.batch_size)
        loader = TrainLoader(
            data.splits["train"],
            run.preprocessing,
            run.augmentation,
            batch_size=LOADED_IMAGES,
            seed=training.seed,
            bad_quota=1.0,
        )
        started = time.monotonic()
        next(loader.batches(0, 1))  # by this process alone
        load = (time.monotonic() - started) / LOADED_IMAGES
    # One more: the finished model is evaluated on the validation images again.
    validations = -(-steps // training.evaluation_interval(train_images)) + 1
    evaluated = validations * len(data.splits.get("val", ())) + len(data.splits.get("test", ()))
    # The forward pass of an evaluation is a third of a training step.
    seconds = steps * training.batch_size * (compute + load) + evaluated * compute / 3
    memory = step_memory(run, config, device)
    return Cost(run, steps, seconds, memory, float(measure.forward_flops(config, head=True)))


def choose_way(run: Run, config: zoo.ModelConfig, device: torch.device) -> Compute:
    """Choose how a run computes its steps on this machine, as its folder will record."""
    training = run.training
    images = training.micro_batch_size or training.batch_size
    precision, exact = training.precision, training.exact
    return choose_for(config, device, precision, phase="training", exact=exact, images=images)


def step_memory(run: Run, config: zoo.ModelConfig, device: torch.device) -> int:
    """Estimate the most bytes of a training step, beside PyTorch's own, without building the model."""
    training = run.training
    chosen = choose_way(run, config, device)
    batch = training.micro_batch_size or training.batch_size
    memory = measure.training_memory(
        config,
        batch,
        chosen,
        Outline(chosen.precision),
        state_bytes=run.optimizer.state_bytes,
        average=run.optimizer.polyak is not None,
        accumulate=batch < training.batch_size,
        recompute=training.recompute,
    )
    return memory.peak


def image_seconds(model: image_model.ImageModel, optimizer: Optimizer, most: int) -> float:
    """Measure the seconds that an image takes in training: forward, backward and its part of an update.

    Images are black: that does not change the time. Images of a step grow fourfold until a step takes long
    enough to be measured.

    Args:
        model: with its way to compute, on its device; it is trained.
        optimizer: of the model.
        most: images of the largest step.

    Raises:
        VitkitError: a step does not fit into memory.
    """
    # Two threads mean wall time, for which a person waits.
    device, count = model.pixel_mean.device, min(FIRST_IMAGES, most)
    clock = timing.Clock(device, threads=2)
    while True:
        images = torch.zeros((count, model.config.in_channels, *model.config.image_size), device=device)
        with gradients.out_of_memory_explained(count, images.shape):
            step = timing.training_step(model, model, model.chosen.precision, images, optimizer)
            clock.seconds(step)  # warms up: memory is taken, kernels are chosen
            times = [clock.seconds(step)]
            if times[0] >= ENOUGH_SECONDS or count == most:
                times += [clock.seconds(step) for _ in range(2)]
                return statistics.median(times) / count
        count = min(4 * count, most)

"""Measure the cost of a run on this machine: the time of its steps, and the memory of a step."""

import statistics
import time
from dataclasses import dataclass

import torch
from torch.optim import Optimizer

from vitkit.data.sources import ImageData
from vitkit.data.stream.loader import TrainLoader
from vitkit.kernels.block import Outline
from vitkit.listener import Listener
from vitkit.models.build import build_model
from vitkit.models.image_model import ImageModel
from vitkit.models.measure import forward_flops, training_memory
from vitkit.models.zoo import ModelConfig
from vitkit.runs.config import Run
from vitkit.runs.machine import choose_for, compute_as
from vitkit.runs.timing import Clock, training_step
from vitkit.text import format_bytes, format_duration, pluralize
from vitkit.training.gradients import out_of_memory_explained
from vitkit.training.layer_rates import rate_scales
from vitkit.training.optim import create_optimizer

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
    run: Run, data: ImageData, config: ModelConfig, device: torch.device, listener: Listener
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
        precision, exact = training.precision, training.exact
        compute_as(model, choose_for(config, device, precision, phase="training", exact=exact))
        scales = rate_scales(model, run.optimizer)
        for parameter, scale in scales.items():
            parameter.requires_grad_(scale > 0)  # a frozen layer takes less time
        optimizer = create_optimizer(model, run.optimizer, scales)
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
    validations = -(-steps // training.evaluation_interval(train_images)) + 1
    evaluated = validations * len(data.splits.get("val", ())) + len(data.splits.get("test", ()))
    # The forward pass of an evaluation is a third of a training step.
    seconds = steps * training.batch_size * (compute + load) + evaluated * compute / 3
    memory = step_memory(run, config, device)
    return Cost(run, steps, seconds, memory, float(forward_flops(config, head=True)))


def step_memory(run: Run, config: ModelConfig, device: torch.device) -> int:
    """Estimate the most bytes of a training step, beside PyTorch's own, without building the model."""
    training = run.training
    chosen = choose_for(config, device, training.precision, phase="training", exact=training.exact)
    batch = training.micro_batch_size or training.batch_size
    memory = training_memory(
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


def image_seconds(model: ImageModel, optimizer: Optimizer, most: int) -> float:
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
    clock = Clock(device, threads=2)
    while True:
        images = torch.zeros((count, model.config.in_channels, *model.config.image_size), device=device)
        with out_of_memory_explained(count, images.shape):
            step = training_step(model, model, model.chosen.precision, images, optimizer)
            clock.seconds(step)  # warms up: memory is taken, kernels are chosen
            times = [clock.seconds(step)]
            if times[0] >= ENOUGH_SECONDS or count == most:
                times += [clock.seconds(step) for _ in range(2)]
                return statistics.median(times) / count
        count = min(4 * count, most)

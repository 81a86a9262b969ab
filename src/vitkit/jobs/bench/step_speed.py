"""Measure how long a training step of a model takes on this machine, before a run is begun."""

import statistics
import time

import torch

from vitkit.data.loader import TrainLoader
from vitkit.data.sources import Samples
from vitkit.jobs.bench.contestants import Contestant
from vitkit.jobs.bench.speed import step_of
from vitkit.jobs.bench.timing import Clock
from vitkit.models.build import build_model
from vitkit.models.zoo import ModelConfig
from vitkit.runs.config import Run
from vitkit.runs.machine import choose_for, compute_as
from vitkit.training.gradients import out_of_memory_explained

ENOUGH_SECONDS = 0.5
"""A step this long says enough; a shorter one is tried with more images, up to the batch."""
FIRST_IMAGES = 2
LOADED_IMAGES = 32


def image_seconds(config: ModelConfig, run: Run, device: torch.device) -> float:
    """Measure the seconds that an image takes in training: forward, backward and its part of an update.

    Images are grey and the weights new: neither changes the time. Images of a step grow fourfold until a step
    takes long enough to be measured.

    Args:
        config: of the model.
        run: whose batch size and precision are taken.
        device: where it is measured.

    Raises:
        VitkitError: it does not fit into memory.
    """
    model = build_model(config).to(device)
    chosen = choose_for(config, device, run.training.precision, phase="training", exact=run.training.exact)
    compute_as(model, chosen)
    contestant = Contestant(run.model, "vitkit", chosen.precision, model, model)
    clock, most = Clock(device, threads=2), run.training.micro_batch_size or run.training.batch_size
    count, optimizers = min(FIRST_IMAGES, most), dict[torch.nn.Module, torch.optim.Optimizer]()
    while True:
        images = torch.zeros((count, config.in_channels, *config.image_size), device=device)
        with out_of_memory_explained(count, images.shape):
            step = step_of(contestant, "training", images, optimizers)
            clock.seconds(step)  # warms up: memory is asked for, kernels are chosen
            times = [clock.seconds(step)]
            if times[0] >= ENOUGH_SECONDS or count == most:
                times += [clock.seconds(step) for _ in range(2)]
                return statistics.median(times) / count
        count = min(4 * count, most)


def loading_seconds(samples: Samples, run: Run) -> float:
    """Measure the seconds that a training image takes to be decoded and augmented by one process."""
    loader = TrainLoader(
        samples,
        run.preprocessing,
        run.augmentation,
        batch_size=LOADED_IMAGES,
        seed=run.training.seed,
        bad_quota=1.0,
    )
    started = time.monotonic()
    for _ in loader.batches(0, 1):
        pass
    return (time.monotonic() - started) / LOADED_IMAGES

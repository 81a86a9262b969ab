"""What a run is going to do, for a person to read before it begins."""

import copy
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from vitkit.analysis.cost import forward_flops
from vitkit.data.listing import counted
from vitkit.data.loader import Batch, MemorySamples, worker_count
from vitkit.data.sources import ImageData
from vitkit.jobs.run_config import Run
from vitkit.models.build import count_parameters
from vitkit.models.image_model import ImageModel
from vitkit.models.vit_config import ViTConfig
from vitkit.models.zoo import ModelConfig
from vitkit.text import format_bytes, format_count, format_duration
from vitkit.training.trainer import Trainer, out_of_memory_explained

Row = tuple[str, list[str]]
"""A heading and its lines."""

NAMES_SHOWN = 8
"""Class names that fit on a line; the last is shown as well."""
TRIAL_IMAGES = 64
"""Images on which a step is timed at most: more would make a person wait for the first screen."""


@dataclass(frozen=True)
class Prospect:
    """What the configuration of a run does not say: the machine it is on, and where it stands."""

    folder: Path
    device: str
    """Its name, and the precision that is computed in there."""
    threads: int
    """Threads of the processor that PyTorch uses."""
    step_seconds: float
    """Time of a step, measured."""
    step: int = 0
    """Steps that are done already."""
    checkpoint: str | None = None
    """Name of the checkpoint the run continues from; None where it begins."""


def first_screen(run: Run, data: ImageData, model: ImageModel, prospect: Prospect) -> list[Row]:
    """Describe a run before it begins.

    Args:
        run: its configuration.
        data: its images, where those that are kept in memory have been read.
        model: with its card, as it is trained.
        prospect: where it stands, and on what machine.

    Returns:
        Rows in the order in which they are shown.
    """
    rows = [
        ("data", [_images(run, data)]),
        ("", list(data.notes)),
        ("classes", [_classes(data.class_names)]),
        ("model", [_model(run.model, model), *_warnings(run, model.config, _total_steps(run, data))]),
        ("training", [_training(run, data)]),
        ("device", [f"{prospect.device}, {counted(prospect.threads, 'thread')}"]),
        ("folder", [_folder(run, data, model, prospect.folder)]),
        ("time", [_duration(run, data, prospect)]),
    ]
    if prospect.checkpoint is not None:
        rows.append(("resumed", [f"from step {prospect.step} ({prospect.checkpoint})"]))
    return rows


def measure_step(model: ImageModel, trainer: Trainer, batch_size: int) -> float:
    """Measure the seconds of a step by two passes of a copy of the model over a few images."""
    trial = copy.deepcopy(model).train()
    config = model.config
    count = min(batch_size, trainer.config.micro_batch_size or batch_size, TRIAL_IMAGES)
    shape = (count, config.in_channels, *config.image_size)
    images = torch.zeros(shape, dtype=torch.uint8, device=trainer.device)
    nothing = torch.zeros(count, dtype=torch.int64, device=trainer.device)
    batch = Batch(images, nothing, nothing == 0, nothing)
    elapsed = 0.0
    with out_of_memory_explained(count, images.shape):
        for _ in range(2):  # the first one warms up
            started = time.monotonic()
            with trainer.autocast():
                loss, _metrics = trainer.objective(trial, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            loss.item()
            elapsed = time.monotonic() - started
    return elapsed * batch_size / count


def _total_steps(run: Run, data: ImageData) -> int:
    return run.training.total_steps(len(data.splits["train"]))


def _images(run: Run, data: ImageData) -> str:
    train = data.splits["train"]
    counts = " · ".join(f"{split} {len(samples):,}" for split, samples in data.splits.items())
    if isinstance(train, MemorySamples):
        memory = f"kept in memory (limit {run.loading.memory_gib:g} GiB a split)"
    else:
        memory = (
            f"read as needed by {worker_count(train, run.loading)} workers: decoded, they exceed "
            f"{run.loading.memory_gib:g} GiB"
        )
    return f"{data.name} ({data.kind}): {counts} images, {memory}"


def _classes(names: tuple[str, ...]) -> str:
    more = f", ... {names[-1]}" if len(names) > NAMES_SHOWN else ""
    return f"{len(names)}: {', '.join(names[:NAMES_SHOWN])}{more}"


def _model(name: str, model: ImageModel) -> str:
    config = model.config
    height, width = config.image_size
    tokens = f"{config.num_tokens} tokens, " if isinstance(config, ViTConfig) else ""
    return (
        f"{name} at {height}x{width}: {tokens}{format_count(count_parameters(model))} parameters, "
        f"{format_count(forward_flops(config, head=True), 'FLOPs')} per image"
    )


def _training(run: Run, data: ImageData) -> str:
    steps, training, optimizer = _total_steps(run, data), run.training, run.optimizer
    epochs = steps * training.batch_size / len(data.splits["train"])
    select = "best" if training.select == "best" and "val" in data.splits else "last"
    return (
        f"{steps:,} steps of {training.batch_size} images ({epochs:.1f} epochs), {optimizer.optimizer}, "
        f"rate {optimizer.learning_rate:g} {optimizer.schedule}, seed {training.seed}; it ends with the "
        f"{select} weights"
    )


def _folder(run: Run, data: ImageData, model: ImageModel, folder: Path) -> str:
    # float32: the weights and two moments of the optimiser, and the average where there is one.
    state_bytes = count_parameters(model) * 4 * (3 + (run.optimizer.polyak is not None))
    interval = run.training.evaluation_interval(len(data.splits["train"]))
    every = run.training.checkpoint_every or interval
    return f"{folder} (checkpoints of {format_bytes(state_bytes)} every {every} steps)"


def _duration(run: Run, data: ImageData, prospect: Prospect) -> str:
    seconds = (_total_steps(run, data) - prospect.step) * prospect.step_seconds
    return f"about {format_duration(seconds)} (measured on a few steps)"


def _warnings(run: Run, config: ModelConfig, total_steps: int) -> list[str]:
    """Name what is allowed but seldom meant."""
    found = []
    if isinstance(config, ViTConfig) and config.backbone is None:
        rows, columns = (
            size % patch for size, patch in zip(config.image_size, config.patch_size, strict=True)
        )
    else:
        rows, columns = 0, 0  # a ResNet pads what its strides do not divide
    if rows or columns:
        found.append(f"! {rows} rows below and {columns} columns at the right fill no patch: cut off")
    warmup = run.optimizer.warmup_steps
    if warmup > total_steps / 2:
        found.append(f"! {warmup} of {total_steps} steps are warm-up: lower --warmup-steps or train on")
    return found

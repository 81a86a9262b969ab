"""Describe a run before it begins: its images, model and training.

It comes in two parts, so that the first is on the screen while images are read: `first_screen` follows from
the configuration and the list of images, `reading_rows` from the images in memory.
"""

import resource
from collections.abc import Sequence
from pathlib import Path

import torch

from vitkit.data.check import advise_on_start, where_to_ask
from vitkit.data.sources import ImageData
from vitkit.data.stream.loader import worker_count
from vitkit.errors import VitkitError
from vitkit.models.image_model import ImageModel
from vitkit.models.measure import count_parameters, forward_flops, parameters
from vitkit.models.zoo import ModelConfig
from vitkit.runs.config import Run, full_name
from vitkit.runs.machine import available_memory
from vitkit.runs.records import StartRecord
from vitkit.text import format_bytes, format_count, format_size, pluralize
from vitkit.training.config import OptimizerConfig, Sharding
from vitkit.training.layer_rates import rate_scales
from vitkit.world import ALONE, World

Row = tuple[str, list[str]]
"""A heading and its lines."""

NAMES_SHOWN = 8
"""Class names that fit on a line; the last is shown as well."""


def first_screen(
    run: Run,
    data: ImageData,
    model: ImageModel,
    folder: Path,
    device: torch.device,
    start: StartRecord | None = None,
    departures: Sequence[str] = (),
) -> list[Row]:
    """Describe a run before its images are read.

    Args:
        run: its configuration.
        data: its images, as they are listed.
        model: with its card, as it is trained, and its way to compute.
        folder, device: the run folder, and where it is trained.
        start: the record of its start; None for new weights.
        departures: differences from the paper's fine-tuning, where it has a start.

    Returns:
        Rows in the order in which they are shown.
    """
    training, optimizer, images = run.training, run.optimizer, len(data.splits["train"])
    steps, config, names = training.total_steps(images), model.config, data.class_names
    rows: list[Row] = [("data", [describe_images(data)]), ("", list(data.notes))]
    if names:
        more = f", ... {names[-1]}" if len(names) > NAMES_SHOWN else ""
        rows.append(("classes", [f"{len(names)}: {', '.join(names[:NAMES_SHOWN])}{more}"]))
    if start is not None:
        rows.append(("start", list(start.lines)))

    tokens = "" if config.num_tokens is None else f"{config.num_tokens} tokens, "
    described = [
        f"{full_name(run, config.num_classes or 1)} at {format_size(config.image_size)}: {tokens}"
        f"{format_count(count_parameters(model))} parameters, "
        f"{format_count(forward_flops(config, head=True), 'FLOPs')} per image"
    ]
    if config.cut_off:
        described.append(f"! {config.cut_off}: cut off")
    warmup = optimizer.warmup_steps
    if warmup > steps / 2:
        described.append(f"! {warmup} of {steps} steps are warm-up: lower --warmup-steps or add steps")
    rows.append(("model", described))
    if optimizer.differs_by_layer:
        rows.append(("learns", _learning(run, model)))

    select = "best" if training.select == "best" and "val" in data.splits else "last"
    trained = [
        f"{pluralize(steps, 'step')} of {training.batch_size} images "
        f"({steps * training.batch_size / images:.1f} epochs), {optimizer.optimizer}, learning rate "
        f"{optimizer.learning_rate:g} {optimizer.schedule}, seed {training.seed}; it ends with the {select} "
        "weights"
    ]
    if start is not None and names:
        paper = f"other than the paper's fine-tuning (in brackets, B.1.1): {', '.join(departures)}"
        trained.append(paper if departures else "fine-tuning as in the paper (B.1.1)")
    elif names and (advice := advise_on_start(data.spec, images, len(names))):
        trained += [f"! {advice}", where_to_ask(data.spec)]
    rows.append(("training", trained))
    if start is not None:
        rows.append(("advice", [where_to_ask(data.spec, run.start.start)]))
    threads = pluralize(torch.get_num_threads(), "thread")
    rows.append(("device", [f"{device}, {model.chosen.precision}, {threads}"]))

    # float32: the weights and two moments of the optimiser, and the average where there is one.
    state_bytes = count_parameters(model) * 4 * (3 + (optimizer.polyak is not None))
    every = training.checkpoint_every or training.evaluation_interval(images)
    often = "at the end" if every >= steps else "every step" if every == 1 else f"every {every} steps"
    checkpoints = f"checkpoints of {format_bytes(state_bytes)} {often}"
    return [*rows, ("folder", [f"{folder} ({checkpoints})"])]


def reading_rows(run: Run, data: ImageData) -> list[Row]:
    """Describe how images are read, once the splits that fit into memory have been read."""
    train, splits = data.splits["train"], data.splits.items()
    reading = f"kept in memory (limit {run.loading.memory_gib:g} GiB a split)"
    if train.held is None:
        reading = (
            f"read as needed by {worker_count(train, run.loading)} workers: decoded, they exceed "
            f"{run.loading.memory_gib:g} GiB"
        )
    # Of the splits that are not in memory nobody knows yet.
    bad = {split: len(samples.held.bad) for split, samples in splits if samples.held is not None}
    counts = [f"{count:,} of {split}" for split, count in bad.items() if count]
    are = "file cannot be read and is" if sum(bad.values()) == 1 else "files cannot be read and are"
    warning = f"! {sum(bad.values()):,} {are} excluded: {', '.join(counts)}"
    return [("images", [reading, *([warning] if counts else [])])]


def describe_images(data: ImageData) -> str:
    """Name a data set with its layout, and count the images of each split."""
    counts = " · ".join(f"{split} {len(samples):,}" for split, samples in data.splits.items())
    return f"{data.name} ({data.kind}): {counts} images"


def _learning(run: Run, model: ImageModel) -> list[str]:
    """Describe which weights learn, at which rate and from which step."""
    optimizer, lines = run.optimizer, []
    scales = rate_scales(model, optimizer)
    moving = sum(parameter.numel() for parameter, scale in scales.items() if scale)
    if optimizer.freezes:
        trained = (
            "the head alone" if optimizer.freeze == "trunk" else f"layers after {optimizer.freeze_layers}"
        )
        total = count_parameters(model)
        lines.append(
            f"{trained}: {format_count(moving)} of {format_count(total)} parameters, the rest is frozen"
        )
    alone = optimizer.freeze == "trunk"
    if optimizer.layer_decay != 1 and not alone:
        lowest = min(scale for scale in scales.values() if scale)
        lines.append(
            f"each layer at {optimizer.layer_decay:g} of the rate of the next one, the first at {lowest:.2g}"
        )
    if optimizer.head_rate != 1:
        lines.append(f"the head at {optimizer.head_rate:g} times the learning rate")
    return lines


def choose_sharding(config: ModelConfig, run: Run, device: torch.device, world: World = ALONE) -> Sharding:
    """Choose how the state of a run is divided among processes: replicas wherever they fit into memory."""
    if world.size == 1 or run.training.sharding != "auto":
        return "replicas" if world.size == 1 else run.training.sharding
    if run.optimizer.optimizer == "muon":  # its update needs whole matrices
        return "replicas"
    available = free_memory(device, world)
    whole = parameters(config) * bytes_per_weight(run.optimizer)
    return "replicas" if available is None or whole <= available else "fsdp"


def require_memory(config: ModelConfig, run: Run, device: torch.device, world: World = ALONE) -> None:
    """Refuse a model whose weights, gradients and optimiser exceed all memory, and such a batch of pixels.

    A model that barely fits is not refused: the memory of activations depends on more than the configuration.

    Raises:
        VitkitError: it does not fit; the message says how much is needed, and how much there is.
    """
    available = free_memory(device, world)
    if available is None:
        return
    count, parts = parameters(config), 1
    if world.size > 1 and choose_sharding(config, run, device, world) != "replicas":
        parts = world.on_machine if run.training.sharding == "hsdp" else world.size
    needed = count * bytes_per_weight(run.optimizer) // parts
    if needed > available:
        each = "" if world.size == 1 else f" for each of {world.size} processes"
        raise VitkitError(
            f"{run.model} does not fit into memory: {format_count(count)} parameters need "
            f"{format_bytes(needed)} with gradients and optimiser{each}, and {format_bytes(available)} are "
            "free. Choose a smaller model (vitkit models lists them), or a machine with more memory."
        )
    height, width = config.image_size
    images = -(-run.training.batch_size // world.size)
    needed = images * (3 * height * width + 32)  # pixels, labels, numbers of the images
    if needed > available:
        raise VitkitError(
            f"A batch of {run.training.batch_size:,} images of {height}x{width} does not fit into memory: it "
            f"needs {format_bytes(needed)}, and {format_bytes(available)} are free. Choose a smaller "
            "--batch-size."
        )


def bytes_per_weight(optimizer: OptimizerConfig) -> int:
    """Count the bytes per weight in training: itself, its gradient, the optimiser's moments, its average."""
    return 4 + 4 + optimizer.state_bytes + (4 if optimizer.polyak is not None else 0)


def free_memory(device: torch.device, world: World = ALONE) -> int | None:
    """Estimate the free bytes of a process's GPU, or its part of the machine's; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    limits = [limit for limit in (available_memory(), None if space < 0 else space) if limit is not None]
    return min(limits) // world.on_machine if limits else None

"""Complete a run before it is trained: list its images, describe its start, fix its steps, refuse what its
images or this machine do not allow, and describe it on the screen.

Images and start are listed and described once, and handed down: in `Opened` until the run is planned, then in
its plan.
"""

import itertools
import math
import resource
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from vitkit.config import read, to_json
from vitkit.data import check, sources, transforms
from vitkit.data.config import Splits
from vitkit.data.paths import absolute_spec
from vitkit.data.stream.loader import worker_count
from vitkit.errors import DecodeError, VitkitError
from vitkit.listener import SILENT, Listener
from vitkit.models import measure, zoo
from vitkit.models.image_model import ImageModel
from vitkit.runs import records, series_record
from vitkit.runs.budget import choose_steps, measure_pace, with_steps
from vitkit.runs.config import Run, changed_options, full_name, model_config_of, require_data, with_options
from vitkit.runs.folder import kind_of, numbered_folders, require_folder
from vitkit.runs.machine import available_memory, find_device
from vitkit.runs.start import FREE, Start, absolute_start, find_start, plan_start
from vitkit.tasks import find_task
from vitkit.text import format_bytes, format_count, format_size, pluralize
from vitkit.training.config import ClassificationConfig, OptimizerConfig, Sharding
from vitkit.training.optim import rate_scales, refuse_layers
from vitkit.world import ALONE, World, world_of_environment

NOTHING: Mapping[str, Any] = MappingProxyType({})
"""No options that were given."""


@dataclass(frozen=True)
class Opened:
    """The images and the start of a run that were looked at before it is planned, to be handed down.

    A run with other images or another start looks at its own. A series opens the images of each of its runs
    anew, because they may change in the days that it takes.
    """

    run: Run
    images: sources.ImageData
    start: Start | None = None


def list_images(run: Run, opened: Opened | None = None, keep: bool = False) -> sources.ImageData:
    """List the images of a run, cut as its splits say.

    Args:
        run: the run.
        opened: images that are listed already; those of the run are cut from their listing.
        keep: whether pixels that are decoded to find repeats are kept for the memory of a run that begins.

    Raises:
        VitkitError: as the task's `open_data`.
    """
    learning, cut, rule = find_task(run.task).learning, run.splits, run.preprocessing.decode
    if opened is not None:
        theirs, own = (
            (each.task, absolute_spec(each.data), each.preprocessing.decode, _uncut(each.splits))
            for each in (opened.run, run)
        )
        if theirs == own:
            return replace(opened.images.cut(cut), spec=run.data)
    if not keep:
        return learning.open_data(run.data, cut, rule)
    listed = learning.open_data(run.data, _uncut(cut), rule)
    listed.shared.room = int(run.loading.memory_gib * 2**30 / world_of_environment().on_machine)
    return listed.cut(cut)


def _uncut(cut: Splits) -> Splits:
    """Return splits that list the same images and cut none of them."""
    return Splits(0, 0, label_separator=cut.label_separator, levels=cut.levels, group=cut.group)


def describe_start(run: Run, opened: Opened | None = None) -> Start:
    """Describe the start of a run, unless it is described already.

    Raises:
        VitkitError: as `find_start`.
    """
    own = run.start
    if opened is not None and opened.start is not None:
        theirs = opened.run.start
        chosen = (theirs.start_from, theirs.num_heads) == (own.start_from, own.num_heads)
        if chosen and absolute_start(theirs.start) == absolute_start(own.start):
            return replace(opened.start, given=own.start)
    return find_start(own)


def look_at(run: Run, opened: Opened | None = None) -> Opened:
    """List the images of a run and describe its start, as far as that has not been done.

    Args:
        run, opened: as for `list_images`.

    Raises:
        VitkitError: there are no such images, or no such start.
    """
    images = list_images(run, opened)
    return Opened(run, images, describe_start(run, opened) if run.start.start else None)


@dataclass(frozen=True, kw_only=True)
class Plan(Opened):
    """A complete run with its images, its start, the architecture of its model and its device.

    The run has absolute paths, a number of steps, its pixel statistics, and the name of its start's model.
    The start is None for new weights, and where the record of the start is enough.
    """

    record: records.StartRecord | None
    """The record of its start; None for new weights."""
    config: zoo.ModelConfig
    """The architecture of its model."""
    device: torch.device
    device_name: str
    """The device as it was given."""


def plan_run(
    run: Run,
    out: Path | None,
    *,
    device: str = "auto",
    opened: Opened | None = None,
    keep: bool = False,
    given: Mapping[str, Any] = NOTHING,
    world: World = ALONE,
    listener: Listener = SILENT,
) -> Plan:
    """Complete a run by its images, its start, this machine, and the record in its folder where it has begun.

    All that can be refused before a folder is made is refused here.

    Args:
        run: with the options that were given.
        out: its folder, if given.
        device: of the computation.
        opened: images and start that were looked at already.
        keep: as for `list_images`.
        given: as for `choose_length`.
        world: the processes that train together.
        listener: hears the progress.

    Raises:
        VitkitError: the options, the folder, the images, the start or the machine do not allow the run.
    """
    require_data(run)
    if not run.model and not run.start.start:
        raise VitkitError(
            "This recipe begins from weights that are trained already: give them with --start, or begin with "
            "vitkit finetune START."
        )
    require_folder(out)
    run, computing_device = with_absolute_paths(run), find_device(device)
    with listener.progress("listing images"):
        images = list_images(run, opened, keep)
    opened = Opened(run, images) if opened is None else replace(opened, images=images)
    if run.start.measure_pixels:
        run = with_measured_pixels(run, images, listener)
    if run.training.minutes is not None and run.training.steps is None:
        run = choose_length(run, out, opened, device=device, given=given, listener=listener)
    run, start, record, config = resolve_start(run, opened, out)
    if run.training.patience is not None and "val" not in images.splits:
        raise VitkitError(
            "patience waits for a better validation, but there are no validation images: give "
            "--splits.val-fraction, or leave patience out."
        )
    learning = find_task(run.task).learning
    if unfit := learning.explain_unfit(config, run.objective):
        raise VitkitError(f"{run.model} {unfit}.")
    learning.learned(run.objective)  # refuses options of the loss that do not fit the task
    if run.fewshot.data:  # opened now, so that an error comes before anything is made
        from vitkit.evaluation.fewshot.methods import open_fewshot_data

        open_fewshot_data(run.fewshot.data)
    if not run.start.start and (run.optimizer.freeze == "backbone" or run.optimizer.freeze_layers):
        raise VitkitError(
            "freeze and freeze_layers keep weights as they are, and new ones know nothing: give a start "
            "(--start), or leave them out."
        )
    if run.optimizer.optimizer == "muon" and config.attention == "none":
        raise VitkitError(
            f"muon updates the matrices of a Transformer's blocks, and {run.model} has none: choose "
            "--optimizer adamw or sgd."
        )
    if run.augmentation.rand_augment and config.in_channels not in (1, 3):
        raise VitkitError(
            f"rand_augment changes the colours of grey and RGB images, found images of {config.in_channels} "
            "channels: leave it out (--rand-augment 0). The other augmentations work with any number."
        )
    if run.training.cuda_graphs:
        random = [name for name in FREE if getattr(config, name, 0)]
        others = {
            f"the task {run.task}": not isinstance(run.objective, ClassificationConfig),
            f"{world.size} processes": world.size > 1,
            "--micro-batch-size": (run.training.micro_batch_size or math.inf) < run.training.batch_size,
            "--recompute": run.training.recompute,
            f"the random {' and '.join(random)}": bool(random),
        }
        if wrong := [name for name, is_given in others.items() if is_given]:
            raise VitkitError(
                "cuda_graphs replays the single pass of a step, in one process, through a model that learns "
                f"labels and draws no random numbers, found {', '.join(wrong)}: leave one of the two out."
            )
    refuse_layers(config.num_layers, run.optimizer)
    run.training.total_steps(len(images.splits["train"]))  # refuses numbers of steps that no run gets through
    require_memory(config, run, computing_device, world)
    return Plan(run, images, start, record=record, config=config, device=computing_device, device_name=device)


def with_absolute_paths(run: Run) -> Run:
    """Make the paths of all images and of the start absolute, so that they hold from any folder."""
    fewshot = replace(run.fewshot, data=absolute_spec(run.fewshot.data))
    start = replace(run.start, start=absolute_start(run.start.start))
    return replace(run, data=absolute_spec(run.data), fewshot=fewshot, start=start)


def resolve_start(
    run: Run, opened: Opened, folder: Path | None = None
) -> tuple[Run, Start | None, records.StartRecord | None, zoo.ModelConfig]:
    """Describe the start of a run, by the record in its folder where there is one.

    Args:
        run: the run.
        opened: its images, and its start where it is described already.
        folder: of the run.

    Returns:
        The run with the name of the start's model where it had none; the start, None for new weights and
        where there is a record; the record of the start, None for new weights; and the architecture of the
        run's model.

    Raises:
        VitkitError: there is no such start, or the run's options contradict it.
    """
    names, record, start = opened.images.class_names, None, None
    if run.start.start:
        record = None if folder is None else read(records.StartRecord, folder / records.START_FILE)
        if record is None:
            start = describe_start(run, opened)
            record = plan_start(run, names, start)
        run = run if run.model else replace(run, model=record.model)
    config = model_config_of(run, len(names)) if record is None else record.config
    return run, start, record, config


def begun_run(folder: Path) -> Run | None:
    """Read the configuration of the run or the series that has begun in a folder; None where none has."""
    place = kind_of(folder)
    if place.kind == "series":
        return series_record.read_series_record(folder).run
    return place.run() if place.config is not None else None


def choose_length(
    run: Run,
    out: Path | None,
    opened: Opened,
    *,
    device: str = "auto",
    ending: str = "",
    given: Mapping[str, Any] = NOTHING,
    listener: Listener = SILENT,
) -> Run:
    """Turn the minutes of a run into a number of steps, once for all continuations.

    Args:
        run: with `training.minutes`.
        out: its folder. Where a run has begun there, its steps are taken; where no folder is given, those of
            a run of the same options in a default folder.
        opened: its images and its start.
        device: of the computation.
        ending: the end of its default folder's name.
        given: options by their names that another length leaves as they are. A warm-up that is not among them
            is a part of the length.
        listener: hears the measured times.

    Raises:
        VitkitError: the images, the start or the machine do not allow the run, or not even one step.
    """
    images = list_images(run, opened)
    count = len(images.splits["train"])

    def with_length(run: Run, steps: int) -> Run:
        return with_options(with_steps(run, steps, count), given)

    # With all that a plan fills in, so that the timed model is the trained model.
    named, _, _, config = resolve_start(run, replace(opened, images=images), out)
    default = itertools.takewhile(Path.is_dir, numbered_folders(images.name, named.model, ending))
    for folder in default if out is None else (out,):
        begun = begun_run(folder)
        if begun is not None and begun.training.steps is not None:
            same = with_absolute_paths(with_length(named, begun.training.steps))
            # Other minutes are refused with the given folder, whose error names them.
            if out is not None or not changed_options(to_json(begun), str(folder), same):
                return with_length(run, begun.training.steps)
    computing_device = find_device(device)
    require_memory(config, named, computing_device)  # before anything of the run is built
    pace = measure_pace(named, images, config, computing_device, listener)
    steps = choose_steps(run.training, pace, count, listener)
    if run.fewshot.data:
        listener.note(
            f"The few-shot accuracy on {run.fewshot.data}, measured while the model is trained, is not "
            "counted in these minutes: the run takes longer."
        )
    return with_length(run, steps)


MOST_IMAGES = 500
"""Training images, spread evenly, whose pixels are measured: at 224 x 224 pixels that takes seconds."""
LEAST_STD = 1 / 255
"""A single level of 256: a channel of equal pixels has a deviation of 0, by which nothing can be divided."""


def with_measured_pixels(run: Run, data: sources.ImageData, listener: Listener) -> Run:
    """Fill in the pixel statistics of a run with `_measure_pixels`, where they are not given.

    The same images give the same figures, so that the same command again is the same run.

    Raises:
        VitkitError: none of the measured images can be read.
    """
    start = run.start
    if start.image_mean is not None and start.image_std is not None:
        return run
    which = (run.splits, run.preprocessing)
    statistics = data.shared.statistics
    mean, std = statistics[which] = statistics.get(which) or _measure_pixels(run, data, listener)
    start = replace(start, image_mean=start.image_mean or mean, image_std=start.image_std or std)
    return replace(run, start=start)


def _measure_pixels(
    run: Run, data: sources.ImageData, listener: Listener
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Measure mean and standard deviation of the pixels of training images, and show them."""
    samples, channels = data.splits["train"], run.preprocessing.decode.channels
    numbers = samples.spread(MOST_IMAGES).tolist()
    sums, squares, count, readable, reason = np.zeros(channels), np.zeros(channels), 0, 0, ""
    with listener.progress("measuring the pixels", len(numbers)) as progress:
        for done, index in enumerate(numbers, start=1):
            try:
                image = transforms.preprocess(samples.decode(index), run.preprocessing)
            except DecodeError as error:
                reason = f"{samples.key(index)}: {error}"
            else:
                levels = image.reshape(-1, channels).astype(np.int64)  # whole numbers: the sums are exact
                sums, squares = sums + levels.sum(0), squares + (levels**2).sum(0)
                count, readable = count + len(levels), readable + 1
            progress(done)
    if not count:
        raise VitkitError(f"The pixels cannot be measured, for no training image can be read. {reason}")
    deviation = np.sqrt(np.maximum(squares / count - (sums / count) ** 2, 0)) / 255
    mean, std = (
        tuple(round(float(value), 4) for value in values)
        for values in (sums / count / 255, np.maximum(deviation, LEAST_STD))
    )
    listener.note(f"Pixels: mean {mean}, std {std}, on {pluralize(readable, 'training image')}.")
    return mean, std


Row = tuple[str, list[str]]
"""A heading and its lines."""

NAMES_SHOWN = 8
"""Class names that fit on a line; the last is shown as well."""


def first_screen(plan: Plan, model: ImageModel, folder: Path, departures: Sequence[str] = ()) -> list[Row]:
    """Describe a run before its images are read.

    Args:
        plan: of the run.
        model: with its card, as it is trained, and its way to compute.
        folder: of the run.
        departures: differences from the paper's fine-tuning, where it has a start.

    Returns:
        Rows in the order in which they are shown.
    """
    run, data, start = plan.run, plan.images, plan.record
    training, optimizer, images = run.training, run.optimizer, len(data.splits["train"])
    steps, config, names = training.total_steps(images), model.config, data.class_names
    rows: list[Row] = [("data", [describe_images(data)]), ("", list(data.notes))]
    if names:
        more = f", ... {names[-1]}" if len(names) > NAMES_SHOWN else ""
        rows.append(("classes", [f"{len(names)}: {', '.join(names[:NAMES_SHOWN])}{more}"]))
    if start is not None:
        rows.append(("start", list(start.lines)))

    tokens = "" if config.num_tokens is None else f"{config.num_tokens} tokens, "
    # With a start no option may have changed the architecture that the name stands for.
    name = full_name(run, config.num_classes or 1) if start is None else run.model
    described = [
        f"{name} at {format_size(config.image_size)}: {tokens}"
        f"{format_count(measure.parameters(config))} parameters, "
        f"{format_count(measure.forward_flops(config, head=True), 'FLOPs')} per image"
    ]
    given = {key: value for key, value in to_json(run.architecture).items() if value is not None}
    if given and start is None:  # the name has words for some alone
        described.append(f"with {', '.join(f'{key} {value}' for key, value in given.items())}")
    if config.cut_off:
        described.append(f"! {config.cut_off}: cut off")
    threads = pluralize(torch.get_num_threads(), "thread")
    device = ("device", [f"{plan.device}, {model.chosen.precision}, {threads}"])
    if run.start.head == "ridge":
        device = ("device", [f"{plan.device}, float32, {threads}"])
        rows += (("model", described), ("learns", ["the head alone, by ridge regression, in closed form"]))
        return [*rows, device, ("folder", [str(folder)])]
    warmup = optimizer.warmup_steps
    if warmup > steps / 2:
        described.append(f"! {warmup} of {steps} steps are warm-up: lower --warmup-steps or add steps")
    rows.append(("model", described))
    if learns := _learning(run, model):
        rows.append(("learns", learns))

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
    elif names and (advice := check.advise_on_start(data.spec, images, len(names))):
        trained += [f"! {advice}", check.where_to_ask(data.spec)]
    rows.append(("training", trained))
    if start is not None:
        ask = shlex.join(("vitkit", "advise", data.spec, run.start.start))
        rows.append(("advice", [f"What its features tell: {ask}"]))
    rows.append(device)

    # float32: the weights and two moments of the optimiser, and the average where there is one.
    state_bytes = measure.parameters(config) * 4 * (3 + (optimizer.polyak is not None))
    every = training.checkpoint_every or training.evaluation_interval(images)
    often = "at the end" if every >= steps else "every step" if every == 1 else f"every {every} steps"
    if training.checkpoint_every is None and every < steps:
        often += ", at least 10 s apart"
    return [*rows, ("folder", [f"{folder} (checkpoints of {format_bytes(state_bytes)} {often})"])]


def reading_rows(run: Run, data: sources.ImageData) -> list[Row]:
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


def describe_images(data: sources.ImageData) -> str:
    """Name a data set with its layout, and count the images of each split."""
    counts = " · ".join(f"{split} {len(samples):,}" for split, samples in data.splits.items())
    return f"{data.name} ({data.kind}): {counts} images"


def _learning(run: Run, model: ImageModel) -> list[str]:
    """Describe which weights learn, at which rate and from which step; none where all learn alike."""
    optimizer, lines = run.optimizer, []
    scales = rate_scales(model, optimizer)
    moving = sum(parameter.numel() for parameter, scale in scales.items() if scale)
    total = measure.parameters(model.config)
    if moving < total:
        trained = (
            "the head alone" if optimizer.freeze == "backbone" else f"layers after {optimizer.freeze_layers}"
        )
        lines.append(
            f"{trained}: {format_count(moving)} of {format_count(total)} parameters, the rest is frozen"
        )
    alone = optimizer.freeze == "backbone"
    if optimizer.layer_decay != 1 and not alone:
        lowest = min(scale for scale in scales.values() if scale)
        lines.append(
            f"each layer at {optimizer.layer_decay:g} of the rate of the next one, the first at {lowest:.2g}"
        )
    if optimizer.head_rate != 1:
        lines.append(f"the head at {optimizer.head_rate:g} times the learning rate")
    return lines


def choose_sharding(config: zoo.ModelConfig, run: Run, device: torch.device, world: World) -> Sharding:
    """Choose how the state of a run is divided among its processes: replicas wherever they fit."""
    if world.size == 1 or run.optimizer.optimizer == "muon":  # whose update needs whole matrices
        return "replicas"
    if run.training.sharding != "auto":
        return run.training.sharding
    available = free_memory(device, world)
    whole = measure.parameters(config) * bytes_per_weight(run.optimizer)
    return "replicas" if available is None or whole <= available else "fsdp"


def require_memory(config: zoo.ModelConfig, run: Run, device: torch.device, world: World = ALONE) -> None:
    """Refuse a model whose weights, gradients and optimiser exceed all memory, and such a batch of pixels.

    A model that barely fits is not refused: the memory of activations depends on more than the configuration.

    Raises:
        VitkitError: it does not fit; the message says how much is needed, and how much there is.
    """
    available = free_memory(device, world)
    if available is None:
        return
    count, parts = measure.parameters(config), 1
    if choose_sharding(config, run, device, world) != "replicas":
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

"""Complete a run before it is trained: list its images, describe its start, fix its steps, and refuse
what its images or this machine do not allow.

Images and start are listed and described once, and handed down: in `Opened` until the run is planned, then in
its plan.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.config import to_json
from vitkit.data.config import Splits, refuse_augmentation
from vitkit.data.paths import absolute_spec
from vitkit.data.sources import ImageData
from vitkit.data.transforms import preprocess
from vitkit.errors import DecodeError, VitkitError
from vitkit.listener import SILENT, Listener
from vitkit.models.zoo import ModelConfig
from vitkit.runs.budget import Pace, choose_steps, measure_pace, with_steps
from vitkit.runs.config import Run, changed_options, new_model_config, require_data
from vitkit.runs.destination import require_folder
from vitkit.runs.folder import kind_of, numbered_folders
from vitkit.runs.machine import find_device
from vitkit.runs.outlook import require_memory
from vitkit.runs.records import StartRecord, read_start_record
from vitkit.runs.series_record import read_series_record
from vitkit.runs.start import Start, absolute_start, find_start, plan_start
from vitkit.tasks import find_task
from vitkit.text import pluralize
from vitkit.training.layer_rates import refuse_layers
from vitkit.world import ALONE, World, world_of_environment

SetSteps = Callable[[Run, int, int], Run]
"""A function of a run, a number of steps and the number of its training images; returns the run with these
steps."""


@dataclass(frozen=True)
class Opened:
    """The images and the start of a run that were looked at before it is planned, to be handed down.

    A run with other images or another start looks at its own. A series opens the images of each of its runs
    anew, because they may change in the days that it takes.
    """

    run: Run
    images: ImageData
    start: Start | None = None


def list_images(run: Run, opened: Opened | None = None, keep: bool = False) -> ImageData:
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
        # What decides which images are listed, before they are cut.
        theirs, own = (
            (each.task, absolute_spec(each.data), each.preprocessing.decode, cuts.label_separator, cuts.group)
            for each, cuts in ((opened.run, opened.run.splits), (run, cut))
        )
        if theirs == own:
            return replace(opened.images.cut(cut), spec=run.data)
    if not keep:
        return learning.open_data(run.data, cut, rule)
    uncut = Splits(0, 0, label_separator=cut.label_separator, group=cut.group)
    listed = learning.open_data(run.data, uncut, rule)
    listed.shared.room = int(run.loading.memory_gib * 2**30 / world_of_environment().on_machine)
    return listed.cut(cut)


def describe_start(run: Run, opened: Opened | None = None) -> Start:
    """Describe the start of a run, unless it is described already.

    Raises:
        VitkitError: as `find_start`.
    """
    return same_start(run, opened) or find_start(run.start)


def same_start(run: Run, opened: Opened | None) -> Start | None:
    """Return the start that is described already, if it is the run's."""
    if opened is None or opened.start is None:
        return None
    theirs, own = opened.run.start, run.start
    chosen = (theirs.start_from, theirs.num_heads) == (own.start_from, own.num_heads)
    same = chosen and absolute_start(theirs.start) == absolute_start(own.start)
    return replace(opened.start, given=own.start) if same else None


def look_at(run: Run, opened: Opened | None = None, keep: bool = False) -> Opened:
    """List the images of a run and describe its start, as far as that has not been done.

    Args:
        run, opened, keep: as for `list_images`.

    Raises:
        VitkitError: there are no such images, or no such start.
    """
    images = list_images(run, opened, keep)
    return Opened(run, images, describe_start(run, opened) if run.start.start else None)


@dataclass(frozen=True)
class Plan:
    """A complete run with its images, its start, the architecture of its model and its device."""

    run: Run
    """The run with absolute paths, a number of steps, its pixel statistics, and the name of its start's
    model."""
    images: ImageData
    start: Start | None
    """Its start; None for new weights, and where the record of the start is enough."""
    record: StartRecord | None
    """The record of its start; None for new weights."""
    config: ModelConfig
    """The architecture of its model."""
    device: torch.device
    device_name: str
    """The device as it was given."""

    def measure(self, listener: Listener) -> Pace:
        """Time the steps of the run on this machine; its folder is not needed."""
        return measure_pace(self.run, self.images, self.config, self.record, self.device, listener)


def plan_run(
    run: Run,
    out: Path | None,
    *,
    device: str = "auto",
    opened: Opened | None = None,
    keep: bool = False,
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
    if out is not None:
        require_folder(out)
    run, computing_device = with_absolute_paths(run), find_device(device)
    with listener.progress("listing images"):
        images = list_images(run, opened, keep)
    opened = Opened(run, images, same_start(run, opened))
    if run.training.minutes is not None and run.training.steps is None:
        run = choose_length(run, out, opened, device=device, listener=listener)
    if run.start.measure_pixels:
        run = with_measured_pixels(run, images, listener)
    run, start, record, config = resolve_start(run, opened, out)
    if run.training.patience is not None and "val" not in images.splits:
        raise VitkitError(
            "patience waits for a better validation, but there are no validation images: give "
            "--splits.val-fraction, or leave patience out."
        )
    learning = find_task(run.task).learning
    unfit = learning.explain_unfit(config, run.objective)
    if unfit:
        raise VitkitError(f"{run.model} {unfit}.")
    learning.learned(run.objective)  # refuses options of the loss that do not fit the task
    if run.fewshot.data:  # opened now, so that an error comes before anything is made
        from vitkit.evaluation.fewshot.data import open_fewshot_data

        open_fewshot_data(run.fewshot.data)
    if run.optimizer.freezes and not run.start.start:
        raise VitkitError(
            "freeze and freeze_layers keep weights as they are, and new ones know nothing: give a start "
            "(--start), or leave them out."
        )
    if run.optimizer.optimizer == "muon" and config.attention == "none":
        raise VitkitError(
            f"muon updates the matrices of a Transformer's blocks, and {run.model} has none: choose "
            "--optimizer adamw or sgd."
        )
    refuse_augmentation(run.augmentation, config.in_channels)
    refuse_layers(config.num_layers, run.optimizer)
    run.training.total_steps(len(images.splits["train"]))  # refuses numbers of steps that no run gets through
    require_memory(config, run, computing_device, world)
    return Plan(run, images, start, record, config, computing_device, device)


def with_absolute_paths(run: Run) -> Run:
    """Make the paths of all images and of the start absolute, so that they hold from any folder."""
    fewshot = replace(run.fewshot, data=absolute_spec(run.fewshot.data))
    start = replace(run.start, start=absolute_start(run.start.start))
    return replace(run, data=absolute_spec(run.data), fewshot=fewshot, start=start)


def resolve_start(
    run: Run, opened: Opened, folder: Path | None = None
) -> tuple[Run, Start | None, StartRecord | None, ModelConfig]:
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
    names = opened.images.class_names
    if not run.start.start:
        return run, None, None, new_model_config(run, len(names))
    start, record = None, None if folder is None else read_start_record(folder)
    if record is None:
        start = describe_start(run, opened)
        record, config = plan_start(run, names, start)
    else:
        config = record.config
    return (run if run.model else replace(run, model=record.model)), start, record, config


def begun_run(folder: Path) -> Run | None:
    """Read the configuration of the run or the series that has begun in a folder; None where none has."""
    place = kind_of(folder)
    if place.kind == "series":
        return read_series_record(folder).run
    return place.run() if place.is_run else None


def choose_length(
    run: Run,
    out: Path | None,
    opened: Opened,
    *,
    device: str = "auto",
    ending: str = "",
    set_steps: SetSteps = with_steps,
    listener: Listener = SILENT,
) -> Run:
    """Turn the minutes of a run into a number of steps, once for all continuations.

    Args:
        run: with `training.minutes`.
        out: its folder. Where a run has begun there, its steps are taken.
        opened: its images and its start.
        device: of the computation.
        ending: the end of its default folder's name.
        set_steps: puts the steps into the run.
        listener: hears the measured times.

    Raises:
        VitkitError: the images, the start or the machine do not allow the run, or not even one step.
    """
    images = list_images(run, opened)
    count, begun = len(images.splits["train"]), None if out is None else begun_run(out)
    # Other minutes are refused with the folder, whose error names them.
    steps = None if begun is None else begun.training.steps
    if steps is None and out is None:
        steps = _steps_in_default_folder(run, replace(opened, images=images), ending, set_steps, listener)
    if steps is None:
        steps = _measure_length(run, replace(opened, images=images), out, device, listener)
    return set_steps(run, steps, count)


def _steps_in_default_folder(
    run: Run, opened: Opened, ending: str, set_steps: SetSteps, listener: Listener
) -> int | None:
    """Return the steps of a run or a series of the same options that has begun in a default folder."""
    count, named = len(opened.images.splits["train"]), resolve_start(run, opened)[0]
    there = itertools.takewhile(Path.is_dir, numbered_folders(named, opened.images.name, ending))
    for folder in there:
        begun = begun_run(folder)
        if begun is not None and begun.training.steps is not None:
            same = with_absolute_paths(set_steps(named, begun.training.steps, count))
            # A run records its measured pixel statistics; a series does not, because its runs measure them.
            if same.start.measure_pixels and None not in (begun.start.image_mean, begun.start.image_std):
                same = with_measured_pixels(same, opened.images, listener)
            if not changed_options(to_json(begun), str(folder), same):
                return begun.training.steps
    return None


def _measure_length(run: Run, opened: Opened, out: Path | None, device: str, listener: Listener) -> int:
    """Choose as many steps as the minutes of a run have time for on this machine."""
    images, place = opened.images, find_device(device)
    # With all that a plan fills in, so that the timed model is the trained model.
    if run.start.measure_pixels:
        run = with_measured_pixels(run, images, listener)
    named, _, record, config = resolve_start(run, opened, out)
    require_memory(config, named, place)  # before anything of the run is built
    pace = measure_pace(named, images, config, record, place, listener)
    steps = choose_steps(run.training, pace, len(images.splits["train"]), listener)
    if run.fewshot.data:
        listener.note(
            f"The few-shot accuracy on {run.fewshot.data}, measured while the model is trained, is not "
            "counted in these minutes: the run takes longer."
        )
    return steps


MOST_IMAGES = 500
"""Training images, spread evenly, whose pixels are measured: at 224 x 224 pixels that takes seconds."""
LEAST_STD = 1 / 255
"""A single level of 256: a channel of equal pixels has a deviation of 0, by which nothing can be divided."""


def with_measured_pixels(run: Run, data: ImageData, listener: Listener) -> Run:
    """Fill in the pixel statistics of a run with `measure_pixels`, where they are not given.

    The same images give the same figures, so that the same command again is the same run.

    Raises:
        VitkitError: none of the measured images can be read.
    """
    start = run.start
    if start.image_mean is not None and start.image_std is not None:
        return run
    measured = data.shared.statistics
    which = (run.splits, run.preprocessing)
    if which not in measured:
        measured[which] = _measure_pixels(run, data, listener)
    mean, std = measured[which]
    return replace(
        run,
        start=replace(start, image_mean=start.image_mean or mean, image_std=start.image_std or std),
    )


def _measure_pixels(
    run: Run, data: ImageData, listener: Listener
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Measure mean and standard deviation of the pixels of training images, and show them."""
    samples, channels = data.splits["train"], run.preprocessing.decode.channels
    numbers = np.unique(np.linspace(0, len(samples) - 1, MOST_IMAGES).astype(np.int64)).tolist()
    sums, squares, count, readable, reason = np.zeros(channels), np.zeros(channels), 0, 0, ""
    with listener.progress("measuring the pixels", len(numbers)) as progress:
        for done, index in enumerate(numbers, start=1):
            try:
                image = preprocess(samples.decode(index), run.preprocessing)
            except DecodeError as error:
                reason = f"{samples.key(index)}: {error}"
            else:
                levels = image.reshape(-1, channels).astype(np.int64)  # whole numbers: the sums are exact
                sums, squares = sums + levels.sum(0), squares + (levels**2).sum(0)
                count, readable = count + len(levels), readable + 1
            progress(done)
    if not count:
        raise VitkitError(f"The pixels cannot be measured, for no training image can be read. {reason}")
    mean = sums / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    measured = _rounded(mean / 255), _rounded(np.maximum(std / 255, LEAST_STD))
    listener.note(
        f"Pixels: mean {measured[0]}, std {measured[1]}, on {pluralize(readable, 'training image')}."
    )
    return measured


def _rounded(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(round(float(value), 4) for value in values)

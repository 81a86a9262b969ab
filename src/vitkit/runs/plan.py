"""Complete a run before it is trained: list its images, describe its start, fix its steps.

Images, start and model are listed, described and built once, and handed down in the plan.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.config import to_json
from vitkit.data.config import Splits
from vitkit.data.paths import absolute_spec
from vitkit.data.sources import ImageData
from vitkit.data.transforms import preprocess
from vitkit.errors import DecodeError, VitkitError
from vitkit.listener import SILENT, Listener
from vitkit.models.config.compute_config import Compute
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import ModelConfig
from vitkit.runs.budget import Pace, choose_steps, measure_pace, with_steps
from vitkit.runs.build import build_new, memory_for_images, model_config_of
from vitkit.runs.config import Run, StartConfig, changed_options, parse_compute, write_config
from vitkit.runs.folder import Place, kind_of, numbered_folders
from vitkit.runs.machine import choose_for, find_device
from vitkit.runs.outlook import require_memory
from vitkit.runs.records import StartRecord, read_start_record
from vitkit.runs.start import Start, absolute_start, find_start, plan_start
from vitkit.tasks import find_task
from vitkit.text import pluralize
from vitkit.world import world_of_environment

Fit = Callable[[Run, int, int], Run]
"""A function of a run, a number of steps and the number of its training images; returns the run with these
steps."""


class Request:
    """Cache the paths, images, start and model of a command: each is read, listed or built once.

    It is handed from function to function and lasts as long as the command. A series makes a new one for each
    of its runs, because images may change in the days that it takes.
    """

    def __init__(self, *places: Place, keeps_pixels: bool = False) -> None:
        """Begin with paths whose kind is known.

        Args:
            places: the paths.
            keeps_pixels: whether images that are decoded to be compared are kept for a run that begins now.
        """
        self._keeps_pixels = keeps_pixels
        self._places = {absolute_start(place.name): place for place in places}
        self._data: tuple[Any, ImageData] | None = None
        self._start: tuple[Any, Start] | None = None
        self._model: tuple[Any, ImageModel] | None = None
        self._pixels: tuple[Any, StartConfig] | None = None

    def place(self, path: str | Path) -> Place:
        """Find out the kind of a path; it is looked up again until a run has begun there."""
        key = absolute_start(str(path))
        place = self._places.get(key)
        if place is None or not place.is_run:
            place = self._places[key] = kind_of(path)
        return replace(place, name=str(path))

    def images(self, run: Run) -> ImageData:
        """List the images of a run, cut as its splits say.

        Raises:
            VitkitError: as the task's `open_data`.
        """
        cut, rule = run.splits, run.preprocessing.decode
        listing = (run.task, absolute_spec(run.data), rule, cut.label_separator, cut.group)
        if self._data is not None and self._data[0] == listing and self._data[1].listed is not None:
            return replace(self._data[1].listed.cut(cut), spec=run.data)
        learning = find_task(run.task).learning
        uncut = Splits(0, 0, label_separator=cut.label_separator, group=cut.group)
        data = learning.open_data(run.data, uncut, rule)
        if data.listed is None:  # a task with images of its own
            data = learning.open_data(run.data, cut, rule)
        else:
            if self._keeps_pixels:
                data.listed.kept.room = memory_for_images(run.loading, world_of_environment())
            data = data.listed.cut(cut)
        self._data = listing, data
        return data

    def start(self, run: Run) -> Start:
        """Describe the start of a run.

        Raises:
            VitkitError: as `find_start`.
        """
        options = run.start
        which = (absolute_start(options.start), options.start_from, options.num_heads)
        if self._start is None or self._start[0] != which:
            self._start = which, find_start(options, self.place(options.start))
        return replace(self._start[1], given=options.start)

    def measure_pixels(self, run: Run, data: ImageData, listener: Listener) -> Run:
        """Fill in the pixel statistics of a run as `with_measured_pixels` does, once."""
        which = (absolute_spec(run.data), run.splits, run.preprocessing, run.start)
        if self._pixels is None or self._pixels[0] != which:
            self._pixels = which, with_measured_pixels(run, data, listener).start
        return replace(run, start=self._pixels[1])

    def build(self, run: Run, config: ModelConfig, listener: Listener) -> ImageModel:
        """Build the model of a run with new weights; `take_model` hands it over later."""
        model = self.take_model(run, config) or build_new(run, config, listener)
        self._model = (config, run.training.seed), model
        return model

    def take_model(self, run: Run, config: ModelConfig) -> ImageModel | None:
        """Hand over the model that `build` made for a run, once; None if it made none."""
        model, self._model = self._model, None
        return model[1] if model is not None and model[0] == (config, run.training.seed) else None


@dataclass(frozen=True)
class Plan:
    """A complete run with its images, the architecture of its model, its start and its device."""

    run: Run
    """The run with absolute paths, a number of steps, its pixel statistics, and the name of its start's
    model."""
    data: ImageData
    config: ModelConfig
    """The architecture of its model."""
    start: StartRecord | None
    """The record of its start; None for new weights."""
    device: torch.device
    device_name: str
    """The device as it was given."""
    request: Request
    compute: Compute | None = None
    """The way in which the model computes, once the run has a folder."""
    recorded: Mapping[str, Any] = field(default_factory=dict)
    """The contents of the `config.json` of its folder, once it has one."""

    def in_folder(self, folder: Path, command: str) -> "Plan":
        """Give the plan of the run in its locked folder: as it was begun there, or as it begins now.

        Args:
            folder: the run folder, in which a run that begins is recorded.
            command: that began the run, for the record.
        """
        if not (folder / "config.json").exists():
            precision, exact = self.run.training.precision, self.run.training.exact
            compute = choose_for(self.config, self.device, precision, phase="training", exact=exact)
            return replace(self, compute=compute, recorded=write_config(folder, self.run, command, compute))
        recorded = self.request.place(folder).require_config()
        return replace(self, compute=parse_compute(recorded, folder), recorded=recorded)

    def measure(self, listener: Listener) -> Pace:
        """Time the steps of the run on this machine; its folder is not needed."""
        model = self.request.build(self.run, self.config, listener)
        return measure_pace(self.run, self.data, self.start, self.device, model, listener)


def plan_run(
    run: Run,
    out: Path | None,
    *,
    device: str = "auto",
    request: Request | None = None,
    listener: Listener = SILENT,
) -> Plan:
    """Complete a run by its images, its start, this machine, and the record in its folder where it has begun.

    Args:
        run: with the options that were given.
        out: its folder, if given.
        device: of the computation.
        request: a cache of paths, images, start and model; left out, an empty one.
        listener: hears the progress.

    Raises:
        VitkitError: the images, the start or the machine do not allow the run.
    """
    request = request or Request()
    run = resolve_minutes(with_absolute_paths(run), out, request, device=device, listener=listener)
    computing_device = find_device(device)
    with listener.progress("listing images"):
        data = request.images(run)
    run, start = resolve_start(request.measure_pixels(run, data, listener), data.class_names, out, request)
    config = model_config_of(run, len(data.class_names), start)
    return Plan(run, data, config, start, computing_device, device, request)


def with_absolute_paths(run: Run) -> Run:
    """Make the paths of all images and of the start absolute, so that they hold from any folder."""
    fewshot = replace(run.fewshot, data=absolute_spec(run.fewshot.data))
    start = replace(run.start, start=absolute_start(run.start.start))
    return replace(run, data=absolute_spec(run.data), fewshot=fewshot, start=start)


def resolve_start(
    run: Run, class_names: Iterable[str], folder: Path | None, request: Request
) -> tuple[Run, StartRecord | None]:
    """Describe the start of a run, by the record in its folder where there is one.

    Returns:
        The run with the name of the start's model where it had none, and the record of the start; None for
        new weights.

    Raises:
        VitkitError: there is no such start, or the run's options contradict it.
    """
    if not run.start.start:
        return run, None
    record = None if folder is None else read_start_record(folder)
    if record is None:
        record = plan_start(run, tuple(class_names), request.start(run))
    return (run if run.model else replace(run, model=record.model)), record


def resolve_minutes(
    run: Run,
    out: Path | None,
    request: Request,
    *,
    device: str = "auto",
    ending: str = "",
    recorded: Callable[[Path], Run | None] | None = None,
    fit: Fit = with_steps,
    again: bool = False,
    listener: Listener = SILENT,
) -> Run:
    """Turn the minutes of a run into a number of steps, once for all continuations.

    Args:
        run: returned as it is if it has no `training.minutes`, or has steps too.
        out: its folder. Where a run has begun there, its steps are taken.
        request: a cache of paths, images, start and model.
        device: of the computation.
        ending: the end of its default folder's name.
        recorded: reads the run that has begun in a folder, None where none has; left out, an ordinary run.
        fit: puts the steps into the run.
        again: whether to choose steps although the run has some, a recipe's.
        listener: hears the measured times.

    Raises:
        VitkitError: the images, the start or the machine do not allow the run, or not even one step.
    """
    if run.training.minutes is None or (run.training.steps is not None and not again):
        return run

    def read_begun(folder: Path) -> Run | None:
        place = request.place(folder)
        return place.run() if place.is_run else None

    read = recorded or read_begun
    begun = None if out is None else read(out)
    with listener.progress("listing images"):
        data = request.images(run)
    count = len(data.splits["train"])
    if begun is not None and begun.training.steps is not None:
        # Other minutes are refused with the folder, whose error names them.
        return fit(run, begun.training.steps, count)

    def complete(with_pixels: bool) -> tuple[Run, StartRecord | None]:
        """Complete the run by its start, as `plan_run` will, with its pixel statistics or without them."""
        normalised = request.measure_pixels(run, data, listener) if with_pixels else run
        return resolve_start(normalised, data.class_names, out, request)

    if out is None:
        for folder in numbered_folders(complete(with_pixels=False)[0], data.name, ending):
            if not folder.is_dir():
                break
            there = read(folder)
            if there is not None and there.training.steps is not None:
                # A run records its measured pixel statistics; a series does not, because its runs measure
                # them.
                measured = None not in (there.start.image_mean, there.start.image_std)
                same = with_absolute_paths(fit(complete(measured)[0], there.training.steps, count))
                if not changed_options(to_json(there), str(folder), same):
                    return fit(run, there.training.steps, count)
    named, record = complete(with_pixels=True)  # so that the timed model is the trained model
    place, config = find_device(device), model_config_of(named, len(data.class_names), record)
    require_memory(config, named, place)  # before anything of the run is built
    pace = measure_pace(named, data, record, place, request.build(named, config, listener), listener)
    steps = choose_steps(run.training, pace, count, listener)
    if run.fewshot.data:
        listener.note(
            f"The few-shot accuracy on {run.fewshot.data}, measured while the model is trained, is not "
            "counted in these minutes: the run takes longer."
        )
    return fit(run, steps, count)


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
    if not start.measure_pixels or (start.image_mean is not None and start.image_std is not None):
        return run
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
    start = replace(
        start,
        image_mean=start.image_mean or _rounded(mean / 255),
        image_std=start.image_std or _rounded(np.maximum(std / 255, LEAST_STD)),
    )
    listener.note(
        f"Pixels: mean {start.image_mean}, std {start.image_std}, on {pluralize(readable, 'training image')}."
    )
    return replace(run, start=start)


def _rounded(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(round(float(value), 4) for value in values)

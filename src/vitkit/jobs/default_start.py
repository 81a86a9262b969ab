"""Choose a published start by the speed of this machine, where no start is given."""

import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from vitkit.data.paths import absolute_spec
from vitkit.data.sources import ImageData
from vitkit.errors import VitkitError
from vitkit.jobs.finetune_defaults import suit_images
from vitkit.jobs.recipes import recipe
from vitkit.listener import Listener
from vitkit.models.zoo import model_config
from vitkit.runs.config import Run, with_options
from vitkit.runs.folder import kind_of
from vitkit.runs.outlook import Row, free_memory
from vitkit.runs.plan import begun_run, list_images
from vitkit.runs.step_cost import Cost, measure_cost, step_memory
from vitkit.text import format_bytes, format_duration, pluralize
from vitkit.weights.files.download import is_local, require_answer
from vitkit.weights.model_card import fit_preprocessing
from vitkit.weights.published import PublishedStart, default_starts

PATIENCE = 3600.0
"""The most seconds of fine-tuning from a chosen start: a first attempt should end within an hour."""


@dataclass(frozen=True)
class DefaultStart:
    """The start that was chosen, and why."""

    start: PublishedStart
    reason: str
    """Why it was chosen."""
    next_best: tuple[str, ...] = ()
    """A line on the next larger start, which takes too long, else on the next smaller one; none of a single
    start."""
    costs: Mapping[str, Cost] = field(default_factory=dict)
    """The costs that were measured by the names of the starts, from the smallest; none where the run has
    begun."""

    @property
    def is_here(self) -> bool:
        """Whether its weights are on this machine already."""
        return is_local(self.start.name)

    @property
    def size(self) -> str:
        """Describe the size of the download."""
        return f"about {self.start.megabytes:,.0f} MB"

    def rows(self) -> list[Row]:
        """Describe the chosen start, why it was chosen, the next best, and the download."""
        start = self.start
        described = (
            f"{start.name}: {start.model} at {start.image_size} pixels, trained on {start.data} "
            f"({start.training}), licence {start.licence}"
        )
        where = "on this machine already" if self.is_here else f"to be fetched, {self.size}, {start.address}"
        return [("chosen", [described, self.reason, *self.next_best, f"weights: {where}"])]

    def refusal(self, permit: str, command: str) -> VitkitError:
        """Make the error for weights that nobody has allowed to fetch.

        Args:
            permit: the command that allows it.
            command: the command that begins from weights on this machine.
        """
        return VitkitError(
            f"{self.start.name} is not on this machine, and fetching it was not allowed "
            f"({self.size} from {self.start.address}). To fetch it: {permit}. To begin from weights that are "
            f"here: {command}."
        )


def choose_start(
    run: Run,
    out: Path | None = None,
    *,
    device: torch.device,
    given: Mapping[str, Any] = MappingProxyType({}),
    listener: Listener,
) -> DefaultStart:
    """Choose the largest published start whose fine-tuning fits into memory and an hour; else the smallest.

    Speed differs from day to day: a run that has begun on these images keeps the start of its record.

    Args:
        run: the run without its start: data, splits, task, recipe.
        out: its folder; left out, the folders below `runs/` are looked at.
        device: where it is measured and will be trained.
        given: a person's options, which go over those that are fitted to a start.
        listener: hears the progress.

    Raises:
        VitkitError: there is no such data, or no published start may be chosen or can be fetched.
    """
    with listener.progress("listing images"):
        data = list_images(run)
    named = {start.name: start for start in default_starts()}
    # A run or series on these images that chose its start itself goes on from there.
    for folder in [out] if out is not None else sorted(Path("runs").glob(f"{escape(data.name)}-*")):
        begun, command = None, str((kind_of(folder).config or {}).get("command", ""))
        with suppress(VitkitError):  # another command tells of a damaged record
            begun = begun_run(folder)
        itself = not command or re.match(r"vitkit finetune (?!.*--start[ =])", command)
        same = begun is not None and begun.data == absolute_spec(run.data)
        if begun is not None and same and itself and begun.start.start in named:
            reason = f"{folder} was begun from it: the run goes on from there."
            return DefaultStart(named[begun.start.start], reason)
    if named and not any(map(is_local, named)):
        require_answer(next(iter(named)))  # before minutes are spent on measuring what cannot be fetched
    return measure_starts(run, data, given, device, listener)


def measure_starts(
    run: Run, data: ImageData, given: Mapping[str, Any], device: torch.device, listener: Listener
) -> DefaultStart:
    """Choose a start by this machine's speed alone; the arguments are the same as `choose_start` takes.

    Raises:
        VitkitError: no published start may be chosen.
    """
    tried, costs, num_classes = list[tuple[PublishedStart, str]](), dict[str, Cost](), len(data.class_names)
    for start in default_starts():
        # Pixels are prepared as in the paper: another preprocessing in the file would not change the time.
        config = model_config(start.model, max(num_classes, 1), (start.image_size, start.image_size))
        base = recipe(run.recipe) if run.recipe else Run(preprocessing=fit_preprocessing(None, config))
        base = replace(base, data=run.data, task=run.task, splits=run.splits, model=start.model)
        suited = suit_images(base, config, len(data.splits["train"]), run.optimizer.freeze)
        fitted = with_options(suited, given)
        sized = model_config(start.model, max(num_classes, 1), fitted.preprocessing.image_size)
        memory, free = step_memory(fitted, sized, device), free_memory(device)
        cost = f"{format_bytes(memory)} of memory, more than is free"
        if free is None or memory <= free:
            costs[start.name] = measure_cost(fitted, data, sized, device, listener)
            seconds = costs[start.name].seconds
            cost = f"about {format_duration(seconds)}, {format_bytes(memory)} of memory"
        tried.append((start, cost))
        if start.name not in costs or seconds > PATIENCE:
            break  # larger starts take longer still
    if not tried:
        raise VitkitError(
            "No published start has a licence that lets it be chosen for anybody: name one yourself, vitkit "
            f"finetune START --data {shlex.quote(run.data)}. vitkit starts lists them."
        )
    quick = [start for start, _ in tried if start.name in costs and costs[start.name].seconds <= PATIENCE]
    chosen, sizes = quick[-1] if quick else tried[-1][0], pluralize(len(default_starts()), "size")
    why = f"the smallest of {sizes}, for none fits into memory and an hour on this machine"
    if quick:
        why = f"the largest of {sizes} that this machine fine-tunes on these images within an hour"
    cost = f"{costs[chosen.name]}, measured here" if chosen.name in costs else tried[-1][1]
    others = [f"next best: {start.name}, {cost}" for start, cost in tried if start is not chosen]
    return DefaultStart(chosen, f"{why}: {cost}.", tuple(others[-1:]), costs)

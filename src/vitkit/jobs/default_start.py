"""Choose a published start by the speed of this machine, where no start is given."""

import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
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
from vitkit.runs.budget import Cost, measure_cost, step_memory
from vitkit.runs.config import Run, with_options
from vitkit.runs.folder import kind_of
from vitkit.runs.plan import Row, begun_run, free_memory, list_images
from vitkit.text import format_bytes, format_duration, pluralize
from vitkit.weights.files.download import is_local, require_answer
from vitkit.weights.model_card import fit_preprocessing
from vitkit.weights.published import PublishedStart, default_starts

PATIENCE = 3600.0
"""The most seconds of fine-tuning from a chosen start: a first attempt should end within an hour."""


@dataclass(frozen=True)
class Candidate:
    """Published weights that a run may begin from, and the cost of fine-tuning them here."""

    start: PublishedStart
    memory: int
    """Bytes that a step needs at most."""
    measured: Cost | None
    """The run with its measured time; None where it does not fit into memory, and was not measured."""

    @property
    def is_quick(self) -> bool:
        """Whether the run fits into memory, and ends within an hour."""
        return self.measured is not None and self.measured.seconds <= PATIENCE

    @property
    def cost(self) -> str:
        """Describe time and memory: "about 12 min, 1.2 GB of memory"."""
        if self.measured is None:
            return f"{format_bytes(self.memory)} of memory, more than is free"
        return f"about {format_duration(self.measured.seconds)}, {format_bytes(self.memory)} of memory"


@dataclass(frozen=True)
class DefaultStart:
    """The start that was chosen, and why."""

    start: PublishedStart
    begun: Path | None = None
    """The folder of a run on the same images that began from it before."""
    candidates: tuple[Candidate, ...] = ()
    """The starts that were measured, from the smallest; none where the run has begun."""

    @property
    def is_here(self) -> bool:
        """Whether its weights are on this machine already."""
        return is_local(self.start.name)

    @property
    def size(self) -> str:
        """Describe the size of the download."""
        return f"about {self.start.megabytes:,.0f} MB"

    @property
    def reason(self) -> str:
        """Say why it was chosen."""
        if self.begun is not None:
            return f"{self.begun} was begun from it: the run goes on from there."
        chosen = next(candidate for candidate in self.candidates if candidate.start is self.start)
        cost = chosen.cost if chosen.measured is None else f"{chosen.measured}, measured here"
        sizes = pluralize(len(default_starts()), "size")
        if not chosen.is_quick:
            return f"the smallest of {sizes}, for none fits into memory and an hour on this machine: {cost}."
        return f"the largest of {sizes} that this machine fine-tunes on these images within an hour: {cost}."

    @property
    def runner_up(self) -> Candidate | None:
        """Return the next larger start, which takes too long; else the next smaller one."""
        others = [candidate for candidate in self.candidates if candidate.start is not self.start]
        return others[-1] if others else None

    def advice(self, spec: str) -> str:
        """Advise to begin from it, in sentences.

        Args:
            spec: the name of the images.
        """
        data, fetched = shlex.quote(spec), "" if self.is_here else f", and asks before it fetches {self.size}"
        return (
            f"Begin from {self.start.name}, {self.reason} vitkit finetune {data} does so{fetched}; vitkit "
            f"advise {data} {self.start.name} says what to expect of it."
        )

    def rows(self) -> list[Row]:
        """Describe the chosen start, why it was chosen, the next best, and the download."""
        start = self.start
        lines = [
            f"{start.name}: {start.model} at {start.image_size} pixels, trained on {start.data} "
            f"({start.training}), licence {start.licence}",
            self.reason,
        ]
        if self.runner_up is not None:
            lines.append(f"next best: {self.runner_up.start.name}, {self.runner_up.cost}")
        where = "on this machine already" if self.is_here else f"to be fetched, {self.size}, {start.address}"
        return [("chosen", [*lines, f"weights: {where}"])]

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
    begun = _begun(run.data, data.name, out, {*named})
    if begun is not None:
        name, folder = begun
        return DefaultStart(named[name], folder)
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
    candidates, num_classes = list[Candidate](), max(len(data.class_names), 1)
    for start in default_starts():
        # Pixels are prepared as in the paper: another preprocessing in the file would not change the time.
        config = model_config(start.model, num_classes, (start.image_size, start.image_size))
        base = recipe(run.recipe) if run.recipe else Run(preprocessing=fit_preprocessing(None, config))
        base = replace(base, data=run.data, task=run.task, splits=run.splits, model=start.model)
        suited = suit_images(base, config, len(data.splits["train"]), run.optimizer.freeze)
        fitted = with_options(suited, given)
        sized = model_config(start.model, num_classes, fitted.preprocessing.image_size)
        memory, free = step_memory(fitted, sized, device), free_memory(device)
        cost = None
        if free is None or memory <= free:
            cost = measure_cost(fitted, data, sized, device, listener)
        candidates.append(Candidate(start, memory, cost))
        if not candidates[-1].is_quick:
            break  # larger starts take longer still
    if not candidates:
        raise VitkitError(
            "No published start has a licence that lets it be chosen for anybody: name one yourself, vitkit "
            f"finetune START --data {shlex.quote(run.data)}. vitkit starts lists them."
        )
    quick = [candidate for candidate in candidates if candidate.is_quick]
    return DefaultStart((quick or candidates)[-1].start, None, tuple(candidates))


def _begun(spec: str, data_name: str, out: Path | None, names: set[str]) -> tuple[str, Path] | None:
    """Return the start and the folder of a run or series on these images that chose its start itself."""
    folders = [out] if out is not None else sorted(Path("runs").glob(f"{escape(data_name)}-*"))
    for folder in folders:
        run, command = None, str((kind_of(folder).config or {}).get("command", ""))
        with suppress(VitkitError):  # another command tells of a damaged record
            run = begun_run(folder)
        chosen = not command or re.match(r"vitkit finetune (?!.*--start[ =])", command)
        if run is not None and chosen and run.data == absolute_spec(spec) and run.start.start in names:
            return run.start.start, folder
    return None

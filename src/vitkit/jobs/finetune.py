"""Fine-tune a start: train a run whose options suit the start, its images and the speed of this machine,
where neither a person nor a recipe gives them.
"""

import math
import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Unpack

import torch

from vitkit.data import paths, sources
from vitkit.data.config import Augmentation, Splits
from vitkit.errors import VitkitError
from vitkit.jobs import recipes, train
from vitkit.jobs.options import Job, TrainingOptions, split_options
from vitkit.listener import SILENT, Listener
from vitkit.models.zoo import ModelConfig, model_config
from vitkit.runs import folder, machine, plan, processes, run_options, trained_model
from vitkit.runs.budget import Cost, measure_cost, step_memory
from vitkit.runs.config import LENGTH, Run, StartConfig, full_name, options_of, require_data, with_options
from vitkit.runs.start import find_start
from vitkit.tasks import task_of
from vitkit.text import format_bytes, format_duration, join_names, pluralize
from vitkit.training.config import ClassificationConfig, OptimizerConfig, TrainingConfig
from vitkit.weights.files.download import is_local, require_answer
from vitkit.weights.model_card import fit_preprocessing
from vitkit.weights.published import PublishedStart, default_starts
from vitkit.world import ALONE

# Training images below which: epochs, batch. Chosen so that two cores finish a small ViT in minutes: few
# images are seen often, many a few times. The paper's 500 steps of 512 are 256,000 images for any of them.
LENGTHS = ((1_000, 50, 32), (10_000, 20, 64), (100_000, 10, 128), (1 << 62, 3, 128))
LEAST_STEPS = 200
"""The fewest steps for a new head, however often they show each image: on 45 digits, from a start on other
digits, 71 steps reached 16 % and 400 steps 46 %."""
RATE, HEAD_RATE = 5e-4, 3e-3
"""Learning rates of AdamW for the layers of the start; and for a new head, which has nothing to forget. A
head of zeros that learned at the lower rate held short runs back: Adam moves a weight by about its rate a
step. Higher rates for all layers gained on images unlike the start's and lost more on images like them
(docs/decisions.md)."""
VALIDATIONS = 10
"""Validations of a run of default length, each with a checkpoint."""
LAYER_DECAY = 0.75
"""The layer decay of a model of up to 12 layers, as in BEiT and MAE; in a deeper model the first layer is as
slow. Without it, models of 4 layers lost up to 5 points on a few images like the start's; deeper ones were
not measured."""


LEAST_VALIDATED = 500
"""Validation images from which the best weights are taken in place of the last: their accuracy is certain to
about 2 points then. With 100 images the ten validations of a run lay between 46 and 53 % by chance, and the
weights of two fifths of the run were taken; 21 images chose at random, and 5 once chose the second step."""


def suit_images(
    run: Run, config: ModelConfig, num_images: int, freeze: Literal["nothing", "backbone"] = "nothing"
) -> Run:
    """Fit a run to its number of training images; a recipe other than `paper` is left as it is.

    Without a recipe, AdamW has a low rate, a higher one for a head of zeros, and lower rates for lower
    layers: no rate has to be searched for, as it has for the paper's SGD. The head does not train first: with
    a rate of its own that gained nothing. The first screen of the run lists the departures from the paper.

    Args:
        run: the run, with its recipe if it has one.
        config: the configuration of the start's model.
        num_images: training images.
        freeze: "backbone" if the head alone learns.
    """
    if run.start.head == "ridge":  # no image is changed at random, and there are no steps
        return replace(run, augmentation=Augmentation(crop_area=None, crop_aspect=None, flip=False))
    if run.recipe == "paper":
        rule = recipes.paper(num_images)
        return replace(run, optimizer=rule.optimizer, training=rule.training)
    if run.recipe:
        return run
    epochs, batch_size = next((epochs, batch) for below, epochs, batch in LENGTHS if num_images < below)
    batch_size = max(min(batch_size, num_images), 1)
    epochs = max(epochs, math.ceil(LEAST_STEPS * batch_size / max(num_images, 1)))
    decay = round(LAYER_DECAY ** min(1.0, 12 / max(config.num_layers, 1)), 4)
    rate, head_rate = RATE, HEAD_RATE / RATE if run.start.head == "new" else 1.0
    if freeze == "backbone":  # the head learns alone
        rate, head_rate = HEAD_RATE, 1.0
    optimizer = OptimizerConfig(learning_rate=rate, weight_decay=0.05, layer_decay=decay, head_rate=head_rate)
    objective = ClassificationConfig(label_smoothing=0.1)
    training = TrainingConfig(epochs=epochs, batch_size=batch_size)
    run = replace(run, augmentation=recipes.AUGMENTATION, objective=objective)
    return suit_length(replace(run, optimizer=optimizer, training=training), num_images)


def suit_length(run: Run, num_images: int) -> Run:
    """Warm up in a twentieth of a run's steps, and validate ten times.

    An epoch of few images is a few steps: a validation and a checkpoint after each would write a ViT-B/16 of
    1 GB forty times, and choose the best of forty by a handful of validation images.
    """
    steps = run.training.total_steps(num_images)
    optimizer = replace(run.optimizer, warmup_steps=steps // 20)
    training = replace(run.training, evaluate_every=max(1, math.ceil(steps / VALIDATIONS)))
    return replace(run, optimizer=optimizer, training=training)


def suit_start(given: Run, listener: Listener = SILENT, keep: bool = False) -> plan.Opened:
    """Choose the options of a run that suit its start and its images; return it with these.

    Args:
        given: start, data, task, splits, recipe if there is one, and whether the backbone is frozen; all
            other options are chosen here.
        listener: hears that the start was trained on a part of the images, or without their labels.
        keep: as for `list_images`.

    Raises:
        VitkitError: there is no such start or no such data, or the recipe trains another model.
    """
    require_data(given)
    start = find_start(given.start)
    base = recipes.recipe(given.recipe) if given.recipe else Run(preprocessing=start.preprocessing)
    has_model = given.recipe and base.model not in ("", start.model)
    if has_model and full_name(base, start.config.num_classes or 1) != start.model:
        raise VitkitError(
            f"The recipe {given.recipe} trains a {base.model}, and {start.name} is a {start.model}. Leave "
            "the recipe out, or take one for fine-tuning: paper, or finetune-cifar10 and the like."
        )
    trained_on, splits = start.card.data, given.splits
    has_seen = trained_on is not None and trained_model.is_training_data(start.card, given.data)
    # A start that learned no labels was trained on the test images too: its splits are of no use here.
    unlabelled = task_of(start.card).answering is None
    if trained_on is not None and has_seen and not unlabelled:
        part = trained_on.splits.subset
        if replace(splits, subset=None, subset_seed=None, levels=False) == Splits():
            # The start's own images keep its splits, so that no test image is one of its training images.
            of_start, subset, seed = trained_on.splits, splits.subset, splits.subset_seed
            splits = replace(of_start, subset=subset, subset_seed=seed, levels=splits.levels)
        if part is not None and splits.subset is None:
            listener.note(
                f"{start.name} was trained on the part {part} of these training images, and this run trains "
                f"on all of them: give --subset {shlex.quote(part)} for the same part."
            )
    if given.start.head == "ridge":  # leaving out each image in turn takes the place of validation
        splits = replace(splits, val_fraction=0.0)
    optimizer = replace(base.optimizer, freeze=given.optimizer.freeze)
    base = replace(base, model=start.model, optimizer=optimizer)
    run = replace(base, data=given.data, task=given.task, start=given.start, splits=splits)
    listed = plan.list_images(run, keep=keep)
    count = len(listed.splits["train"])
    if has_seen and unlabelled and "test" not in listed.listing.splits:
        listener.note(
            f"{start.name} was trained on these images without their labels, the test images included: on "
            "new images it may do worse."
        )
    run = suit_images(run, start.config, count, given.optimizer.freeze)
    if not run.recipe and len(listed.splits.get("val", ())) < LEAST_VALIDATED:
        run = replace(run, training=replace(run.training, select="last"))
    return plan.Opened(run, listed, start)


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

    def rows(self) -> list[plan.Row]:
        """Describe the chosen start, why it was chosen, the next best, and the download."""
        start = self.start
        described = (
            f"{start.name}: {start.model} at {start.image_size} pixels, trained on {start.data} "
            f"({start.training}), licence {start.terms}"
        )
        where = "on this machine already" if self.is_here else f"to be fetched, {self.size}, {start.address}"
        return [("chosen", [described, self.reason, *self.next_best, f"weights: {where}"])]


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
        data = plan.list_images(run)
    named = {start.name: start for start in default_starts()}
    # A run or series on these images that chose its start itself goes on from there.
    for place in [out] if out is not None else sorted(Path("runs").glob(f"{escape(data.name)}-*")):
        begun, command = None, str((folder.kind_of(place).config or {}).get("command", ""))
        with suppress(VitkitError):  # another command tells of a damaged record
            begun = plan.begun_run(place)
        chosen = not command or re.match(r"vitkit finetune (?!.*--start[ =])", command)
        if begun and chosen and begun.data == paths.absolute_spec(run.data) and begun.start.start in named:
            reason = f"{place} was begun from it: the run goes on from there."
            return DefaultStart(named[begun.start.start], reason)
    if named and not any(map(is_local, named)):
        # Before minutes are spent on measuring what cannot be fetched.
        require_answer(next(iter(named.values())))
    return measure_starts(run, data, given, device, listener)


def measure_starts(
    run: Run, data: sources.ImageData, given: Mapping[str, Any], device: torch.device, listener: Listener
) -> DefaultStart:
    """Choose a start by this machine's speed alone; the arguments are the same as `choose_start` takes.

    Raises:
        VitkitError: no published start may be chosen.
    """
    tried, costs = list[tuple[PublishedStart, str]](), dict[str, Cost]()
    num_classes = len(data.class_names)
    for start in default_starts():
        # Pixels are prepared as in the paper: another preprocessing in the file would not change the time.
        config = model_config(start.model, max(num_classes, 1), (start.image_size, start.image_size))
        base = (
            recipes.recipe(run.recipe) if run.recipe else Run(preprocessing=fit_preprocessing(None, config))
        )
        base = replace(base, data=run.data, task=run.task, splits=run.splits, model=start.model)
        suited = suit_images(base, config, len(data.splits["train"]), run.optimizer.freeze)
        fitted = with_options(suited, given)
        sized = model_config(start.model, max(num_classes, 1), fitted.preprocessing.image_size)
        memory, free = step_memory(fitted, sized, device), plan.free_memory(device)
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


def finetune(
    start: str | Path | StartConfig | None = None,
    data: str | Path = "",
    out: str | Path | None = None,
    *,
    recipe: str = "",
    download: bool = False,
    ask: Callable[[str], bool] | None = None,
    **options: Unpack[TrainingOptions],
) -> folder.TrainedFolder:
    """Fine-tune a model on images: train it with a new head, evaluate it, and write its report.

    Calling it again with the same arguments and folder continues from the last committed checkpoint.

    Args:
        start: a run folder, a file or folder of weights, or an address such as hf:org/name; a `StartConfig`
            has more options. Left out, one of the published starts that this machine fine-tunes on these
            images within an hour.
        data: images with labels, as for `vitkit.train`. Images alone may be given in the place of the start.
        out: the run folder; left out, one below `runs/`.
        recipe: the name of a recipe, "paper" for the paper's; left out, options that suit the number of
            images.
        download: fetch the start that is chosen where none is given, without asking.
        ask: is asked whether to fetch it, with a question; left out, it is fetched with `download` alone.
        options: options of training, as for `vitkit.train`: `learning_rate=1e-3`, `minutes=20`.

    Returns:
        The run folder; for several runs, the folder of the series.

    Raises:
        VitkitError, InterruptedTraining: as `vitkit.train`.
    """
    job, given = split_options(options, out=out)
    processes.divide_threads(ALONE, job.threads)  # before starts are timed
    fitted = _fitted_run(start, data, recipe, given, job, (lambda _: True) if download else ask)
    return folder.TrainedFolder() if fitted is None else train.carry_out(job, fitted[0], given, fitted[1])


def finetune_run(
    start: str | Path | StartConfig | None = None,
    data: str | Path = "",
    *,
    recipe: str = "",
    download: bool = False,
    listener: Listener = SILENT,
    **options: Unpack[run_options.RunOptions],
) -> Run:
    """Make the run that fine-tunes a start on images, for `vitkit.train`.

    Args:
        start, data, recipe, download, listener, options: as for `vitkit.finetune`.

    Raises:
        VitkitError: there is no such start, no such data or no such recipe.

    Unstable: its parameters and what it returns may change in any release.
    """
    allow = (lambda _: True) if download else None
    fitted = _fitted_run(start, data, recipe, {**options}, Job(listener=listener), allow)
    assert fitted is not None, "only a dry run leaves a start to be fetched"
    return fitted[0]


def _with_closed_form(run: Run, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Choose the head in closed form where the backbone stays as it is and no other head is asked for.

    Args:
        run: with the options over it.
        options: that are given.

    Raises:
        VitkitError: an option of training is given with it.
    """
    paths = options_of(run)
    given = [paths.get(name.replace("_", "-"), name) for name in options]
    is_other = "start.head" in given and run.start.head != "ridge"
    if is_other or run.optimizer.freeze != "backbone" or run.task != "classification":
        return options
    of_training = ("optimizer.", "augmentation.", "objective.")
    idle = [path for path in given if path in LENGTH or path.startswith(of_training)]
    names = {path: f"--{option}" for option, path in paths.items() if path != "optimizer.freeze"}
    if idle := [names[path] for path in idle if path in names]:
        raise VitkitError(
            f"--freeze backbone solves the head in closed form, without steps: leave {join_names(idle)} out; "
            "or add --head new, which trains the head by gradient descent."
        )
    return options if "start.head" in given else {**options, "start.head": "ridge"}


def _fitted_run(
    start: str | Path | StartConfig | None,
    data: str | Path,
    recipe: str,
    options: Mapping[str, Any],
    job: Job,
    allow: Callable[[str], bool] | None,
) -> tuple[Run, plan.Opened] | None:
    """Make the run that fine-tunes a start on images, one of which may be left out; return it with these.

    Returns:
        None in a dry run whose chosen start would have to be fetched: it has been shown.

    Raises:
        VitkitError: the start would have to be fetched, and that is not allowed.
    """
    base = recipes.recipe(recipe) if recipe else Run()
    data = str(data) or base.data
    if isinstance(start, str | Path) and start and not data:
        start, data = folder.sort_out(str(start))
    config = start if isinstance(start, StartConfig) else StartConfig(str(start or ""))
    base = replace(base, data=data, start=config)
    options = options if recipe else _with_closed_form(with_options(base, options), options)
    if not config.start:
        run = with_options(base, options)
        require_data(run)
        device = machine.find_device(job.device)
        chosen = choose_start(run, job.folder, device=device, given=options, listener=job.listener)
        job.listener.show(chosen.rows())
        if job.dry_run and not chosen.is_here:
            job.listener.show([("data", [plan.describe_images(plan.list_images(run))])])
            return None
        question = f"Fetch {chosen.start.name}, {chosen.size}? [y/N] "
        if not (chosen.is_here or (allow is not None and allow(question))):
            permit, here = "give download=True", f"vitkit.finetune(START, {data!r})"
            if job.command:
                permit, here = f"{job.command} --yes", f"vitkit finetune START {shlex.quote(data)}"
            raise VitkitError(
                f"{chosen.start.name} is not on this machine, and fetching it was not allowed ({chosen.size} "
                f"from {chosen.start.address}). To fetch it: {permit}. To begin from weights that are here: "
                f"{here}."
            )
        base = replace(base, start=replace(config, start=chosen.start.name))
    name = base.start.start
    if job.dry_run and folder.kind_of(name).kind == "address" and not is_local(name):
        raise VitkitError(
            f"--dry-run fetches nothing, and {name} is not on this machine. vitkit card {shlex.quote(name)} "
            "fetches and describes it; then give the same command again."
        )
    with job.listener.progress("looking at the start"):
        opened = suit_start(with_options(base, options), job.listener, keep=not job.is_series)
    run = with_options(opened.run, options)
    if not base.recipe and run.training != opened.run.training:
        # Another length was given: a warm-up that is left out is fitted to it.
        run = suit_length(replace(opened.run, training=run.training), len(opened.images.splits["train"]))
        run = with_options(run, options)
    # The images were listed for the run before the options, which may read them in another way.
    return run, opened

"""Fine-tune a start: train a run whose options are fitted to the start and the data."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import torch

from vitkit.data.config import Splits
from vitkit.errors import VitkitError
from vitkit.jobs.default_start import choose_start
from vitkit.jobs.finetune_defaults import fit_images, fit_length
from vitkit.jobs.finetune_options import sort_out
from vitkit.jobs.recipes import recipe as named_recipe
from vitkit.jobs.series.series import train_series
from vitkit.jobs.train import require_data, train
from vitkit.listener import SILENT, Listener, hushed
from vitkit.notebook import AUTOMATIC
from vitkit.runs.config import Run, StartConfig, full_name, with_options
from vitkit.runs.machine import find_device, require_threads
from vitkit.runs.plan import Opened, choose_length, describe_start, list_images
from vitkit.runs.run_options import RunOptions
from vitkit.runs.series_options import SeriesOptions
from vitkit.runs.trained_model import is_training_data
from vitkit.tasks import task_of

LEAST_VALIDATED = 500
"""Validation images from which the best weights are taken in place of the last: their accuracy is certain to
about 2 points then. With 100 images the ten validations of a run lay between 46 and 53 % by chance, and the
weights of two fifths of the run were taken; 21 images chose at random, and 5 once chose the second step."""


def finetune(
    start: str | Path | StartConfig | None = None,
    data: str | Path = "",
    out: str | Path | None = None,
    *,
    recipe: str = "",
    download: bool = False,
    sweep: bool = False,
    sweep_rates: tuple[float, ...] = (),
    sweep_data: str = "",
    runs: int = 1,
    redraw: bool = False,
    cross_validate: int | None = None,
    device: str = "auto",
    threads: int | None = None,
    quiet: bool = False,
    listener: Listener = AUTOMATIC,
    **options: Unpack[RunOptions],
) -> Path:
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
        download: whether the chosen start may be fetched, where it is not on this machine.
        sweep, sweep_rates, sweep_data, runs, redraw, cross_validate: several runs in place of one, as
            `vitkit.SeriesOptions` explains them: a sweep over learning rates, several seeds, or all folds.
        device, threads, quiet, listener: as for `vitkit.train`.
        options: options of training, as for `vitkit.train`: `learning_rate=1e-3`, `minutes=20`.

    Returns:
        The run folder; for several runs, the folder of the series.

    Raises:
        VitkitError, InterruptedTraining: as `vitkit.train`.
    """
    listener = hushed(listener, quiet)
    require_threads(threads)
    if threads is not None:
        torch.set_num_threads(threads)  # the speed depends on them
    folder = None if out is None else Path(out)
    series = SeriesOptions(sweep, sweep_rates, runs, redraw, cross_validate, sweep_data)
    config, data = _choose_start_and_data(start, data, recipe, download, options, folder, device, listener)
    run, opened = _complete_run(config, data, recipe, options, listener, keep=not series.is_series)
    if run.training.minutes is not None:
        ending = series.ending if series.is_series else ""
        run = choose_length(run, folder, opened, device=device, ending=ending, listener=listener)
    if series.is_series:
        return train_series(
            run, out, series, device=device, threads=threads, opened=opened, listener=listener
        )
    return train(run, out, device=device, threads=threads, opened=opened, listener=listener)


def finetune_run(
    start: str | Path | StartConfig | None = None,
    data: str | Path = "",
    *,
    recipe: str = "",
    download: bool = False,
    **options: Unpack[RunOptions],
) -> Run:
    """Make the run that fine-tunes a start on images, for `vitkit.train`.

    Args:
        start, data, recipe, download, options: as for `vitkit.finetune`.

    Raises:
        VitkitError: there is no such start, no such data or no such recipe.
    """
    config, data = _choose_start_and_data(start, data, recipe, download, options, None, "auto", SILENT)
    return _complete_run(config, data, recipe, options, SILENT)[0]


def _choose_start_and_data(
    start: str | Path | StartConfig | None,
    data: str | Path,
    recipe: str,
    download: bool,
    options: RunOptions,
    out: Path | None,
    device: str,
    listener: Listener,
) -> tuple[StartConfig, str]:
    """Return the start and the data of a run, where one of them may be left out.

    Raises:
        VitkitError: the chosen start would have to be fetched, and `download` is off.
    """
    base = named_recipe(recipe) if recipe else Run()
    data = str(data) or base.data
    if isinstance(start, str | Path) and start and not data:
        start, data = sort_out(str(start))
    config = start if isinstance(start, StartConfig) else StartConfig(str(start or ""))
    if config.start:
        return config, data
    run = with_options(replace(base, data=data, start=config), options)
    require_data(run)

    def complete(suited: Run) -> Run:
        return with_options(suited, options)

    chosen = choose_start(run, out, device=find_device(device), complete=complete, listener=listener)
    listener.show(chosen.rows())
    if not (chosen.is_here or download):
        raise chosen.refusal("give download=True", f"vitkit.finetune(START, {data!r})")
    return replace(config, start=chosen.start.name), data


def _complete_run(
    start: StartConfig, data: str, recipe: str, options: RunOptions, listener: Listener, keep: bool = False
) -> tuple[Run, Opened]:
    """Make the run that fine-tunes a start on images, and return them with it."""
    base = replace(named_recipe(recipe) if recipe else Run(), data=data, start=start)
    with listener.progress("looking at the start"):
        suited = suit_start(with_options(base, options), listener, keep)
    run = with_options(suited.run, options)
    if not recipe and run.training != suited.run.training:
        # Another length was given: a warm-up that is left out is fitted to it.
        run = fit_length(replace(suited.run, training=run.training), suited.opened.num_images)
        run = with_options(run, options)
    return run, suited.opened


@dataclass(frozen=True)
class Suited:
    """A run whose options suit its start and its images, which were looked at."""

    run: Run
    opened: Opened


def suit_start(given: Run, listener: Listener = SILENT, keep: bool = False) -> Suited:
    """Choose the options of a run that suit its start and its images.

    Args:
        given: start, data, task, splits, recipe if there is one, and whether the trunk is frozen; all other
            options are chosen here.
        listener: hears that the start was trained on a part of the images, or without their labels.
        keep: as for `list_images`.

    Raises:
        VitkitError: there is no such start or no such data, or the recipe trains another model.
    """
    require_data(given)
    start = describe_start(given)
    base = named_recipe(given.recipe) if given.recipe else Run(preprocessing=start.preprocessing)
    has_model = given.recipe and base.model not in ("", start.model)
    if has_model and full_name(base, start.config.num_classes or 1) != start.model:
        raise VitkitError(
            f"The recipe {given.recipe} trains a {base.model}, and {start.name} is a {start.model}. Leave "
            "the recipe out, or take one for fine-tuning: paper, or finetune-cifar10 and the like."
        )
    trained_on, splits = start.card.data, given.splits
    has_seen = trained_on is not None and is_training_data(start.card, given.data)
    # A start that learned no labels was trained on the test images too: its splits are of no use here.
    unlabelled = task_of(start.card).answering is None
    if trained_on is not None and has_seen and not unlabelled:
        part = trained_on.splits.subset
        if replace(splits, subset=None, subset_seed=None) == Splits():
            # The start's own images keep its splits, so that no test image is one of its training images.
            splits = replace(trained_on.splits, subset=splits.subset, subset_seed=splits.subset_seed)
        if part is not None and splits.subset is None:
            listener.note(
                f"{start.name} was trained on the part {part} of these training images, and this run trains "
                f"on all of them: give --subset {shlex.quote(part)} for the same part."
            )
    run = replace(base, model=start.model, data=given.data, task=given.task, start=given.start, splits=splits)
    listed = list_images(run, keep=keep)
    count = len(listed.splits["train"])
    if has_seen and unlabelled and listed.listed is not None and "test" not in listed.listed.listing.splits:
        listener.note(
            f"{start.name} was trained on these images without their labels, the test images included: on "
            "new images it may do worse."
        )
    run = fit_images(run, start.config, count, given.optimizer.freeze)
    if not run.recipe and len(listed.splits.get("val", ())) < LEAST_VALIDATED:
        run = replace(run, training=replace(run.training, select="last"))
    return Suited(run, Opened(run, listed, start))

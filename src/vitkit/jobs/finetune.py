"""Fine-tune a start: train a run whose options are fitted to the start and the data."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vitkit.data.config import Splits
from vitkit.errors import VitkitError
from vitkit.jobs.default_start import choose_start
from vitkit.jobs.finetune_defaults import fit_images, fit_length
from vitkit.jobs.finetune_options import FinetuneOptions, FinetuneRunOptions, sort_out
from vitkit.jobs.functions import from_training_options
from vitkit.jobs.options import as_arguments
from vitkit.jobs.recipes import recipe as named_recipe
from vitkit.jobs.series.series import train_series
from vitkit.jobs.train import require_data, train
from vitkit.listener import SILENT, Listener
from vitkit.models.config.image_config import height_and_width
from vitkit.runs.config import Run, StartConfig, full_name, with_options
from vitkit.runs.machine import find_device, require_threads
from vitkit.runs.plan import Opened, choose_length, describe_start, list_images
from vitkit.runs.series_options import SeriesOptions
from vitkit.runs.trained_model import is_training_data
from vitkit.tasks import task_of

LEAST_VALIDATED = 500
"""Validation images from which the best weights are taken in place of the last: their accuracy is certain to
about 2 points then. With 100 images the ten validations of a run lay between 46 and 53 % by chance, and the
weights of two fifths of the run were taken; 21 images chose at random, and 5 once chose the second step."""


def run_finetune(options: FinetuneOptions) -> Path:
    """Fine-tune a model on images: train it with a new head, evaluate it, and write its report.

    Calling it again with the same arguments and folder continues from the last committed checkpoint.

    Returns:
        The run folder; for several runs, the folder of the series.

    Raises:
        VitkitError, InterruptedTraining: as `vitkit.train`.
    """
    out, device, threads, listener = options.out, options.device, options.threads, options.listener
    require_threads(threads)
    if threads is not None:
        torch.set_num_threads(threads)  # the speed depends on them
    given = None if out is None else Path(out)
    run, opened = _complete_run(options, given, device, listener, keep=not options.is_series)
    if options.minutes is not None:
        run = replace(run, training=replace(run.training, minutes=options.minutes))
        ending = options.ending if options.is_series else ""
        run = choose_length(run, given, opened, device=device, ending=ending, listener=listener)
    if options.is_series:
        series = SeriesOptions(**as_arguments(SeriesOptions, options))
        return train_series(
            run, out, series, device=device, threads=threads, opened=opened, listener=listener
        )
    return train(run, out, device=device, threads=threads, opened=opened, listener=listener)


finetune = from_training_options(FinetuneOptions)(run_finetune)


def run_finetune_run(options: FinetuneRunOptions) -> Run:
    """Make the run that fine-tunes a start on images, for `vitkit.train`.

    Raises:
        VitkitError: there is no such start, no such data or no such recipe.
    """
    return _complete_run(options, None, "auto", SILENT)[0]


finetune_run = from_training_options(FinetuneRunOptions)(run_finetune_run)


def _settle_start_and_data(
    options: FinetuneRunOptions, out: Path | None, device: str, listener: Listener
) -> tuple[StartConfig, str]:
    """Return the start and the data of a run, where one of them may be left out.

    Args:
        options: start, data, recipe and options of training.
        out: the folder of the run.
        device: where it will be trained.
        listener: hears which start was chosen.

    Raises:
        VitkitError: the chosen start would have to be fetched, and `download` is off.
    """
    base = named_recipe(options.recipe) if options.recipe else Run()
    start, data = options.start or "", options.data or base.data
    if isinstance(start, str) and start and not data:
        start, data = sort_out(start)
    config = start if isinstance(start, StartConfig) else StartConfig(start)
    if config.start:
        return config, data
    run = with_options(replace(base, data=data, start=config), options.options)
    require_data(run)
    size = height_and_width(options.image_size)

    def complete(fitted: Run) -> Run:
        preprocessing = replace(fitted.preprocessing, image_size=size or fitted.preprocessing.image_size)
        return with_options(replace(fitted, preprocessing=preprocessing), options.options)

    place = find_device(device)
    chosen = choose_start(run, out, device=place, complete=complete, listener=listener)
    listener.show(chosen.rows())
    if not (chosen.is_here or options.download):
        raise chosen.refusal("give download=True", f"vitkit.finetune(START, {data!r})")
    return replace(config, start=chosen.start.name), data


def _complete_run(
    options: FinetuneRunOptions, out: Path | None, device: str, listener: Listener, keep: bool = False
) -> tuple[Run, Opened]:
    """Make the run that fine-tunes a start on images, and return them with it."""
    start, data = _settle_start_and_data(options, out, device, listener)
    base = named_recipe(options.recipe) if options.recipe else Run()
    base = replace(base, data=data, start=start)
    with listener.progress("looking at the start"):
        fitted = suit_start(with_options(base, options.options), listener, keep)
    run = with_options(fitted.run, options.options)
    if not options.recipe and run.training != fitted.run.training:
        # Another length was given: a warm-up that is left out is fitted to it.
        run = fit_length(replace(fitted.run, training=run.training), fitted.opened.num_images)
        run = with_options(run, options.options)
    size = height_and_width(options.image_size)
    if size is not None:
        run = replace(run, preprocessing=replace(run.preprocessing, image_size=size))
    return run, fitted.opened


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

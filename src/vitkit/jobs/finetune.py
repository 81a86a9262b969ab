"""The job of fine-tuning: a run that begins from weights, with options that suit the start and the data."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vitkit.data.config import FIRST_RULE, Splits
from vitkit.errors import VitkitError
from vitkit.jobs.advice.default_start import choose_start
from vitkit.jobs.finetune_defaults import fit_images, fit_length
from vitkit.jobs.finetune_options import FinetuneOptions, FinetuneRunOptions, sort_out
from vitkit.jobs.options import as_arguments, from_training_options
from vitkit.jobs.recipes import recipe as named_recipe
from vitkit.jobs.series.series import recorded_run, train_series
from vitkit.jobs.train import require_data, train
from vitkit.listener import SILENT, Listener
from vitkit.models.config.image_config import height_and_width
from vitkit.runs.config import Run, StartConfig, full_name, with_options
from vitkit.runs.machine import find_device, require_threads
from vitkit.runs.plan import Request, settle_minutes
from vitkit.runs.series_options import SeriesOptions
from vitkit.runs.trained_model import is_training_data
from vitkit.tasks import task_of

LEAST_VALIDATED = 500
"""Validation images from which the best weights are taken in place of the last: their accuracy is known to
about 2 points then. 100 took those of two fifths of a run for 53 %, where all ten validations lay between 46
and 53 % by chance; 21 chose at random, and 5 once took those of the second step."""


def run_finetune(options: FinetuneOptions) -> Path:
    """Fine-tune a model on images: train it with a new head, evaluate it, and write its report.

    Calling it again with the same arguments and folder continues from the last committed checkpoint.

    Returns:
        The run folder; that of the series, where several runs are asked for.

    Raises:
        VitkitError, InterruptedTraining: as `vitkit.train`.
    """
    out, device, threads, listener = options.out, options.device, options.threads, options.listener
    require_threads(threads)
    if threads is not None:
        torch.set_num_threads(threads)  # the speed depends on them
    request, given = Request(), None if out is None else Path(out)
    run = _suited_run(options, given, device, request, listener)
    if options.minutes is not None:
        run = replace(run, training=replace(run.training, minutes=options.minutes))
        run = settle_minutes(
            run,
            given,
            request,
            device=device,
            ending=options.ending if options.is_series else "",
            recorded=recorded_run if options.is_series else None,
            again=True,
            listener=listener,
        )
    if options.is_series:
        series = SeriesOptions(**as_arguments(SeriesOptions, options))
        return train_series(
            run, out, series, device=device, threads=threads, request=request, listener=listener
        )
    return train(run, out, device=device, threads=threads, request=request, listener=listener)


finetune = from_training_options(FinetuneOptions)(run_finetune)


def run_finetune_run(options: FinetuneRunOptions) -> Run:
    """Make the run that fine-tunes a start on images, to be changed and handed to `vitkit.train`.

    Raises:
        VitkitError: there is no such start, no such data or no such recipe.
    """
    return _suited_run(options, None, "auto", Request(), SILENT)


finetune_run = from_training_options(FinetuneRunOptions)(run_finetune_run)


def _settle_start_and_data(
    options: FinetuneRunOptions, out: Path | None, device: str, request: Request, listener: Listener
) -> tuple[StartConfig, str]:
    """Find out what to begin from and what to train on, where one of them is left out.

    Args:
        options: as they were given.
        out: the folder of the run.
        device: where it will be trained.
        request: keeps the list of images.
        listener: hears what was chosen.

    Raises:
        VitkitError: the start that is chosen would have to be fetched, and that is not allowed.
    """
    base = named_recipe(options.recipe) if options.recipe else Run()
    start, data = options.start or "", options.data or base.data
    if isinstance(start, str) and start and not data:
        start, data = sort_out(start)
    begun = start if isinstance(start, StartConfig) else StartConfig(start)
    if begun.start:
        return begun, data
    run = with_options(replace(base, data=data, start=begun), options.options)
    require_data(run)
    size = height_and_width(options.image_size)

    def complete(suited: Run) -> Run:
        preprocessing = replace(suited.preprocessing, image_size=size or suited.preprocessing.image_size)
        return with_options(replace(suited, preprocessing=preprocessing), options.options)

    place = find_device(device)
    chosen = choose_start(run, out, device=place, complete=complete, request=request, listener=listener)
    listener.show(chosen.rows())
    if chosen.is_here:
        return replace(begun, start=chosen.start.name), data
    if not options.download:
        raise chosen.refusal("give download=True", f"vitkit.finetune(START, {data!r})")
    return replace(begun, start=chosen.start.name), data


def _suited_run(
    options: FinetuneRunOptions, out: Path | None, device: str, request: Request, listener: Listener
) -> Run:
    """Make the run that fine-tunes a start on images; the request keeps what is looked at for that."""
    start, data = _settle_start_and_data(options, out, device, request, listener)
    base = named_recipe(options.recipe) if options.recipe else Run()
    base = replace(base, data=data, start=start)
    with listener.progress("looking at the start"):
        suited = suit_run(with_options(base, options.options), request, listener)
    run = with_options(suited.run, options.options)
    if not options.recipe and run.training != suited.run.training:
        # Another length was given: a warm-up that is left out is a part of that one.
        run = fit_length(replace(suited.run, training=run.training), suited.num_images)
        run = with_options(run, options.options)
    size = height_and_width(options.image_size)
    if size is not None:
        run = replace(run, preprocessing=replace(run.preprocessing, image_size=size))
    return run


@dataclass(frozen=True)
class Suited:
    """A run whose options suit its start and its data."""

    run: Run
    num_images: int
    """Those of the training split."""


def suit_run(asked: Run, request: Request | None = None, listener: Listener = SILENT) -> Suited:
    """Choose the options of a run that suit its start and its data.

    Args:
        asked: with start, data, task and splits, and its recipe where there is one; whether the trunk is
            frozen is looked at as well. All else is chosen.
        request: keeps what is looked at here; left out, nothing is kept.
        listener: hears that the start was trained on fewer of the images.

    Raises:
        VitkitError: there is no such start or no such data, or the recipe trains another model.
    """
    require_data(asked)
    request = request or Request()
    start = request.start(asked)
    base = named_recipe(asked.recipe) if asked.recipe else Run(preprocessing=start.preprocessing)
    others = asked.recipe and base.model not in ("", start.model)
    if others and full_name(base, start.config.num_classes or 1) != start.model:
        raise VitkitError(
            f"The recipe {asked.recipe} trains a {base.model}, and {start.name} is a {start.model}. Leave "
            "the recipe out, or take one for fine-tuning: paper, or finetune-cifar10 and the like."
        )
    trained_on, splits = start.card.data, asked.splits
    has_seen = trained_on is not None and is_training_data(start.card, asked.data)
    # A start that learned no labels was trained on all images, whatever is tested: its cut says nothing.
    unlabelled = task_of(start.card).answering is None
    if trained_on is not None and has_seen and not unlabelled:
        part = trained_on.splits.subset
        if replace(splits, subset=None, subset_seed=None) == Splits():
            # The start's own images, cut as they were there: the test images are none of its training images.
            rule = trained_on.splits.rule or FIRST_RULE
            own = splits
            splits = replace(trained_on.splits, rule=rule, subset=own.subset, subset_seed=own.subset_seed)
        if part is not None and splits.subset is None:
            listener.note(
                f"{start.name} was trained on the part {part} of these training images, and this run trains "
                f"on all of them: give --subset {shlex.quote(part)} for the same part."
            )
    run = replace(base, model=start.model, data=asked.data, task=asked.task, start=asked.start, splits=splits)
    listed = request.images(run)
    count = len(listed.splits["train"])
    if has_seen and unlabelled and listed.listed is not None and "test" not in listed.listed.listing.splits:
        listener.note(
            f"{start.name} was trained on these images without their labels, also on those that are tested: "
            "on images it has not seen it may do worse."
        )
    run = fit_images(run, start.config, count, asked.optimizer.freeze)
    if not run.recipe and len(listed.splits.get("val", ())) < LEAST_VALIDATED:
        run = replace(run, training=replace(run.training, select="last"))
    return Suited(run, count)

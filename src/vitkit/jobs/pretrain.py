"""Pre-train a model on images without labels."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import torch

from vitkit.data.advice import SMALL_SIDE, sample_sizes, usual_side
from vitkit.errors import VitkitError
from vitkit.jobs.functions import from_training_options
from vitkit.jobs.pretrain_options import PretrainOptions
from vitkit.jobs.recipes import photos
from vitkit.jobs.recipes import recipe as named_recipe
from vitkit.jobs.train import require_data, train
from vitkit.listener import SILENT, Listener
from vitkit.runs.config import Architecture, Run, StartConfig, with_options
from vitkit.runs.machine import require_threads
from vitkit.runs.plan import Opened, choose_length, describe_start, list_images
from vitkit.tasks import find_task

SCALED = ("simmim", "mae")
"""Objectives whose authors scale the learning rate with the batch: MAE `main_pretrain.py`, SimMIM
`main_simmim.py`. The paper says nothing of it for masked patch prediction."""
STARTED_RATE = 0.25
"""The factor of a recipe's learning rate where the weights are not new, and have something to forget. It was
not measured."""


def run_pretrain(options: PretrainOptions) -> Path:
    """Pre-train a model on images without labels, and write its report.

    The model gives features: fine-tune it on images with labels, or measure the features with
    `vitkit.fewshot`. Calling it again with the same arguments and folder continues from the last committed
    checkpoint.

    Returns:
        The run folder.

    Raises:
        VitkitError, InterruptedTraining: as `vitkit.train`.
    """
    require_threads(options.threads)
    listener, out = options.listener, options.out
    given = Run(data=options.data, start=StartConfig(options.start), recipe=options.recipe)
    given = replace(
        given, task=options.objective, objective=named_recipe(f"{options.objective}-small").objective
    )
    fitted, opened = suit_pretraining(with_options(given, options.options), listener)
    run = with_options(fitted, options.options)
    if options.options:
        named = {name.replace("-", "_") for name in options.options}
        run = fit_batch_and_length(run, fitted, named, len(list_images(run, opened).splits["train"]))
    if options.minutes is not None:
        if options.threads is not None:
            torch.set_num_threads(options.threads)  # the speed depends on them
        run = replace(run, training=replace(run.training, minutes=options.minutes))
        where = None if out is None else Path(out)
        run = choose_length(run, where, opened, device=options.device, listener=listener)
    return train(run, out, device=options.device, threads=options.threads, opened=opened, listener=listener)


pretrain = from_training_options(PretrainOptions)(run_pretrain)


def suit_pretraining(given: Run, listener: Listener = SILENT) -> tuple[Run, Opened]:
    """Choose the options of a run without labels that suit its images and its start, and return those.

    Args:
        given: data, task, start, and recipe if there is one; all other options are chosen here.
        listener: hears the progress.

    Raises:
        VitkitError: there are no such images or no such start, or the recipe learns another task.
    """
    require_data(given)
    name = given.recipe or f"{given.task}-small"
    if find_task(given.task).answering is not None:
        raise VitkitError(
            "Expected an objective that needs no labels (masked-patches, simmim, mae), found "
            f"{given.task}: labels are learned with vitkit train."
        )
    base = named_recipe(name)
    if base.task != given.task:
        raise VitkitError(
            f"The recipe {name} learns {base.task}, found the objective {given.task}: give one of the two."
        )
    run = replace(base, data=given.data, start=given.start, loading=given.loading)
    if given.start.start:
        with listener.progress("looking at the start"):
            start = describe_start(given)
        rate = float(f"{STARTED_RATE * run.optimizer.learning_rate:.3g}")
        run = replace(
            run,
            model=start.model,
            architecture=Architecture(),  # the start's
            preprocessing=start.preprocessing,
            optimizer=replace(run.optimizer, learning_rate=rate),
        )
        return run, Opened(run, list_images(run, keep=True), start)
    opened = Opened(run, list_images(run, keep=True))
    if not given.recipe:
        with listener.progress("looking at the images"):
            side = usual_side(sample_sizes(opened.images.splits["train"]))
        if side > SMALL_SIDE:
            larger = photos()
            run = replace(
                run,
                model=larger.model,
                preprocessing=larger.preprocessing,
                augmentation=replace(run.augmentation, crop_area=larger.augmentation.crop_area),
            )
    return run, opened


def fit_batch_and_length(run: Run, base: Run, given: Collection[str], num_images: int) -> Run:
    """Fit learning rate and warm-up to another batch and another length, unless they are given.

    Args:
        run: the run with its own batch size and length, and the base's rate and warm-up.
        base: the run before options were put into it.
        given: the fields of the optimiser that are given.
        num_images: training images.
    """
    optimizer = run.optimizer
    if "learning_rate" not in given and run.task in SCALED:
        factor = run.training.batch_size / base.training.batch_size
        optimizer = replace(optimizer, learning_rate=float(f"{factor * optimizer.learning_rate:.3g}"))
    if "warmup_steps" not in given:
        shortest = run.training.total_steps(num_images) // 10
        optimizer = replace(optimizer, warmup_steps=min(optimizer.warmup_steps, shortest))
    return replace(run, optimizer=optimizer)

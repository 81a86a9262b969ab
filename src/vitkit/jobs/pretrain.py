"""Pre-train a model on images without labels."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import torch

from vitkit.data.advice import SMALL_SIDE, sample_sizes, usual_side
from vitkit.errors import VitkitError
from vitkit.jobs.pretrain_options import Objective
from vitkit.jobs.recipes import photos
from vitkit.jobs.recipes import recipe as named_recipe
from vitkit.jobs.train import require_data, train
from vitkit.listener import SILENT, Listener, hushed
from vitkit.notebook import AUTOMATIC
from vitkit.runs.config import Architecture, Run, StartConfig, with_options
from vitkit.runs.machine import require_threads
from vitkit.runs.plan import Opened, choose_length, describe_start, list_images
from vitkit.runs.run_options import RunOptions
from vitkit.tasks import find_task

SCALED = ("simmim", "mae")
"""Objectives whose authors scale the learning rate with the batch: MAE `main_pretrain.py`, SimMIM
`main_simmim.py`. The paper says nothing of it for masked patch prediction."""
STARTED_RATE = 0.25
"""The factor of a recipe's learning rate where the weights are not new, and have something to forget. It was
not measured."""


def pretrain(
    data: str | Path,
    objective: Objective = "masked-patches",
    start: str | Path = "",
    recipe: str = "",
    out: str | Path | None = None,
    *,
    device: str = "auto",
    threads: int | None = None,
    quiet: bool = False,
    listener: Listener = AUTOMATIC,
    **options: Unpack[RunOptions],
) -> Path:
    """Pre-train a model on images without labels, and write its report.

    The model gives features: fine-tune it on images with labels, or measure the features with
    `vitkit.fewshot`. Calling it again with the same arguments and folder continues from the last committed
    checkpoint.

    Args:
        data: images, with labels or without: a folder of any depth, a .csv, or .parquet files.
        objective: what is learned: masked-patches (the paper, 4.6), simmim (arXiv 2111.09886), or mae
            (arXiv 2111.06377).
        start: a run folder, a file or folder of weights, or an address to begin from; left out, new
            weights.
        recipe: the name of a recipe; left out, the objective's for two cores, for images of this size.
        out: the run folder; left out, one below `runs/`.
        device, threads, quiet, listener: as for `vitkit.train`.
        options: options of training, as for `vitkit.train`: `batch_size=256`, `minutes=60`.

    Returns:
        The run folder.

    Raises:
        VitkitError, InterruptedTraining: as `vitkit.train`.
    """
    listener = hushed(listener, quiet)
    require_threads(threads)
    given = Run(data=str(data), start=StartConfig(str(start)), recipe=recipe)
    given = replace(given, task=objective, objective=named_recipe(f"{objective}-small").objective)
    suited, opened = suit_pretraining(with_options(given, options), listener)
    run = with_options(suited, options)
    if options:
        run = fit_batch_and_length(run, suited, options, len(list_images(run, opened).splits["train"]))
    if run.training.minutes is not None:
        if threads is not None:
            torch.set_num_threads(threads)  # the speed depends on them
        folder = None if out is None else Path(out)
        run = choose_length(run, folder, opened, device=device, listener=listener)
    return train(run, out, device=device, threads=threads, opened=opened, listener=listener)


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

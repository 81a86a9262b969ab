"""The run that VTAB-1k makes of a task, and how it departs from the paper's."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from vitkit.data.sources_config import Splits
from vitkit.data.transforms_config import Augmentation
from vitkit.data.vtab_tasks import VtabTask, known
from vitkit.jobs.finetune import suit_run
from vitkit.jobs.finetune_recipes import departures as from_papers
from vitkit.jobs.recipes import recipe
from vitkit.jobs.vtab.data import TaskData
from vitkit.jobs.vtab.options import VtabOptions
from vitkit.runs.config import Run, StartConfig

PAPER_RECIPE = "finetune-vtab"
NUM_TRAINING = 1_000
UNCUT = Splits(val_fraction=0.0, test_fraction=0.0)
"""The lists are the splits: nothing is cut from them."""


def task_run(options: VtabOptions, task: TaskData, data: Path, rate: float | None) -> Run:
    """Make the run of a task.

    Args:
        options: as they were given.
        task: the task.
        data: the list of its images that is trained on.
        rate: the learning rate; None keeps the protocol's.
    """
    run = (
        _paper_run(options, known(task.folder))
        if options.protocol == "paper"
        else _finetune_run(options, task)
    )
    training, optimizer = run.training, run.optimizer
    if options.steps is not None:
        # Warm-up and the steps of the head alone stay the same parts of the whole.
        share = options.steps / training.total_steps(NUM_TRAINING)
        optimizer = replace(
            optimizer,
            warmup_steps=round(optimizer.warmup_steps * share),
            head_first=round(optimizer.head_first * share),
        )
    training = replace(
        training,
        steps=options.steps or training.steps,
        batch_size=options.batch_size or training.batch_size,
        micro_batch_size=options.micro_batch_size,
        seed=options.seed,
        select="last",  # all training images are trained on, and test images decide nothing
        keep=1,  # enough to go on; there are many runs
    )
    return replace(
        run,
        data=str(data),
        training=training,
        optimizer=optimizer if rate is None else replace(optimizer, learning_rate=rate),
        preprocessing=replace(
            run.preprocessing, image_size=options.image_size or run.preprocessing.image_size
        ),
        loading=replace(run.loading, workers=options.workers),
    )


def _paper_run(options: VtabOptions, task: VtabTask) -> Run:
    """Make the run of the paper (B.1.1), which is the same for all tasks but for crops and flips."""
    return replace(
        recipe(PAPER_RECIPE),
        recipe=PAPER_RECIPE,
        start=StartConfig(options.start),
        splits=UNCUT,
        # BiT stretches an image and cuts a part out of it, which has the proportions of the image.
        augmentation=Augmentation(
            crop_area=None if task.crop is None else (task.crop**2, task.crop**2),
            crop_aspect=None,
            flip=task.flips,
        ),
    )


def _finetune_run(options: VtabOptions, task: TaskData) -> Run:
    """Make the run that suits all training images of a task, as `vitkit finetune` does."""
    return suit_run(Run(data=str(task.all_training), start=StartConfig(options.start), splits=UNCUT)).run


def departures(run: Run, options: VtabOptions, task: TaskData) -> Iterator[str]:
    """Name what in a run of a task is not the paper's VTAB-1k (B.1.1), each with what the paper does."""
    paper = _paper_run(options, known(task.folder))
    yield from from_papers(run, NUM_TRAINING, replace(paper, augmentation=run.augmentation))
    if run.augmentation != paper.augmentation:
        yield "the same crops and flips for all tasks (BiT's, where they keep the label)"
    own, papers = run.optimizer.learning_rate, paper.optimizer.learning_rate
    if options.sweep:
        tried = ", ".join(f"{rate:g}" for rate in options.tried)
        yield f"rate of each task the best of {tried} ({papers:g} for all)"
    elif own != papers:
        yield f"rate {own:g} ({papers:g})"

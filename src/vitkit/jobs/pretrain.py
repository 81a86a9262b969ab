"""Pre-train a model on images without labels."""

from dataclasses import replace
from pathlib import Path
from typing import Unpack

from vitkit.data.check import SMALL_SIDE, sample_sizes, usual_side
from vitkit.errors import VitkitError
from vitkit.jobs import recipes, train
from vitkit.jobs.options import Objective, StudyOptions, ThenOptions, TrainingOptions, split_options
from vitkit.jobs.study.pretraining import PRETRAINING, Helped, compare_pretraining
from vitkit.listener import Listener
from vitkit.runs.config import Architecture, Run, StartConfig, require_data, with_options, with_task
from vitkit.runs.folder import TrainedFolder
from vitkit.runs.plan import Opened, choose_length, describe_start, list_images
from vitkit.runs.processes import divide_threads
from vitkit.tasks import find_task
from vitkit.world import ALONE

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
    then: str = "",
    labels: int | None = None,
    pretrainings: int | None = None,
    draws: int = 5,
    tune_steps: int | None = None,
    plan: bool = False,
    **options: Unpack[TrainingOptions],
) -> TrainedFolder:
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
        then, labels, pretrainings, draws, tune_steps, plan: fine-tune with and without it, and compare; see
            `ThenOptions`.
        options: options of training, as for `vitkit.train`: `batch_size=256`, `minutes=60`.

    Returns:
        The run folder; with `then` the folder of the comparison, whose `study` is its result.

    Raises:
        VitkitError, InterruptedTraining: as `vitkit.train`.
    """
    job, given = split_options(options, out=out)
    divide_threads(ALONE, job.threads)
    comparison = ThenOptions(
        then=then, labels=labels, pretrainings=pretrainings, draws=draws, tune_steps=tune_steps, plan=plan
    )
    base = with_task(Run(data=str(data), start=StartConfig(str(start)), recipe=recipe), objective)
    opened = suit_pretraining(with_options(base, given), job.listener)
    run = with_options(opened.run, given)
    if given:  # another batch has another learning rate, and another length another warm-up
        names, optimizer = train.names_of(given), run.optimizer
        if "learning_rate" not in names and run.task in SCALED:
            factor = run.training.batch_size / opened.run.training.batch_size
            optimizer = replace(optimizer, learning_rate=float(f"{factor * optimizer.learning_rate:.3g}"))
        if "warmup_steps" not in names:
            # At most a tenth of the steps, as the original warms up a short run (`recipes.TABLE_4`).
            shortest = run.training.total_steps(len(list_images(run, opened).splits["train"])) // 10
            optimizer = replace(optimizer, warmup_steps=min(optimizer.warmup_steps, shortest))
        run = replace(run, optimizer=optimizer)
    if not then:
        return train.carry_out(job, run, given, opened)
    if job.is_series or job.from_scratch or job.dry_run:
        raise VitkitError(
            "--then chooses the runs by itself: give --draws, without --runs, --sweep, --cross-validate, "
            "--from-scratch or --dry-run."
        )
    if run.training.minutes is not None:
        train.refuse_lengths(given)
        if job.folder is None:
            raise VitkitError("--minutes with --then needs --out: the folder keeps how many steps they were.")
        run = choose_length(
            run, job.folder / PRETRAINING, opened, device=job.device, given=given, listener=job.listener
        )
    command = job.command or "vitkit.pretrain(...)"
    machine = StudyOptions(job.device, job.threads, listener=job.listener, command=command)
    helped = compare_pretraining(run, comparison, job.folder, machine)
    folder = TrainedFolder(helped.folder if isinstance(helped, Helped) else job.folder or "runs")
    folder.study = helped
    return folder


def suit_pretraining(given: Run, listener: Listener) -> Opened:
    """Choose the options of a run without labels that suit its images and its start; return it with these.

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
    base = recipes.recipe(name)
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
        return Opened(run, list_images(run, keep=True), start)
    images = list_images(run, keep=True)
    if not given.recipe:
        with listener.progress("looking at the images"):
            side = usual_side(sample_sizes(images.splits["train"]))
        if side > SMALL_SIDE:
            larger = recipes.photos()
            run = replace(
                run,
                model=larger.model,
                preprocessing=larger.preprocessing,
                augmentation=replace(run.augmentation, crop_area=larger.augmentation.crop_area),
            )
    return Opened(run, images)

"""Train a model by the options that are given, as one run or several, or go on with a run."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Unpack

from vitkit.errors import VitkitError
from vitkit.jobs.options import RESUMED, Job, TrainingOptions, split_options
from vitkit.jobs.recipes import recipe as named_recipe
from vitkit.jobs.series import train_series
from vitkit.jobs.train_run import train_run
from vitkit.runs import plan, processes, run_options, series_record
from vitkit.runs.config import Run, StartConfig, with_options
from vitkit.runs.folder import TrainedFolder, kind_of
from vitkit.world import ALONE


def train(
    data: Run | str | Path = "",
    out: str | Path | None = None,
    *,
    start: str | Path = "",
    recipe: str = "",
    resume: str | Path | None = None,
    **options: Unpack[TrainingOptions],
) -> TrainedFolder:
    """Train a model, evaluate it on images it never saw, and write its report.

    `train("photos/", recipe="photos", epochs=20)` changes some options of a recipe, and `train(run)` takes a
    whole run configuration. Calling it again with the same run and folder continues from the last
    committed checkpoint, and does nothing if the run has finished.

    Args:
        data: images with labels: "digits" (built in), a folder of class folders or a .zip or .tar of one, a
            .csv, or a folder of .parquet files; or a run configuration, which names them.
        out: the run folder; left out, one below `runs/` named after data and model.
        start: the folder of a finished run, which is trained for longer as a new run; `vitkit.finetune`
            begins from other weights.
        recipe: the name of a recipe; left out, the defaults of `vitkit train`.
        resume: a run folder, or the folder of a series of runs, to go on with; the paths of its images and of
            its start may have changed.
        options: options of training by their names, as for `vitkit.recipe`: `learning_rate=1e-3`; and of the
            job: `device`, `threads`, `runs`, `sweep`, `log`, `listener` and the like
            (`vitkit.jobs.options.Job`).

    Returns:
        The run folder, with `model.safetensors`, `model.json` and `report.html`; for several runs, the folder
        of the series. A notebook shows its report.

    Raises:
        VitkitError: the data, the configuration, the machine or the disk does not allow it.
        InterruptedTraining: SIGINT (Ctrl-C), SIGTERM, SIGHUP or SIGUSR1 arrived, unless ignored before: the
            step at hand was finished and a checkpoint of it is committed. A second Ctrl-C does not wait
            for the end of the step. Only the main thread answers signals.
    """
    job, given = split_options(options, out=out)
    if resume is not None:
        if recipe or out is not None:
            raise VitkitError(RESUMED)
        run, job = _begun(Path(resume), job)
        begin = replace(run.start, start=str(start) or run.start.start)  # it may have moved too
        run = replace(run, data=str(data) or run.data, start=begin)
    elif isinstance(data, Run):
        if recipe:
            raise VitkitError(
                "Give a run or a recipe, not both: a run holds every option that a recipe sets."
            )
        run = data
    else:
        if start and recipe:
            raise VitkitError(
                "A recipe for a start is fine-tuning: vitkit.finetune(start, data, recipe=...)."
            )
        run = _trained_for_longer(start) if start else named_recipe(recipe) if recipe else Run()
        run = replace(run, data=str(data) or run.data)
    return carry_out(job, with_options(run, given), given, resume=resume is not None)


def carry_out(
    job: Job, run: Run, given: Mapping[str, Any], opened: plan.Opened | None = None, *, resume: bool = False
) -> TrainedFolder:
    """Train a run or a series of runs, or show what a run would do.

    Args:
        job: the way to do it.
        run: the complete run.
        given: the options that were given; others follow from the length of the run where minutes choose it.
        opened: the images and the start that were looked at already.
        resume: whether the folder holds the run, or the series, already.
    """
    if run.training.minutes is not None and not resume:
        refuse_lengths(given)
    processes.divide_threads(ALONE, job.threads)
    circumstances = dict[str, Any](
        resume=resume, device=job.device, threads=job.threads, command=job.command, opened=opened, given=given
    )
    if job.is_series:
        folder = train_series(run, job.out, job.series, listener=job.listener, **circumstances)
    else:
        circumstances |= {"from_scratch": job.from_scratch, "dry_run": job.dry_run}
        folder = train_run(run, job.out, listener=job.listener, **circumstances)
    return TrainedFolder(folder)


def refuse_lengths(given: Mapping[str, Any]) -> None:
    """Refuse another length beside minutes."""
    for length in ("steps", "epochs"):
        if length in names_of(given):
            raise VitkitError(f"--minutes chooses the number of steps: give it without --{length}.")


def names_of(given: Mapping[str, Any]) -> set[str]:
    """Return the names of options without their sections."""
    return {name.rpartition(".")[2] for name in given}


def _begun(folder: Path, job: Job) -> tuple[Run, Job]:
    """Read the run or series that began in a folder, with its own options where `job` has the defaults."""
    place = kind_of(folder)
    if place.kind != "series":
        return place.run(), replace(job, out=folder)
    record, default = series_record.read_series_record(folder), run_options.SeriesOptions()
    names = [part.name for part in fields(default) if getattr(job, part.name) == getattr(default, part.name)]
    return record.run, replace(job, out=folder, **{name: getattr(record.options, name) for name in names})


def _trained_for_longer(start: str | Path) -> Run:
    """Return the run that goes on from a finished run as a new one, with the same options and head."""
    place = kind_of(start)
    if not place.is_run:
        raise VitkitError(
            "Options that are left out have to be fitted to the start: begin the run with "
            "vitkit.finetune(start, data), which takes the same options."
        )
    before = place.run()
    training = replace(before.training, minutes=None, evaluate_test=True)
    return replace(before, training=training, start=StartConfig(place.name, head="keep"))

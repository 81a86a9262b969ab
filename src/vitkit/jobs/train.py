"""Train a model by the options that are given, as one run or as a series of runs, or go on with either.

A series is a sweep over learning rates, several seeds, or all folds. Its members are made from a single run
by `_member_run`: some try a rate; those after them are tested, with a seed or a fold of its own where there
are several. They are ordinary runs, trained one after another by `train_run`, each in a run folder within the
folder of the series. `runs/series_record.py` lists its other files.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Unpack

from vitkit._version import __version__
from vitkit.config import difference, to_json, write
from vitkit.data import config, paths, sources
from vitkit.durable import read_chunks, remove_leftovers, sync_folder, write_file
from vitkit.errors import NonFiniteError, VitkitError
from vitkit.jobs import recipes, report
from vitkit.jobs.options import RESUMED, Job, MachineOptions, StudyOptions, TrainingOptions, split_options
from vitkit.jobs.train_run import command_to_continue, train_run
from vitkit.listener import SILENT, Listener
from vitkit.runs import folder as folders
from vitkit.runs import plan, processes, records, run_options, series_record, steps
from vitkit.runs.config import Run, StartConfig, changed_options, name_options, require_data, with_options
from vitkit.runs.folder import TrainedFolder, kind_of
from vitkit.runs.machine import InterruptedTraining, require_threads
from vitkit.runs.series_record import Member, Series, SeriesRecord
from vitkit.runs.start import model_is_whole
from vitkit.runs.trained_model import is_training_data, read_record, require_same_images
from vitkit.tasks import find_task
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
        run = recipes.recipe(recipe) if recipe else Run()
        if start:  # it is trained for longer as a new run, with the same options and head
            place = kind_of(start)
            if place.config is None:
                raise VitkitError(
                    "Options that are left out have to be fitted to the start: begin the run with "
                    "vitkit.finetune(start, data), which takes the same options."
                )
            before = place.run()
            training = replace(before.training, minutes=None, evaluate_test=True)
            run = replace(before, training=training, start=StartConfig(place.name, head="keep"))
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


HELD_OUT = 0.1
"""Fraction of the training images that a sweep holds out where the run gives none: the default validation
fraction of `Splits`."""


def train_series(
    run: Run,
    out: str | Path | None = None,
    options: run_options.SeriesOptions | None = None,
    *,
    resume: bool = False,
    command: str = "",
    opened: plan.Opened | None = None,
    given: Mapping[str, Any] = plan.NOTHING,
    **machine: Unpack[MachineOptions],
) -> Path:
    """Train several runs in place of one: try learning rates, repeat with other seeds, or go through folds.

    A sweep trains each rate on a part of the training images, evaluates it on the images that are held out,
    and leaves the test images alone; then it trains on all training images with the best rate, and evaluates
    that on the test images (paper, Table 4). The same call continues an interrupted series: members that have
    ended are not repeated. The checkpoints of a member are removed when it has finished and its result is
    recorded; its model, log, evaluation and report stay.

    Args:
        run: the run configuration.
        out: the folder of the series; left out, one below `runs/`.
        options: sweep, number of runs or folds; left out, a sweep.
        resume: whether `out` holds this series already; then the paths of its images and of its start may
            have changed.
        command, opened, machine: as for `vitkit.train`: `device`, `threads`, `quiet` and `listener`.
        given: options that a length in minutes leaves as they are, as for `choose_length`.

    Returns:
        The folder of the series; see `vitkit.read_series`. It holds the model of the first run after the
        sweep that did not diverge; each fold of a cross-validation keeps its own.

    Raises:
        VitkitError: as `vitkit.train`; or the folder holds something else.
        InterruptedTraining: a signal stopped it, as in `vitkit.train`.

    Unstable: its parameters and what it returns may change in any release.
    """
    trained_by = StudyOptions(command=command, **machine)
    listener, device = trained_by.listener, trained_by.device
    own = folders.require_folder(out)
    require_data(run)
    if run.start.head == "ridge":
        raise VitkitError(
            "A head in closed form is the same for every seed and has no learning rate: leave --runs, "
            "--sweep and --cross-validate out, or add --head new, which trains the head by gradient descent."
        )
    options = _with_rates_and_paths(run, options)
    begun = None if own is None else plan.begun_run(own)
    if begun is None:
        with listener.progress("listing images"):
            opened = plan.look_at(run, opened)
    if run.training.minutes is not None and run.training.steps is None:
        opened = opened or plan.look_at(run)
        run = plan.choose_length(
            run, own, opened, device=device, ending=options.ending, given=given, listener=listener
        )
    run = plan.with_absolute_paths(run)
    if run.start.start and not run.model:  # the start of a series that has begun may have been removed
        model = plan.describe_start(run, opened).model if begun is None else begun.model
        run = replace(run, model=model)

    def changes(folder: Path) -> list[str]:
        begun = series_record.read_series_record(folder)
        changed = difference(to_json(begun.options), to_json(options))
        changed += changed_options(to_json(begun.run), str(folder / folders.SERIES), run, moved=resume)
        return name_options(changed)

    def numbered() -> Iterator[Path]:
        return folders.numbered_folders(plan.list_images(run, opened).name, run.model, options.ending)

    owner, planned = folders.Owner("series of runs", folders.SERIES, changes, resume), None
    _, has_begun = next(folders.folders_for(owner, own, numbered))
    if not has_begun:  # a new series is refused before its folder is made
        with listener.progress("listing images"):
            planned = _plan(run, options, opened, trained_by)
    with folders.claim(owner, own, numbered) as folder:
        remove_leftovers(folder)
        # A series that had begun may by now be removed, or locked by another process: then this one is new.
        if plan.begun_run(folder) is None:
            planned = planned or _plan(run, options, opened, trained_by)
            write(folder / folders.SERIES, planned)
        series = series_record.read_series(folder)
        if series.ended:  # what is missing all the same, a model or the page, is made again below
            listener.show([("", [f"This series of runs has finished: {folder}"])])
        try:
            series = _train_members(folder, run, series, resume, trained_by)
        except InterruptedTraining as stop:
            again = command_to_continue(folder, trained_by.threads, device)
            raise InterruptedTraining(f"{stop.where}, in {folder}", again, stop.signal_number) from None
        _finish(folder, series, listener)
    return folder


def check_series(
    run: Run, options: run_options.SeriesOptions, machine: StudyOptions, opened: plan.Opened | None = None
) -> plan.Opened:
    """Refuse a new series as `train_series` would before it makes a folder; it prints nothing.

    Returns:
        Its images and its start, for a series that has the same.

    Raises:
        VitkitError: the data, the configuration or the machine does not allow the series.
    """
    require_data(run)
    run, opened = plan.with_absolute_paths(run), plan.look_at(run, opened)
    _plan(run, _with_rates_and_paths(run, options), opened, replace(machine, listener=SILENT))
    return opened


def _with_rates_and_paths(run: Run, options: run_options.SeriesOptions | None) -> run_options.SeriesOptions:
    """Name the rates of a sweep that are left out, and make the path of its images absolute."""
    options = options or run_options.SeriesOptions(sweep=True)
    if options.sweep and not options.sweep_rates:
        options = replace(options, sweep_rates=recipes.sweep_rates(run))
    return replace(options, sweep_data=paths.absolute_spec(options.sweep_data))


def _plan(
    run: Run, options: run_options.SeriesOptions, opened: plan.Opened | None, machine: StudyOptions
) -> SeriesRecord:
    """Plan the runs of a series that begins.

    Raises:
        VitkitError: the images or the options do not allow them, or its first run would be refused.
    """
    listener = machine.listener
    if options.cross_validate is not None:
        if find_task(run.task).answering is None:
            raise VitkitError(f"{run.task} gives no answers to count over folds: leave --cross-validate out.")
        if run.splits.folds is not None:
            raise VitkitError(
                "cross_validate goes through all folds: leave --splits.folds and --splits.fold out."
            )
        if "test" in plan.list_images(replace(run, splits=_uncut(run.splits)), opened).splits:
            raise VitkitError("The data has a test split of its own: leave --cross-validate out.")
        if _splits_of_start(run, opened) is not None:
            listener.warn(
                f"{run.start.start} was trained on these images, the test images of the folds among them: "
                "the figures are too good."
            )
    series = series_record.plan_series(SeriesRecord(__version__, "", run, options, validates=False))
    data = plan.list_images(_member_run(run, series, series.members[-1]), opened)
    if len(options.sweep_rates) == 1:
        rate = options.sweep_rates[0]
        listener.note(f"One learning rate alone is to be tried, {rate:g}: no sweep is needed.")
    if series.rates:
        _refuse_sweep(run, series, data, opened, listener)
    if options.redraw and run.splits.subset is None:
        raise VitkitError(
            "redraw draws another part of the training images for each run: say how large with --subset."
        )
    if options.runs > 1 and not {"val", "test"} & set(data.splits):
        raise VitkitError(
            "Several runs are compared on test or validation images, and there are none: give "
            "--splits.test-fraction."
        )
    if series.rates and not {"val", "test"} & set(data.splits):
        listener.note("There are no test images: the last run trains on all images and is not evaluated.")
    record = SeriesRecord(__version__, machine.command, run, options, "val" in data.splits)
    series = series_record.plan_series(record)
    first = _member_run(run, series, series.all_members[0])
    require_threads(machine.threads)
    plan.plan_run(first, None, device=machine.device, opened=opened)
    return record


def _refuse_sweep(
    run: Run, series: Series, data: sources.ImageData, opened: plan.Opened | None, listener: Listener
) -> None:
    """Refuse a sweep that its images or options do not allow, and warn if its start saw held-out images.

    Args:
        run: that the members are made from.
        series: with the rates to try.
        data: the images of the run after the sweep.
        opened: the images and the start that were looked at already.
        listener: is warned.
    """
    if run.training.patience is not None and "val" not in data.splits:
        raise VitkitError(
            "patience waits for a better validation, and after a sweep there are no validation images, "
            "because the last run trains on all of them: leave --patience out."
        )
    tried = _member_run(run, series, series.rates[0])
    held_out = plan.list_images(tried, opened)
    if held_out.class_names != data.class_names:
        raise VitkitError(
            f"{tried.data} has other classes than {run.data}: expected the same names. "
            "Give another --sweep-data."
        )
    if "val" not in held_out.splits:
        raise VitkitError(
            "There are no images to hold out for a sweep: every class has a single training image left. "
            "Train without --sweep, with a --learning-rate."
        )
    start_splits = _splits_of_start(run, opened)
    # A validation split that the data has itself is never trained on, so no start has seen its images.
    is_other = start_splits is not None and start_splits != _held_out_fields(tried.splits)
    if is_other and "val" not in data.splits:
        listener.warn(
            f"{run.start.start} was trained on these images, held-out images probably among them: do not "
            "trust the choice of the sweep."
        )


def _splits_of_start(run: Run, opened: plan.Opened | None) -> config.Splits | None:
    """Give the splits of the run's images that its start was trained with; None where it has no start, or the
    start was trained on other images."""
    card = plan.describe_start(run, opened).card if run.start.start else None
    if card is None or card.data is None or not is_training_data(card, run.data):
        return None
    return _held_out_fields(card.data.splits)


def _held_out_fields(splits: config.Splits) -> config.Splits:
    """Keep the fields of splits that decide which images are held out, to compare two splits by them."""
    return replace(splits, label_separator=None, subset=None, subset_seed=None)


def _uncut(splits: config.Splits) -> config.Splits:
    """Make the splits that cut nothing; splits of the data's own stay."""
    return config.Splits(0, 0, label_separator=splits.label_separator, levels=splits.levels)


def _member_run(run: Run, series: Series, member: Member) -> Run:
    """Make the run of a member: at a rate of the sweep, or after it with a seed or a fold of its own.

    Args:
        run: that the members are made from.
        series: the record.
        member: of the series.
    """
    options, splits = series.options, run.splits
    optimizer = replace(run.optimizer, learning_rate=member.learning_rate)
    if member in series.rates:  # it is scored on held-out images and never sees the test images
        splits = replace(splits, val_fraction=splits.val_fraction or HELD_OUT)
        if options.sweep_data:  # no run is tested on these images
            splits = replace(splits, test_fraction=0.0)
        # A rate is scored by the weights of the last step: the run after the sweep has no validation images
        # to choose better weights by, unless the data has a validation split of its own.
        select = run.training.select if series.validates else "last"
        training = replace(run.training, select=select, evaluate_test=False)
        data = options.sweep_data or run.data
        return replace(run, data=data, splits=splits, optimizer=optimizer, training=training)
    if options.sweeps:  # after a sweep, even of a single rate, held-out images are trained on too
        splits = replace(splits, val_fraction=0.0)
    if member.fold is not None:
        splits = replace(splits, folds=options.cross_validate, fold=member.fold)
    if options.redraw:
        splits = replace(splits, subset_seed=member.seed)
    return replace(run, splits=splits, optimizer=optimizer, training=replace(run.training, seed=member.seed))


def _train_members(folder: Path, run: Run, series: Series, resume: bool, machine: StudyOptions) -> Series:
    """Train the members that have not ended, one after another, and record the result of each.

    Raises:
        NonFiniteError: training diverged in every run after the sweep.
        VitkitError: the images have changed, or as `vitkit.train`.
        InterruptedTraining: a signal stopped it.
    """
    total, listener = len(series.all_members), machine.listener
    for number in range(total):
        # The sweep has ended: the members after it get the best rate.
        if number == len(series.rates) > 0 and not any(member.ended for member in series.members):
            listener.show([("chosen", list(series_record.choose_rate(series).reasons))])
        member = series.all_members[number]
        # A finished run whose model file is gone or damaged is trained again. A run of the sweep is not: only
        # its score is needed, and studies remove its weights.
        tested = member.finished and member not in series.rates
        is_lost = tested and not model_is_whole(folder / member.folder)
        if member.ended and not is_lost:
            if member.finished:
                steps.tidy(folder / member.folder, listener)  # if a kill came before that was done
            continue
        listener.show([("run", [f"{number + 1} of {total}: {_describe(series, member)}"])])
        # The images are compared before each run: they may change in the days that a series takes, and the
        # record of a run has only its own images.
        opened = _check_images(folder, run, series, listener)
        try:
            train_run(
                _member_run(run, series, member),
                folder / member.folder,
                resume=resume,
                device=machine.device,
                threads=machine.threads,
                command=f"{series.command or 'vitkit.train_series(...)'} (its member {member.folder})",
                opened=opened,
                listener=listener,
            )
        except NonFiniteError as error:
            listener.warn(f"{_describe(series, member)}: training diverged. {error}")
            # `train_run` has written this down, unless it ended before its folder was made.
            (folder / member.folder).mkdir(exist_ok=True)
            write(folder / member.folder / records.DIVERGED, records.Divergence(str(error)))
        else:
            steps.tidy(folder / member.folder, listener)
        series = series_record.read_series(folder)
    if all(member.diverged for member in series.members):
        raise NonFiniteError(
            f"Training diverged in {folder / series.members[0].folder}: {series.members[0].diverged}"
        )
    return series


def _describe(series: Series, member: Member) -> str:
    """Describe a member of a series by its rate, and its seed or fold."""
    if member in series.rates:
        return f"learning rate {member.learning_rate:g} on a part of the training images ({member.folder})"
    parts = [f"learning rate {member.learning_rate:g}"] if series.options.sweeps else []
    parts.append(f"seed {member.seed}" if member.fold is None else f"fold {member.fold}")
    return f"{', '.join(parts)} ({member.folder})"


def _check_images(folder: Path, run: Run, series: Series, listener: Listener) -> plan.Opened:
    """Record the images of a series that begins, or make sure that they are still the same.

    Recorded are all images, and a hash of the splits of the first run and, after a sweep, of the last one:
    folds and groups may change without a change to the names and labels of images.

    Returns:
        All images, for the next run.

    Raises:
        VitkitError: the images have changed, or runs have ended and no record of their images is there.
    """
    if read_record(folder) is None and any(member.ended for member in series.all_members):
        raise VitkitError(
            f"{folder} has no record of its images: expected a data.json, found none. Put it back, or begin "
            "again with another --out."
        )
    with listener.progress("listing images"):
        uncut = replace(run, splits=_uncut(run.splits))
        opened = plan.Opened(uncut, plan.list_images(uncut, keep=True))
        members = [series.all_members[0], *([series.members[-1]] if series.rates else [])]
        cuts = [plan.list_images(_member_run(run, series, member), opened) for member in members]
    digest = hashlib.sha256()
    for cut in cuts:
        digest.update(cut.fingerprint().encode())
        if cut.fold_of is not None:
            # Little-endian, so that all machines hash the same bytes.
            digest.update(cut.fold_of.astype("<i8").tobytes())
    require_same_images(folder, opened.images, digest.hexdigest(), run.loading.check_images, listener)
    return opened


def _finish(folder: Path, series: Series, listener: Listener) -> None:
    """Write the model of a series that has ended to predict with, and its page.

    The model is the first finished run's after the sweep; a cross-validation has none for all folds.
    """
    if series.options.cross_validate is None:
        first = next(member for member in series.members if member.finished)
        model, own = folder / "model.safetensors", folder / first.folder / "model.safetensors"
        if not (model.exists() and own.samefile(model) and model_is_whole(folder)):
            for name in ("model.safetensors", "model.json"):
                _link(folder / first.folder / name, folder / name)
    listener.show([("report", [str(report.write_series_report(folder, listener))])])


def _link(file: Path, place: Path) -> None:
    """Link a file at another place, or copy it where the disk has no hard links."""
    # Always the same temporary name, as the series is locked: the next process removes what a kill leaves.
    temporary = place.with_name(f".{place.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(file, temporary)
    except OSError:
        write_file(temporary, read_chunks(file))
    temporary.replace(place)
    temporary.unlink(missing_ok=True)  # a rename between two names of one file does nothing
    sync_folder(place.parent)

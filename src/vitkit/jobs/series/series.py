"""The job of training a series of runs: a sweep over learning rates, several seeds, or all folds.

A series is asked for with one run, and its members are made from it: `_run_of_sweep` tries a rate;
`_run_after_sweep` is tested, with a seed or a fold of its own where there are several; `_member_run` makes
the right one of these for a member. They are ordinary runs, trained one after another by `vitkit.train`, each
in a run folder within that of the series. `runs/series_record.py` says what else is there.
"""

import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from vitkit.config import difference, to_json
from vitkit.data.config import DEALT_RULE, FIRST_RULE, NEWEST_RULE, Splits
from vitkit.data.paths import absolute_spec
from vitkit.data.sources import ImageData
from vitkit.durable import read_chunks, remove_leftovers, sync_folder, write_file
from vitkit.errors import NonFiniteError, VitkitError
from vitkit.jobs.finetune_recipes import sweep_rates as default_rates
from vitkit.jobs.series.report import write_series_report
from vitkit.jobs.train import check_run, command_to_continue, require_data, train
from vitkit.listener import SILENT, Listener, hushed
from vitkit.notebook import AUTOMATIC
from vitkit.runs.checkpoints import model_is_whole
from vitkit.runs.config import Run, changed_options, name_options
from vitkit.runs.data_record import read_record, require_same_images
from vitkit.runs.destination import require_folder
from vitkit.runs.finish import tidy
from vitkit.runs.folder import Whose, claim, is_new_folder, kind_of, numbered_folders
from vitkit.runs.machine import InterruptedTraining
from vitkit.runs.plan import Request, settle_minutes, settle_start, with_absolute_paths
from vitkit.runs.series_options import SeriesOptions
from vitkit.runs.series_record import (
    RECORD,
    Member,
    Score,
    Series,
    choose_rate,
    explain_uneven_folds,
    is_cut_in_turn,
    new_series,
    plan_members,
    read_score,
    read_series,
    summarise,
    with_member,
    write_series,
)
from vitkit.runs.trained_model import is_training_data
from vitkit.tasks import find_task

HELD_OUT = 0.1
"""Fraction of the training images that a sweep holds out where the run says none: the default of `Splits` for
validation."""


def train_series(
    run: Run,
    out: str | Path | None = None,
    options: SeriesOptions | None = None,
    *,
    resume: bool = False,
    device: str = "auto",
    threads: int | None = None,
    command: str = "",
    request: Request | None = None,
    quiet: bool = False,
    listener: Listener = AUTOMATIC,
) -> Path:
    """Train several runs in place of one: try learning rates, repeat with other seeds, or go through folds.

    A sweep trains each rate on a part of the training images, evaluates it on the images that are held out,
    and leaves the test images alone; then it trains on all training images with the best rate, and evaluates
    that on the test images (paper, Table 4). Calling it again with the same options and folder goes on where
    it was: members that have ended are not repeated. The checkpoints of a member are removed when it has
    finished and its result is recorded; its model, log, evaluation and report stay.

    Args:
        run: the run configuration.
        out: the folder of the series; left out, one below `runs/`.
        options: which runs; left out, a sweep.
        resume: whether `out` holds this series already; then the paths of its images and of its start may
            have changed.
        device, threads, command, request, quiet, listener: as for `vitkit.train`.

    Returns:
        The folder of the series; see `vitkit.read_series`. It holds the model of the first run after the
        sweep that did not diverge; each fold of a cross-validation keeps its own.

    Raises:
        VitkitError: as `vitkit.train`; or the folder holds something else.
        InterruptedTraining: a signal asked to stop, as in `vitkit.train`.
    """
    listener = hushed(listener, quiet)
    options, given = options or SeriesOptions(sweep=True), None if out is None else Path(out)
    if options.sweep_data:
        options = replace(options, sweep_data=absolute_spec(options.sweep_data))
    if given is not None:
        require_folder(given)
    require_data(run)
    request = request or Request()
    run = settle_minutes(
        run, given, request, device=device, ending=options.ending, recorded=recorded_run, listener=listener
    )
    run = _with_model_name(with_absolute_paths(run), given, request)
    if options.cross_validate is not None:
        # A new series cuts folds by the newest rule, even if the run or its start on the same images brings
        # an earlier one, by which folds may be uneven. One that has begun keeps its rule.
        run = replace(run, splits=replace(run.splits, rule=None))
    numbered = partial(_numbered, run, options, request)
    whose = partial(_whose, run=run, options=options, resume=resume)
    planned = None
    if not _is_begun(given, numbered, whose):  # what can be refused is refused before a folder is made
        with listener.progress("listing images"):
            planned = _plan(run, options, command, request, listener)
            _check_first(run, planned, device, threads, request)
    with claim(given, numbered, whose) as folder:
        remove_leftovers(folder)
        # A series that had begun may be locked by another process, or gone, by now: then this is a new one.
        if recorded_run(folder) is None:
            write_series(folder, planned or _plan(run, options, command, request, listener))
        series = read_series(folder)
        _refuse_uneven_folds(folder, run, series, request)
        if series.ended:
            listener.show([("", [f"This series of runs has finished: {folder}"])])
        try:
            series = _train_members(folder, run, series, resume, device, threads, listener)
        except InterruptedTraining as stop:
            again = command_to_continue(folder, threads, device)
            raise InterruptedTraining(f"{stop.where}, in {folder}", again, stop.signal_number) from None
        _finish(folder, series, listener)
    return folder


def check_series(
    run: Run,
    options: SeriesOptions,
    *,
    device: str = "auto",
    threads: int | None = None,
    request: Request | None = None,
) -> None:
    """Refuse what `train_series` would refuse of a new series before it makes a folder.

    Raises:
        VitkitError: the data, the configuration or the machine does not allow the series.
    """
    require_data(run)
    run, request = with_absolute_paths(run), request or Request()
    _check_first(run, _plan(run, options, "", request, SILENT), device, threads, request)


def _check_first(run: Run, planned: Series, device: str, threads: int | None, request: Request) -> None:
    """Refuse what the first run of a series would be refused for."""
    first = _member_run(run, planned, planned.all_members[0])
    check_run(first, device=device, threads=threads, request=request)


def recorded_run(folder: Path) -> Run | None:
    """Read the run that a series was begun with; None where there is none."""
    return read_series(folder).run if kind_of(folder).kind == "series" else None


def _with_model_name(run: Run, folder: Path | None, request: Request) -> Run:
    """Fill in the name of the model where the run leaves it to its start: from the record of a series that
    has begun, else from the start."""
    if run.model or not run.start.start:
        return run
    begun = None if folder is None else recorded_run(folder)
    if begun is not None:  # its start may be gone by now
        return replace(run, model=begun.model)
    return settle_start(run, request.images(run).class_names, None, request)[0]


def _numbered(run: Run, options: SeriesOptions, request: Request) -> Iterator[Path]:
    """Yield the folders below `runs/` that a series may be kept in where none is given."""
    return numbered_folders(run, request.images(run).name, options.ending)


def _is_begun(
    given: Path | None, numbered: Callable[[], Iterator[Path]], whose: Callable[[Path], Whose]
) -> bool:
    """Whether the given folder, or where none is given one below `runs/`, holds this series already.

    Raises:
        VitkitError: the given folder holds another series, or something else.
    """
    if given is None:
        return any(whose(folder) == "mine" for folder in itertools.takewhile(Path.is_dir, numbered()))
    identity = whose(given)
    if isinstance(identity, VitkitError):
        raise identity
    return identity == "mine"


def _whose(folder: Path, run: Run, options: SeriesOptions, resume: bool) -> Whose:
    """Return whose a folder is: "mine" where it holds a series with these options, "new" where one may begin;
    else the error that refuses it, not raised, so that `claim` may go on to the next folder."""
    kind = kind_of(folder)
    if kind.kind == "series":
        changes = _changes(folder, run, options, moved=resume)
        if not changes:
            return "mine"
        return VitkitError(
            f"{folder} holds another series of runs:\n  "
            + "\n  ".join(name_options(changes))
            + "\nGive another --out, or the options that it was begun with."
        )
    if kind.is_run:
        return VitkitError(f"{folder} holds a single run and no series of runs. Give another --out.")
    if not is_new_folder(folder):
        return VitkitError(f"{folder} is there already and is no series of runs. Give another --out.")
    if resume:
        return VitkitError(f"{folder} is no series of runs: it has no {RECORD}.")
    return "new"


def _changes(folder: Path, run: Run, options: SeriesOptions, moved: bool = False) -> list[str]:
    """List the options in which a series differs from the one in a folder; with `moved`, the paths of images
    and start may."""
    there = read_series(folder)
    changed: Sequence[str] = difference(to_json(there.options), to_json(options))
    where = str(folder / RECORD)
    return [*changed, *changed_options(to_json(there.run), where, run, moved)]


def _plan(run: Run, options: SeriesOptions, command: str, request: Request, listener: Listener) -> Series:
    """Decide which runs a series is made of.

    Raises:
        VitkitError: the images do not allow them.
    """
    run = replace(run, splits=replace(run.splits, rule=run.splits.rule or NEWEST_RULE))
    _refuse_folds(run, options, request, listener)
    rates = options.sweep_rates or (default_rates(run) if options.sweeps else ())
    if len(rates) == 1:
        listener.note(f"One learning rate alone is to be tried, {rates[0]:g}: no sweep is needed.")
    tried = sorted(rates) if len(rates) > 1 else []
    data = request.images(_run_after_sweep(run, options))
    if tried:
        _refuse_sweep(run, options, data, request, listener)
    if options.redraw and run.splits.subset is None:
        raise VitkitError(
            "redraw draws another part of the training images for each run: say how large with --subset."
        )
    if options.runs > 1 and not {"val", "test"} & set(data.splits):
        raise VitkitError(
            "Several runs are compared on test or validation images, and there are none: give "
            "--splits.test-fraction."
        )
    if tried and not {"val", "test"} & set(data.splits):
        listener.note("There are no test images: the last run trains on all images and is not evaluated.")
    rate = rates[0] if len(rates) == 1 else run.optimizer.learning_rate
    swept, members = plan_members(run, options, tried, rate)
    return new_series(command, run, options, swept, members, "val" in data.splits)


def _refuse_folds(run: Run, options: SeriesOptions, request: Request, listener: Listener) -> None:
    """Refuse folds that cannot be cut, and warn if the start was trained on the images to be cut."""
    if options.cross_validate is None:
        return
    if find_task(run.task).answering is None:
        raise VitkitError(f"{run.task} gives no answers to count over folds: leave --cross-validate out.")
    if run.splits.folds is not None:
        raise VitkitError(
            "cross_validate goes through all folds: leave --splits.folds and --splits.fold out."
        )
    if "test" in request.images(replace(run, splits=_uncut(run.splits))).splits:
        raise VitkitError("The data has a test split of its own: leave --cross-validate out.")
    if _splits_of_start(run, request) is not None:
        listener.warn(
            f"{run.start.start} was trained on these images, those of the folds' test splits among them: "
            "the figures are too good."
        )


def _refuse_sweep(
    run: Run, options: SeriesOptions, data: ImageData, request: Request, listener: Listener
) -> None:
    """Refuse a sweep that its images or options do not allow, and warn if its start saw held-out images.

    Args:
        run: as it was asked for.
        options: which runs.
        data: the images of the run after the sweep.
        request: what was looked at already.
        listener: is warned.
    """
    if run.training.patience is not None and "val" not in data.splits:
        raise VitkitError(
            "patience waits for a better validation, and after a sweep there are no validation images, "
            "because the last run trains on all of them: leave --patience out."
        )
    # Any run of the sweep: neither its rate nor whether it validates changes its images.
    tried = _run_of_sweep(run, options, False, run.optimizer.learning_rate)
    held_out = request.images(tried)
    if held_out.class_names != data.class_names:
        raise VitkitError(
            f"{options.sweep_data or run.data} has other classes than {run.data}: expected the same names. "
            "Give another --sweep-data."
        )
    if "val" not in held_out.splits:
        raise VitkitError(
            "There are no images to hold out for a sweep: every class has a single training image left. "
            "Train without --sweep, with a --learning-rate."
        )
    before = _splits_of_start(run, request)
    # A validation split that the data has itself is never trained on, so no start has seen its images.
    if before is not None and "val" not in data.splits and before != _cut(tried.splits):
        listener.warn(
            f"{run.start.start} was trained on these images, held-out ones probably among them: the sweep "
            "cannot be trusted to choose."
        )


def _splits_of_start(run: Run, request: Request) -> Splits | None:
    """Give the cut by which the start was trained on the run's images; None where it was trained on others,
    or there is no start."""
    card = request.start(run).card if run.start.start else None
    if card is None or card.data is None or not is_training_data(card, run.data):
        return None
    return _cut(card.data.splits)


def _cut(splits: Splits) -> Splits:
    """Give splits with only the fields that decide which images are held out, to compare two cuts."""
    rule = splits.rule or FIRST_RULE
    # Rule 3 differs from rule 2 in folds alone.
    rule = min(rule, DEALT_RULE - 1) if splits.folds is None else rule
    return replace(splits, label_separator=None, rule=rule, subset=None, subset_seed=None)


def _uncut(splits: Splits) -> Splits:
    """Give the splits that leave all images together, but for those that the data itself keeps apart."""
    return Splits(0, 0, label_separator=splits.label_separator)


def _run_for_members(run: Run, series: Series) -> Run:
    """Give the run that the members are made from: that of this call, cut by the rule that the series began
    with. Where the images are and how they are loaded may have changed since, as in a single run."""
    return replace(run, splits=replace(run.splits, rule=series.run.splits.rule))


def _member_run(base: Run, series: Series, member: Member) -> Run:
    """Make the run of a member: at a rate of the sweep, or after it with a seed or a fold of its own.

    Args:
        base: the run that the members are made from.
        series: decides which runs there are.
        member: one of its members.
    """
    if member in series.rates:
        return _run_of_sweep(base, series.options, series.validates, member.learning_rate)
    run = _run_after_sweep(base, series.options)
    if member.fold is not None:
        cut = replace(run.splits, folds=series.options.cross_validate, fold=member.fold)
        run = replace(run, splits=cut)
    if series.options.redraw:
        run = replace(run, splits=replace(run.splits, subset_seed=member.seed))
    return replace(
        run,
        optimizer=replace(run.optimizer, learning_rate=member.learning_rate),
        training=replace(run.training, seed=member.seed),
    )


def _run_of_sweep(run: Run, options: SeriesOptions, validates: bool, rate: float) -> Run:
    """Make a run that tries a rate: it is judged on held-out images and never sees the test images.

    Args:
        run: as it was asked for.
        options: say where the images are, if the sweep has images of its own.
        validates: whether the run after the sweep has validation images.
        rate: the learning rate.
    """
    # A rate is judged by the weights of the last step: the run after the sweep has no validation images to
    # choose better ones by, unless the data has a validation split of its own.
    select = run.training.select if validates else "last"
    splits = replace(run.splits, val_fraction=run.splits.val_fraction or HELD_OUT)
    if options.sweep_data:  # no run is tested on these images
        splits = replace(splits, test_fraction=0.0)
    return replace(
        run,
        data=options.sweep_data or run.data,
        splits=splits,
        optimizer=replace(run.optimizer, learning_rate=rate),
        training=replace(run.training, select=select, evaluate_test=False),
    )


def _run_after_sweep(run: Run, options: SeriesOptions) -> Run:
    """Make the run that is tested: where rates are tried, even a single one, it trains on the held-out images
    too; else it is the run as given."""
    if not options.sweeps:
        return run
    return replace(run, splits=replace(run.splits, val_fraction=0.0))


def _train_members(
    folder: Path,
    run: Run,
    series: Series,
    resume: bool,
    device: str,
    threads: int | None,
    listener: Listener,
) -> Series:
    """Train the members that have not ended, one after another, and write down the result of each."""
    base = _run_for_members(run, series)
    total = len(series.all_members)
    for number in range(total):
        # The sweep has ended: the members after it get the rate that did best.
        if series.rates and number == len(series.rates) and series.chosen is None:
            series = choose_rate(series)
            write_series(folder, series)
            listener.show([("chosen", list(series.reasons))])
        member = series.all_members[number]
        # A finished run whose model file is gone or damaged is trained again. A run of the sweep is not: only
        # its score is needed, and VTAB-1k removes the weights of its 76.
        tested = member.finished and member not in series.rates
        is_lost = tested and not model_is_whole(folder / member.folder)
        if member.ended and not is_lost:
            tidy(folder / member.folder, member.finished, listener)  # if the process was killed before it
            continue
        listener.show([("run", [f"{number + 1} of {total}: {_describe(series, member)}"])])
        # The images are compared before each run: they may change in the days that a series takes, and a run
        # records only those that it reads itself.
        request = Request()
        _check_images(folder, base, series, request, listener)
        member_run = _member_run(base, series, member)
        try:
            train(
                member_run,
                folder / member.folder,
                resume=resume,
                device=device,
                threads=threads,
                command=f"{series.command or 'vitkit.train_series(...)'} (its member {member.folder})",
                request=request,
                listener=listener,
            )
        except NonFiniteError as error:
            listener.warn(f"{_describe(series, member)}: training diverged. {error}")
            member = replace(member, diverged=str(error))
        else:
            member = replace(
                member, finished=True, score=_score(folder / member.folder, member_run, series, member)
            )
        series = with_member(series, member)
        write_series(folder, series)
        tidy(folder / member.folder, member.finished, listener)
    if all(member.diverged for member in series.members):
        raise NonFiniteError(
            f"Training diverged in {folder / series.members[0].folder}: {series.members[0].diverged}"
        )
    return replace(series, spread=summarise(series))


def _describe(series: Series, member: Member) -> str:
    """Say in a few words what a member of a series is."""
    if member in series.rates:
        return f"learning rate {member.learning_rate:g} on a part of the training images ({member.folder})"
    parts = [f"learning rate {member.learning_rate:g}"] if series.options.sweeps else []
    parts.append(f"seed {member.seed}" if member.fold is None else f"fold {member.fold}")
    return f"{', '.join(parts)} ({member.folder})"


def _score(folder: Path, run: Run, series: Series, member: Member) -> Score | None:
    """Read what a member is judged by: the held-out images in a sweep, the test images of a fold; else the
    test images if there are any, and the validation images where there are none."""
    splits = ("val",) if member in series.rates else ("test",) if member.fold is not None else ("test", "val")
    for split in splits:
        score = read_score(folder, split, run)
        if score is not None:
            return score
    return None


def _check_images(folder: Path, base: Run, series: Series, request: Request, listener: Listener) -> None:
    """Write down the images of a series that begins, or make sure that they are still the same.

    Recorded are all images, and a hash of how its first run and, after a sweep, its last one cut them: folds
    and groups may change without a change to the names and labels of images.

    Raises:
        VitkitError: they are others, or nothing says which they were.
    """
    with listener.progress("listing images"):
        whole = request.images(replace(base, splits=_uncut(base.splits)))
        first, last = series.all_members[0], series.members[-1]
        cuts = [
            request.images(_member_run(base, series, member))
            for member in ([first, last] if series.rates else [first])
        ]
    if series.rates and series.validates != ("val" in cuts[-1].splits):
        raise VitkitError(
            f"{folder / RECORD}: validates: expected {not series.validates}, as its images are, found "
            f"{series.validates}. Put the original file back, or begin again with another --out."
        )
    digest = hashlib.sha256()
    for cut in cuts:
        digest.update(cut.fingerprint().encode())
        if cut.folds is not None:
            digest.update(cut.folds.fold_of.astype("<i8").tobytes())
    if read_record(folder) is None:
        _compare_with_members(folder, base, series, request, listener)
    require_same_images(folder, whole, digest.hexdigest(), base.loading.check_images, listener)


def _compare_with_members(
    folder: Path, base: Run, series: Series, request: Request, listener: Listener
) -> None:
    """Hold the images against the records of the runs that have begun, where the series has no record.

    An early version wrote none for it; of a new series no run has begun either.

    Raises:
        VitkitError: they are others, or no run says which they were.
    """
    begun = [each for each in series.all_members if read_record(folder / each.folder) is not None]
    for member in begun:
        data = request.images(_member_run(base, series, member))
        require_same_images(
            folder / member.folder, data, data.fingerprint(), base.loading.check_images, listener
        )
    if begun:
        listener.note(
            f"{folder} did not say which images it began with: they are those of its {len(begun)} runs."
        )
    elif any(each.ended for each in series.all_members):
        raise VitkitError(
            f"{folder} and its runs do not say which images they began with: expected a data.json, found "
            "none. Begin again with another --out."
        )


def _refuse_uneven_folds(folder: Path, run: Run, series: Series, request: Request) -> None:
    """Refuse a cross-validation that an early version began with wrong folds; right ones go on as they were
    cut.

    Raises:
        VitkitError: the folds are empty or uneven.
    """
    if not is_cut_in_turn(series):
        return
    folds = request.images(_member_run(_run_for_members(run, series), series, series.members[0])).folds
    if folds is not None and not folds.even:
        raise VitkitError(explain_uneven_folds(folder, folds.sizes))


def _finish(folder: Path, series: Series, listener: Listener) -> None:
    """Write what a series ends with: its record, the model to predict with, and the page."""
    write_series(folder, series)
    if series.options.cross_validate is None:
        first = next(member for member in series.members if member.finished)
        if not _has_this_model(folder / first.folder / "model.safetensors", folder / "model.safetensors"):
            for name in ("model.safetensors", "model.json"):
                _link(folder / first.folder / name, folder / name)
    path = write_series_report(folder, series, listener=listener)
    listener.show([("report", [str(path)])])


def _has_this_model(folder: Path, other: Path) -> bool:
    """Whether `other` is a second name of the file `one`, and its folder holds a whole model."""
    return other.exists() and folder.samefile(other) and model_is_whole(other.parent)


def _link(file: Path, place: Path) -> None:
    """Put a file at another place too: a second name of it, or a copy where the disk has no such names."""
    # Always the same name, as the series is locked: what a killed process leaves is removed by the next one.
    temporary = place.with_name(f".{place.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(file, temporary)
    except OSError:
        write_file(temporary, read_chunks(file))
    temporary.replace(place)
    temporary.unlink(missing_ok=True)  # a rename between two names of one file does nothing
    sync_folder(place.parent)

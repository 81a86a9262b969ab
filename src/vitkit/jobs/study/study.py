"""Train the arms of a study, each a series of runs, one after another in the study's folder.

STUDY/study.json   the arms and the options, written before the first arm begins: another call must give the
                   same ones
STUDY/ARM/         the series of runs of each arm (`runs/series_record.py`), which alone records results

A study lists its arms, holds its folder with `Study.claim` while it works, and completes the arms there. The
folder may be moved: the start of an arm that begins from another arm is recorded by its path within it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitkit._version import __version__
from vitkit.config import difference, read, to_json, write
from vitkit.data.config import Splits
from vitkit.durable import is_file_name, refuse_links, remove_leftovers
from vitkit.errors import NonFiniteError, VitkitError
from vitkit.jobs.series.series import check_series, recorded_run, train_series
from vitkit.jobs.study.options import StudyOptions
from vitkit.listener import Listener, Measured, Progress
from vitkit.runs.budget import Pace
from vitkit.runs.config import Run, StartConfig, changed_options, name_options
from vitkit.runs.destination import require_folder
from vitkit.runs.folder import Owner
from vitkit.runs.folder import claim as claim_folder
from vitkit.runs.machine import InterruptedTraining
from vitkit.runs.plan import Opened, plan_run, with_absolute_paths
from vitkit.runs.processes import take_threads
from vitkit.runs.series_options import SeriesOptions
from vitkit.runs.series_record import Series, read_series
from vitkit.runs.start import absolute_start
from vitkit.shown import Shown
from vitkit.training.config import OptimizerConfig
from vitkit.world import ALONE

RECORD = "study.json"


@dataclass(frozen=True)
class Arm:
    """A way to train that a study compares with others: a series of runs."""

    folder: str
    """The name of its folder within the study's."""
    label: str
    """Its name in sentences: "position none"."""
    run: Run
    series: SeriesOptions
    """The runs: a sweep over rates, several seeds, or a single run."""


@dataclass(frozen=True, repr=False)
class StudyResult(Shown):
    """The result of a study of any kind."""

    folder: Path
    """Holds its runs, its numbers and its page."""


@dataclass(frozen=True)
class Study:
    """The contents of `study.json`."""

    vitkit_version: str
    kind: str
    """"ablation", "scale" and so on."""
    command: str
    options: Mapping[str, Any]
    """The options of the study as plain data, without the options that the runs of the arms record."""
    arms: tuple[Arm, ...]

    @contextmanager
    def claim(
        self, out: Path | None, numbered: Callable[[], Iterator[Path]] = lambda: iter(())
    ) -> Iterator[Path]:
        """Hold the folder of the study for this process, and write its record where it begins.

        Args:
            out: its folder; None: the first folder of `numbered` that holds this study or is new.
            numbered: yields folders to choose from.

        Raises:
            VitkitError: the folder holds something else, or a study with other options, which are named; or
                another process is at work in it.
        """
        if out is not None:
            require_folder(out)
        owner = Owner("study", RECORD, lambda folder: _changes(folder, self))
        with claim_folder(owner, out, numbered) as folder:
            remove_leftovers(folder)
            if not (folder / RECORD).exists():
                own = folder.resolve()
                write(folder / RECORD, _with_starts(self, lambda start: _path_within(start, own)))
            yield folder


def new_study(kind: str, command: str, options: Mapping[str, Any], arms: Sequence[Arm]) -> Study:
    """Make the record of a study that begins, with paths that hold from any folder."""
    portable = tuple(replace(arm, run=with_absolute_paths(arm.run)) for arm in arms)
    return Study(__version__, kind, command, options, portable)


@dataclass(frozen=True)
class Planned:
    """An arm of a study that has not begun: its runs, and their time on this machine."""

    name: str
    """The name of its folder."""
    label: str
    rates: tuple[float, ...]
    """The learning rates that it tries."""
    runs: int
    """All runs, the sweep included."""
    steps: int
    """Steps of each run."""
    seconds: float
    """The time of all runs."""


def plan_arm(arm: Arm, steps: int, seconds: float) -> Planned:
    """Plan the runs of an arm, each of which has so many steps and takes so many seconds."""
    runs = arm.series.num_runs
    return Planned(arm.folder, arm.label, arm.series.sweep_rates, runs, steps, runs * seconds)


def measure_paces(runs: Mapping[str, Run], options: StudyOptions, opened: Opened) -> dict[str, Pace]:
    """Time steps and validations of runs, by the names of their arms; of runs that train alike the first.

    Args:
        runs: of the arms, with images and start of their own or those that were opened.
        options: of the study.
        opened: images that were listed already.
    """
    take_threads(ALONE, options.threads)  # as in training: the speed depends on them
    timed: list[tuple[Run, Pace]] = []
    paces = {}
    for name, run in runs.items():
        # A run that begins from another arm of the study is timed with new weights: the other has not begun.
        run = replace(run, start=StartConfig()) if run.model else run
        plain = _plain(run)
        pace = next((pace for other, pace in timed if other == plain), None)
        if pace is None:
            plan = plan_run(run, None, device=options.device, opened=opened, listener=options.listener)
            with options.listener.progress(f"measuring the speed of {name}"):
                pace = plan.measure(options.listener)
            timed.append((plain, pace))
        paces[name] = pace
    return paces


def _plain(run: Run) -> Run:
    """Give every option that costs no time a value that all runs share."""
    run = replace(
        run,
        splits=Splits(),
        architecture=replace(run.architecture, dropout=None),
        optimizer=OptimizerConfig(optimizer=run.optimizer.optimizer, weight_decay=0.0),
        training=replace(
            run.training,
            epochs=1.0,
            steps=1,
            select="last",
            evaluate_every=None,
            checkpoint_every=None,
            seed=0,
        ),
    )
    if run.task == "classification":  # label smoothing costs nothing
        run = replace(run, objective=type(run.objective)())
    return run


def begins_within(run: Run, folder: Path) -> bool:
    """Whether a run begins from another arm of the study in a folder."""
    return Path(absolute_start(run.start.start)).is_relative_to(folder.resolve())


def check_arms(arms: Sequence[Arm], options: StudyOptions, opened: Opened | None = None) -> None:
    """Refuse any arm whose series would be refused, before an hour is spent on the others.

    Args:
        arms: of a study that has not begun.
        options: of the study.
        opened: images that were listed already: arms that train on the same images list them once.

    Raises:
        VitkitError: the data, the configuration or the machine does not allow an arm, which is named.
    """
    with options.listener.progress("checking the arms", len(arms)) as progress:
        for number, arm in enumerate(arms, start=1):
            try:
                opened = check_series(
                    arm.run, arm.series, device=options.device, threads=options.threads, opened=opened
                )
            except VitkitError as error:
                error.args = (f"{arm.label}: {_with_own_option(str(error))}",)
                raise
            progress(number)


def _path_within(start: str, folder: Path) -> str:
    """Shorten the path of a start to its part within a folder; a start elsewhere stays as it is."""
    return str(Path(start).relative_to(folder)) if Path(start).is_relative_to(folder) else start


def _with_starts(study: Study, change: Callable[[str], str]) -> Study:
    """Change the paths of the starts of all arms."""
    arms = (
        replace(arm, run=replace(arm.run, start=replace(arm.run.start, start=change(arm.run.start.start))))
        for arm in study.arms
    )
    return replace(study, arms=tuple(arms))


def read_study(folder: str | Path) -> Study:
    """Read the record of a study, as it began.

    Raises:
        VitkitError: it is no study, or its record is damaged, or names folders outside of it.
    """
    path = Path(folder) / RECORD
    study = read(Study, path)
    if study is None:
        raise VitkitError(f"{folder} is no study: it has no {RECORD}.")
    names = [arm.folder for arm in study.arms]
    if len(set(names)) < len(names) or not all(map(is_file_name, names)):
        raise VitkitError(
            f"{path}: expected arms with folders of their own within it, found {', '.join(names)}. Put the "
            "original file back, or begin again with another --out."
        )
    own = Path(folder).resolve()
    # The path of a start within the study begins with the name of another arm.
    return _with_starts(study, lambda start: str(own / start) if start.partition("/")[0] in names else start)


def _changes(folder: Path, study: Study) -> list[str]:
    """List the differences between the recorded study in a folder and the study of this call.

    The arms are compared too, though they follow from the options: nothing in a record that somebody gave
    away, or edited, is trusted.
    """
    begun, where = read_study(folder), str(folder / RECORD)
    if begun.kind != study.kind:
        return [f"kind of study: {begun.kind} -> {study.kind}"]
    changes = difference(begun.options, to_json(study)["options"])
    # A part of an option, such as vary.pool, is no option itself.
    changes = [each if "." in each.partition(":")[0] else name_options([each])[0] for each in changes]
    there, here = ([(arm.folder, arm.label) for arm in arms] for arms in (begun.arms, study.arms))
    pairs = list(zip(begun.arms, study.arms, strict=False))
    if changes or there != here:
        pairs = pairs[:1]  # the others are other arms; the first one shows the options that all arms have
    if not changes and there != here:
        names = [", ".join(folder for folder, _ in arms) for arms in (there, here)]
        changes = [f"arms: {names[0]} -> {names[1]}"]
    for old, new in pairs:
        changes += name_options(changed_options(to_json(old.run), where, new.run))
        changes += map(_with_own_option, name_options(difference(to_json(old.series), to_json(new.series))))
    return list(dict.fromkeys(changes))  # an option that all arms have differs in each of them


def run_pages(folder: Path, arms: Sequence[Arm]) -> list[str]:
    """List the folders within a study that have a page: the series of each arm, then its runs."""
    return [
        page.parent.relative_to(folder).as_posix()
        for arm in arms
        for pattern in ("report.html", "*/report.html")  # one that diverged has none
        for page in sorted((folder / arm.folder).glob(pattern))
    ]


def complete_arms(arms: Sequence[Arm], folder: Path, options: StudyOptions, command: str) -> list[Series]:
    """Train every arm of a study until it has ended; an arm that has begun is continued.

    A study goes on although an arm diverges with every rate or every seed: the listener is warned, and no
    run after the sweep of that arm has finished.

    Args:
        arms: in the order in which they are trained.
        folder: of the study, held by `Study.claim`.
        options: of the study.
        command: that began the study, for the records of the arms.

    Returns:
        The series of each arm.

    Raises:
        VitkitError: as `vitkit.train_series`, with the arm named.
        InterruptedTraining: a signal stopped it; the same call continues.
    """
    completed = []
    for number, arm in enumerate(arms, start=1):
        place = f"arm {number} of {len(arms)}, {arm.label}"
        try:
            series = complete_arm(arm, folder, place, options, command)
        except NonFiniteError as error:
            options.listener.warn(str(error))
            series = read_series(folder / arm.folder)
        completed.append(series)
    return completed


def complete_arm(arm: Arm, folder: Path, place: str, options: StudyOptions, command: str) -> Series:
    """Train an arm until it has ended; if it has begun, it is continued.

    Args:
        arm: the arm.
        folder: of the study.
        place: its place among the arms, for messages: "arm 2 of 5, position none".
        options: of the study; the listener's messages name the arm.
        command: that began the study, for the record of the arm.

    Raises:
        NonFiniteError: training diverged with every rate, or with every seed.
        VitkitError: as `vitkit.train_series`, with the arm named.
        InterruptedTraining: a signal stopped it; the same call continues.
    """
    own = folder / arm.folder
    if own.is_dir():
        refuse_links(own)
    # A series records its start from the root. If the study was moved, the arm that this one begins from was
    # moved with it.
    may_have_moved = begins_within(arm.run, folder) and recorded_run(own) is not None
    try:
        train_series(
            arm.run,
            own,
            arm.series,
            resume=may_have_moved,
            device=options.device,
            threads=options.threads,
            command=command,
            listener=_ArmListener(options.listener, arm.label, place),
        )
    except InterruptedTraining as stop:
        where = f"in {place}; what is done is kept"
        raise InterruptedTraining(where, "the same command", stop.signal_number) from None
    except VitkitError as error:
        error.args = (f"{arm.label}: {_with_own_option(str(error))}",)
        raise
    series = read_series(own)
    for member in series.rates:
        # Their scores are on the disk. The weights of 76 runs would fill it, and nobody needs them again.
        (own / member.folder / "model.safetensors").unlink(missing_ok=True)
    return series


def _with_own_option(sentence: str) -> str:
    """Name the options of rates and seeds as studies do, in a sentence of a series."""
    return sentence.replace("--sweep-rates", "--rates").replace("--runs", "--seeds")


class _ArmListener(Listener):
    """Passes on the messages of one arm among many that a person has to see: which of its runs begins, the
    score of each rate and the chosen rate, progress and warnings. Each names the arm."""

    def __init__(self, listener: Listener, name: str, place: str) -> None:
        self._listener, self._name, self._place = listener, name, place

    def warn(self, sentence: str) -> None:
        self._listener.warn(f"{self._name}: {sentence}")

    def show(self, rows: list[tuple[str, list[str]]]) -> None:
        for heading, lines in rows:
            if heading in ("run", "val", "chosen"):
                self._listener.note(f"{self._place}: {_with_own_option(' '.join(lines))}")

    @contextmanager
    def progress(self, what: str, total: int | None = None, *, unit: str = "") -> Iterator[Progress]:
        with self._listener.progress(f"{self._name}: {what}", total, unit=unit) as progress:
            yield progress

    @contextmanager
    def run(self, folder: Path, step: int, total: int) -> Iterator[Measured]:
        with self._listener.run(folder, step, total) as measured:
            yield measured

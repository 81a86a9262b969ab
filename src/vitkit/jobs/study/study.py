"""The floor under every study: arms, each a series of runs, brought to their end one after another.

STUDY/study.json   what is compared, written before the first arm begins: another call must ask for the same
STUDY/ARM/         the series of runs of each arm (`runs/series_record.py`), which alone records results

A study lists its arms, holds its folder with `claim_study` while it works, and completes the arms there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitkit._version import __version__
from vitkit.config import difference, from_json, to_json
from vitkit.durable import is_file_name, read_json, refuse_links, remove_leftovers, replace_json
from vitkit.errors import NonFiniteError, VitkitError
from vitkit.jobs.series.series import check_series, train_series
from vitkit.listener import SILENT, Listener, Measured, Progress
from vitkit.runs.config import Run, changed_options, name_options
from vitkit.runs.destination import require_folder
from vitkit.runs.folder import Whose, claim, is_new_folder
from vitkit.runs.machine import InterruptedTraining
from vitkit.runs.plan import Request, with_absolute_paths
from vitkit.runs.series_options import SeriesOptions
from vitkit.runs.series_record import Series, read_series

RECORD = "study.json"


@dataclass(frozen=True)
class Arm:
    """One of the things that a study compares: a series of runs."""

    folder: str
    """Its folder within that of the study."""
    label: str
    """A few words for people: "position none"."""
    run: Run
    series: SeriesOptions
    """The runs: a sweep over rates, several seeds, or a single run."""


@dataclass(frozen=True)
class Study:
    """The contents of `study.json`."""

    vitkit_version: str
    kind: str
    """A word for what the study is: "ablation"."""
    command: str
    options: Mapping[str, Any]
    """The options of the study as plain data; those that stand in the run of every arm are not repeated."""
    arms: tuple[Arm, ...]


def new_study(kind: str, command: str, options: Mapping[str, Any], arms: Sequence[Arm]) -> Study:
    """Make the record of a study that begins, with paths that hold from any folder."""
    settled = tuple(replace(arm, run=with_absolute_paths(arm.run)) for arm in arms)
    return Study(__version__, kind, command, options, settled)


def check_arms(
    arms: Sequence[Arm],
    *,
    device: str = "auto",
    threads: int | None = None,
    request: Request | None = None,
    listener: Listener = SILENT,
) -> None:
    """Refuse what the series of any arm would be refused for, before an hour was spent on the others.

    Args:
        arms: of a study that has not begun.
        device, threads: as for `vitkit.train`.
        request: what was looked at already: images that the arms share are listed once.
        listener: hears how far it is.

    Raises:
        VitkitError: the data, the configuration or the machine does not allow an arm, which is named.
    """
    request = request or Request()
    with listener.progress("checking the arms", len(arms)) as progress:
        for number, arm in enumerate(arms, start=1):
            try:
                check_series(arm.run, arm.series, device=device, threads=threads, request=request)
            except VitkitError as error:
                error.args = (f"{arm.label}: {_with_own_option(str(error))}",)
                raise
            progress(number)


@contextmanager
def claim_study(
    study: Study, out: Path | None, numbered: Callable[[], Iterator[Path]] = lambda: iter(())
) -> Iterator[Path]:
    """Hold the folder of a study for this process, and write down what the study is where it begins.

    Args:
        study: made by `new_study`.
        out: its folder; None: the first one of `numbered` that holds this study or is new.
        numbered: yields the folders that are looked at where none is given.

    Raises:
        VitkitError: the folder holds something else, or a study with other options, which are named; or
            another process is at work in it.
    """
    if out is not None:
        require_folder(out)
    with claim(out, numbered, lambda folder: _whose(folder, study)) as folder:
        remove_leftovers(folder)
        if not (folder / RECORD).exists():
            replace_json(folder / RECORD, to_json(study))
        yield folder


def read_study(folder: str | Path) -> Study:
    """Read what a study was begun as.

    Raises:
        VitkitError: it is no study, or its record is damaged, or names folders outside of it.
    """
    path = Path(folder) / RECORD
    try:
        study = from_json(Study, read_json(path), str(path))
    except (FileNotFoundError, NotADirectoryError):
        raise VitkitError(f"{folder} is no study: it has no {RECORD}.") from None
    names = [arm.folder for arm in study.arms]
    if len(set(names)) < len(names) or not all(map(is_file_name, names)):
        raise VitkitError(
            f"{path}: expected arms with folders of their own within it, found {', '.join(names)}. Put the "
            "original file back, or begin again with another --out."
        )
    return study


def _whose(folder: Path, study: Study) -> Whose:
    """Say whether a folder holds this study or may take a new one; else why it is refused.

    Raises:
        VitkitError: the record of the study in it is damaged.
    """
    if not (folder / RECORD).exists():
        if is_new_folder(folder):
            return "new"
        return VitkitError(f"{folder} is there already and is no study. Give another --out.")
    begun = read_study(folder)
    if begun.kind != study.kind:
        return VitkitError(f"{folder} holds another kind of study, {begun.kind}. Give another --out.")
    changes = _changes(begun, study, str(folder / RECORD))
    if changes:
        return VitkitError(
            f"{folder} was begun with other options:\n  "
            + "\n  ".join(changes)
            + "\nGive those again, or another --out."
        )
    return "mine"


def _changes(begun: Study, study: Study, where: str) -> list[str]:
    """List the differences between a study that was begun and one that is asked for.

    The arms are compared too, though they follow from the options: nothing in a record that somebody gave
    away, or edited, is trusted.
    """
    changes = difference(begun.options, to_json(study)["options"])
    there, here = ([(arm.folder, arm.label) for arm in arms] for arms in (begun.arms, study.arms))
    pairs = list(zip(begun.arms, study.arms, strict=False))
    if changes or there != here:
        pairs = pairs[:1]  # the others are other arms; the first one shows what all arms share
    if not changes and there != here:
        names = [", ".join(folder for folder, _ in arms) for arms in (there, here)]
        changes = [f"arms: {names[0]} -> {names[1]}"]
    for old, new in pairs:
        changes += name_options(changed_options(to_json(old.run), where, new.run))
        changes += map(_with_own_option, name_options(difference(to_json(old.series), to_json(new.series))))
    return list(dict.fromkeys(changes))  # an option that all arms share differs in each of them


def run_pages(folder: Path, arms: Sequence[Arm]) -> list[str]:
    """List the folders within a study that have a page: the series of each arm, then its runs."""
    return [
        page.parent.relative_to(folder).as_posix()
        for arm in arms
        for pattern in ("report.html", "*/report.html")  # one that diverged has none
        for page in sorted((folder / arm.folder).glob(pattern))
    ]


def complete_arms(
    arms: Sequence[Arm],
    folder: Path,
    *,
    device: str = "auto",
    threads: int | None = None,
    command: str = "",
    listener: Listener = SILENT,
) -> list[Series]:
    """Bring every arm of a study to its end, wherever it stands.

    An arm that diverges with every rate or every seed is no reason to end the study: the listener hears of
    it, and no member of its series after the sweep has finished.

    Args:
        arms: in the order in which they are trained.
        folder: of the study, held by `claim_study`.
        device, threads: as for `vitkit.train`.
        command: the one that made the study, to be written down.
        listener: hears how it goes.

    Returns:
        The series of each arm.

    Raises:
        VitkitError: as `vitkit.train_series`, with the arm named.
        InterruptedTraining: a signal asked to stop; the same call goes on.
    """
    completed = []
    for number, arm in enumerate(arms, start=1):
        place = f"arm {number} of {len(arms)}, {arm.label}"
        try:
            series = complete_arm(
                arm, folder, place, device=device, threads=threads, command=command, listener=listener
            )
        except NonFiniteError as error:
            listener.warn(str(error))
            series = read_series(folder / arm.folder)
        completed.append(series)
    return completed


def complete_arm(
    arm: Arm,
    folder: Path,
    place: str,
    *,
    device: str = "auto",
    threads: int | None = None,
    command: str = "",
    listener: Listener = SILENT,
) -> Series:
    """Bring the series of an arm to its end, wherever it stands.

    Args:
        arm: the arm.
        folder: of the study.
        place: its place among the arms, for messages: "arm 2 of 5, position none".
        device, threads, command: as for `vitkit.train_series`.
        listener: hears how it goes, with the arm named.

    Raises:
        NonFiniteError: training diverged with every rate, or with every seed.
        VitkitError: as `vitkit.train_series`, with the arm named.
        InterruptedTraining: a signal asked to stop; the same call goes on.
    """
    own = folder / arm.folder
    if own.is_dir():
        refuse_links(own)
    try:
        train_series(
            arm.run,
            own,
            arm.series,
            device=device,
            threads=threads,
            command=command,
            listener=_ArmListener(listener, arm.label, place),
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
    """Passes on what a person has to see of one arm among many: which of its runs begins, how well a rate
    does and which is chosen, its progress, named, and its warnings."""

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

"""List the runs, series and studies below a folder, with what came of them and where they stand.

Folders may have been given away, edited or damaged: every record is read by who checks it, links are not
followed, and names of folders in records are never paths. What cannot be read is listed as damaged.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from vitkit.durable import read_json
from vitkit.errors import VitkitError
from vitkit.jobs.options import RunsOptions, from_options
from vitkit.jobs.study.study import RECORD as STUDY
from vitkit.jobs.study.study import read_study
from vitkit.runs.config import Run
from vitkit.runs.folder import SERIES, Place, kind_of
from vitkit.runs.records import (
    read_data_record,
    read_divergence,
    read_metrics,
    read_speed,
    read_start_record,
)
from vitkit.runs.series_record import Series, read_score, read_series
from vitkit.shown import Shown
from vitkit.tasks import find_task
from vitkit.text import pluralize, without_places
from vitkit.training.checkpoint import FOLDER, commit_size, newest_first, step_of
from vitkit.training.ended import read_ended
from vitkit.training.trainer import LOG

DEPTH = 4
"""Folders below one another that are looked into: runs/NAME, and what people put between for order."""
State = Literal["running", "interrupted", "ended", "diverged", "damaged"]
VTAB = "vtab.json"
"""The result of the tasks of VTAB-1k, which their folder has once all are finished."""


@dataclass(frozen=True, repr=False)
class RunSummary(Shown):
    """A run, a series of runs or a study, in a few words and numbers."""

    folder: str
    kind: Literal["run", "series", "study"]
    data: str
    """The name of the images; "" where it is not known."""
    model: str
    metric: str
    """The metric that decides: "accuracy", say; "" where there is none."""
    state: State
    progress: str
    """A few words on the state: "step 120 of 352"; of what is damaged, the reason."""
    score: float | None = None
    """The value of the metric; of a series the mean. None before the end."""
    interval: tuple[float, float] | None = None
    """95 %, over images like these; of several seeds there is none."""
    split: str = ""
    """The images that it was measured on: "test" or "val"."""
    is_fraction: bool = True
    """Whether the score is a fraction from 0 to 1; else it is a loss."""
    minutes: float | None = None
    """Time spent on steps of training; None where no step was made."""
    changed: float = 0.0
    """Time of the last change of its records, in seconds since 1970."""

    def in_words(self) -> str:
        """Tell the result and the state."""
        parts = (self.folder, self.data, self.model, self.result, self.standing)
        return ", ".join(part for part in parts if part)

    @property
    def result(self) -> str:
        """Return the score in words: "test 97.2% (95.1 to 98.4)"; "" where there is none."""
        if self.score is None:
            return ""
        named = "" if self.metric == "accuracy" else f" {self.metric.replace('_', ' ')}"
        value = f"{self.score:.1%}" if self.is_fraction else f"{self.score:.4g}"
        low, high = self.interval or (None, None)
        between = "" if low is None or high is None else f" ({100 * low:.1f} to {100 * high:.1f})"
        return f"{self.split}{named} {value}{between}"

    @property
    def standing(self) -> str:
        """Return the state in words: "interrupted at step 120 of 352"."""
        if self.state == "damaged" or not self.progress:
            return self.state
        between = ": " if self.state == "ended" else " at " if self.kind == "run" else " with "
        return f"{self.state}{between}{self.progress}"

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def run_list_runs(options: RunsOptions) -> list[RunSummary]:
    """List the runs, series and studies below a folder, the one that changed last at the end.

    Runs of a series and series of a study are parts of them and not listed by themselves.

    Raises:
        VitkitError: there is no such folder.
    """
    top = Path(options.folder)
    rows = []
    with options.listener.progress("reading records") as progress:
        for folder, read in _find(top, DEPTH):
            try:
                row = read(folder)
            except (VitkitError, OSError, ValueError, RecursionError) as error:
                row = RunSummary(str(folder), "run", "", "", "", "damaged", str(error))
            rows.append(replace(row, changed=_last_change(folder)))
            progress(len(rows))
    return sorted(rows, key=lambda row: (row.changed, row.folder))


list_runs = from_options(RunsOptions)(run_list_runs)


def _find(folder: Path, depth: int) -> Iterator[tuple[Path, Callable[[Path], RunSummary]]]:
    """Yield the folders of runs, series and studies, with the function that reads each; links are passed
    over."""
    place = kind_of(folder)
    if place.kind == "nothing":  # a folder that this user may not look into
        return
    if (folder / STUDY).is_file():
        yield folder, _read_study
    elif place.kind == "series":
        yield folder, lambda there: _summarise_series(there, read_series(there), is_held(there))
    elif (folder / VTAB).is_file():
        yield folder, _read_vtab
    elif place.is_run:
        yield folder, lambda _: _read_run(place)
    elif (folder / "config.json").exists() and (folder / LOG).exists():  # another library's has no such log
        yield folder, lambda there: _read_run(Place(str(there), "unfinished run"))
    elif depth and place.kind != "exported model":
        with suppress(OSError), os.scandir(folder) as entries:
            below = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            for name in sorted(below):
                yield from _find(folder / name, depth - 1)


def _last_change(folder: Path) -> float:
    """Give the time of the last change of a record in a folder, in seconds since 1970."""
    times = [0.0]
    for name in ("config.json", SERIES, STUDY, VTAB, "speed.jsonl", "report.html"):
        with suppress(OSError):
            times.append((folder / name).lstat().st_mtime)
    return max(times)


def is_held(folder: Path) -> bool:
    """Whether a process holds the lock of a folder, which it does as long as it trains there.

    The lock is shared for a moment to find out, and never made.
    """
    try:
        descriptor = os.open(folder / ".lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a disk without locks
        return False
    finally:
        os.close(descriptor)
    return False


def _read_run(place: Place) -> RunSummary:
    """Read the records of a run.

    Raises:
        VitkitError: one of them is damaged.
    """
    run, folder = place.run(), place.path
    data = read_data_record(folder)
    images = data.get("images", {}).get("train") or sum(data.get("counts", {}).get("train", {}).values())
    total = run.training.total_steps(images) if images else None
    finished = place.kind == "run" and (folder / "report.html").is_file()
    learning, made = find_task(run.task).learning, _logged_step(folder)
    row = RunSummary(
        place.name,
        "run",
        data.get("name", "") or str(without_places(run.data)),
        _model_name(run, folder),
        learning.monitor.metric,
        "ended",
        pluralize(made, "step") if made else "",
        is_fraction=learning.curve.is_fraction,
        minutes=_minutes(folder),
    )
    if finished:
        scores = [read_score(folder, split, run) for split in ("test", "val")]
        score = next((one for one in scores if one is not None), None)
        if score is None:
            return row
        return replace(row, score=score.value, interval=score.interval, split=score.split)
    of = f" of {total:,}" if total else ""
    if is_held(folder):
        return replace(row, state="running", progress=f"step {made:,}{of}")
    where = f"step {_committed_step(folder):,}{of}"
    return replace(
        row, state="interrupted" if read_divergence(folder) is None else "diverged", progress=where
    )


def _model_name(run: Run, folder: Path) -> str:
    """Name the model of a run: that of the run, or of its start."""
    if run.model:
        return run.model
    start = read_start_record(folder)
    return "" if start is None else start.model


def _committed_step(folder: Path) -> int:
    """Give the step that the run goes on after: that of its newest committed checkpoint, or 0."""
    ended = read_ended(folder)
    committed = (step_of(path) for path in newest_first(folder / FOLDER) if commit_size(path))
    return next(committed, 0 if ended is None else ended.step)


def _logged_step(folder: Path) -> int:
    """Give the last step in the log of a run, or 0."""
    lines = read_metrics(folder).lines
    return int(lines[-1]["step"]) if lines else 0


def _minutes(folder: Path) -> float | None:
    """Add up the minutes of a run's steps over all the times that it was begun or continued.

    The seconds of the speed log begin again with each of them.
    """
    seconds = [line["seconds"] for line in read_speed(folder).lines if line["seconds"] >= 0]
    if not seconds:
        return None
    ends = [before for before, after in pairwise(seconds) if after < before]
    return float(sum([*ends, seconds[-1]]) / 60)


def _summarise_series(folder: Path, series: Series, held: bool) -> RunSummary:
    """Summarise a series whose record was checked."""
    members = series.all_members
    done = sum(one.ended for one in members)
    minutes = [_minutes(folder / one.folder) for one in members]
    spent = [one for one in minutes if one is not None]
    run, spread = series.run, series.spread
    first = folder / series.members[0].folder
    row = RunSummary(
        str(folder),
        "series",
        read_data_record(folder).get("name", "") or str(without_places(run.data)),
        _model_name(run, first),
        series.metric,
        "ended" if series.ended else "running" if held else "interrupted",
        f"{done} of {pluralize(len(members), 'run')}",
        is_fraction=find_task(run.task).learning.curve.is_fraction,
        minutes=sum(spent) if spent else None,
    )
    if series.ended and all(one.diverged for one in series.members):
        return replace(row, state="diverged")
    if spread is None:
        return row
    interval = None
    if spread.pooled is not None:
        interval = spread.pooled.interval
    elif spread.runs == 1:
        interval = next(one.score.interval for one in series.members if one.score is not None)
    return replace(row, score=spread.mean, interval=interval, split=spread.split)


def _read_study(folder: Path) -> RunSummary:
    """Read the records of a study and of its arms.

    Raises:
        VitkitError: one of them is damaged.
    """
    study, held = read_study(folder), is_held(folder)
    begun = [folder / arm.folder for arm in study.arms if (folder / arm.folder / SERIES).is_file()]
    arms = [_summarise_series(arm, read_series(arm), held) for arm in begun]
    ended = sum(arm.state in ("ended", "diverged") for arm in arms)
    spent = [arm.minutes for arm in arms if arm.minutes is not None]
    first = study.arms[0].run if study.arms else None
    over = ended == len(study.arms) and not held
    return RunSummary(
        str(folder),
        "study",
        arms[0].data if arms else "" if first is None else str(without_places(first.data)),
        study.kind,
        arms[0].metric if arms else "",
        "ended" if over else "running" if held else "interrupted",
        f"{ended} of {pluralize(len(study.arms), 'arm')}",
        minutes=sum(spent) if spent else None,
    )


def _read_vtab(folder: Path) -> RunSummary:
    """Read the result of the tasks of VTAB-1k.

    Raises:
        VitkitError: it is damaged.
    """
    path = folder / VTAB
    try:
        scores = [float(task["accuracy"]) for task in read_json(path)["tasks"]]
    except (KeyError, TypeError, ValueError):
        scores = []
    if not scores or not all(0 <= score <= 1 for score in scores):
        raise VitkitError(
            f"{path} is damaged: expected tasks with accuracies from 0 to 1. Put the original file back."
        )
    return RunSummary(
        str(folder),
        "study",
        "VTAB-1k",
        "vtab",
        "accuracy",
        "ended",
        pluralize(len(scores), "task"),
        fmean(scores),
        split="test",
    )

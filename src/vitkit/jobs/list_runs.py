"""List the runs, series and studies below a folder, with their results and states, also on one page.

Folders may have been given away, edited or damaged: every record is read by the function that checks it,
links are not followed, and names of folders in records are never paths. A folder that cannot be read is
listed as damaged.
"""

import fcntl
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from vitkit.config import IN_MEMORY_ALONE, PREFIXED, read, to_json
from vitkit.errors import VitkitError
from vitkit.jobs.options import StrPath
from vitkit.jobs.study import study as studies
from vitkit.listener import AUTOMATIC, Listener, hushed
from vitkit.result import Block, Caption, Cell, Number, Plot, Result, Section, Table, table_of
from vitkit.runs import records, series_record, trained_model
from vitkit.runs.config import Run, full_name
from vitkit.runs.folder import SERIES, Place, kind_of, require_runs
from vitkit.tasks import find_task
from vitkit.tasks.page import figures
from vitkit.text import format_duration, pluralize, without_places
from vitkit.training.checkpoint import FOLDER, commit_size, newest_first, read_ended, step_of
from vitkit.training.trainer import LOG

DEPTH = 4
"""Levels of folders that are searched: runs/NAME, and folders that people put between for order."""
State = Literal["running", "interrupted", "ended", "diverged", "damaged"]
PAGE = "runs.html"
LINES = 20
"""Runs whose validations are drawn into one picture: more cannot be told apart."""


@dataclass(frozen=True, repr=False)
class RunSummary(Result):
    """The summary of a run, a series of runs or a study."""

    folder: str
    kind: Literal["run", "series", "study"]
    data: str
    """The name of the images; "" where no record has it."""
    model: str
    metric: str
    """The task's main metric, "accuracy" say; "" where there is none."""
    state: State
    progress: str = ""
    """The progress: "step 120 of 352"; of a damaged folder, the reason."""
    score: float | None = None
    """The value of the metric, for a series the mean; None before the end."""
    interval: tuple[float, float] | None = None
    """The 95 % interval over images like these; None for several seeds."""
    split: str = ""
    """The split of the score: "test" or "val"."""
    is_fraction: bool = True
    """Whether the score is a fraction from 0 to 1; else it is a loss."""
    minutes: float | None = None
    """Time spent on steps of training; None where no step was made."""
    changed: float = 0.0
    """Time of the last change of its records, in seconds since 1970."""
    run: Run | None = field(default=None, repr=False, metadata=IN_MEMORY_ALONE)
    """Its options, those of a series without the seeds; None for a study and a damaged folder."""
    curve: Sequence[tuple[int, float]] = field(default=(), repr=False, metadata=IN_MEMORY_ALONE)
    """The metric at the steps of a run's validations."""

    def summary(self) -> str:
        """Say the result and the state."""
        parts = (self.folder, self.data, self.model, self.result, self.standing)
        return ", ".join(part for part in parts if part)

    @property
    def result(self) -> str:
        """Describe the score: "test 97.2% (95.1 to 98.4)"; "" without one."""
        if self.score is None:
            return ""
        named = "" if self.metric == "accuracy" else f" {self.metric.replace('_', ' ')}"
        value = f"{self.score:.1%}" if self.is_fraction else f"{self.score:.4g}"
        low, high = self.interval or (None, None)
        between = "" if low is None or high is None else f" ({100 * low:.1f} to {100 * high:.1f})"
        return f"{self.split}{named} {value}{between}"

    @property
    def standing(self) -> str:
        """Describe the state: "interrupted at step 120 of 352"."""
        if self.state == "damaged" or not self.progress:
            return self.state
        between = ": " if self.state == "ended" else " at " if self.kind == "run" else " with "
        return f"{self.state}{between}{self.progress}"


class RunList(Result, list[RunSummary]):
    """Runs, series and studies, the last changed one at the end.

    Args:
        rows: their summaries.
        folder: the folder that holds them.
        page: the page of all of them, if one was written.
    """

    def __init__(self, rows: Iterable[RunSummary], folder: Path, page: Path | None = None) -> None:
        super().__init__(rows)
        self.folder, self.page = folder, page

    def summary(self) -> str:
        """Count the runs."""
        return f"{pluralize(len(self), 'run, series or study', 'runs, series and studies')} in {self.folder}"

    def name_of(self, row: RunSummary) -> str:
        """Return the path of a run below the folder."""
        return os.path.relpath(row.folder, self.folder)

    def heading(self) -> str:
        """Name the folder."""
        return f"Runs in {self.folder.resolve().name}"

    def headline(self) -> Sequence[str]:
        """Count the runs."""
        return (f"{self.summary()}.",)

    def sections(self) -> Sequence[Section]:
        """Return a picture of the validations for each metric, and a table with the options that differ."""
        pictures: list[Block] = []
        for metric, is_fraction in dict.fromkeys((row.metric, row.is_fraction) for row in self if row.curve):
            rows = [row for row in self if row.curve and row.metric == metric]
            lines = {self.name_of(row): [(*point, None) for point in row.curve] for row in rows[-LINES:]}
            label = f"{metric.replace('_', ' ')} of the validation images"
            axes = "step", figures().shortened(label, 60)
            draw = partial(figures().line_figure, {"": lines}, *axes, is_fraction=is_fraction, steps=True)
            alt = f"The {label} of {len(lines)} runs over their steps."
            pictures.append(Plot(draw, f"runs-{len(pictures)}", alt))
            if len(lines) < len(rows):
                last = f"The {LINES} of {len(rows):,} runs that were changed last are drawn."
                pictures.append(Caption(last))
        options = [_options(row.run) for row in self]
        names = dict.fromkeys(name for own in options for name in own)
        differing = [name for name in names if len({own.get(name) for own in options if own}) > 1]
        cells: list[tuple[Cell, ...]] = []
        for row, own in zip(self, options, strict=True):
            score = row.result if row.score is None else Number(row.result, row.score)
            minutes = "" if row.minutes is None else Number(f"{row.minutes:.1f}", row.minutes)
            chosen = (own.get(option, "") for option in differing)
            cells.append((self.name_of(row), score, minutes, row.standing, *chosen, row.data, row.model))
        headings = ("run", "result", "minutes", "state", *differing, "data", "model")
        results = [Table(headings, tuple(cells), sortable=True)]
        parts = Section("Validations", pictures), Section("Results, and the options that differ", results)
        return [part for part in parts if part.blocks]

    def blocks(self) -> Sequence[Block]:
        """Return the table, the damaged folders with the reason, and the page that was written."""
        columns: dict[str, Callable[[RunSummary], str]] = {
            "folder": lambda row: row.folder,
            "data": lambda row: row.data,
            "model": lambda row: row.model,
            "result": lambda row: row.result,
            "training": lambda row: "" if row.minutes is None else format_duration(60 * row.minutes),
            "state": lambda row: row.standing,
        }
        table = replace(table_of(self, columns), left=(0, 1, 2, 3, 5))
        return [
            table if self else f"There are no runs in {self.folder}.",
            *(f"{row.folder} is damaged: {row.progress}" for row in self if row.state == "damaged"),
            *([f"All of them on one page: {self.page}"] if self.page is not None else []),
        ]

    def following(self) -> Sequence[str]:
        """Return the command that resumes the newest run if it was interrupted, or shows its report."""
        if self.page is not None:
            return (f"open {self.page} in a browser",)
        for row in reversed(self):
            if row.kind != "study" and row.state == "interrupted":
                return (f"vitkit train --resume {shlex.quote(row.folder)}",)
            if row.kind != "study" and row.state == "ended" and (Path(row.folder) / "report.html").is_file():
                return (f"open {row.folder}/report.html in a browser",)
        return ("vitkit train --recipe digits",)

    def to_json(self) -> Any:
        """Return the summaries as plain data."""
        return [row.to_json() for row in self]


def list_runs(
    folder: StrPath = "runs", *, html: bool = False, quiet: bool = False, listener: Listener = AUTOMATIC
) -> RunList:
    """List runs, series of runs and studies below a folder, the last changed one at the end.

    Runs of a series and series of a study are not listed by themselves.

    Args:
        folder: folder to look into, and into folders in it; left out, runs/ in the working folder.
        html: write a page of all of them too, runs.html in the folder: their validations in one picture, and
            a table of their results and of the options in which they differ.
        quiet: print nothing but warnings.
        listener: hears the progress; left out, a notebook shows it and a script is silent.

    Raises:
        VitkitError: there is no such folder.
    """
    top = require_runs(folder)
    rows = []
    with hushed(listener, quiet).progress("reading records") as progress:
        for place, read_folder in _find(top, DEPTH):
            try:
                row = read_folder(place)
            except (VitkitError, OSError, ValueError, RecursionError) as error:
                row = RunSummary(str(place), "run", "", "", "", "damaged", str(error))
            for name in ("config.json", SERIES, studies.RECORD, "speed.jsonl", "report.html"):
                with suppress(OSError):
                    row = replace(row, changed=max(row.changed, (place / name).lstat().st_mtime))
            rows.append(row)
            progress(len(rows))
    listed = RunList(sorted(rows, key=lambda row: (row.changed, row.folder)), top)
    if html:
        from vitkit.report.template import write_page

        shown = (listed.name_of(row) for row in listed if (Path(row.folder) / "report.html").is_file())
        reports = [name for name in shown if name.isprintable()]  # others can be in no address
        listed.page = write_page(listed, top / PAGE, folders=reports)
    return listed


def _options(run: Run | None) -> dict[str, Cell]:
    """Write the options of a run by their names in Python, but for its data and its model."""
    options: dict[str, Cell] = {}
    for part, fields in ({} if run is None else without_places(to_json(run))).items():
        for name, value in (fields if isinstance(fields, Mapping) else {part: fields}).items():
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            cell: Cell = "" if value is None else text
            if isinstance(value, int | float) and not isinstance(value, bool):
                cell = Number(f"{value:,.8g}", value)
            options[f"{part}_{name}" if part in PREFIXED else name] = cell
    return {name: cell for name, cell in options.items() if name not in ("data", "model")}


def _find(folder: Path, depth: int) -> Iterator[tuple[Path, Callable[[Path], RunSummary]]]:
    """Yield the folders of runs, series and studies, each with its reader; links are not followed."""
    place = kind_of(folder)
    if place.kind == "nothing":  # a folder that this user may not look into
        return
    if (folder / studies.RECORD).is_file():
        yield folder, _read_study
    elif place.kind == "series":
        yield folder, lambda there: _read_series(there, is_held(there))
    elif place.config is not None:
        yield folder, lambda _: _read_run(place)
    # Another library's config.json has no such log beside it.
    elif (folder / "config.json").exists() and (folder / LOG).exists():
        yield folder, lambda there: _read_run(Place(str(there), there, "unfinished run"))
    elif depth and place.kind != "exported model":
        with suppress(OSError), os.scandir(folder) as entries:
            below = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            for name in sorted(below):
                yield from _find(folder / name, depth - 1)


def is_held(folder: Path) -> bool:
    """Whether a process holds the lock of a folder, as it does while it trains there.

    Nothing else tells a run at work from one that was killed. The lock is taken as a shared one for a moment,
    and its file is never made.
    """
    try:
        descriptor = os.open(folder / ".lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)  # else a disk without locks
    finally:
        os.close(descriptor)
    return False


def _summarise(
    folder: Path, kind: Literal["run", "series"], run: Run, first: Path, metric: str, minutes: float | None
) -> RunSummary:
    """Begin the summary of a run, or of a series, whose first run tells its model and its curve."""
    data = trained_model.read_record(folder)
    start = None if run.model else read(records.StartRecord, first / records.START_FILE)
    name = str(without_places(run.data)) if data is None else data.name
    model = full_name(run, 1) if run.model else getattr(start, "model", "")
    logged = (line for line in records.read_log(first / LOG).lines if line["kind"] == "validation")
    validated = [line for line in logged if line["step"] > 0]  # others are damage
    curve = [(line["step"], line[metric]) for line in validated if isinstance(line.get(metric), int | float)]
    is_fraction = find_task(run.task).learning.curve.is_fraction
    row = RunSummary(str(folder), kind, name, model, metric, "ended", is_fraction=is_fraction)
    return replace(row, minutes=minutes, run=run, curve=curve)


def _read_run(place: Place) -> RunSummary:
    """Read the records of a run.

    Raises:
        VitkitError: one of them is damaged.
    """
    run, folder = place.run(), place.path
    data, logged = trained_model.read_record(folder), records.read_log(folder / LOG).lines
    images = 0 if data is None else data.images.get("train", 0)
    made = int(logged[-1]["step"]) if logged else 0
    metric = find_task(run.task).learning.monitor.metric
    row = _summarise(folder, "run", run, folder, metric, _minutes(folder))
    # A head in closed form has no steps, and its report is removed when images are added to it.
    is_ridge = run.start.head == "ridge"
    if place.kind == "run" and (is_ridge or (folder / "report.html").is_file()):
        row = replace(row, progress=pluralize(made, "step") if made else "")
        scores = [series_record.read_score(folder, split, run) for split in ("test", "val")]
        score = scores[0] or scores[1]
        if score is None:
            return row
        return replace(row, score=score.value, interval=score.interval, split=score.split)
    of = f" of {run.training.total_steps(images):,}" if images else ""
    if is_held(folder):
        return replace(row, state="running", progress=f"step {made:,}{of}")
    ended = read_ended(folder)
    committed = (step_of(path) for path in newest_first(folder / FOLDER) if commit_size(path))
    step = next(committed, 0 if ended is None else ended.step)
    has_diverged = read(records.Divergence, folder / records.DIVERGED) is not None
    return replace(row, state="diverged" if has_diverged else "interrupted", progress=f"step {step:,}{of}")


def _minutes(folder: Path) -> float | None:
    """Add up the minutes of a run's steps, over all times that it was begun or continued.

    The seconds of the speed log begin again at 0 each time.
    """
    lines = records.read_log(folder / "speed.jsonl").lines
    seconds = [line["seconds"] for line in lines if line["seconds"] >= 0]
    # The -1 ends the last time.
    ends = [before for before, after in pairwise([*seconds, -1.0]) if after < before]
    return float(sum(ends) / 60) if seconds else None


def _read_series(folder: Path, held: bool) -> RunSummary:
    """Read the records of a series of runs.

    Raises:
        VitkitError: one of them is damaged.
    """
    series = series_record.read_series(folder)
    members, spread = series.all_members, series.spread
    done = sum(member.ended for member in members)
    first, minutes = folder / series.members[0].folder, (_minutes(folder / each.folder) for each in members)
    spent = [value for value in minutes if value is not None]
    row = _summarise(folder, "series", series.run, first, series.metric, sum(spent) if spent else None)
    row = replace(row, progress=f"{done} of {pluralize(len(members), 'run')}")
    if not series.ended:
        row = replace(row, state="running" if held else "interrupted")
    elif all(member.diverged for member in series.members):
        return replace(row, state="diverged")
    if spread is None:
        return row
    interval = None if spread.pooled is None else spread.pooled.interval
    if interval is None and spread.runs == 1:
        scores = (member.score for member in series.members)
        interval = next(score.interval for score in scores if score is not None)
    return replace(row, score=spread.mean, interval=interval, split=spread.split)


def _read_study(folder: Path) -> RunSummary:
    """Read the records of a study and of its arms.

    Raises:
        VitkitError: one of them is damaged.
    """
    study, held = studies.read_study(folder), is_held(folder)
    begun = [own for arm in study.arms if ((own := folder / arm.folder) / SERIES).is_file()]
    arms = [_read_series(arm, held) for arm in begun]
    ended = sum(arm.state in ("ended", "diverged") for arm in arms)
    spent = [arm.minutes for arm in arms if arm.minutes is not None]
    # A comparison of models, or of pictures, trains no arm.
    over = ended == len(study.arms) if study.arms else (folder / "report.html").is_file()
    scores = [arm.score for arm in arms if arm.score is not None] if study.kind == "vtab" else []
    data = str(without_places(study.arms[0].run.data)) if study.arms else ""
    return RunSummary(
        str(folder),
        "study",
        arms[0].data if arms else data,
        study.kind,
        arms[0].metric if arms else "",
        "running" if held else "ended" if over else "interrupted",
        f"{ended} of {pluralize(len(study.arms), 'arm')}" if study.arms else "",
        fmean(scores) if scores else None,
        split="test" if scores else "",
        minutes=sum(spent) if spent else None,
    )

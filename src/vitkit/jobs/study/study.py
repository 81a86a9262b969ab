"""Train the arms of a study, each a series of runs in the study's folder, and compare them with the first.

STUDY/study.json   the arms and the options, written before the first arm begins: another call must give the
                   same ones
STUDY/ARM/         the series of runs of each arm (`runs/series_record.py`), which alone records results

A study lists its arms, holds its folder with `Study.claim` while it works, and completes the arms there. The
folder may be moved: where an arm begins from another arm, the path of its start is not compared.
"""

import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from vitkit._version import __version__
from vitkit.config import difference, from_json, read, to_json, write
from vitkit.data.sources import ImageData
from vitkit.durable import is_file_name, refuse_links, remove_leftovers
from vitkit.errors import NonFiniteError, VitkitError
from vitkit.evaluation import statistics
from vitkit.jobs.options import StudyOptions
from vitkit.jobs.train import check_series, train_series
from vitkit.listener import Listener, Progress
from vitkit.report.template import write_page
from vitkit.result import Block, Plot, Result, Section, Table, table_of
from vitkit.runs import folder as folders
from vitkit.runs import machine, processes, start
from vitkit.runs.budget import Pace, measure_pace
from vitkit.runs.config import Run, StartConfig, changed_options, name_options, shown_command
from vitkit.runs.plan import Opened, begun_run, list_images, plan_run, with_absolute_paths
from vitkit.runs.run_options import SeriesOptions
from vitkit.runs.series_record import Series, read_series
from vitkit.tasks import find_task
from vitkit.tasks.page import describe_images, figures, points, shown_p, shown_score
from vitkit.text import format_duration, join_names, pluralize
from vitkit.world import ALONE

RECORD = "study.json"
FINISHING = 4.0
"""Seconds of a run for listing images, checkpoints and the report: two to four were measured for small models
on two cores."""
FREE = (
    r"splits\.|architecture\.dropout:|optimizer\.(?!optimizer:|freeze)|"
    r"training\.(epochs|steps|select|evaluate_every|checkpoint_every|seed):"
)
"""The options that cost no time, as a pattern of lines of `vitkit.config.difference`."""
T = TypeVar("T")


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


def arm_series(seeds: int = 1, rates: Sequence[float] = (), sweep_data: str = "") -> SeriesOptions:
    """Make the runs of an arm; a refusal names the options of studies."""
    try:
        return SeriesOptions(runs=seeds, sweep_rates=tuple(map(float, rates)), sweep_data=sweep_data)
    except VitkitError as error:
        raise VitkitError(_with_own_option(str(error))) from None


def read_rates(rates: Sequence[float] | None, default: Sequence[float]) -> tuple[float, ...]:
    """Return the learning rates that are given; the default ones where they are left out.

    Raises:
        VitkitError: the list is empty, or they are not different numbers above 0.
    """
    if rates is not None and len(rates) == 0:
        raise VitkitError("rates are numbers above 0, found none.")
    return arm_series(rates=default if rates is None else rates).sweep_rates


@dataclass(frozen=True, repr=False)
class StudyResult(Result):
    """The result of a study of any kind."""

    folder: Path
    """Holds its runs, its numbers and its page."""
    best: str = field(default="", kw_only=True)
    """The folder within it that predicts best; "" where none does."""

    def blocks(self) -> Sequence[Block]:
        """Return a blank line, because facts are shown as the study works, and what any result shows."""
        return "", *super().blocks()

    @property
    def page(self) -> Path:
        """Return the path of the page."""
        return self.folder / "report.html"

    def following(self) -> Sequence[str]:
        """Name the page, and the command that predicts."""
        model = shlex.quote(str(self.folder / self.best))
        predict = [f"vitkit predict {model} IMAGE_OR_FOLDER"] if self.best else []
        return [f"open {shlex.quote(str(self.page))} in a browser", *predict]

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain data, with the sentences about them."""
        return {**super().to_json(), "conclusions": list(self.headline())}


def publish(result: StudyResult, folders: Iterable[str], options: StudyOptions) -> None:
    """Write the page of a study, which links those in the folders of its arms: of a series, then its runs."""
    patterns = ("report.html", "*/report.html")  # one that diverged has none
    of_arms = ((result.folder / arm).glob(pattern) for arm in folders for pattern in patterns)
    pages = [page.parent.relative_to(result.folder).as_posix() for each in of_arms for page in sorted(each)]
    write_page(result, result.page, folders=pages, command=shown_command(options.command))


@dataclass(frozen=True)
class Study:
    """The contents of `study.json`."""

    vitkit_version: str
    kind: str
    """"ablation", "scale" and so on."""
    command: str
    options: Mapping[str, Any]
    """The options of the study as plain data, without the options that the runs of the arms record. "hashes"
    holds hashes of its files, each by the name that an error says: "images"."""
    arms: tuple[Arm, ...]
    """The arms that are trained, to which another call may add some."""

    @property
    def owner(self) -> folders.Owner:
        """Return the owner of its folder."""
        return folders.Owner("study", RECORD, lambda folder: _changes(folder, self))

    @contextmanager
    def claim(self, out: Path | None, numbered: folders.Numbered = lambda: iter(())) -> Iterator[Path]:
        """Hold the folder of the study for this process, and write its record where it begins.

        Raises:
            VitkitError: the folder holds something else, or a study with other options, which are named; or
                another process is at work in it.
        """
        folders.require_folder(out)
        with folders.claim(self.owner, out, numbered) as folder:
            remove_leftovers(folder)
            if not (folder / RECORD).exists() or len(read_study(folder).arms) < len(self.arms):
                write(folder / RECORD, self)
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


@dataclass(frozen=True, repr=False)
class StudyPlan(Result):
    """The runs of a study that has not begun, and the time that they take on this machine."""

    arms: tuple[Planned, ...]
    remarks: tuple[str, ...] = ()
    """Sentences on what the study could find."""

    def headline(self) -> list[str]:
        """Say how many runs there are, how long they take, and what they could find."""
        runs, seconds = sum(arm.runs for arm in self.arms), sum(arm.seconds for arm in self.arms)
        planned = (
            f"{pluralize(len(self.arms), 'arm')}, {pluralize(runs, 'run')}, about {format_duration(seconds)} "
            "on this machine, as measured now."
        )
        return [*([planned] if self.arms else []), *self.remarks]

    def sections(self) -> Sequence[Section]:
        """Return a table with a row for each arm."""
        columns: dict[str, Callable[[Planned], str]] = {
            "arm": lambda arm: arm.name,
            "": lambda arm: arm.label,
            "rates tried": lambda arm: ", ".join(f"{rate:g}" for rate in arm.rates) or "its own",
            "runs": lambda arm: str(arm.runs),
            "steps": lambda arm: f"{arm.steps:,}",
            "time": lambda arm: format_duration(arm.seconds),
        }
        table = replace(table_of(self.arms, columns), left=(0, 1)) if self.arms else None
        return (Section("Arms", (table,)),)

    def following(self) -> Sequence[str]:
        """Name the command that begins."""
        return ("the same command without --plan trains them",)

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        return {**super().to_json(), "seconds": sum(arm.seconds for arm in self.arms)}


def plan_arms(
    arms: Sequence[Arm],
    options: StudyOptions,
    opened: Opened,
    *remarks: str,
    paces: Mapping[str, Pace] | None = None,
    folder: Path | None = None,
) -> StudyPlan:
    """Check the arms of a study that has not begun, and time their runs; nothing is written.

    Args:
        arms, options, opened: as for `check_arms`.
        remarks: sentences of the plan.
        paces: by the folders of arms, where they are measured already.
        folder: of the study, where arms begin from others in it: their start is not there yet.

    Raises:
        VitkitError: an arm cannot be trained.
    """
    ready = [arm for arm in arms if folder is None or not begins_within(arm.run, folder)]
    check_arms(ready, options, opened)
    paces = paces or measure_paces({arm.folder: arm.run for arm in arms}, options, opened)
    planned = []
    for arm in arms:
        data = list_images(arm.run, opened)
        opened = Opened(arm.run, data)  # arms that train on the same images list them once
        steps = arm.run.training.total_steps(len(data.splits["train"]))
        runs, seconds = arm.series.num_runs, run_seconds(arm.run, paces[arm.folder], data)
        planned.append(Planned(arm.folder, arm.label, arm.series.sweep_rates, runs, steps, runs * seconds))
    return StudyPlan(tuple(planned), remarks)


def run_seconds(run: Run, pace: Pace, data: ImageData) -> float:
    """Estimate the seconds of a run: its steps, validations and test, and `FINISHING`."""
    training, count = run.training, len(data.splits["train"])
    validated, tested = (len(data.splits.get(split, ())) for split in ("val", "test"))
    # Without validation images a test is assumed to take as long as training on as many images.
    test = pace.validation * tested / validated if validated else pace.step * tested / training.batch_size
    steps = training.total_steps(count)
    validations = math.ceil(steps / training.evaluation_interval(count))
    return steps * pace.step + validations * pace.validation + test + FINISHING


def describe_detectable(seeds: int, images: int, split: str) -> str:
    """Say what difference a comparison could find, before there are scores."""
    least = 100 * statistics.expected_detectable(seeds, images)
    return (
        f"With {pluralize(seeds, 'seed')} on {describe_images(images, split)}, a difference of {least:.1f} "
        "points or more is found in 8 of 10 studies, if runs are right on 90 % of the images, each "
        "independently of the others (an assumption)."
    )


def measure_paces(runs: Mapping[str, Run], options: StudyOptions, opened: Opened) -> dict[str, Pace]:
    """Time steps and validations of runs, by the names of their arms; of runs that train alike the first.

    Args:
        runs: of the arms, with images and start of their own or those that were opened.
        options: of the study.
        opened: images that were listed already.
    """
    processes.divide_threads(ALONE, options.threads)  # as in training: the speed depends on them
    timed: list[tuple[Run, Pace]] = []
    paces = {}
    for name, run in runs.items():
        # A run that begins from another arm of the study is timed with new weights: the other has not ended.
        if run.model and folders.kind_of(run.start.start).kind in ("nothing", "unfinished run", "series"):
            # Frozen weights need a start; without one all weights are trained, which takes a little longer.
            thawed = replace(run.optimizer, freeze="nothing", freeze_layers=0)
            run = replace(run, start=StartConfig(), optimizer=thawed)
        free = FREE if run.task != "classification" else rf"{FREE}|objective\."  # such as label smoothing
        others = ((difference(to_json(run), to_json(other)), pace) for other, pace in timed)
        pace = next((p for lines, p in others if all(re.match(free, line) for line in lines)), None)
        if pace is None:
            plan = plan_run(run, None, device=options.device, opened=opened, listener=options.listener)
            with options.listener.progress(f"measuring the speed of {name}"):
                pace = measure_pace(plan.run, plan.images, plan.config, plan.device, options.listener)
            timed.append((run, pace))
        paces[name] = pace
    return paces


def begins_within(run: Run, folder: Path) -> bool:
    """Whether a run begins from another arm of the study in a folder."""
    return Path(start.absolute_start(run.start.start)).is_relative_to(folder.resolve())


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
                opened = check_series(arm.run, arm.series, options, opened)
            except VitkitError as error:
                error.args = (f"{arm.label}: {_with_own_option(error.args[0])}",)
                raise
            progress(number)


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
    return study


def read_begun(folder: Path, kind: str) -> Study | None:
    """Read the record of a study of a kind; None where it has not begun.

    Raises:
        VitkitError: the folder holds something else, or the record is damaged.
    """
    owner = folders.Owner("study", RECORD, lambda folder: _other_kind(read_study(folder), kind))
    return read_study(folder) if owner.refuse_others(folder) else None


def read_chosen(cls: type[T], folder: Path, kind: str) -> T | None:
    """Read the options that were measured when a study began, so that nothing is measured again.

    Args:
        cls: a dataclass of these options.
        folder, kind: of the study, as for `read_begun`.

    Returns:
        The options; None for a study that has not begun.
    """
    begun = read_begun(folder, kind)
    if begun is None:
        return None
    names = {part.name for part in fields(cls)}  # type: ignore[arg-type]
    chosen = {name: begun.options[name] for name in names & begun.options.keys()}
    return from_json(cls, chosen, str(folder / RECORD))


def _other_kind(study: Study, kind: str) -> list[str]:
    return [] if study.kind == kind else [f"kind of study: {study.kind} -> {kind}"]


def _changes(folder: Path, study: Study) -> list[str]:
    """List the differences between the recorded study in a folder and the study of this call.

    The arms are compared too, though they follow from the options: nothing in a record that somebody gave
    away, or edited, is trusted.
    """
    begun, where = read_study(folder), str(folder / RECORD)
    if other := _other_kind(begun, study.kind):
        return other
    changes = difference(begun.options, to_json(study)["options"])
    # A part of an option, such as vary.pool, is no option itself. A hash tells a reader nothing.
    changes = [each if "." in each.partition(":")[0] else name_options([each])[0] for each in changes]
    changes = [re.sub(r"^hashes\.(.*?): .*", r"other \1", each) for each in changes]
    there, here = ({(arm.folder, arm.label): arm for arm in arms} for arms in (begun.arms, study.arms))
    if not changes and not there.keys() <= here.keys():
        names = [", ".join(folder for folder, _ in arms) for arms in (there, here)]
        changes = [f"arms: {names[0]} -> {names[1]}"]
    for name, old in there.items():
        if name in here:  # other arms differ in what makes them others
            new = here[name]
            moved = begins_within(new.run, folder)
            changes += name_options(changed_options(to_json(old.run), where, new.run, moved=moved))
            series = difference(to_json(old.series), to_json(new.series))
            # The images of a sweep follow from those of the run.
            series = [each for each in series if not each.startswith("sweep_data:")]
            changes += map(_with_own_option, name_options(series))
    return list(dict.fromkeys(changes))  # an option that all arms have differs in each of them


def complete_arms(arms: Sequence[Arm], folder: Path, options: StudyOptions, name: str = "") -> list[Series]:
    """Train every arm of a study until it has ended; an arm that has begun is continued.

    An arm that diverges with every rate or every seed is warned of, and the others are trained.

    Args:
        arms: in the order in which they are trained.
        folder: of the study, held by `Study.claim`.
        options: of the study.
        name: what messages call the arm; left out, "arm 2 of 5".

    Returns:
        The series of each arm.

    Raises:
        VitkitError: as `vitkit.train_series`, with the arm named.
        InterruptedTraining: a signal stopped it; the same call continues.
    """
    completed = []
    for number, arm in enumerate(arms, start=1):
        place = f"{name or f'arm {number} of {len(arms)}'}, {arm.label}"
        try:
            completed.append(complete_arm(arm, folder, place, options))
        except NonFiniteError as error:
            options.listener.warn(str(error))
            completed.append(read_series(folder / arm.folder))
    return completed


def complete_arm(arm: Arm, folder: Path, place: str, options: StudyOptions) -> Series:
    """Train an arm until it has ended, and remove the weights of a sweep; if it has begun, it is continued.

    Args:
        arm: the arm.
        folder: of the study.
        place: its place among the arms, for messages: "arm 2 of 5, position none".
        options: of the study; the listener's messages name the arm.

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
    may_have_moved = begins_within(arm.run, folder) and begun_run(own) is not None
    machine_of_arm = replace(options, listener=_ArmListener(options.listener, arm.label, place))
    try:
        train_series(arm.run, own, arm.series, resume=may_have_moved, **vars(machine_of_arm))
    except machine.InterruptedTraining as stop:
        where = f"in {place}; what is done is kept"
        raise machine.InterruptedTraining(where, "the same command", stop.signal_number) from None
    except VitkitError as error:
        error.args = (f"{arm.label}: {_with_own_option(error.args[0])}",)
        raise
    series = read_series(own)
    for member in series.rates:
        # Only their scores are used again, and the weights of a large study would fill the disk.
        (own / member.folder / "model.safetensors").unlink(missing_ok=True)
    return series


def _with_own_option(sentence: str) -> str:
    """Name the options of rates and seeds as studies do, in a sentence of a series."""
    for of_series, own in (("sweep-rates", "rates"), ("sweep_rates", "rates"), ("--runs", "--seeds")):
        sentence = sentence.replace(of_series, own)
    return re.sub("^runs is", "seeds is", sentence)


class _ArmListener(Listener):
    """Passes on the messages of one arm among many that a person has to see: which of its runs begins, the
    score of each rate and the chosen rate, progress and warnings. Each names the arm."""

    def __init__(self, listener: Listener, name: str, place: str) -> None:
        self.relayed_to, self.name, self.place = listener, name, place

    def note(self, sentence: str) -> None:
        pass

    def warn(self, sentence: str) -> None:
        super().warn(f"{self.name}: {sentence}")

    def show(self, rows: list[tuple[str, list[str]]]) -> None:
        for heading, lines in rows:
            if heading in ("run", "val", "chosen"):
                what = "validation: " if heading == "val" else ""
                super().note(f"{self.place}: {what}{_with_own_option(' '.join(lines))}")

    @contextmanager
    def progress(self, what: str, total: int | None = None, *, unit: str = "") -> Iterator[Progress]:
        with super().progress(f"{self.name}: {what}", total, unit=unit) as progress:
            yield progress


@dataclass(frozen=True)
class ArmResult:
    """The scores of an arm, and its difference from the base."""

    folder: str
    label: str
    learning_rate: float | None
    """The rate of its runs, the best rate of a sweep; None where training diverged with all rates."""
    scores: Mapping[str, float]
    """Mean score of the test images, from 0 to 1, by seed; without the seeds whose training diverged."""
    diverged: tuple[int, ...]
    """The seeds whose training diverged."""
    end_of_sweep: Literal["lowest", "highest"] | None = None
    """Whether the rate is the lowest or highest of its sweep, so that a better rate may lie beyond it."""
    difference: statistics.PairedDifference | None = None
    """The difference from the base, over the seeds that finished in both; None of the base, and without such
    seeds."""
    adjusted_p: float | None = None
    """The p of the difference by Holm, over all arms that are compared."""

    @property
    def mean(self) -> float | None:
        """The mean of the scores; None where there is none."""
        return float(np.mean(list(self.scores.values()))) if self.scores else None


@dataclass(frozen=True)
class TestImages:
    """The images that arms are compared on, and their score."""

    score: str
    """The name of the mean score of the images: accuracy."""
    split: str
    images: int

    def describe(self) -> str:
        """Say how many images of which split: "360 test images"."""
        return describe_images(self.images, self.split)


@dataclass(frozen=True)
class Comparison(TestImages):
    """The arms of a study on the same test images."""

    seeds: tuple[int, ...]
    base: ArmResult
    arms: tuple[ArmResult, ...]
    """The other arms."""


@dataclass(frozen=True)
class ScoredArms(TestImages):
    """The scores of arms on the same test images, image by image."""

    scores: tuple[statistics.Scores, ...]
    """The scores of each arm."""


def read_scores(folder: Path, arms: Sequence[Arm], completed: Sequence[Series]) -> ScoredArms:
    """Read the scores of all arms of a study, which were tested on the same images.

    Args:
        folder: of the study.
        arms: all of them, with one task and the same seeds.
        completed: the series of each.

    Raises:
        VitkitError: an evaluation is damaged, or an arm was tested on other images than another.
    """
    answering = find_task(arms[0].run.task).answering
    assert answering is not None  # studies refuse other tasks before they train
    scored, tested, split = [], None, ""
    for arm, series in zip(arms, completed, strict=True):
        scores: dict[int, NDArray[np.float64]] = {}
        for member in series.members:
            if member.score is None:
                continue
            split = member.score.split
            path = folder / arm.folder / member.folder / "evaluation" / f"{split}.json"
            predictions = answering.read_evaluation(path)[1]
            tested = predictions.ids if tested is None else tested
            if not np.array_equal(predictions.ids, tested):
                raise VitkitError(
                    f"{path}: expected the images that the other arms were tested on, found "
                    "other ones. An option that changes which images can be read cannot "
                    "be compared."
                )
            scores[member.seed] = answering.score_images(predictions)
        scored.append(scores)
    return ScoredArms(answering.image_score, split, 0 if tested is None else len(tested), tuple(scored))


def compare_scored(
    tested: ScoredArms, arms: Sequence[Arm], completed: Sequence[Series], seeds: Sequence[int]
) -> Comparison:
    """Compare arms with the first one by their scores.

    Args:
        tested: the scores of each arm by seed.
        arms: all of them.
        completed: the series of each.
        seeds: of the study; one without a score has diverged.
    """
    results = []
    base_scores, *others = tested.scores
    differences = [None, *(statistics.compare_scores([base_scores], [scores]) for scores in others)]
    for arm, series, scores, against, p in zip(
        arms, completed, tested.scores, differences, statistics.adjust(differences), strict=True
    ):
        lost = tuple(seed for seed in seeds if seed not in scores)
        means = {str(seed): float(rows.mean()) for seed, rows in scores.items()}
        tried = [member.learning_rate for member in series.rates]
        end: Literal["lowest", "highest"] | None = None
        if tried and series.chosen in (tried[0], tried[-1]):
            end = "lowest" if series.chosen == tried[0] else "highest"
        results.append(ArmResult(arm.folder, arm.label, series.chosen, means, lost, end, against, p))
    return Comparison(tested.score, tested.split, tested.images, tuple(seeds), results[0], tuple(results[1:]))


def conclusions(comparison: Comparison) -> list[str]:
    """Write a sentence about each arm, about rates at the end of a sweep, and about seeds and images."""
    if not comparison.images:
        return ["Training diverged in every run: there is nothing to compare. Give lower rates."]
    sentences = [_conclusion(comparison, arm) for arm in comparison.arms]
    for end, beyond in (("lowest", "a lower"), ("highest", "a higher")):
        names = [arm.label for arm in (comparison.base, *comparison.arms) if arm.end_of_sweep == end]
        if names:
            sentences.append(
                f"The {end} learning rate that was tried was the best for {join_names(names)}: {beyond} rate "
                "may be better still (--rates)."
            )
    where = comparison.describe()
    if len(comparison.seeds) == 1:
        sentences.append(
            f"One seed on {where}: this is about these weights only, and says nothing about other trainings. "
            "Give --seeds 3 or more for that."
        )
    else:
        few = len(comparison.seeds) == 2
        sentences.append(
            f"{pluralize(len(comparison.seeds), 'seed')} on {where}, the same in every arm: the intervals "
            "are about other seeds and other images like these."
            + (" Two hardly tell how far seeds differ: --seeds 3 or more give shorter ones." if few else "")
        )
    return sentences


def _conclusion(comparison: Comparison, arm: ArmResult) -> str:
    """Compare an arm with the base in a sentence."""
    base, difference = comparison.base, arm.difference
    if difference is None:
        failed = arm if base.scores else base
        which = f"seed {join_names([str(seed) for seed in failed.diverged])}"
        if len(failed.diverged) == len(comparison.seeds):
            which = "every seed"
        return f"{arm.label}: not compared, because training diverged with {which} of {failed.label}."
    if difference.interval == (0.0, 0.0):
        sentence = f"{arm.label}: the same as {base.label} on every test image"
    else:
        better = "better than" if difference.mean > 0 else "worse than" if difference.mean < 0 else "from"
        low, high = (points(comparison.images, value, signed=True) for value in difference.interval)
        sure = f"95 % interval {low} to {high}, adjusted p {shown_p(arm.adjusted_p)}"
        size = f"{points(comparison.images, abs(difference.mean))} points {better} {base.label} ({sure})"
        least = points(comparison.images, difference.detectable)
        sentence = f"{arm.label}: {size}"
        if arm.adjusted_p is None or arm.adjusted_p >= statistics.SURE:
            sentence = (
                f"{arm.label}: no difference found, {size}; one of {least} points or more would have been "
                "found in 8 of 10 studies of this size"
            )
    if difference.seeds < len(comparison.seeds):
        sentence += f". Only {pluralize(difference.seeds, 'seed')} finished in both"
    return f"{sentence}."


def arm_table(comparison: Comparison) -> Table:
    """Make the table of the arms: mean score, difference with its interval and p, rate, score by seed."""
    rows = []
    for arm in (comparison.base, *comparison.arms):
        compared = ("–",) * 4
        if arm.difference is not None:
            signed = (arm.difference.mean, *arm.difference.interval)
            size, low, high = (points(comparison.images, value, signed=True) for value in signed)
            least = points(comparison.images, arm.difference.detectable)
            compared = (size, f"{low} to {high}", shown_p(arm.adjusted_p), least)
        rate = "–" if arm.learning_rate is None else f"{arm.learning_rate:g}"
        each = [shown_score(comparison.images, arm.scores.get(str(seed))) for seed in comparison.seeds]
        by_seed = dict(zip(comparison.seeds, each, strict=True)) | dict.fromkeys(arm.diverged, "diverged")
        mean = shown_score(comparison.images, arm.mean)
        rows.append((arm.label, mean, *compared, rate, ", ".join(by_seed.values())))
    headings = ("arm", f"mean {comparison.score}", "difference", "95 % interval", "p by Holm", "detectable")
    return Table((*headings, "learning rate", "each seed"), tuple(rows))


def difference_plot(comparison: Comparison) -> Plot | None:
    """Draw the differences from the base with their intervals; None where there are none."""
    drawn = [(arm.label, arm.difference) for arm in comparison.arms if arm.difference is not None]
    return draw_differences(
        [(label, difference.mean, difference.interval) for label, difference in drawn],
        f"{comparison.score} less that of {comparison.base.label}, in points",
        "The differences from the base with their 95 % intervals, as above.",
    )


def draw_differences(
    drawn: Sequence[tuple[str, float, tuple[float, float]]], axis: str, alt: str
) -> Plot | None:
    """Draw differences of fractions, each with its name and its interval; None where there are none."""
    return Plot(lambda: figures().difference_figure(drawn, axis), "differences", alt) if drawn else None

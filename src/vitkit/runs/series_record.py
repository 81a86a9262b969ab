"""Record a series of runs: its options, the score of each member, and the chosen learning rate.

series.json         written before the first member begins, and again after each one ends
data.json, image-files.npy   the images that it began with, as a run writes them down
rate-0.001, ...     the runs of a sweep
final               the run with the best rate; with several seeds or folds seed-0, seed-1, ... or fold-0, ...
ended.json          in a run that has finished: its checkpoints are removed, for nothing continues it
model.safetensors, model.json   the model of the first run after the sweep: the folder of the series predicts
report.html         the table of all members

It stands among the runs and not among the jobs that make series, because whoever opens a path must be able to
say which of a series' runs has weights.
"""

import math
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitkit._version import __version__
from vitkit.config import describe_value, from_json, to_json
from vitkit.durable import read_json, replace_json
from vitkit.errors import NonFiniteError, VitkitError
from vitkit.runs.config import Run
from vitkit.runs.data_record import read_record
from vitkit.runs.folder import SERIES, Place, kind_of
from vitkit.runs.records import read_metrics
from vitkit.runs.series_options import SeriesOptions
from vitkit.shown import Rows, Shown
from vitkit.tasks import find_task
from vitkit.tasks.answering import Pooled
from vitkit.text import join_names, pluralize
from vitkit.training.checkpoint import FOLDER, commit_size, newest_first

RECORD = SERIES


@dataclass(frozen=True)
class Score:
    """The result of a member on one split."""

    split: str
    value: float | None
    """The value of the metric; None where it is not defined, as a mean over no labels is."""
    interval: tuple[float, float] | None
    """95 %, over other images drawn alike."""
    tie: float | None
    """The loss, or another number that decides between equal values."""
    count: int
    """Images that could be read."""


@dataclass(frozen=True)
class Member:
    """A run of a series."""

    folder: str
    """The name of its run folder, within the folder of the series."""
    learning_rate: float
    seed: int
    fold: int | None = None
    score: Score | None = None
    """None before it has finished, where it diverged, and where there are no images to measure on."""
    finished: bool = False
    diverged: str = ""
    """The error that ended it: loss, gradients or weights were not finite."""

    @property
    def ended(self) -> bool:
        """Whether it has finished or diverged."""
        return self.finished or bool(self.diverged)


@dataclass(frozen=True)
class Spread:
    """Mean and spread of a metric over several runs."""

    split: str
    runs: int
    mean: float
    deviation: float | None
    """Standard deviation over the runs, with n - 1 below it; None of a single run."""
    lowest: float
    highest: float
    pooled: Pooled | None = None
    """The right answers of all folds together, where the metric counts right answers."""


@dataclass(frozen=True, repr=False)
class Series(Shown):
    """The contents of `series.json`."""

    vitkit_version: str
    command: str
    run: Run
    """The run that the series was begun with; its members differ from it in rate, splits or seed."""
    options: SeriesOptions
    metric: str
    """The metric that runs are compared by: "accuracy"."""
    rates: tuple[Member, ...]
    """The runs of the sweep, from the lowest rate to the highest."""
    chosen: float | None
    """The learning rate of the members after the sweep; None before the sweep has ended."""
    reasons: tuple[str, ...]
    """Sentences about the choice."""
    members: tuple[Member, ...]
    """The runs after the sweep: one for each seed, or for each fold."""
    validates: bool
    """Whether the runs after the sweep have validation images: only where the data has a validation split."""
    spread: Spread | None = None
    """The spread of the scores of `members`; None before all have ended, and where none has a score."""

    def summary(self) -> str:
        """Give the mean over the runs, or the number of runs that have ended."""
        members = self.all_members
        if self.spread is None:
            return f"{sum(member.ended for member in members)} of {pluralize(len(members), 'run')} ended"
        value, deviation = shown_value(self.run, self.spread.mean), self.spread.deviation
        runs = pluralize(self.spread.runs, "run")
        spread = "" if deviation is None else f", standard deviation {shown_value(self.run, deviation)}"
        return f"{self.metric.replace('_', ' ')} {value} on {self.spread.split} images, {runs}{spread}"

    def in_rows(self) -> tuple[Sequence[str], Rows]:
        """Return a row for each run."""
        headings = ("run", "learning rate", "seed", self.metric, "state")
        return headings, [
            (
                member.folder,
                f"{member.learning_rate:g}",
                str(member.seed),
                _shown_score(self.run, member.score),
                "diverged" if member.diverged else "ended" if member.finished else "",
            )
            for member in self.all_members
        ]

    @property
    def all_members(self) -> tuple[Member, ...]:
        """All runs in the order in which they are trained."""
        return (*self.rates, *self.members)

    @property
    def ended(self) -> bool:
        """Whether every member has ended."""
        return all(member.ended for member in self.all_members)


def read_series(folder: str | Path) -> Series:
    """Read the record of a series of runs, whether or not all of its runs have ended.

    Each field that follows from the run and the options is compared with them, above all the names of
    folders: whoever continues a series from somebody else writes into these folders and removes checkpoints.

    Args:
        folder: the folder of the series.

    Raises:
        VitkitError: it is no series, or its record is damaged or contradicts itself.
    """
    path = Path(folder) / RECORD
    try:
        series = from_json(Series, read_json(path), str(path))
    except FileNotFoundError:
        raise VitkitError(f"{folder} is no series of runs: it has no {RECORD}.") from None
    wrong = _contradiction(series)
    if wrong:
        raise VitkitError(f"{path}: {wrong}. Put the original file back, or begin again with another --out.")
    if series.rates and series.chosen is not None:
        series = replace(series, reasons=choose_rate(series).reasons)
    return replace(series, spread=summarise(series) if series.ended else None)


def _contradiction(series: Series) -> str:
    """Compare a record with the series that its run and options make; returns the first difference, or ""."""
    run, options, members = series.run, series.options, series.members
    rates = [member.learning_rate for member in series.rates]
    metric = find_task(run.task).learning.monitor.metric
    if series.metric != metric:
        return f"metric: expected {metric}, found {describe_value(series.metric)}"
    tried = sorted(options.sweep_rates) if len(options.sweep_rates) > 1 else []
    if (options.sweep_rates and rates != tried) or (rates and not options.sweeps):
        return f"rates: expected {tried or 'none'}, found {describe_value(rates)}"
    if len(rates) == 1 or not all(0 < rate < math.inf for rate in rates) or rates != sorted(set(rates)):
        return f"rates: expected several rising numbers above 0, found {describe_value(rates)}"
    count = options.cross_validate or options.runs
    if len(members) != count:
        return f"members: expected {count}, found {len(members)}"
    rate = run.optimizer.learning_rate
    if series.chosen is not None and rates:
        rate = series.chosen
    elif options.sweeps and not rates:  # a single rate, of the options or of the recipe, needs no sweep
        rate = options.sweep_rates[0] if options.sweep_rates else members[0].learning_rate
    if not 0 <= rate < math.inf or (not rates and series.chosen != rate):
        return f"chosen: expected the learning rate of the members, {rate:g}, found {series.chosen}"
    planned = plan_members(run, options, rates, rate)
    for expected, member in zip((*planned[0], *planned[1]), series.all_members, strict=True):
        if replace(member, score=None, finished=False, diverged="") != expected:
            return (
                f"expected {_outline(expected)}, found {_outline(member)}: names of folders are never paths, "
                "and each run has the options of the series"
            )
        wrong = _wrong_result(series, member)
        if wrong:
            return f"{member.folder}: {wrong}"
    if len({member.score.split for member in members if member.score is not None}) > 1:
        return "members: expected scores on the images of one split, found several"
    if not rates:
        return ""
    if series.chosen is None:
        began = any(member.ended for member in members)
        return "chosen: expected a rate, as runs after the sweep have ended, found none" if began else ""
    if not all(member.ended for member in series.rates):
        return f"chosen: expected none before all rates have ended, found {rate:g}"
    best = choose_rate(series).chosen
    return "" if best == rate else f"chosen: expected the rate that scored best, {best:g}, found {rate:g}"


def _outline(member: Member) -> str:
    fold = "" if member.fold is None else f", fold {member.fold}"
    return f"{describe_value(member.folder)} at rate {member.learning_rate:g}, seed {member.seed}{fold}"


def _wrong_result(series: Series, member: Member) -> str:
    """Explain what is wrong with the score of a member; "" where nothing is."""
    score = member.score
    if member.diverged and member.finished:
        return "expected a run that has finished or diverged, found both"
    if score is None:
        return ""
    if not member.finished:
        return "expected no score before it has finished, found a score"
    if member.fold is not None and score.split != "test":
        return (
            "expected a score on the test images of its fold, found a score on "
            f"{describe_value(score.split)}, whose images chose its weights"
        )
    if score.split not in (("val",) if member in series.rates else ("test", "val")):
        return f"score: expected images that the run is judged by, found {describe_value(score.split)}"
    is_fraction = find_task(series.run.task).learning.curve.is_fraction
    if score.value is not None and is_fraction and not 0 <= score.value <= 1:
        return f"score: expected a value from 0 to 1, found {score.value}"
    if score.value is not None and not math.isfinite(score.value):
        return f"score: expected a finite number, found {score.value}"
    if score.interval is not None and not -math.inf < score.interval[0] <= score.interval[1] < math.inf:
        return f"score: expected an interval, found {score.interval}"
    if not 1 <= score.count <= 2**53:  # above it no float64 counts images
        return f"score: expected a number of images, found {describe_value(score.count)}"
    return ""


def require_weights(place: Place) -> None:
    """Refuse the folder of an export, and of a series that has no model yet; any other path passes.

    Raises:
        VitkitError: it is such a folder. Of a series, the error names the runs that have weights.
    """
    if place.kind == "exported model":
        raise VitkitError(
            f"{place.name} is an exported engine: it predicts and evaluates, and holds no weights for "
            "anything else. Give the checkpoint that it was made from."
        )
    files = [place.path / f"model.{end}" for end in ("safetensors", "json")]
    if place.kind == "series" and not all(file.exists() for file in files):
        raise VitkitError(explain_no_model(place.path, read_series(place.path)))


def explain_no_model(folder: Path, series: Series) -> str:
    """Explain why the folder of a series holds no model, which of its runs to use, and how it continues."""
    names = [member.folder for member in series.all_members if _has_weights(folder / member.folder)]
    again = f"the series goes on with: vitkit train --resume {shlex.quote(str(folder))}"
    if series.options.cross_validate is not None and series.ended:
        why, again = "is a cross-validation, in which each fold has a model of its own", ""
    else:
        why = "is a series of runs that has not finished, so that it has no model of its own yet"
    if not names:
        return f"{folder} {why}, and none of its runs has weights: {again}"
    use = f"{folder} {why}. Name one of its runs, such as {folder / names[-1]}"
    others = f" (others: {join_names(names[:-1])})" if names[1:] else ""
    return f"{use}{others}{'; ' if again else '.'}{again}"


def _has_weights(folder: Path) -> bool:
    """Whether a run has its model, or a checkpoint."""
    kind = kind_of(folder).kind
    return kind == "run" or (
        kind == "unfinished run" and any(map(commit_size, newest_first(folder / FOLDER)))
    )


def write_series(folder: Path, series: Series) -> None:
    """Write the record of a series."""
    replace_json(folder / RECORD, to_json(series))


def with_member(series: Series, member: Member) -> Series:
    """Replace the member with the same folder."""

    def put(members: Sequence[Member]) -> tuple[Member, ...]:
        return tuple(member if other.folder == member.folder else other for other in members)

    return replace(series, rates=put(series.rates), members=put(series.members))


def plan_members(
    run: Run, options: SeriesOptions, rates: Sequence[float], rate: float
) -> tuple[list[Member], list[Member]]:
    """List the runs of a series that has not begun.

    Args:
        run: that the series is begun with.
        options: of the series.
        rates: learning rates of the sweep, rising; none without a sweep.
        rate: learning rate of the runs after the sweep; before it has ended, that of `run`.

    Returns:
        The runs of the sweep, and the runs after it.
    """
    seed = run.training.seed
    if options.cross_validate is not None:
        members = [Member(f"fold-{k}", rate, seed, k) for k in range(options.cross_validate)]
    elif options.runs > 1:
        members = [Member(f"seed-{seed + k}", rate, seed + k) for k in range(options.runs)]
    else:
        members = [Member("final", rate, seed)]
    return [Member(f"rate-{tried:g}", tried, seed) for tried in rates], members


def new_series(
    command: str,
    run: Run,
    options: SeriesOptions,
    rates: Sequence[Member],
    members: Sequence[Member],
    validates: bool,
) -> Series:
    """Make the record of a series that has not begun."""
    metric = find_task(run.task).learning.monitor.metric
    chosen = None if rates else members[0].learning_rate
    return Series(
        __version__, command, run, options, metric, tuple(rates), chosen, (), tuple(members), validates
    )


def read_score(folder: Path, split: str, run: Run) -> Score | None:
    """Read the score of a finished run on a split; None where it was not evaluated on it.

    Raises:
        VitkitError: the evaluation is damaged.
    """
    task = find_task(run.task)
    path = folder / "evaluation" / f"{split}.json"
    if task.answering is None:
        return _last_validation(folder, run, split)
    try:
        result, _ = task.answering.read_evaluation(path)
    except FileNotFoundError:
        return None
    numbers: dict[str, Any] = result.to_json()
    metric, tie = task.learning.monitor.metric, task.learning.monitor.tie_breaker
    interval = numbers.get(f"{metric}_interval")
    return Score(
        split,
        numbers[metric],
        None if interval is None else (interval[0], interval[1]),
        None if tie is None else numbers[tie],
        result.count,
    )


def _last_validation(folder: Path, run: Run, split: str) -> Score | None:
    """Read the score of a task without evaluation: the logged validation of a run's final weights."""
    record, monitor = read_record(folder), find_task(run.task).learning.monitor
    names = (monitor.metric, monitor.tie_breaker or monitor.metric)
    best: tuple[float, float] | None = None
    for line in read_metrics(folder).lines if split == "val" else ():
        numbers = {name: line[name] for name in names if isinstance(line.get(name), float)}
        if line["kind"] != "validation" or not set(names) <= numbers.keys():
            continue
        if run.training.select == "last" or monitor.is_better(numbers, *(best or (None, None))):
            best = (numbers[names[0]], numbers[names[1]])
    if best is None or record is None:
        return None
    tie = None if monitor.tie_breaker is None else best[1]
    return Score(split, best[0], None, tie, record.images.get(split, 0))


def choose_rate(series: Series) -> Series:
    """Choose the best rate of a sweep, by the rule that chooses the best weights of a run.

    Of equal scores the lower loss (the task's tie breaker) wins, and of equal losses the lower rate: the
    order in which rates are given must not decide. Neither the paper nor BiT says which.

    Raises:
        NonFiniteError: training diverged with every rate.
        VitkitError: no rate led to a score.
    """
    monitor = find_task(series.run.task).learning.monitor
    best: Member | None = None
    for member in series.rates:
        score = member.score
        if score is None or score.value is None:
            continue
        numbers = {monitor.metric: score.value}
        if monitor.tie_breaker is not None:
            numbers[monitor.tie_breaker] = math.inf if score.tie is None else score.tie
        before = None if best is None else best.score
        value, tie = (None, None) if before is None else (before.value, before.tie)
        if monitor.is_better(numbers, value, tie):  # a tie is not better: rates rise, and the lower one stays
            best = member
    if best is None and not any(member.diverged for member in series.rates):
        raise VitkitError(
            "The held-out images have no labels to score by: give a higher --splits.val-fraction and another "
            "--out."
        )
    if best is None:
        raise NonFiniteError(
            f"None of the learning rates {_listed(series.rates)} led to a model that can be scored: training "
            "diverged. Give lower ones with --sweep-rates and another --out."
        )
    return replace(
        series,
        chosen=best.learning_rate,
        reasons=tuple(_reasons(series, best)),
        members=tuple(replace(member, learning_rate=best.learning_rate) for member in series.members),
    )


def summarise(series: Series) -> Spread | None:
    """Compute mean and spread of the members' scores, and the pooled score of folds; None without scores."""
    scores = [
        member.score
        for member in series.members
        if member.score is not None and member.score.value is not None
    ]
    values = [score.value for score in scores if score.value is not None]
    if not values:
        return None
    deviation = statistics.stdev(values) if len(values) > 1 else None
    pooled = None
    if series.options.cross_validate is not None:
        parts = [(value, score.count) for value, score in zip(values, scores, strict=True)]
        answering = find_task(series.run.task).answering
        pooled = None if answering is None else answering.pool(parts)
    mean = statistics.fmean(values)
    return Spread(scores[0].split, len(values), mean, deviation, min(values), max(values), pooled)


def _reasons(series: Series, best: Member) -> list[str]:
    """Explain why a rate was chosen, and how sure the choice is."""
    score, rate = best.score, best.learning_rate
    assert score is not None and score.value is not None
    images = pluralize(score.count, "held-out image")
    sentences = [f"Learning rate {rate:g} is the best on {images}: {shown_value(series.run, score.value)}."]
    others = {
        member.learning_rate: member.score.value
        for member in series.rates
        if member is not best and member.score is not None and member.score.value is not None
    }
    tied = [other for other, value in others.items() if value == score.value]
    low = math.inf if score.interval is None else score.interval[0]
    near = [other for other, value in others.items() if value != score.value and value >= low]
    if tied:
        sentences.append(f"{_rates(tied)} scored the same: the lower loss decided, then the lower rate.")
    if near:
        sentences.append(
            f"{_rates(near)} {'is' if len(near) == 1 else 'are'} within its 95 % interval: these images are "
            "too few to be sure which is better."
        )
    tried = [member.learning_rate for member in series.rates]
    for end, extreme, beyond in (("highest", max(tried), "higher"), ("lowest", min(tried), "lower")):
        if len(tried) > 1 and rate == extreme:
            sentences.append(
                f"It is the {end} rate that was tried: a {beyond} rate may be better still (--sweep-rates)."
            )
    diverged = [member.learning_rate for member in series.rates if member.diverged]
    if diverged:
        sentences.append(f"With {_rates(diverged)} training diverged.")
    unscored = [
        member for member in series.rates if member.finished and member.learning_rate not in (rate, *others)
    ]
    if unscored:
        sentences.append(f"{pluralize(len(unscored), 'rate')} led to no score: {_listed(unscored)}.")
    return sentences


def _rates(rates: Sequence[float]) -> str:
    return " and ".join(f"{rate:g}" for rate in rates)


def _listed(members: Sequence[Member]) -> str:
    return ", ".join(f"{member.learning_rate:g}" for member in members)


def shown_value(run: Run, value: float) -> str:
    """Write a value of the metric; a fraction as a percentage."""
    return f"{value:.2%}" if find_task(run.task).learning.curve.is_fraction else f"{value:.4g}"


def _shown_score(run: Run, score: Score | None) -> str:
    return "" if score is None or score.value is None else shown_value(run, score.value)

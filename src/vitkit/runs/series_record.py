"""Read a series of runs: its options, the score of each member, and the chosen learning rate.

series.json         the run and the options, written before the first member begins
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
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from vitkit.config import read
from vitkit.errors import NonFiniteError, VitkitError
from vitkit.result import Plot, Result, Section, Table
from vitkit.runs import config, records, run_options, trained_model
from vitkit.runs.folder import SERIES, Place, kind_of
from vitkit.tasks import find_task
from vitkit.tasks.answering import Pooled
from vitkit.tasks.page import figures
from vitkit.text import join_names, pluralize
from vitkit.training.checkpoint import FOLDER, commit_size, newest_first, read_ended


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

    @property
    def where(self) -> str:
        """Name the split in words."""
        return {"val": "validation"}.get(self.split, self.split)


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

    @property
    def value(self) -> float | None:
        """Return the value of its score; None where there is none."""
        return None if self.score is None else self.score.value


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


@dataclass(frozen=True)
class SeriesRecord:
    """The contents of `series.json`: what the members follow from. Their results are in their folders."""

    vitkit_version: str
    command: str
    run: config.Run
    """The run that the series was begun with; its members differ from it in rate, splits or seed."""
    options: run_options.SeriesOptions
    """The options, with all rates of a sweep."""
    validates: bool
    """Whether the runs after the sweep have validation images: only where the data has a validation split."""


@dataclass(frozen=True, repr=False)
class Series(Result, SeriesRecord):
    """A series of runs and what came out so far."""

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
    spread: Spread | None = None
    """The spread of the scores of `members`; None before all have ended, and where none has a score."""

    folder: Path = Path()
    """Its folder; the working folder before it has one."""

    def heading(self) -> str:
        """Say how many runs of which model there are, and on which data."""
        return f"{pluralize(len(self.all_members), 'run')} of {self.run.model} on {Path(self.run.data).name}"

    def headline(self) -> Sequence[str]:
        """Say what came out."""
        return conclusions(self)

    def sections(self) -> Sequence[Section]:
        """Return the tables of the runs, with the choice of the rate."""
        runs = Section("Trained runs", (run_table(self, of_sweep=False),))
        if not self.rates:
            return (runs,)
        choice = (run_table(self, of_sweep=True), *self.reasons, self._plot())
        return Section("Sweep over learning rates", choice), runs

    def following(self) -> Sequence[str]:
        """Name the page, and the commands that use its runs."""
        first = next((member.folder for member in self.members if member.finished), "")
        of_series = self.options.cross_validate is None
        predicted = shlex.quote(str(self.folder if of_series else self.folder / first))
        remark = f"   (the model of {first})" if of_series else ""
        return (
            f"open {self.folder / 'report.html'} in a browser",
            f"vitkit predict {predicted} IMAGE_OR_FOLDER{remark}",
            f"vitkit inspect {shlex.quote(str(self.folder / first))}",
        )

    def _plot(self) -> Plot | None:
        """Draw the scores against the rates; None where fewer than two have one, or no rate is chosen yet."""
        tried = [
            (member.learning_rate, member.score.value, member.score.interval)
            for member in self.rates
            if member.score is not None and member.score.value is not None
        ]
        if len(tried) < 2 or self.chosen is None:
            return None
        lines = {"tried": tried, "chosen": [point for point in tried if point[0] == self.chosen]}
        up = f"{self.metric.replace('_', ' ')} on held-out images"
        alt = "The score on held-out images against the learning rate, as in the table."
        return Plot(lambda: figures().line_figure({"": lines}, "learning rate", up), "rates", alt)

    @property
    def all_members(self) -> tuple[Member, ...]:
        """All runs in the order in which they are trained."""
        return (*self.rates, *self.members)

    @property
    def scores(self) -> list[Score]:
        """Return the scores of the runs after the sweep."""
        return [member.score for member in self.members if member.score is not None]

    @property
    def ended(self) -> bool:
        """Whether every member has ended."""
        return all(member.ended for member in self.all_members)


def read_series_record(folder: str | Path) -> SeriesRecord:
    """Read `series.json`, the record with which a series began.

    Raises:
        VitkitError: the folder holds no series, or the record is damaged.
    """
    record = read(SeriesRecord, Path(folder) / SERIES)
    if record is None:
        raise VitkitError(f"{folder} is no series of runs: it has no {SERIES}.")
    return record


def read_series(folder: str | Path) -> Series:
    """Read a series of runs and the results of its runs, whether or not all of them have ended.

    Args:
        folder: the folder of the series.

    Raises:
        VitkitError: it is no series, its record is damaged, or a result of one of its runs is.

    Unstable: its parameters and what it returns may change in any release.
    """
    folder, series = Path(folder), plan_series(read_series_record(folder))
    series = replace(series, rates=tuple(_with_result(folder, series, member) for member in series.rates))
    if series.rates and all(member.ended for member in series.rates):
        with suppress(VitkitError):  # no rate led to a score: nothing is chosen
            series = choose_rate(series)
    series = replace(series, members=tuple(_with_result(folder, series, member) for member in series.members))
    return replace(series, folder=folder, spread=summarise(series) if series.ended else None)


def _with_result(folder: Path, series: Series, member: Member) -> Member:
    """Add the end of a member and its score, both read from its folder."""
    own = folder / member.folder
    if read_ended(own) is None:
        divergence = read(records.Divergence, own / records.DIVERGED)
        return member if divergence is None else replace(member, diverged=divergence.reason)
    run, splits = series.run, ("test", "val") if member.fold is None else ("test",)
    if member in series.rates:
        splits = ("val",)
        if not series.validates:
            run = replace(run, training=replace(run.training, select="last"))
    scores = (read_score(own, split, run) for split in splits)
    return replace(member, finished=True, score=next((score for score in scores if score is not None), None))


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
    names = []
    for member in series.all_members:
        kind, committed = kind_of(folder / member.folder).kind, newest_first(folder / member.folder / FOLDER)
        if kind == "run" or (kind == "unfinished run" and any(map(commit_size, committed))):
            names.append(member.folder)
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


def plan_series(record: SeriesRecord) -> Series:
    """List the runs of a series that has not begun.

    Their folders are named here, and not by the record: whoever continues a series from somebody else writes
    into these folders and removes checkpoints.
    """
    run, options = record.run, record.options
    rates, seed, rate = sorted(options.sweep_rates), run.training.seed, run.optimizer.learning_rate
    if len(rates) == 1:  # which needs no sweep
        rate, rates = rates[0], []
    if options.cross_validate is not None:
        members = [Member(f"fold-{k}", rate, seed, k) for k in range(options.cross_validate)]
    elif options.runs > 1:
        members = [Member(f"seed-{seed + k}", rate, seed + k) for k in range(options.runs)]
    else:
        members = [Member("final", rate, seed)]
    return Series(
        **vars(record),
        metric=find_task(run.task).learning.monitor.metric,
        # In six digits, in which no two rates agree (`SeriesOptions`).
        rates=tuple(Member(f"rate-{tried:g}", tried, seed) for tried in rates),
        chosen=None if rates else rate,
        reasons=(),
        members=tuple(members),
    )


def read_score(folder: Path, split: str, run: config.Run) -> Score | None:
    """Read the score of a finished run on a split; None where it was not evaluated on it.

    A task without evaluation has the logged validation of the run's final weights.

    Raises:
        VitkitError: the evaluation is damaged.
    """
    task = find_task(run.task)
    metric, tie = task.learning.monitor.metric, task.learning.monitor.tie_breaker
    if task.answering is not None:
        try:
            result, _ = task.answering.read_evaluation(folder / "evaluation" / f"{split}.json")
        except FileNotFoundError:
            return None
        value, interval = getattr(result, metric), getattr(result, f"{metric}_interval", None)
        return Score(split, value, interval, None if tie is None else getattr(result, tie), result.count)
    record = trained_model.read_record(folder)
    if record is None or split != "val":
        return None
    scores = [
        Score(split, line[metric], None, line.get(tie or ""), record.images.get(split, 0))
        for line in records.read_log(folder / "metrics.jsonl").lines
        if line["kind"] == "validation" and isinstance(line.get(metric), float)
    ]
    if not scores or run.training.select == "last":
        return scores[-1] if scores else None
    return max(scores, key=lambda score: task.learning.monitor.rank(score.value, score.tie))


def choose_rate(series: Series) -> Series:
    """Choose the best rate of a sweep, by the rule that chooses the best weights of a run.

    Of equal scores the lower loss (the task's tie breaker) wins, and of equal losses the lower rate: the
    order in which rates are given must not decide. Neither the paper nor BiT says which.

    Raises:
        NonFiniteError: training diverged with every rate.
        VitkitError: no rate led to a score.
    """
    scores = {member: member.score for member in series.rates if member.score is not None}
    monitor = find_task(series.run.task).learning.monitor
    ranked = [(member, monitor.rank(score.value, score.tie)) for member, score in scores.items()]
    # The first of equal ones: rates rise, and the lowest stays.
    nothing = (series.rates[0], monitor.rank(None, None))
    best, (is_scored, *_) = max(ranked, key=lambda pair: pair[1], default=nothing)
    if not is_scored and not any(member.diverged for member in series.rates):
        raise VitkitError(
            "The held-out images have no labels to score by: give a higher --splits.val-fraction and another "
            "--out."
        )
    if not is_scored:
        raise NonFiniteError(
            f"None of the learning rates {_listed(series.rates, ', ')} led to a model that can be scored: "
            "training diverged. Give lower ones with --sweep-rates and another --out."
        )
    # Sentences on why it was chosen, and how sure the choice is.
    others = [member for member in series.rates if member is not best]
    rate, score = best.learning_rate, scores[best]
    images = pluralize(score.count, "held-out image")
    reasons = [f"Learning rate {rate:g} is the best on {images}: {shown_value(series.run, score.value)}."]
    tied = [member for member in others if member.value == score.value]
    low = math.inf if score.interval is None else score.interval[0]
    near = [member for member in others if member not in tied and (member.value or -math.inf) >= low]
    if tied:
        reasons.append(f"{_listed(tied)} scored the same: the lower loss decided, then the lower rate.")
    if near:
        reasons.append(
            f"{_listed(near)} {'is' if len(near) == 1 else 'are'} within its 95 % interval: these images are "
            "too few to be sure which is better."
        )
    for end, beyond, place in (("highest", "higher", -1), ("lowest", "lower", 0)):
        if others and best is series.rates[place]:  # they rise
            reasons.append(
                f"It is the {end} rate that was tried: a {beyond} rate may be better still (--sweep-rates)."
            )
    if diverged := [member for member in others if member.diverged]:
        reasons.append(f"With {_listed(diverged)} training diverged.")
    if unscored := [member for member in others if member.finished and member.value is None]:
        reasons.append(f"{pluralize(len(unscored), 'rate')} led to no score: {_listed(unscored, ', ')}.")
    members = tuple(replace(member, learning_rate=rate) for member in series.members)
    return replace(series, chosen=rate, reasons=tuple(reasons), members=members)


def summarise(series: Series) -> Spread | None:
    """Compute mean and spread of the members' scores, and the pooled score of folds; None without scores."""
    scored = [(score.value, score) for score in series.scores if score.value is not None]
    if not scored:
        return None
    values = [value for value, _ in scored]
    answering, pooled = find_task(series.run.task).answering, None
    if series.options.cross_validate is not None and answering is not None:
        pooled = answering.pool([(value, score.count) for value, score in scored])
    deviation = statistics.stdev(values) if len(values) > 1 else None
    mean, extremes = statistics.fmean(values), (min(values), max(values))
    return Spread(scored[0][1].split, len(values), mean, deviation, *extremes, pooled)


def _listed(members: Sequence[Member], between: str = " and ") -> str:
    return between.join(f"{member.learning_rate:g}" for member in members)


def shown_value(run: config.Run, value: float | None) -> str:
    """Write a value of the metric; a fraction as a percentage."""
    if value is None:
        return "–"
    return f"{value:.2%}" if find_task(run.task).learning.curve.is_fraction else f"{value:.4g}"


def run_table(series: Series, of_sweep: bool) -> Table:
    """Make the table of the runs of the sweep, or of those after it, one for each seed or fold.

    The loss beside a score decides ties.
    """
    heading, where = "learning rate", " on held-out images"
    if not of_sweep:
        heading = "seed" if series.options.cross_validate is None else "fold"
        where = f" on {series.scores[0].where} images" if series.scores else ""
    rows = []
    for member in series.rates if of_sweep else series.members:
        score = member.score or Score("", None, None, None, 0)
        remark = "chosen" if of_sweep and member.learning_rate == series.chosen else ""
        if not member.finished:
            remark = "diverged" if member.diverged else "not trained yet"
        number = f"{member.seed if member.fold is None else member.fold}"
        name = f"{member.learning_rate:g}" if of_sweep else number
        interval = "–" if score.interval is None else _interval(score.interval)
        loss = "–" if score.tie is None else f"{score.tie:.4f}"
        rows.append((name, shown_value(series.run, score.value), interval, loss, remark))
    metric = f"{series.metric.replace('_', ' ')}{where}"
    return Table((heading, metric, "95 % interval", "loss", "remark"), tuple(rows), left=(0, -1))


def conclusions(series: Series) -> list[str]:
    """Write the result of a series in sentences."""
    sentences, spread, scores = list[str](), series.spread, series.scores
    if series.options.sweeps and series.chosen is not None:
        sentences.append(f"The learning rate is {series.chosen:g}.")
    if not series.ended:
        return [*sentences, "Not all runs have ended yet: vitkit train --resume continues the series."]
    metric, where = series.metric.replace("_", " "), scores[0].where if scores else ""
    total, diverged = len(series.members), sum(bool(member.diverged) for member in series.members)
    lost = [f"Training diverged in {diverged} of {total} runs"] if diverged else []
    if spread is None and scores:
        sentences.append(f"{metric.capitalize()} is not defined on the {where} images: they have no labels.")
    elif spread is None:
        sentences += [f"{sentence}." for sentence in lost]
        if diverged < total:
            sentences.append("There are no test images, so the final model is not evaluated.")
    elif spread.deviation is None:  # there is a single score
        (score,) = (score for score in scores if score.value is not None)
        interval = "" if score.interval is None else f" (95 % interval {_interval(score.interval)})"
        value = shown_value(series.run, spread.mean)
        sentences.append(f"{value} {metric} on {score.count:,} {where} images{interval}.")
    else:
        numbers = (spread.mean, spread.deviation, spread.lowest, spread.highest)
        mean, deviation, lowest, highest = (shown_value(series.run, number) for number in numbers)
        noun = "folds" if series.options.cross_validate is not None else "seeds"
        sentences.append(
            f"{mean} {metric} on {where} images, the mean of {spread.runs} {noun}; standard deviation "
            f"{deviation}, from {lowest} to {highest}."
        )
        if spread.pooled is not None:
            right, images = spread.pooled.right, spread.pooled.images
            sentences.append(
                f"Of the {images:,} tested images together {right:,} are right: {right / images:.2%} (95 % "
                f"interval {_interval(spread.pooled.interval)}, over other images like these and not over "
                "other trainings)."
            )
        if noun == "folds":
            images = sum(score.count for score in scores)
            sentences.append(
                f"Each of {images:,} images was tested once, by a run that had not trained on it."
            )
    if spread is not None:
        sentences += [f"{sentence}, which the mean leaves out." for sentence in lost]
    return sentences


def _interval(interval: Sequence[float]) -> str:
    """Write an interval as percentages: only metrics that are fractions have one."""
    return f"{interval[0]:.1%} to {interval[1]:.1%}"

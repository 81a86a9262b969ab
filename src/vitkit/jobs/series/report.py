"""Report a series of runs: in tables, in sentences, and on a page."""

from collections.abc import Sequence
from pathlib import Path

from vitkit.durable import replace_file
from vitkit.listener import SILENT, Listener
from vitkit.result import Plot, Table
from vitkit.runs.config import shown_command
from vitkit.runs.series_record import Member, Series, explain_no_model, shown_value

SPLIT_NAMES = {"val": "validation", "test": "test"}


def write_series_report(folder: Path, series: Series, *, listener: Listener = SILENT) -> Path:
    """Write `report.html` into the folder of a series.

    If the series is unfinished, the listener hears which of its runs to use in place of a final model.

    Returns:
        The page.
    """
    if not series.ended:
        listener.note(explain_no_model(folder, series))
    from vitkit.report.template import Part, render_page

    parts: list[Part] = []
    with listener.progress("writing the report"):
        if series.rates:
            shown = (rate_table(series), *series.reasons, _plot(series))
            parts.append(("Sweep over learning rates", shown))
        parts.append(("Trained runs", (member_table(series),)))
        folders = [
            member.folder
            for member in series.all_members
            if (folder / member.folder / "report.html").exists()
        ]
        command = shown_command(series.command or "vitkit.train_series(...)")
        name = folder.resolve().name
        page = render_page(name, conclusions(series), parts, folders=folders, command=command)
    path = folder / "report.html"
    replace_file(path, [page.encode()])
    return path


def rate_table(series: Series) -> Table:
    """Make the table of a sweep: rate, score with its interval, the loss that decides ties, and a remark."""
    metric = series.metric.replace("_", " ")
    headings = ("learning rate", f"{metric} on held-out images", "95 % interval", "loss", "remark")
    return Table(
        headings, tuple((f"{member.learning_rate:g}", *_cells(series, member)) for member in series.rates)
    )


def member_table(series: Series) -> Table:
    """Make the table of the runs after the sweep, one for each seed or fold."""
    metric = series.metric.replace("_", " ")
    scores = [member.score for member in series.members if member.score is not None]
    where = f" on {SPLIT_NAMES.get(scores[0].split, scores[0].split)} images" if scores else ""
    by_fold = series.options.cross_validate is not None
    headings = ("fold" if by_fold else "seed", f"{metric}{where}", "95 % interval", "loss", "remark")
    rows = tuple(
        (str(member.seed if member.fold is None else member.fold), *_cells(series, member))
        for member in series.members
    )
    return Table(headings, rows)


def conclusions(series: Series) -> list[str]:
    """Write the result of a series in sentences."""
    sentences = []
    if series.options.sweeps and series.chosen is not None:
        sentences.append(f"The learning rate is {series.chosen:g}.")
    if not series.ended:
        return [*sentences, "Not all runs have ended yet: vitkit train --resume continues the series."]
    spread, metric = series.spread, series.metric.replace("_", " ")
    scores = [member.score for member in series.members if member.score is not None]
    if spread is None and scores:
        where = SPLIT_NAMES.get(scores[0].split, scores[0].split)
        undefined = f"{metric.capitalize()} is not defined on the {where} images: they have no labels."
        return [*sentences, undefined]
    diverged = sum(bool(member.diverged) for member in series.members)
    if spread is None:
        if diverged:
            sentences.append(f"Training diverged in {diverged} of {len(series.members)} runs.")
        if diverged < len(series.members):
            sentences.append("There are no test images, so the final model is not evaluated.")
        return sentences
    where = SPLIT_NAMES.get(spread.split, spread.split)
    ended = [score for score in scores if score.value is not None]
    if spread.deviation is None:  # there is a single score
        (score,) = ended
        interval = "" if score.interval is None else f" (95 % interval {_interval(score.interval)})"
        sentences.append(
            f"{shown_value(series.run, spread.mean)} {metric} on {score.count:,} {where} images{interval}."
        )
    else:
        noun = "folds" if series.options.cross_validate is not None else "seeds"
        numbers = (spread.mean, spread.deviation, spread.lowest, spread.highest)
        mean, deviation, lowest, highest = (shown_value(series.run, number) for number in numbers)
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
        if series.options.cross_validate is not None:
            images = sum(score.count for score in scores)
            sentences.append(
                f"Each of {images:,} images was tested once, by a run that had not trained on it."
            )
    if diverged:
        sentences.append(
            f"Training diverged in {diverged} of {len(series.members)} runs, which the mean leaves out."
        )
    return sentences


def _cells(series: Series, member: Member) -> tuple[str, str, str, str]:
    """Write score, interval, loss and remark of a member."""
    score = member.score
    remark = "chosen" if member in series.rates and member.learning_rate == series.chosen else ""
    if member.diverged:
        remark = "diverged"
    elif not member.finished:
        remark = "not trained yet"
    if score is None:
        return "–", "–", "–", remark
    value = "–" if score.value is None else shown_value(series.run, score.value)
    tie = "–" if score.tie is None else f"{score.tie:.4f}"
    return value, "–" if score.interval is None else _interval(score.interval), tie, remark


def _interval(interval: Sequence[float]) -> str:
    """Write an interval as percentages: only metrics that are fractions have one."""
    return f"{interval[0]:.1%} to {interval[1]:.1%}"


def _plot(series: Series) -> Plot | None:
    """Draw the scores against the rates; None where fewer than two have a score, or no rate is chosen yet."""
    from vitkit.analysis.study_figures import line_figure

    tried = [
        (member.learning_rate, member.score.value, member.score.interval)
        for member in series.rates
        if member.score is not None and member.score.value is not None
    ]
    if len(tried) < 2 or series.chosen is None:
        return None
    lines = {"tried": tried, "chosen": [point for point in tried if point[0] == series.chosen]}
    up = f"{series.metric.replace('_', ' ')} on held-out images"
    figure = line_figure({"": lines}, "learning rate", up)
    return Plot(figure, "rates", "The score on held-out images against the learning rate, as in the table.")

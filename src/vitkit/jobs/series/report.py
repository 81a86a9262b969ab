"""Report a series of runs: in tables, in sentences, and on a page."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.durable import replace_file
from vitkit.listener import SILENT, Listener
from vitkit.result import Plot
from vitkit.runs.config import shown_command
from vitkit.runs.series_record import Series, conclusions, explain_no_model, member_table, rate_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitkit.report.template import Part


def write_series_report(folder: Path, series: Series, *, listener: Listener = SILENT) -> Path:
    """Write `report.html` into the folder of a series.

    If the series is unfinished, the listener hears which of its runs to use in place of a final model.

    Returns:
        The page.
    """
    if not series.ended:
        listener.note(explain_no_model(folder, series))
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
        command = series.command or "vitkit.train_series(...)"
        return write_page(folder, conclusions(series), parts, folders, command)


def write_page(
    folder: Path, answer: Sequence[str], parts: "Sequence[Part]", pages: Sequence[str], command: str
) -> Path:
    """Write `report.html` into the folder of several runs, and return its path.

    Args:
        folder: of the series or the study.
        answer: the sentences at the head of the page.
        parts: in the order of the page.
        pages: the folders of runs within it that have a page.
        command: that made it.
    """
    from vitkit.report.template import render_page

    name, path = folder.resolve().name, folder / "report.html"
    page = render_page(name, answer, parts, folders=pages, command=shown_command(command))
    replace_file(path, [page.encode()])
    return path


def _plot(series: Series) -> Plot | None:
    """Draw the scores against the rates; None where fewer than two have a score, or no rate is chosen yet."""
    tried = [
        (member.learning_rate, member.score.value, member.score.interval)
        for member in series.rates
        if member.score is not None and member.score.value is not None
    ]
    if len(tried) < 2 or series.chosen is None:
        return None
    lines = {"tried": tried, "chosen": [point for point in tried if point[0] == series.chosen]}
    up = f"{series.metric.replace('_', ' ')} on held-out images"

    def draw() -> "Figure":
        from vitkit.analysis.study_figures import line_figure

        return line_figure({"": lines}, "learning rate", up)

    return Plot(draw, "rates", "The score on held-out images against the learning rate, as in the table.")

"""The page of a VTAB-1k result: its table beside the paper's, and what the numbers rest on."""

from vitkit._version import __version__
from vitkit.jobs.vtab.result import PAPER_MODELS, Mean, TaskScore, Vtab, cells, remarks
from vitkit.report.template import render_tables
from vitkit.tasks.page import Number, Section, Table, Text, fraction_cell
from vitkit.text import without_places


def render_vtab(found: Vtab) -> str:
    """Render the page as HTML, to be written as UTF-8."""
    mean = found.mean()
    assert mean is not None  # a result has a task at least
    low, high = mean.interval
    whole = "over the 19 tasks" if not mean.is_partial else f"over {mean.tasks} of 19 tasks (partial)"
    answer = f"Mean accuracy {whole}: {mean.accuracy:.1%} (95 % interval {low:.1%} to {high:.1%})."
    result = Section(
        "result",
        "Result",
        "Accuracy on the test images",
        (
            Text(answer, "answer"),
            *(Text(sentence) for sentence in remarks(found)),
            _table(found),
            Text(
                "The last columns are the paper's Table 9; its means are taken over the same tasks.",
                "caption",
            ),
        ),
    )
    sections = [result]
    if any(score.validation for score in found.tasks):
        sections.append(
            Section("sweep", "Sweep", "Accuracy on 200 validation images by rate", (_sweep(found),))
        )
    start, root = without_places([found.start, found.root])
    footer = f"{start} on {root}, protocol {found.protocol}, vitkit {__version__}"
    return render_tables("VTAB-1k", sections, footer)


def _table(found: Vtab) -> Table:
    headings = ("task", "accuracy", "95 % interval", "test images", "rate", *PAPER_MODELS)
    return Table(headings, tuple(_row(name, score, paper) for _, name, score, paper in found.table()))


def _row(name: str, score: TaskScore | Mean, paper: tuple[float, ...]) -> tuple[str | Number, ...]:
    low, high = score.interval
    images, rate = cells(score)
    return (
        name,
        fraction_cell(score.accuracy),
        Number(f"{low:.1%} to {high:.1%}", low),
        Number(images, float(images or 0)),
        Number(rate, float(rate or 0)),
        *(fraction_cell(share) for share in paper),
    )


def _sweep(found: Vtab) -> Table:
    rates = sorted({rate for score in found.tasks for rate in score.validation}, key=float)
    rows = tuple(
        (score.folder, *(fraction_cell(score.validation.get(rate)) for rate in rates))
        for score in found.tasks
        if score.validation
    )
    return Table(("task", *(f"rate {rate}" for rate in rates)), rows)

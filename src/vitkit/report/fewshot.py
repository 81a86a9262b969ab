"""Render one page about few-shot accuracy: the table, the curves, the classes.

It runs no script.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from vitkit.report.template import drawing, fill


@dataclass(frozen=True)
class FewShotContent:
    """The content of the page, in words."""

    title: str
    answer: str
    protocol: str
    """A sentence on the test images and the accuracy of guessing."""
    remarks: Sequence[str]
    """Warnings where the numbers mean another thing than they seem to."""
    figure: Figure
    alt: str
    """The figure in words."""
    by_images: Figure | None
    """Accuracy against the images of the pre-training; None where they are not known of two checkpoints."""
    by_images_alt: str
    headings: Sequence[str]
    words: int
    """How many of the first columns are words; the others are numbers."""
    rows: Sequence[Sequence[str]]
    names: Sequence[str]
    """Names of the checkpoints, for the table of classes."""
    classes: Sequence[Sequence[str]]
    """A row for each class: its name, and the accuracy of each checkpoint."""
    notes: Sequence[str]
    """About the data."""


def render_fewshot(content: FewShotContent) -> str:
    """Render the page as HTML: a whole document, to be written as UTF-8."""
    plots = [drawing(content.figure, "fewshot", content.alt)]
    if content.by_images is not None:
        plots.append(drawing(content.by_images, "images", content.by_images_alt))
    return fill("fewshot.html.j2", vars(content) | {"plots": plots})

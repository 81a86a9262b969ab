"""The part of the report on hidden patches: how far the loss came, and what is predicted."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.analysis.model_figures import picture_sheet
from vitkit.tasks.masked_images.learning import judge_loss
from vitkit.tasks.page import Number, Pictures, Plot, Section, Table, TaskReport, Text

ROWS = ("image", "seen", "predicted")
"""The names of the rows of pictures."""


def report(examples: NDArray[np.uint8] | None, validations: Sequence[Mapping[str, Any]]) -> TaskReport:
    """Make the task's part of the report; see `vitkit.tasks.learning.ShowsExamples`."""
    measured = [line for line in validations if {"loss", "loss_nothing", "loss_constant"} <= line.keys()]
    answer = [Text("This model was trained to give features: it names no classes.", "answer")]
    if measured:
        last = measured[-1]
        verdict = judge_loss(last)
        answer.append(
            Text(
                f"Its last validation loss is **{last['loss']:.4f}**. Knowing nothing gives "
                f"{last['loss_nothing']:.4f}, and the best prediction that is the same for all patches "
                f"{last['loss_constant']:.4f}" + (f": the model is {verdict}." if verdict else "."),
                "warning" if verdict else "plain",
            )
        )
    answer.append(
        Text("Whether its features are of use, a few labelled images tell: vitkit fewshot, vitkit finetune.")
    )
    pictures = _shown(examples)
    sections = [Section("hidden", "Hidden patches", "What was hidden, and what is predicted", pictures)]
    if measured:
        names = {"loss": "loss", "loss_nothing": "knowing nothing", "loss_constant": "best constant"}
        rows = tuple(
            (
                Number(f"{line['step']:,}", line["step"]),
                *(Number(f"{line[name]:.4f}", line[name]) for name in names),
            )
            for line in measured
        )
        table = Table(("step", *names.values()), rows, sortable=True)
        sections.append(Section("baselines", "Baselines", "The loss beside what needs no model", (table,)))
    return TaskReport(
        answer=tuple(answer),
        facts=(),
        splits=None,
        splits_caption="",
        sections=tuple(sections),
        attention=Pictures((), 0, "", "No evaluation, no images to look at."),
    )


def _shown(examples: NDArray[np.uint8] | None) -> tuple[Plot | Text, ...]:
    """Draw the examples, or say that there are none."""
    if examples is None:
        return (Text("There are no pictures of predictions."),)
    alt = "Images, what the model sees of them, and what it predicts."
    caption = "Grey patches are hidden. Below, only these are predictions; the others are the image's own."
    return Plot(picture_sheet(examples, ROWS), "hidden", alt), Text(caption, "caption")

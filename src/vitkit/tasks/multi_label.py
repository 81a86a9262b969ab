"""Answers of a model of several labels: each a yes or no of its own."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.evaluation.classify import THRESHOLD, MultiLabel, mark_repeated_labels, multi_label, percentage
from vitkit.evaluation.predictions import Predictions, probabilities
from vitkit.result import Plot, Section, Table, Text, table_of
from vitkit.tasks import page
from vitkit.tasks.answering import Guess, LabelAnswering
from vitkit.tasks.page import count_cell, fraction_cell, percent
from vitkit.text import pluralize

ATTENTION_TRIED = 24
"""Images of each label that are tried, as some may not be readable any more."""
LABELS_SHOWN = 6
"""The most labels that a caption names."""


class MultiLabelAnswering(LabelAnswering):
    """Answers with several labels for each image, or none; `LabelAnswering` describes the methods."""

    image_score = "fraction of labels right"
    figure = "average precision"
    numbers = MultiLabel
    measure = staticmethod(multi_label)
    mark_repeats = staticmethod(mark_repeated_labels)
    several_labels = True
    terms = (
        "Mean average precision: of labels that occur. Micro average precision: all pairs of image and label "
        "ranked together. F1: at a probability of 0.5; macro: the mean of the labels', micro: of all pairs "
        "together. All labels right: images with no label too many or too few. Single labels wrong: the "
        "fraction of single answers that are wrong (Hamming loss)."
    )
    mistakes = (
        "on which the model was surest of a wrong answer to one label: the labels of the image → the "
        "predicted labels (+: predicted and not the image's, −: the image's and not predicted), how sure the "
        "model is of its worst answer, the file. Look here first for labels that are missing in the data.",
        "There is none: every label of every image is right.",
    )
    looked_at = (
        "Images of each label in turn, the images first on which the label is most probable.",
        "No image has a label.",
    )

    def right_by_class(self, result: Any, predictions: Predictions) -> dict[str, NDArray[np.bool_]]:
        """Give for each label whether the answer to it is right, on all images."""
        return dict(zip(result.class_names, predictions.right.T, strict=True))

    def measures(self, result: MultiLabel) -> tuple[tuple[str, str], ...]:
        """Name average precisions, F1 and fractions of right answers."""
        figure = percentage(result.mean_average_precision)
        rows = [("mean average precision", f"{figure}{result.interval_clause()}")]
        if result.repeated is not None and result.repeated.count:
            images = pluralize(result.repeated.count, "training image")
            without = percentage(result.repeated.mean_average_precision_without)
            rows.append((f"the same without {images}", without))
        return (
            *rows,
            ("micro average precision", percentage(result.micro_average_precision)),
            ("macro F1", percentage(result.macro_f1)),
            ("micro F1", percentage(result.micro_f1)),
            ("all labels of an image right", percentage(result.subset_accuracy)),
            ("single labels wrong", percentage(result.hamming_loss)),
            ("loss (nats)", f"{result.loss:.4f}"),
            ("labels an image", f"{result.labels_per_image:.2f}"),
            ("labels predicted an image", f"{result.predicted_per_image:.2f}"),
        )

    def named(self, result: Any, predictions: Predictions, row: int) -> tuple[str, str]:
        """Name the labels of the image and the predicted ones, with marks at wrong answers."""
        names, targets, predicted = result.class_names, predictions.labels[row], predictions.logits[row] >= 0
        answers = [
            ("" if predicted[i] == targets[i] else "+" if predicted[i] else "−") + names[i]
            for i in np.flatnonzero(predicted | targets).tolist()
        ]
        return _listed([names[i] for i in np.flatnonzero(targets).tolist()]), _listed(answers)

    def details(self, result: MultiLabel) -> Table:
        """Make the table of every label, the worst first."""
        return label_table(result, worst_first=True)

    def answers(self, outputs: NDArray[np.float32]) -> NDArray[np.int64]:
        """Give 1 for each predicted label, else 0, `(B, K)`."""
        return (probabilities(outputs, "sigmoid") >= THRESHOLD).astype(np.int64)

    def guess_row(self, guesses: Sequence[Guess], top: int) -> dict[str, list[str]]:
        """Write the predicted labels, and the most probable label that is not predicted."""
        shown = [f"{guess.name} {guess.probability:.1%}" for guess in guesses]
        there = sum(guess.probability >= THRESHOLD for guess in guesses)
        heading = f"labels (probability {THRESHOLD:g} or more)"
        return {heading: shown[:there] or ["none"], "next": shown[there : there + 1]}

    def guess_json(self, guesses: Sequence[Guess]) -> dict[str, Any]:
        """List the predicted labels, and the probabilities of all labels."""
        there = [guess.name for guess in guesses if guess.probability >= THRESHOLD]
        return {"labels": there, **super().guess_json(guesses)}

    def choose_for_attention(
        self, predictions: Predictions, mistakes: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Choose images with labels, a label at a time, its most probable images first."""
        surest = [
            rows[np.argsort(-predictions.logits[rows, label], kind="stable")][:ATTENTION_TRIED].tolist()
            for label, rows in enumerate(map(np.flatnonzero, predictions.labels.T))
        ]
        turns = [rows[turn] for turn in range(ATTENTION_TRIED) for rows in surest if turn < len(rows)]
        return np.array(list(dict.fromkeys(turns)), np.int64)  # each image once

    def describe(self, result: MultiLabel, split: str, images: str, mistakes: Section) -> page.TaskReport:
        """Show the average precisions, label by label."""
        chance = [score.count / result.count for score in result.per_label if score.count]
        reason = result.explain_no_interval() or "How much other images would change that is not known"
        interval = f"{reason[0].upper()}{reason[1:]}."
        if result.mean_average_precision_interval is not None:
            interval = page.expectation(result.mean_average_precision_interval)
        answer = (
            f"The mean average precision of {result.labels_that_occur} labels is "
            f"**{percent(result.mean_average_precision)}** on {images}. {interval} Ranking by chance would "
            f"give {percent(float(np.mean(chance)) if chance else None)}. All labels of an image are right "
            f"for **{percent(result.subset_accuracy)}** of the images."
        )
        repeated, without = result.repeated, ""
        if repeated is not None:
            precision = percent(repeated.mean_average_precision_without)
            of_labels = f"of {repeated.labels_that_occur} labels."
            without = f"**without them the mean average precision is {precision}**, {of_labels}"
        return page.TaskReport(
            answer=page.answer_texts(answer, result, "", without, split, images),
            sections=(_labels(result, images), mistakes),
        )


def label_table(result: MultiLabel, worst_first: bool = False) -> Table:
    """Make the table of all labels, in their own order or by average precision; undefined ones come last."""
    scores = list(result.per_label)
    if worst_first:
        scores.sort(key=lambda score: 2.0 if score.average_precision is None else score.average_precision)
    return table_of(
        scores,
        {
            "label": lambda score: score.name,
            "AP": lambda score: fraction_cell(score.average_precision),
            "95% interval": lambda score: page.interval_cell(score.average_precision_interval),
            "precision": lambda score: fraction_cell(score.precision),
            "recall": lambda score: fraction_cell(score.recall),
            "F1": lambda score: fraction_cell(score.f1),
            "best F1": lambda score: fraction_cell(score.best_f1),
            "at": lambda score: fraction_cell(score.best_threshold),
            "images": lambda score: count_cell(score.count),
            "predicted": lambda score: count_cell(score.predicted),
        },
        sortable=True,
    )


def _labels(result: MultiLabel, images: str) -> Section:
    blocks = (
        Plot(
            lambda: page.figures().label_precision(result.per_label, result.count, images),
            "labels",
            f"Average precision by label on {images}.",
        ),
        Text(
            "Average precision of the labels, the worst first: the area under the steps of precision over "
            "recall, 100% if every image with the label is ranked before all others. The line is the 95% "
            "interval, which allows for the average precision of few images being too high; a label on "
            "fewer than three images has none. The dot is the average precision of a random ranking.",
            "caption",
        ),
        label_table(result),
        Text(
            "Predicted: images on which the label has a probability of 0.5 or more. Precision: the fraction "
            "of them that have it. Recall: the fraction of the images with the label on which it is "
            "predicted. F1: their harmonic mean. Best F1: the largest that another threshold would reach, "
            "and the threshold; chosen on these very images, so that on others it is lower. A dash: there "
            "is nothing to divide by. Click a heading to sort.",
            "caption",
        ),
    )
    return Section("Label by label", blocks, name="labels", menu="Labels")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - LABELS_SHOWN} more" if len(names) > LABELS_SHOWN else ""
    return (", ".join(names[:LABELS_SHOWN]) or "no label") + more

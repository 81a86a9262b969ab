"""Make the report's part on several labels for each image: average precisions, and the surest mistakes."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vitkit.analysis import figures
from vitkit.evaluation.multilabel import MultiLabel
from vitkit.evaluation.predictions import LabelPredictions
from vitkit.evaluation.scores import probabilities
from vitkit.result import Cell, Number, Plot, Table, Text, table_of
from vitkit.tasks import page

ATTENTION_TRIED = 24
"""Images of each label that are tried, as some may not be readable any more."""
LABELS_SHOWN = 6
"""The most labels that a caption names."""

LABELS = page.Section("labels", "Labels", "Label by label", ("No evaluation, no scores.",))
SPLIT_COLUMNS: Mapping[str, Callable[[MultiLabel], Cell]] = {
    "mAP": lambda result: page.fraction_cell(result.mean_average_precision),
    "95% interval": lambda result: page.interval_cell(result.mean_average_precision_interval),
    "labels": lambda result: page.count_cell(result.labels_that_occur),
    "micro AP": lambda result: page.fraction_cell(result.micro_average_precision),
    "macro F1": lambda result: page.fraction_cell(result.macro_f1),
    "micro F1": lambda result: page.fraction_cell(result.micro_f1),
    "all right": lambda result: page.fraction_cell(result.subset_accuracy),
    "wrong labels": lambda result: page.fraction_cell(result.hamming_loss),
}


def report(
    evaluations: Mapping[str, tuple[MultiLabel, LabelPredictions]], split: str | None
) -> page.TaskReport:
    """Make the task's part of the report; see `vitkit.tasks.answering.Answering.report`."""
    if split is None:
        return page.without_evaluation("average precision", (LABELS, page.MISTAKES))
    result, predictions = evaluations[split]
    images = page.describe_images(result.count, split)
    return page.TaskReport(
        answer=_answer(result, split, images),
        facts=(
            (page.percent(result.mean_average_precision), "mean average precision"),
            (page.percent(result.macro_f1), "macro F1 at 0.5"),
            (f"{result.labels_per_image:.2f}", "labels an image"),
            (f"{result.predicted_per_image:.2f}", "predicted an image"),
        ),
        splits=page.split_table(evaluations, SPLIT_COLUMNS),
        splits_caption=(
            f"Loss: the mean over the images of the {figures.LOSS_LABELS['sigmoid']}. mAP: the mean of the "
            "labels' average precisions, of labels that occur. Micro AP: all pairs of image and label "
            "ranked together. F1: at a probability of 0.5; macro: the mean of the labels', micro: of all "
            "pairs together. All right: images with no label too many or too few. Wrong labels: the "
            "fraction of single answers that are wrong (Hamming loss)."
        ),
        sections=(_labels(result, images), _mistakes(result, predictions, images)),
        attention=_attention(result, predictions),
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
            "images": lambda score: page.count_cell(score.count),
            "AP": lambda score: page.fraction_cell(score.average_precision),
            "95% interval": lambda score: page.interval_cell(score.average_precision_interval),
            "predicted": lambda score: page.count_cell(score.predicted),
            "precision": lambda score: page.fraction_cell(score.precision),
            "recall": lambda score: page.fraction_cell(score.recall),
            "F1": lambda score: page.fraction_cell(score.f1),
            "best F1": lambda score: page.fraction_cell(score.best_f1),
            "at": lambda score: _threshold(score.best_threshold),
        },
        sortable=True,
    )


def _threshold(probability: float | None) -> Number:
    return Number("–", -1.0) if probability is None else Number(f"{probability:.3f}", probability)


def _answer(result: MultiLabel, split: str, images: str) -> tuple[Text, ...]:
    chance = [score.count / result.count for score in result.per_label if score.count]
    reason = result.explain_no_interval() or "How much other images would change that is not known"
    interval = f"{reason[0].upper()}{reason[1:]}."
    if result.mean_average_precision_interval is not None:
        interval = page.expectation(result.mean_average_precision_interval)
    answer = (
        f"The mean average precision of {result.labels_that_occur} labels is "
        f"**{page.percent(result.mean_average_precision)}** on {images}. {interval} Ranking by chance would "
        f"give {page.percent(float(np.mean(chance)) if chance else None)}. All labels of an image are right "
        f"for **{page.percent(result.subset_accuracy)}** of the images."
    )
    repeated, without = result.repeated, ""
    if repeated is not None:
        precision = page.percent(repeated.mean_average_precision_without)
        of_labels = f"of {repeated.labels_that_occur} labels."
        without = f"**without them the mean average precision is {precision}**, {of_labels}"
    return page.answer_texts(answer, result, "", without, split, images)


def _labels(result: MultiLabel, images: str) -> page.Section:
    return LABELS.showing(
        Plot(
            partial(figures.label_precision, result.per_label, result.count, images),
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


def _mistakes(result: MultiLabel, predictions: LabelPredictions, images: str) -> page.Section:
    probability = probabilities(predictions.logits, "sigmoid")
    is_wrong = ~predictions.right
    # Of the worst mistake in each image; 0 where all answers are right.
    sure = np.where(is_wrong, np.maximum(probability, 1 - probability), 0.0).max(1)
    wrong = np.flatnonzero(sure > 0)
    ordered = wrong[np.argsort(-sure[wrong], kind="stable")]
    shown = [shown_image(result, predictions, probability, row, float(sure[row])) for row in ordered.tolist()]
    pictures = page.Pictures(
        shown,
        page.MISTAKES_SHOWN,
        caption=(
            f"The {{count}} of {images} on which the model was surest of a wrong answer to one label: the "
            "labels of the image → the predicted labels (+: predicted and not the image's, −: the image's "
            "and not predicted), how sure the model is of its worst answer, the file. Look here first for "
            "labels that are missing in the data."
        ),
        none="There is none: every label of every image is right.",
    )
    return page.MISTAKES.showing(pictures)


def _attention(result: MultiLabel, predictions: LabelPredictions) -> page.Pictures:
    """Choose images with labels, a label at a time, its most probable images first."""
    probability = probabilities(predictions.logits, "sigmoid")
    surest = [
        rows[np.argsort(-probability[rows, label], kind="stable")][:ATTENTION_TRIED].tolist()
        for label, rows in enumerate(map(np.flatnonzero, predictions.labels.T))
    ]
    turns = [rows[turn] for turn in range(ATTENTION_TRIED) for rows in surest if turn < len(rows)]
    chosen = list(dict.fromkeys(turns))  # each image once
    confidence = np.maximum(probability, 1 - probability).min(1)
    return page.Pictures(
        [shown_image(result, predictions, probability, row, float(confidence[row])) for row in chosen],
        page.ATTENTION_SHOWN,
        caption="Images of each label in turn, the images first on which the label is most probable.",
        none="No image has a label.",
    )


def shown_image(
    result: MultiLabel,
    predictions: LabelPredictions,
    probability: NDArray[np.float64],
    row: int,
    confidence: float,
) -> page.ShownImage:
    """Name the labels of an image and the predicted ones, with marks at wrong answers."""
    names, targets = result.class_names, predictions.labels[row]
    predicted = probability[row] >= 0.5
    answers = [
        ("" if predicted[i] == targets[i] else "+" if predicted[i] else "−") + names[i]
        for i in np.flatnonzero(predicted | targets).tolist()
    ]
    return page.ShownImage(
        index=int(predictions.ids[row]),
        true=_listed([names[i] for i in np.flatnonzero(targets).tolist()]),
        predicted=_listed(answers),
        confidence=confidence,
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - LABELS_SHOWN} more" if len(names) > LABELS_SHOWN else ""
    return (", ".join(names[:LABELS_SHOWN]) or "no label") + more

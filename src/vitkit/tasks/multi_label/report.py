"""The part of the report on multi-label classification: how well labels are found, and where they are not."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vitkit.analysis import figures
from vitkit.evaluation.multilabel import MultiLabel
from vitkit.evaluation.predictions import LabelPredictions
from vitkit.evaluation.scores import probabilities
from vitkit.tasks.page import (
    Number,
    Pictures,
    Plot,
    Section,
    ShownImage,
    Table,
    TaskReport,
    Text,
    count_cell,
    describe_images,
    fraction_cell,
    percent,
    without_evaluation,
)

MISTAKES_SHOWN = 24
ATTENTION_SHOWN = 12
ATTENTION_TRIED = 24
"""Images of each label that are tried, as some may not be readable any more."""
LABELS_SHOWN = 6

SECTIONS_WITHOUT_EVALUATION = (
    ("labels", "Labels", "Label by label", "No evaluation, no scores."),
    ("mistakes", "Mistakes", "Most confident mistakes", "No evaluation, no mistakes."),
)


def report(evaluations: Mapping[str, tuple[MultiLabel, LabelPredictions]], split: str | None) -> TaskReport:
    """Make the task's part of the report; see `vitkit.tasks.answering.Answering.report`."""
    if split is None:
        return without_evaluation("average precision", SECTIONS_WITHOUT_EVALUATION)
    result, predictions = evaluations[split]
    images = describe_images(result.count, split)
    return TaskReport(
        answer=_answer(result, split, images),
        facts=_facts(result),
        splits=_splits({name: result for name, (result, _) in evaluations.items()}),
        splits_caption=(
            f"Loss: the mean over the images of the {figures.LOSS_LABELS['sigmoid']}. mAP: the mean of the "
            "labels' average precisions, of labels that occur. Micro AP: all pairs of image and label "
            "ranked together. F1: at a probability of 0.5; macro: the mean of the labels', micro: of all "
            "pairs together. All right: images with no label too many or too few. Wrong labels: the share "
            "of single answers (Hamming loss)."
        ),
        sections=(_labels(result, images), _mistakes(result, predictions, images)),
        attention=_attention(result, predictions),
    )


def label_table(result: MultiLabel, worst_first: bool = False) -> Table:
    """Make the table of all labels, in their own order, or by average precision; those without one last."""
    headings = (
        "label", "images", "AP", "95% interval", "found", "precision", "recall", "F1", "best F1", "at",
    )  # fmt: skip
    rows = []
    scores = list(result.per_label)
    if worst_first:
        scores.sort(key=lambda score: 2.0 if score.average_precision is None else score.average_precision)
    for score in scores:
        low, high = score.average_precision_interval or (-1.0, -1.0)
        rows.append((
            score.name,
            count_cell(score.count),
            fraction_cell(score.average_precision),
            Number("–" if low < 0 else f"{percent(low)} – {percent(high)}", low),
            count_cell(score.predicted),
            fraction_cell(score.precision),
            fraction_cell(score.recall),
            fraction_cell(score.f1),
            fraction_cell(score.best_f1),
            _threshold(score.best_threshold),
        ))  # fmt: skip
    return Table(headings, tuple(rows), sortable=True)


def _threshold(probability: float | None) -> Number:
    return Number("–", -1.0) if probability is None else Number(f"{probability:.3f}", probability)


def _answer(result: MultiLabel, split: str, images: str) -> tuple[Text, ...]:
    chance = [score.count / result.count for score in result.per_label if score.count]
    reason = result.explain_no_interval() or "How much other images would change that is not known"
    interval = f"{reason[0].upper()}{reason[1:]}."
    if result.mean_average_precision_interval is not None:
        low, high = result.mean_average_precision_interval
        interval = (
            f"On other images drawn in the same way, expect between {percent(low)} and {percent(high)} (95% "
            "confidence)."
        )
    answer = Text(
        f"The mean average precision of {result.labels_that_occur} labels is "
        f"**{percent(result.mean_average_precision)}** on {images}. {interval} Ranking by chance would give "
        f"{percent(float(np.mean(chance)) if chance else None)}. All labels of an image are right for "
        f"**{percent(result.subset_accuracy)}** of the images.",
        "answer",
    )
    repeats = _repeats(result)
    if split == "test":
        return answer, *repeats
    return (
        answer,
        *repeats,
        Text(
            f"**There is no evaluation on a test split**: these are {images}. If they helped to choose the "
            "model or its settings, the figures on new images are probably somewhat lower."
        ),
    )


def _repeats(result: MultiLabel) -> tuple[Text, ...]:
    """Say how many of the images are training images, and the mean average precision without them."""
    found = result.repeated
    if found is None or not found.count:
        return ()
    without = "there are no others."
    if found.count < result.count:
        without = (
            "**without them the mean average precision is "
            f"{percent(found.mean_average_precision_without)}**, of {found.labels_that_occur} labels."
        )
    return (
        Text(
            f"{found.count:,} of these images are training images too, pixel for pixel: {without}", "warning"
        ),
    )


def _facts(result: MultiLabel) -> tuple[tuple[str, str], ...]:
    return (
        (percent(result.mean_average_precision), "mean average precision"),
        (percent(result.macro_f1), "macro F1 at 0.5"),
        (f"{result.labels_per_image:.2f}", "labels an image"),
        (f"{result.predicted_per_image:.2f}", "found an image"),
    )


def _splits(results: Mapping[str, MultiLabel]) -> Table:
    headings = (
        "split", "images", "unreadable", "mAP", "95% interval", "labels", "micro AP", "macro F1", "micro F1",
        "all right", "wrong labels", "loss (nats)",
    )  # fmt: skip
    return Table(headings, tuple(_split_row(split, result) for split, result in results.items()))


def _split_row(split: str, result: MultiLabel) -> tuple[str | Number, ...]:
    low, high = result.mean_average_precision_interval or (-1.0, -1.0)
    return (
        split,
        count_cell(result.count),
        count_cell(result.bad),
        fraction_cell(result.mean_average_precision),
        Number("–" if low < 0 else f"{percent(low)} – {percent(high)}", low),
        count_cell(result.labels_that_occur),
        fraction_cell(result.micro_average_precision),
        fraction_cell(result.macro_f1),
        fraction_cell(result.micro_f1),
        fraction_cell(result.subset_accuracy),
        fraction_cell(result.hamming_loss),
        Number(f"{result.loss:.3f}", result.loss),
    )


def _labels(result: MultiLabel, images: str) -> Section:
    return Section(
        "labels",
        "Labels",
        "Label by label",
        (
            Plot(
                figures.label_precision(result.per_label, result.count, images),
                "labels",
                f"Average precision by label on {images}.",
            ),
            Text(
                "Average precision of the labels, the worst first: the area under the steps of precision "
                "over recall, 100% if every image with the label is ranked before all others. The line is "
                "the 95% interval, which allows for the average precision of few images being too high; a "
                "label on fewer than three of them has none. The dot is what ranking by chance would give.",
                "caption",
            ),
            label_table(result),
            Text(
                "Found: images that are said to have the label, by a probability of 0.5 or more. "
                "Precision: of those, how many have it. Recall: of the images that have it, how many are "
                "found. F1: their harmonic mean. Best F1: the largest that another threshold would reach, "
                "and which; chosen on these very images, so that on others it is lower. A dash: there is "
                "nothing to divide by. Click a heading to sort.",
                "caption",
            ),
        ),
    )


def _mistakes(result: MultiLabel, predictions: LabelPredictions, images: str) -> Section:
    shares = probabilities(predictions.logits, "sigmoid")
    sure = _sureness_of_mistakes(shares, predictions.targets)
    wrong = np.flatnonzero(sure > 0)
    ordered = wrong[np.argsort(-sure[wrong], kind="stable")]
    shown = [shown_image(result, predictions, shares, row, float(sure[row])) for row in ordered.tolist()]
    pictures = Pictures(
        shown,
        MISTAKES_SHOWN,
        caption=(
            f"The {{count}} of {images} of which the model was surest of a wrong answer to one label: the "
            "labels of the image → those that the model finds (+: not the image's, −: the image's and not "
            "found), how sure it is of its worst answer, the file. Look here first for labels that are "
            "missing in the data."
        ),
        none="There is none: every label of every image is right.",
    )
    return Section("mistakes", "Mistakes", "Most confident mistakes", (pictures,))


def _attention(result: MultiLabel, predictions: LabelPredictions) -> Pictures:
    """Choose images with labels, a label at a time, those found best first."""
    shares = probabilities(predictions.logits, "sigmoid")
    surest = [
        rows[np.argsort(-shares[rows, label], kind="stable")][:ATTENTION_TRIED].tolist()
        for label, rows in enumerate(map(np.flatnonzero, predictions.targets.T))
    ]
    turns = [rows[turn] for turn in range(ATTENTION_TRIED) for rows in surest if turn < len(rows)]
    chosen = list(dict.fromkeys(turns))  # once each
    confidence = np.where(shares >= 0.5, shares, 1 - shares).min(1)
    return Pictures(
        [shown_image(result, predictions, shares, row, float(confidence[row])) for row in chosen],
        ATTENTION_SHOWN,
        caption="Images of each label in turn, those first in which it is found most surely.",
        none="No image has a label.",
    )


def _sureness_of_mistakes(shares: NDArray[np.float64], targets: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Compute how sure the model is of its worst mistake in each image; 0 where all answers are right."""
    said = shares >= 0.5
    sure = np.where(said, shares, 1 - shares)
    worst: NDArray[np.float64] = np.where(said != targets, sure, 0.0).max(1)
    return worst


def shown_image(
    result: MultiLabel,
    predictions: LabelPredictions,
    shares: NDArray[np.float64],
    row: int,
    confidence: float,
) -> ShownImage:
    """Name the labels of an image and those that are said of it, with marks at those that are wrong."""
    names, targets = result.class_names, predictions.targets[row]
    said = shares[row] >= 0.5
    answers = [
        ("" if said[i] == targets[i] else "+" if said[i] else "−") + names[i]
        for i in np.flatnonzero(said | targets).tolist()
    ]
    return ShownImage(
        index=int(predictions.ids[row]),
        true=_listed([names[i] for i in np.flatnonzero(targets).tolist()]),
        predicted=_listed(answers),
        confidence=confidence,
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - LABELS_SHOWN} more" if len(names) > LABELS_SHOWN else ""
    return (", ".join(names[:LABELS_SHOWN]) or "no label") + more

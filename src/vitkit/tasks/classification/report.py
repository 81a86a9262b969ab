"""Make the classifier's part of the report: its accuracy, its mistakes, and whether it is too sure."""

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vitkit.analysis import figures
from vitkit.evaluation.classify import Classification, ClassScore
from vitkit.evaluation.predictions import Predictions
from vitkit.result import Cell, Plot, Text, table_of
from vitkit.tasks import page

TIES_SHOWN = 3
"""The most classes in a cell where a class is taken for several equally often."""

CONFUSION = page.Section("confusion", "Confusions", "Mistaken for what?", ("No evaluation, no confusions.",))
CLASSES = page.Section("classes", "Classes", "Class by class", ("No evaluation, no scores.",))
CALIBRATION = page.Section(
    "calibration", "Calibration", "Can its confidence be trusted?", ("No evaluation, no calibration.",)
)
SPLIT_COLUMNS: Mapping[str, Callable[[Classification], Cell]] = {
    "accuracy": lambda result: page.fraction_cell(result.accuracy),
    "95% interval": lambda result: page.interval_cell(result.accuracy_interval),
    "top-5": lambda result: page.fraction_cell(result.top5_accuracy),
    "balanced": lambda result: page.fraction_cell(result.balanced_accuracy),
    "macro F1": lambda result: page.fraction_cell(result.macro_f1),
}


def report(
    evaluations: Mapping[str, tuple[Classification, Predictions]], split: str | None
) -> page.TaskReport:
    """Make the task's part of the report; see `vitkit.tasks.answering.Answering.report`."""
    if split is None:
        return page.without_evaluation("accuracy", (CONFUSION, CLASSES, page.MISTAKES, CALIBRATION))
    result, predictions = evaluations[split]
    images = page.describe_images(result.count, split)
    facts = [(page.percent(result.accuracy), "accuracy")]
    if result.top5_accuracy is not None:
        facts.append((page.percent(result.top5_accuracy), "right among the five likeliest"))
    return page.TaskReport(
        answer=_answer(result, split, images),
        facts=tuple(facts),
        splits=page.split_table(evaluations, SPLIT_COLUMNS),
        splits_caption=(
            f"Loss: the mean over the images of the {figures.LOSS_LABELS[result.loss_function]}. Balanced: "
            "the mean of the classes' accuracies. Macro F1: the mean of the classes' F1 scores. Top-5: the "
            "true class is among the five likeliest."
        ),
        sections=(
            _confusion(result, images),
            _classes(result, images),
            _mistakes(result, predictions, images),
            _calibration(result, images),
        ),
        attention=_attention(result, predictions),
    )


def _answer(result: Classification, split: str, images: str) -> tuple[Text, ...]:
    guessing = result.guessing
    answer = (
        f"The model is right on **{result.correct:,} of {images}**: an accuracy of "
        f"**{page.percent(result.accuracy)}**. {page.expectation(result.accuracy_interval)} This is "
        f"**{guessing.verdict}**: always answering with the most frequent class would be right on "
        f"{page.percent(guessing.accuracy)} (exact binomial test: p {page.shown_p(guessing.p_value)})."
    )
    repeated, right, without = result.repeated, "", ""
    if repeated is not None:
        low, high = map(page.percent, repeated.interval_without)
        right = f", and the model is right on {repeated.correct:,} of them"
        accuracy = page.percent(repeated.accuracy_without)
        without = f"**without them the accuracy is {accuracy}** (95% interval {low} to {high})."
    return page.answer_texts(answer, result, right, without, split, images)


def _confusion(result: Classification, images: str) -> page.Section:
    names = result.class_names
    return CONFUSION.showing(
        Plot(
            partial(figures.confusion_matrix, result.confusion_cells, names, images),
            "confusion",
            f"Confusion matrix of {len(names)} classes on {images}.",
        ),
        Text(
            f"Confusion matrix of {images}. Rows are the true classes, columns the predicted ones; the "
            "diagonal is right. The colour is the fraction of the row, on a scale of square roots so that "
            "rare confusions can be seen.",
            "caption",
        ),
    )


def _classes(result: Classification, images: str) -> page.Section:
    # Classes without images, which have no recall, come last.
    rows = sorted(class_rows(result), key=lambda row: 2.0 if row[0].recall is None else row[0].recall)
    table = table_of(
        rows,
        {
            "class": lambda row: row[0].name,
            "images": lambda row: page.count_cell(row[0].count),
            "right": lambda row: page.count_cell(row[0].correct),
            "accuracy (recall)": lambda row: page.fraction_cell(row[0].recall),
            "precision": lambda row: page.fraction_cell(row[0].precision),
            "F1": lambda row: page.fraction_cell(row[0].f1),
            "most often taken for": lambda row: row[1],
        },
        sortable=True,
    )
    return CLASSES.showing(
        Plot(
            partial(figures.class_accuracy, result.per_class, images),
            "classes",
            f"Accuracy by class on {images}.",
        ),
        Text(
            "Accuracy within the classes, the worst first. The line is the 95% interval: where it "
            "is long there are few images, and the order says little.",
            "caption",
        ),
        table,
        Text(
            "Recall: the fraction of the class's images that are predicted as this class. Precision: the "
            "fraction of the images predicted as this class that are of it. F1: their harmonic mean. A dash: "
            "there is nothing to divide by. Click a heading to sort.",
            "caption",
        ),
    )


def class_rows(result: Classification) -> list[tuple[ClassScore, str]]:
    """List every class with the class that it is most often taken for, or several equally frequent ones."""
    taken_for: dict[int, tuple[int, list[int]]] = {}
    for true, predicted, count in result.confusion_cells:
        most, _ = taken_for.get(true, (1, []))
        if true != predicted and count >= most:
            others = taken_for[true][1] if true in taken_for and count == most else []
            taken_for[true] = count, [*others, predicted]
    names = result.class_names
    rows = []
    for i, score in enumerate(result.per_class):
        count, others = taken_for.get(i, (0, []))
        listed = ", ".join(names[other] for other in others[:TIES_SHOWN])
        more = f" and {len(others) - TIES_SHOWN} more" if len(others) > TIES_SHOWN else ""
        each = " each" if len(others) > 1 else ""
        rows.append((score, f"{listed}{more} ({count}{each})" if others else ""))
    return rows


def _mistakes(result: Classification, predictions: Predictions, images: str) -> page.Section:
    shown = [shown_image(result, predictions, row) for row in _surest_mistakes(predictions).tolist()]
    pictures = page.Pictures(
        shown,
        page.MISTAKES_SHOWN,
        caption=(
            f"The {{count}} of {images} that the model got wrong and was surest of: true class → predicted "
            "class, its probability, the file. Look here first for wrong labels in the data."
        ),
        none="There is none: every image was classified rightly.",
    )
    return page.MISTAKES.showing(pictures)


def _calibration(result: Classification, images: str) -> page.Section:
    confidence = math.fsum(b.count * (b.confidence or 0) for b in result.calibration) / result.count
    low, high = (f"{100 * end:+.1f}" for end in result.overconfidence.interval)
    # On few images a difference may be chance.
    verdict = result.overconfidence.verdict or f"as sure as it should be, as far as {images} can tell"
    verdict += f" (confidence - accuracy: 95% interval {low} to {high} percentage points)"
    sigmoid = ", by sigmoid, as the model was trained to say yes or no to each class by itself"
    return CALIBRATION.showing(
        Plot(
            partial(
                figures.calibration_figure, {"accuracy, with its 95% interval": result.calibration}, images
            ),
            "calibration",
            f"Accuracy against confidence on {images}.",
        ),
        Text(
            "Images grouped by confidence (the probability given to the predicted class"
            f"{sigmoid if result.loss_function == 'sigmoid' else ''}) into 15 bins of equal width: the "
            "fraction that is right, with its 95% interval, at the mean confidence of the bin. Below: how "
            "many images are in each bin. Points below the dashed line: the model is too sure of itself.",
            "caption",
        ),
        Text(
            f"The expected calibration error (ECE) is {page.percent(result.calibration_error)}: averaged "
            "over the images, a bin's confidence differs from its accuracy by "
            f"{100 * result.calibration_error:.1f} percentage points. Over all images the model is "
            f"{page.percent(confidence)} sure and {page.percent(result.accuracy)} right: as a whole it is "
            f"{verdict}."
        ),
    )


def _attention(result: Classification, predictions: Predictions) -> page.Pictures:
    """Choose images of as many classes as there is room for, a quarter of them wrong."""
    wrong = _surest_mistakes(predictions)[: page.ATTENTION_SHOWN // 4].tolist()
    right = np.flatnonzero(predictions.predicted == predictions.labels)
    # The first image of every class, then the second of every class, and so on.
    seen: dict[int, int] = {}
    turns = []
    for label in predictions.labels[right].tolist():
        seen[label] = seen.get(label, -1) + 1
        turns.append(seen[label])
    fair = right[np.lexsort((right, predictions.labels[right], np.array(turns, int)))].tolist()
    return page.Pictures(
        [shown_image(result, predictions, row) for row in wrong + fair],
        page.ATTENTION_SHOWN,
        caption="First the model's surest mistakes, then right answers, a class at a time.",
        none="There is no image to look at.",
    )


def _surest_mistakes(predictions: Predictions) -> NDArray[np.int64]:
    """Find the rows of the wrong predictions, the most confident first."""
    wrong = np.flatnonzero(predictions.predicted != predictions.labels)
    return wrong[np.argsort(-predictions.confidence[wrong], kind="stable")]


def shown_image(result: Classification, predictions: Predictions, row: int) -> page.ShownImage:
    """Name the class of an image, the predicted one and its probability."""
    names = result.class_names
    return page.ShownImage(
        index=int(predictions.ids[row]),
        true=names[int(predictions.labels[row])],
        predicted=names[int(predictions.predicted[row])],
        confidence=float(predictions.confidence[row]),
    )

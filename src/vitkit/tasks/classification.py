"""Answers of a classifier: one class for each image."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.evaluation.classify import (
    CalibrationBin,
    Classification,
    ClassScore,
    classification,
    mark_repeats,
)
from vitkit.evaluation.predictions import Predictions, likeliest
from vitkit.evaluation.statistics import binomial_interval
from vitkit.result import Plot, Section, Table, Text, table_of
from vitkit.tasks import page
from vitkit.tasks.answering import Guess, LabelAnswering, Pooled
from vitkit.tasks.page import count_cell, fraction_cell, percent
from vitkit.text import pluralize

TIES_SHOWN = 3
"""The most classes in a cell where a class is taken for several equally often."""
PAIRS_SHOWN = 15
"""Pairs of confused classes that are listed below the matrix."""


class ClassificationAnswering(LabelAnswering):
    """Answers with one class for each image; `LabelAnswering` describes the methods."""

    image_score = figure = "accuracy"
    numbers = Classification
    measure = staticmethod(classification)
    mark_repeats = staticmethod(mark_repeats)
    terms = (
        "Balanced accuracy: the mean of the classes' accuracies. Macro F1: the mean of the classes' F1 "
        "scores. Top-5: the true class is among the five likeliest."
    )
    mistakes = (
        "that the model got wrong and was surest of: true class → predicted class, its probability, the "
        "file. Look here first for wrong labels in the data.",
        "There is none: every image was classified rightly.",
    )
    looked_at = (
        "First the model's surest mistakes, then right answers, a class at a time.",
        "There is no image to look at.",
    )

    def right_by_class(self, result: Any, predictions: Predictions) -> dict[str, NDArray[np.bool_]]:
        """Give for each class whether its own images are right."""
        # One sort, and not a search for each of 21,000 classes.
        order = np.argsort(predictions.labels, kind="stable")
        counts = np.bincount(predictions.labels, minlength=len(result.class_names))
        groups = np.split(predictions.right[order], np.cumsum(counts)[:-1])
        return dict(zip(result.class_names, groups, strict=True))

    def measures(self, result: Classification) -> tuple[tuple[str, str], ...]:
        """Name accuracies, F1, the loss and calibration."""
        low, high = result.accuracy_interval
        rows = [("accuracy", f"{percent(result.accuracy)} ({percent(low)} to {percent(high)})")]
        if result.repeated is not None and result.repeated.count:
            without, images = result.repeated.accuracy_without, result.repeated.count
            rows.append((f"accuracy without {pluralize(images, 'training image')}", percent(without)))
        if result.top5_accuracy is not None:
            rows.append(("top-5 accuracy", percent(result.top5_accuracy)))
        excess = result.overconfidence
        mean, low_end, high_end = (f"{100 * end:+.1f}" for end in (excess.mean, *excess.interval))
        return (
            *rows,
            ("balanced accuracy", percent(result.balanced_accuracy)),
            ("macro F1", percent(result.macro_f1)),
            ("loss (nats)", f"{result.loss:.3f}"),
            ("calibration error (ECE)", percent(result.calibration_error)),
            ("confidence - accuracy, points", f"{mean} ({low_end} to {high_end})"),
            ("calibration verdict", excess.verdict or "as sure as it should be"),
        )

    def compare_sureness(self, first: Any, second: Any, labels: tuple[str, str]) -> Plot | None:
        """Draw accuracy against confidence, both in the bins of the report."""
        models = {labels[0]: first.calibration, labels[1]: second.calibration}
        return _calibration_plot(models, f"of {labels[0]} and of {labels[1]}")

    def named(self, result: Any, predictions: Predictions, row: int) -> tuple[str, str]:
        """Name the class of the image and the predicted one."""
        names = result.class_names
        return names[int(predictions.labels[row])], names[int(predictions.predicted[row])]

    def pool(self, parts: Sequence[tuple[float, int]]) -> Pooled:
        """Count the right answers of several parts together."""
        # An accuracy is a ratio of whole numbers, so that rounding undoes the division.
        right, images = sum(round(value * count) for value, count in parts), sum(count for _, count in parts)
        return Pooled(right, images, binomial_interval(right, images))

    def answers(self, outputs: NDArray[np.float32]) -> NDArray[np.int64]:
        """Give the class with the largest logit, which either loss predicts."""
        return likeliest(outputs, 1)

    def guess_row(self, guesses: Sequence[Guess], top: int) -> dict[str, list[str]]:
        """Write the class and its probability, or the `top` classes with theirs."""
        if top > 1:
            return {f"top {top}": [f"{guess.name} {guess.probability:.1%}" for guess in guesses]}
        names, shares = [g.name for g in guesses], [f"{g.probability:.1%}" for g in guesses]
        return {"class": names, "probability": shares}

    def choose_for_attention(
        self, predictions: Predictions, mistakes: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Choose images of as many classes as there is room for, a quarter of them wrong."""
        right = np.flatnonzero(predictions.right)
        # The first image of every class, then the second of every class, and so on.
        seen: dict[int, int] = {}
        turns = []
        for label in predictions.labels[right].tolist():
            seen[label] = seen.get(label, -1) + 1
            turns.append(seen[label])
        fair = right[np.lexsort((right, predictions.labels[right], np.array(turns, int)))]
        return np.concatenate([mistakes[: page.ATTENTION_SHOWN // 4], fair])

    def describe(self, result: Classification, split: str, images: str, mistakes: Section) -> page.TaskReport:
        """Show the accuracy, the confusions, the classes and the calibration."""
        guessing, repeated, right, without = result.guessing, result.repeated, "", ""
        answer = (
            f"The model is right on **{result.correct:,} of {images}**: an accuracy of "
            f"**{percent(result.accuracy)}**. {page.expectation(result.accuracy_interval)} This is "
            f"**{guessing.verdict}**: always answering with the most frequent class would be right on "
            f"{percent(guessing.accuracy)} (exact binomial test: p {page.shown_p(guessing.p_value)})."
        )
        if repeated is not None:
            low, high = map(percent, repeated.interval_without)
            right = f", and the model is right on {repeated.correct:,} of them"
            accuracy = percent(repeated.accuracy_without)
            without = f"**without them the accuracy is {accuracy}** (95% interval {low} to {high})."
        return page.TaskReport(
            answer=page.answer_texts(answer, result, right, without, split, images),
            sections=(
                _confusion(result, images),
                _classes(result, images),
                mistakes,
                _calibration(result, images),
            ),
        )


def _confusion(result: Classification, images: str) -> Section:
    alt, pairs = f"Confusion matrix of {len(result.class_names)} classes on {images}.", confused_pairs(result)
    about = (
        "Rows are the true classes, columns the predicted ones; the diagonal is right. The colour is the "
        "fraction of the row, on a scale of square roots so that rare confusions can be seen."
    )
    of_pairs = "The pairs that are confused most often, and how many images are of the true class."
    listed = (pairs, Text(of_pairs, "caption")) if pairs.rows else ()
    cells, names = result.confusion_cells, result.class_names
    drawn = Plot(lambda: page.figures().confusion_matrix(cells, names, images), "confusion", alt)
    blocks = (drawn, Text(about, "caption"), *listed)
    return Section("Mistaken for what?", blocks, name="confusion", menu="Confusions")


def _classes(result: Classification, images: str) -> Section:
    # Classes without images, which have no recall, come last.
    rows = sorted(class_rows(result), key=lambda row: 2.0 if row[0].recall is None else row[0].recall)
    table = table_of(
        rows,
        {
            "class": lambda row: row[0].name,
            "accuracy (recall)": lambda row: fraction_cell(row[0].recall),
            "precision": lambda row: fraction_cell(row[0].precision),
            "F1": lambda row: fraction_cell(row[0].f1),
            "most often taken for": lambda row: row[1],
            "images": lambda row: count_cell(row[0].count),
            "right": lambda row: count_cell(row[0].correct),
        },
        sortable=True,
    )
    blocks = (
        Plot(
            lambda: page.figures().class_accuracy(result.per_class, images),
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
    return Section("Class by class", blocks, name="classes", menu="Classes")


def confused_pairs(result: Classification) -> Table:
    """List the classes that are most often taken for another, with that class."""
    wrong = [cell for cell in result.confusion_cells if cell[0] != cell[1]]
    return table_of(
        sorted(wrong, key=lambda cell: -cell[2])[:PAIRS_SHOWN],
        {
            "true class": lambda cell: result.class_names[cell[0]],
            "predicted": lambda cell: result.class_names[cell[1]],
            "images": lambda cell: count_cell(cell[2]),
            "of": lambda cell: count_cell(result.per_class[cell[0]].count),
        },
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


def _calibration_plot(models: Mapping[str, Sequence[CalibrationBin]], what: str, data: str = "") -> Plot:
    alt = f"Accuracy against confidence {what}."
    return Plot(lambda: page.figures().calibration_figure(models, data), "calibration", alt)


def _calibration(result: Classification, images: str) -> Section:
    confidence = math.fsum(b.count * (b.confidence or 0) for b in result.calibration) / result.count
    low, high = (f"{100 * end:+.1f}" for end in result.overconfidence.interval)
    # On few images a difference may be chance.
    verdict = result.overconfidence.verdict or f"as sure as it should be, as far as {images} can tell"
    verdict += f" (confidence - accuracy: 95% interval {low} to {high} percentage points)"
    sigmoid = ", by sigmoid, as the model was trained to say yes or no to each class by itself"
    blocks = (
        _calibration_plot({"accuracy, with its 95% interval": result.calibration}, f"on {images}", images),
        Text(
            "Images grouped by confidence (the probability given to the predicted class"
            f"{sigmoid if result.loss_function == 'sigmoid' else ''}) into 15 bins of equal width: the "
            "fraction that is right, with its 95% interval, at the mean confidence of the bin. Below: how "
            "many images are in each bin. Points below the dashed line: the model is too sure of itself.",
            "caption",
        ),
        Text(
            f"The expected calibration error (ECE) is {percent(result.calibration_error)}: averaged "
            "over the images, a bin's confidence differs from its accuracy by "
            f"{100 * result.calibration_error:.1f} percentage points. Over all images the model is "
            f"{percent(confidence)} sure and {percent(result.accuracy)} right: as a whole it is "
            f"{verdict}."
        ),
    )
    return Section("Can its confidence be trusted?", blocks, name="calibration", menu="Calibration")

"""Answers of a classifier: one class for each image."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.evaluation import classify
from vitkit.evaluation.intervals import binomial_interval
from vitkit.evaluation.predictions import Predictions
from vitkit.evaluation.scores import likeliest, probabilities
from vitkit.models.config import card
from vitkit.models.config.card import Card
from vitkit.result import Plot
from vitkit.tasks.answering import Guess, LabelAnswering, Pooled
from vitkit.tasks.page import ShownImage, TaskReport, percent
from vitkit.text import pluralize


class ClassificationAnswering(LabelAnswering):
    """Answers with one class for each image."""

    image_score = "accuracy"
    """The name of the mean of `score_images`."""
    numbers = classify.Classification
    measure = staticmethod(classify.classification)
    mark_repeats = staticmethod(classify.mark_repeats)

    def predictor(self, learned: card.Task) -> Callable[..., Any]:
        """Give the function of `vitkit.evaluation.run_model` that runs a model over a split, by the task in
        the model's card: it scores each image and keeps its logits."""
        from vitkit.evaluation.run_model import predict

        return partial(predict, loss="softmax" if learned.loss == "none" else learned.loss)

    def load(self, path: Path, result: classify.Classification) -> Predictions:
        """Read the logits; the loss that their model was trained with decides what they mean."""
        return Predictions.load(path, result.loss_function)

    def score_images(self, predictions: Predictions) -> NDArray[np.float64]:
        """Score each image by itself, from 0 (all wrong) to 1 (all right), `(N,)`: two models are compared by
        these scores of the same images. An image is right or wrong."""
        right: NDArray[np.float64] = (predictions.predicted == predictions.labels).astype(np.float64)
        return right

    def right_by_class(
        self, result: classify.Classification, predictions: Predictions
    ) -> dict[str, NDArray[np.bool_]]:
        """Give for each class whether the answer is right on each image that counts for it, its own images in
        order: two models are compared class by class by these."""
        right = predictions.predicted == predictions.labels
        # One sort, and not a search for each of 21,000 classes.
        order = np.argsort(predictions.labels, kind="stable")
        counts = np.bincount(predictions.labels, minlength=len(result.class_names))
        groups = np.split(right[order], np.cumsum(counts)[:-1])
        return dict(zip(result.class_names, groups, strict=True))

    def measures(self, result: classify.Classification) -> tuple[tuple[str, str], ...]:
        """Name the numbers by which two models are put side by side, each with its formatted value, the most
        important first and calibration last."""
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

    def compare_sureness(
        self, first: classify.Classification, second: classify.Classification, labels: tuple[str, str]
    ) -> Plot | None:
        """Draw accuracy against confidence, both in the bins of the report."""
        from vitkit.analysis.figures import calibration_figure  # matplotlib: only a page draws

        figure = calibration_figure({labels[0]: first.calibration, labels[1]: second.calibration})
        alt = f"Accuracy against confidence of {labels[0]} and of {labels[1]}."
        return Plot(lambda: figure, "calibration", alt)

    def show(
        self, result: classify.Classification, predictions: Predictions, rows: NDArray[np.int64]
    ) -> list[ShownImage]:
        """Name the true and the predicted class of the images of these rows, and its probability."""
        from vitkit.tasks.classification.report import shown_image  # matplotlib: only a page shows images

        return [shown_image(result, predictions, row) for row in rows.tolist()]

    def pool(self, parts: Sequence[tuple[float, int]]) -> Pooled:
        """Count the right answers of several parts together."""
        # An accuracy is a ratio of whole numbers, so that rounding undoes the division.
        right, images = sum(round(value * count) for value, count in parts), sum(count for _, count in parts)
        return Pooled(right, images, binomial_interval(right, images))

    def guesses(self, outputs: NDArray[np.float32], card: Card, top: int) -> list[list[Guess]]:
        """Name the most probable classes of images, best first, by the loss that the model was trained with.

        Args:
            outputs: `(B, K)`, finite.
            card: the model's, with K class names or none.
            top: how many classes for each image at most.
        """
        # Not always by softmax: the probabilities of a sigmoid model need not sum to 1.
        rows = probabilities(outputs, card.loss)
        names = card.class_names or tuple(f"class {i}" for i in range(outputs.shape[1]))
        classes = likeliest(outputs, min(top, len(names)))
        return [
            [Guess(names[i], float(row[i])) for i in chosen]
            for row, chosen in zip(rows, classes.tolist(), strict=True)
        ]

    def answers(self, outputs: NDArray[np.float32]) -> NDArray[np.int64]:
        """Turn outputs `(B, K)` into answers, integers `(B, A)`: two models agree where they are equal. The
        answer is the class with the largest logit, which either loss predicts."""
        return likeliest(outputs, 1)

    def guess_row(self, guesses: Sequence[Guess], top: int) -> dict[str, list[str]]:
        """Make the row of an image for the table of `vitkit predict`: by heading the entries of a cell. Where
        there is one heading alone, the first entry is the answer and is shown bold."""
        if top > 1:
            return {f"top {top}": [f"{guess.name} {guess.probability:.1%}" for guess in guesses]}
        names, shares = [g.name for g in guesses], [f"{g.probability:.1%}" for g in guesses]
        return {"class": names, "probability": shares}

    def report(
        self,
        evaluations: Mapping[str, tuple[classify.Classification, Predictions]],
        split: str | None,
    ) -> TaskReport:
        """Make the task's part of the report: how good the model is, where it fails, and whether it is as
        sure as it should be.

        Args:
            evaluations: the numbers and predictions of each split.
            split: the split that the page is about; None where nothing was evaluated.
        """
        from vitkit.tasks.classification.report import report  # matplotlib: only a report draws

        return report(evaluations, split)

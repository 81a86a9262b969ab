"""Answers of a classifier: one class for each image."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.config import read
from vitkit.evaluation import classify
from vitkit.evaluation.intervals import binomial_interval
from vitkit.evaluation.predictions import Predictions
from vitkit.evaluation.scores import likeliest, probabilities
from vitkit.evaluation.stored import refuse_others
from vitkit.models.config import card
from vitkit.models.config.card import Card
from vitkit.models.zoo import ModelConfig
from vitkit.result import Plot
from vitkit.tasks.answering import Guess, Pooled, Predictor, predictions_json, repeats_clause
from vitkit.tasks.page import ShownImage, TaskReport, percent
from vitkit.text import pluralize


@dataclass(frozen=True)
class ClassificationAnswering:
    """`vitkit.tasks.answering.Answering` describes the methods."""

    image_score: str = "accuracy"

    def explain_unfit(self, config: ModelConfig) -> str:
        """Say why a model cannot classify: it needs a head and one row of logits for each image."""
        return classify.explain_no_classes(config)

    def predictor(self, learned: card.Task) -> Predictor[Predictions]:
        """Score each image and keep its logits."""
        from vitkit.evaluation.run_model import predict

        return partial(predict, loss="softmax" if learned.loss == "none" else learned.loss)

    def measure(self, predictions: Predictions, class_names: Sequence[str]) -> classify.Classification:
        """Count by the conventions of `vitkit.evaluation.classify`."""
        return classify.classification(predictions, class_names)

    def mark_repeats(
        self, result: classify.Classification, predictions: Predictions, rows: NDArray[np.int64]
    ) -> classify.Classification:
        """Count the accuracy on the other images."""
        return classify.mark_repeats(result, predictions, rows)

    def read_evaluation(self, path: Path) -> tuple[classify.Classification, Predictions]:
        """Read the logits and count them; the names, the loss and the repeated images are read with them."""
        result = read(classify.Classification, path)
        if result is None:
            raise FileNotFoundError(path)
        # The loss decides what the logits mean, so it is read before them.
        predictions = Predictions.load(path, result.loss_function)
        repeated = 0 if result.repeated is None else result.repeated.count
        refuse_others(path, len(result.per_class), repeated, (len(predictions), predictions.classes))
        # Counted anew, which takes no longer than a check: somebody may have given the file away.
        return replace(self.measure(predictions, result.class_names), repeated=result.repeated), predictions

    def score_images(self, predictions: Predictions) -> NDArray[np.float64]:
        """Give 1 for each image whose class is predicted, else 0."""
        right: NDArray[np.float64] = (predictions.predicted == predictions.labels).astype(np.float64)
        return right

    def truth(self, predictions: Predictions, class_names: Sequence[str]) -> NDArray[np.int64]:
        """Give the place of each image's class in the alphabet, `(N, 1)`."""
        return np.argsort(np.argsort(np.array(class_names)))[predictions.labels][:, None]

    def right_by_class(
        self, result: classify.Classification, predictions: Predictions
    ) -> dict[str, NDArray[np.bool_]]:
        """Give for each class whether its own images are right."""
        right = predictions.predicted == predictions.labels
        # One sort, and not a search for each of 21,000 classes.
        order = np.argsort(predictions.labels, kind="stable")
        counts = np.bincount(predictions.labels, minlength=len(result.class_names))
        groups = np.split(right[order], np.cumsum(counts)[:-1])
        return dict(zip(result.class_names, groups, strict=True))

    def measures(self, result: classify.Classification) -> tuple[tuple[str, str], ...]:
        """Name accuracies, loss and calibration."""
        low, high = result.accuracy_interval
        rows = [("accuracy", f"{percent(result.accuracy)} ({percent(low)} to {percent(high)})")]
        if result.repeated is not None and result.repeated.count:
            without, images = result.repeated.accuracy_without, result.repeated.count
            rows.append((f"accuracy without {pluralize(images, 'training image')}", percent(without)))
        if result.top5_accuracy is not None:
            rows.append(("top-5 accuracy", percent(result.top5_accuracy)))
        rows += [
            ("balanced accuracy", percent(result.balanced_accuracy)),
            ("macro F1", percent(result.macro_f1)),
            ("loss (nats)", f"{result.loss:.3f}"),
            ("calibration error (ECE)", percent(result.calibration_error)),
        ]
        excess = result.overconfidence
        mean, low_end, high_end = (f"{100 * end:+.1f}" for end in (excess.mean, *excess.interval))
        rows.append(("confidence - accuracy, points", f"{mean} ({low_end} to {high_end})"))
        rows.append(("calibration verdict", excess.verdict or "as sure as it should be"))
        return tuple(rows)

    def compare_sureness(
        self, first: classify.Classification, second: classify.Classification, labels: tuple[str, str]
    ) -> Plot | None:
        """Draw accuracy against confidence, both in the bins of the report."""
        from vitkit.analysis.figures import calibration_figure  # matplotlib: only a page draws

        figure = calibration_figure({labels[0]: first.calibration, labels[1]: second.calibration})
        alt = f"Accuracy against confidence of {labels[0]} and of {labels[1]}."
        return Plot(figure, "calibration", alt)

    def show(
        self, result: classify.Classification, predictions: Predictions, rows: NDArray[np.int64]
    ) -> list[ShownImage]:
        """Name the class of each image, the predicted one and its probability."""
        from vitkit.tasks.classification.report import shown_image  # matplotlib: only a page shows images

        return [shown_image(result, predictions, row) for row in rows.tolist()]

    def pool(self, parts: Sequence[tuple[float, int]]) -> Pooled:
        """Count the right answers of several parts together."""
        # An accuracy is a ratio of whole numbers, so that rounding undoes the division.
        right, images = sum(round(value * count) for value, count in parts), sum(count for _, count in parts)
        return Pooled(right, images, binomial_interval(right, images))

    def line(self, result: classify.Classification) -> str:
        """State the accuracy with its interval."""
        low, high = result.accuracy_interval
        unread = f", {result.bad} unreadable" if result.bad else ""
        return (
            f"{result.accuracy:.2%} accuracy on {result.count:,} images{unread} "
            f"(95 % interval {low:.1%} to {high:.1%}); {result.guessing.sentence()}{_repeats(result)}"
        )

    def summary(self, result: classify.Classification, images: str) -> tuple[str, str]:
        """State the accuracy, and how good the model is by other measures."""
        low, high = result.accuracy_interval
        top5 = "" if result.top5_accuracy is None else f", top-5 {result.top5_accuracy:.2%}"
        return f"{result.accuracy:.2%}", (
            f" accuracy{top5} on {result.count:,} {images} "
            f"(95 % interval {low:.1%} to {high:.1%}); loss {result.loss:.4f}, "
            f"balanced accuracy {result.balanced_accuracy:.2%}, "
            f"calibration error {result.calibration_error:.2%}{_sureness(result)}; "
            f"{result.guessing.sentence()}{_repeats(result)}"
        )

    def details(self, result: classify.Classification) -> None:
        """Return no table: the report has the one of the classes."""

    def guesses(self, outputs: NDArray[np.float32], card: Card, top: int) -> list[list[Guess]]:
        """Name the most probable classes, by the loss that the model was trained with."""
        # Not always by softmax: the probabilities of a sigmoid model need not sum to 1.
        rows = probabilities(outputs, card.loss)
        names = card.class_names or tuple(f"class {i}" for i in range(outputs.shape[1]))
        classes = likeliest(outputs, min(top, len(names)))
        return [
            [Guess(names[i], float(row[i])) for i in chosen]
            for row, chosen in zip(rows, classes.tolist(), strict=True)
        ]

    def answers(self, outputs: NDArray[np.float32]) -> NDArray[np.int64]:
        """Give the class with the largest logit, `(B, 1)`, which either loss predicts."""
        return likeliest(outputs, 1)

    def guess_headings(self, top: int) -> tuple[str, ...]:
        """Give the headings: one class gets a column for its probability, several share one column."""
        return ("class", "probability") if top == 1 else (f"top {top}",)

    def guess_cells(self, guesses: Sequence[Guess], top: int) -> list[list[str]]:
        """Write each class with its probability."""
        if top == 1:  # two columns, as `guess_headings` gives them
            (guess,) = guesses
            return [[guess.name], [f"{guess.probability:.1%}"]]
        return [[f"{guess.name} {guess.probability:.1%}" for guess in guesses]]

    def guess_json(self, guesses: Sequence[Guess]) -> dict[str, Any]:
        """List the classes with their probabilities, best first."""
        return {"predictions": predictions_json(guesses)}

    def report(
        self,
        evaluations: Mapping[str, tuple[classify.Classification, Predictions]],
        split: str | None,
    ) -> TaskReport:
        """Say how good the model is, where it fails, and whether it is as sure as it should be."""
        from vitkit.tasks.classification.report import report  # matplotlib: only a report draws

        return report(evaluations, split)


def _sureness(result: classify.Classification) -> str:
    """Say that the model is too sure, or not sure enough, where that is certain."""
    excess = result.overconfidence
    if not excess.verdict:
        return ""
    low, high = excess.interval
    return f" ({excess.verdict}: confidence - accuracy is {low:+.1%} to {high:+.1%})"


def _repeats(result: classify.Classification) -> str:
    """Say how many of the images are training images, and the accuracy without them."""
    repeated = result.repeated
    if repeated is None:
        return ""
    without, (low, high) = repeated.accuracy_without or 0.0, repeated.interval_without
    figure = f"{without:.2%} ({low:.1%} to {high:.1%})"
    return repeats_clause(repeated.count, result.count - repeated.count, figure)

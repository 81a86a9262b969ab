"""Answers of a model of several labels: each a yes or no of its own."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.evaluation.multilabel import THRESHOLD, MultiLabel, mark_repeated_labels, multi_label, percentage
from vitkit.evaluation.predictions import LabelPredictions
from vitkit.evaluation.scores import probabilities
from vitkit.models.config import card
from vitkit.models.config.card import Card
from vitkit.result import Table
from vitkit.tasks.answering import Guess, LabelAnswering
from vitkit.tasks.page import ShownImage, TaskReport
from vitkit.text import pluralize


class MultiLabelAnswering(LabelAnswering):
    """Answers with several labels for each image, or none; `ClassificationAnswering` tells of the methods."""

    image_score = "fraction of labels right"
    numbers = MultiLabel
    measure = staticmethod(multi_label)
    mark_repeats = staticmethod(mark_repeated_labels)

    def predictor(self, learned: card.Task) -> Callable[..., Any]:
        """Keep the logits of every image."""
        from vitkit.evaluation.run_model import predict_labels

        return predict_labels

    def load(self, path: Path, result: MultiLabel) -> LabelPredictions:
        """Read the logits, each of which is a yes or no."""
        return LabelPredictions.load(path)

    def score_images(self, predictions: LabelPredictions) -> NDArray[np.float64]:
        """Give the fraction of the labels, on the image or not, that are predicted rightly."""
        right: NDArray[np.float64] = predictions.right.mean(1)
        return right

    def right_by_class(
        self, result: MultiLabel, predictions: LabelPredictions
    ) -> dict[str, NDArray[np.bool_]]:
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
        )

    def show(
        self, result: MultiLabel, predictions: LabelPredictions, rows: NDArray[np.int64]
    ) -> list[ShownImage]:
        """Name the labels of each image and the predicted ones, and the probability of the least sure
        answer."""
        from vitkit.tasks.multi_label.report import shown_image  # matplotlib: only a page shows images

        probability = probabilities(predictions.logits, "sigmoid")
        least = np.maximum(probability, 1 - probability).min(1)
        return [
            shown_image(result, predictions, probability, row, float(least[row])) for row in rows.tolist()
        ]

    def details(self, result: MultiLabel) -> Table:
        """Make the table of every label, the worst first."""
        from vitkit.tasks.multi_label.report import label_table

        return label_table(result, worst_first=True)

    def guesses(self, outputs: NDArray[np.float32], card: Card, top: int) -> list[list[Guess]]:
        """Give every label with its probability, the most probable first; `top` leaves none out, because each
        label is a question of its own."""
        names = card.class_names or tuple(f"label {i}" for i in range(outputs.shape[1]))
        return [
            [Guess(names[i], float(row[i])) for i in (-row).argsort(kind="stable").tolist()]
            for row in probabilities(outputs, "sigmoid")
        ]

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

    def report(
        self, evaluations: Mapping[str, tuple[MultiLabel, LabelPredictions]], split: str | None
    ) -> TaskReport:
        """Show how well the labels are predicted, and the surest mistakes."""
        from vitkit.tasks.multi_label.report import report  # matplotlib: only a report draws

        return report(evaluations, split)

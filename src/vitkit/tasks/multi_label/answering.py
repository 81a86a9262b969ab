"""Answers of a model of several labels: each a yes or no of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.config import read
from vitkit.evaluation.classify import explain_no_classes
from vitkit.evaluation.multilabel import (
    THRESHOLD,
    MultiLabel,
    mark_repeated_labels,
    multi_label,
)
from vitkit.evaluation.predictions import LabelPredictions
from vitkit.evaluation.scores import probabilities
from vitkit.evaluation.stored import in_parts, refuse_others
from vitkit.models.config import card
from vitkit.models.config.card import Card
from vitkit.models.zoo import ModelConfig
from vitkit.result import Plot, Table
from vitkit.tasks.answering import Guess, Predictor, predictions_json, repeats_clause
from vitkit.tasks.page import ShownImage, TaskReport, percent
from vitkit.text import pluralize


@dataclass(frozen=True)
class MultiLabelAnswering:
    """`vitkit.tasks.answering.Answering` describes the methods."""

    image_score: str = "fraction of labels right"

    def explain_unfit(self, config: ModelConfig) -> str:
        """Say why a model cannot predict labels: it needs a head and one row of logits for each image."""
        return explain_no_classes(config)

    def predictor(self, learned: card.Task) -> Predictor[LabelPredictions]:
        """Keep the logits of every image."""
        from vitkit.evaluation.run_model import predict_labels

        return predict_labels

    def measure(self, predictions: LabelPredictions, class_names: Sequence[str]) -> MultiLabel:
        """Count by the conventions of `vitkit.evaluation.multilabel`."""
        return multi_label(predictions, class_names)

    def mark_repeats(
        self, result: MultiLabel, predictions: LabelPredictions, rows: NDArray[np.int64]
    ) -> MultiLabel:
        """Add the mean average precision on the other images."""
        return mark_repeated_labels(result, predictions, rows)

    def read_evaluation(self, path: Path) -> tuple[MultiLabel, LabelPredictions]:
        """Read the logits and count them; the names and the repeated images are read with them."""
        result = read(MultiLabel, path)
        if result is None:
            raise FileNotFoundError(path)
        predictions = LabelPredictions.load(path)
        repeated = 0 if result.repeated is None else result.repeated.count
        refuse_others(path, len(result.per_label), repeated, predictions.targets.shape)
        # Counted anew, which takes no longer than a check: somebody may have given the file away.
        return replace(self.measure(predictions, result.class_names), repeated=result.repeated), predictions

    def score_images(self, predictions: LabelPredictions) -> NDArray[np.float64]:
        """Give the fraction of the labels, on the image or not, that are predicted rightly."""
        right: NDArray[np.float64] = self._right(predictions).mean(1)
        return right

    def truth(self, predictions: LabelPredictions, class_names: Sequence[str]) -> NDArray[np.int64]:
        """Give 1 for each label that an image has, else 0, `(N, K)`, in the order of the alphabet."""
        return predictions.targets[:, np.argsort(np.array(class_names))].astype(np.int64)

    def right_by_class(
        self, result: MultiLabel, predictions: LabelPredictions
    ) -> dict[str, NDArray[np.bool_]]:
        """Give for each label whether the answer to it is right, on all images."""
        return dict(zip(result.class_names, self._right(predictions).T, strict=True))

    def _right(self, predictions: LabelPredictions) -> NDArray[np.bool_]:
        """Give for each image and label whether the answer is right, `(N, K)`."""
        answers = [self.answers(rows).astype(np.bool_) for rows in in_parts(predictions.logits)]
        right: NDArray[np.bool_] = np.concatenate(answers) == predictions.targets
        return right

    def measures(self, result: MultiLabel) -> tuple[tuple[str, str], ...]:
        """Name average precisions, F1 and fractions of right answers."""
        rows = [("mean average precision", f"{_figure(result)}{_interval(result)}")]
        if result.repeated is not None and result.repeated.count:
            images = pluralize(result.repeated.count, "training image")
            rows.append(
                (f"the same without {images}", _percentage(result.repeated.mean_average_precision_without))
            )
        rows += [
            ("micro average precision", _percentage(result.micro_average_precision)),
            ("macro F1", _percentage(result.macro_f1)),
            ("micro F1", _percentage(result.micro_f1)),
            ("all labels of an image right", _percentage(result.subset_accuracy)),
            ("single labels wrong", _percentage(result.hamming_loss)),
            ("loss (nats)", f"{result.loss:.4f}"),
        ]
        return tuple(rows)

    def compare_sureness(self, first: MultiLabel, second: MultiLabel, labels: tuple[str, str]) -> Plot | None:
        """Draw nothing: the numbers of a label have no bins of confidence."""
        return None

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

    def pool(self, parts: Sequence[tuple[float, int]]) -> None:
        """Pool nothing: a mean average precision ranks images by the scores of one model."""

    def line(self, result: MultiLabel) -> str:
        """State the mean average precision with its interval."""
        unread = f", {result.bad} unreadable" if result.bad else ""
        figure = _figure(result)
        return (
            f"{figure} mean average precision on {result.count:,} images{unread}{_interval(result)}"
            f"{_repeats(result)}"
        )

    def summary(self, result: MultiLabel, images: str) -> tuple[str, str]:
        """State the mean average precision, and how good the model is by other measures."""
        return _figure(result), (
            f" mean average precision of {result.labels_that_occur} labels on {result.count:,} "
            f"{images}{_interval(result)}; micro {_percentage(result.micro_average_precision)}, "
            f"macro F1 {_percentage(result.macro_f1)}, micro F1 {_percentage(result.micro_f1)}, "
            f"all labels of an image right {result.subset_accuracy:.2%}, "
            f"single labels wrong {result.hamming_loss:.2%}; loss {result.loss:.4f}{_repeats(result)}"
        )

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

    def guess_headings(self, top: int) -> tuple[str, ...]:
        """Give the headings: the predicted labels, and the most probable of the others."""
        return (f"labels (probability {THRESHOLD:g} or more)", "next")

    def guess_cells(self, guesses: Sequence[Guess], top: int) -> list[list[str]]:
        """Write the predicted labels, and the most probable label that is not predicted."""
        there = [
            f"{guess.name} {guess.probability:.1%}" for guess in guesses if guess.probability >= THRESHOLD
        ]
        others = [f"{guess.name} {guess.probability:.1%}" for guess in guesses[len(there) :]]
        return [there or ["none"], others[:1]]

    def guess_json(self, guesses: Sequence[Guess]) -> dict[str, Any]:
        """List the predicted labels, and the probabilities of all labels."""
        return {
            "labels": [guess.name for guess in guesses if guess.probability >= THRESHOLD],
            "predictions": predictions_json(guesses),
        }

    def report(
        self, evaluations: Mapping[str, tuple[MultiLabel, LabelPredictions]], split: str | None
    ) -> TaskReport:
        """Show how well the labels are predicted, and the surest mistakes."""
        from vitkit.tasks.multi_label.report import report  # matplotlib: only a report draws

        return report(evaluations, split)


def _figure(result: MultiLabel) -> str:
    return _percentage(result.mean_average_precision)


def _percentage(fraction: float | None) -> str:
    return "undefined" if fraction is None else f"{fraction:.2%}"


def _interval(result: MultiLabel) -> str:
    if result.mean_average_precision_interval is None:
        reason = result.explain_no_interval()
        return f" ({reason})" if reason else ""
    low, high = result.mean_average_precision_interval
    return f" (95 % interval {percent(low)} to {percent(high)})"


def _repeats(result: MultiLabel) -> str:
    """Say how many of the images are training images, and the mean average precision without them."""
    repeated = result.repeated
    if repeated is None:
        return ""
    figure = _percentage(repeated.mean_average_precision_without)
    if repeated.interval_without is not None:
        low, high = repeated.interval_without
        figure += f" ({percent(low)} to {percent(high)})"
    return repeats_clause(repeated.count, result.count - repeated.count, figure)

"""Answers of a model of several labels: each a yes or no of its own."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitkit.config import from_json
from vitkit.durable import read_json
from vitkit.errors import VitkitError
from vitkit.evaluation.classify import explain_no_classes
from vitkit.evaluation.multilabel import THRESHOLD, MultiLabel, mark_repeated_labels, multi_label
from vitkit.evaluation.predictions import LabelPredictions
from vitkit.evaluation.scores import probabilities
from vitkit.evaluation.stored import in_parts
from vitkit.models.config import card
from vitkit.models.config.card import Card
from vitkit.models.config.compute_config import Precision
from vitkit.models.zoo import ModelConfig
from vitkit.tasks.answering import Guess
from vitkit.tasks.page import Plot, ShownImage, Table, TaskReport, percent
from vitkit.text import pluralize
from vitkit.world import ALONE, World

if TYPE_CHECKING:
    import torch

    from vitkit.data.stream.batch import Batch
    from vitkit.evaluation.run_model import Model


@dataclass(frozen=True)
class MultiLabelAnswering:
    """The methods are those of `vitkit.tasks.answering.Answering`, which describes them."""

    image_score: str = "share of labels right"

    def explain_unfit(self, config: ModelConfig) -> str:
        """Say why a model cannot do it: it needs a head and one row of logits for each image."""
        return explain_no_classes(config)

    def predict(
        self,
        model: "Model",
        batches: Iterable["Batch"],
        *,
        device: "torch.device | str",
        precision: Precision,
        learned: card.Task,
        progress: Callable[[int], None] | None = None,
        folder: Path | None = None,
        world: World = ALONE,
    ) -> LabelPredictions:
        """Keep the logits of every image."""
        from vitkit.evaluation.run_model import predict_labels

        return predict_labels(
            model,
            batches,
            device=device,
            precision=precision,
            progress=progress,
            folder=folder,
            world=world,
        )

    def measure(self, predictions: LabelPredictions, class_names: Sequence[str]) -> MultiLabel:
        """Count by the conventions of `vitkit.evaluation.multilabel`."""
        return multi_label(predictions, class_names)

    def mark_repeats(
        self, result: MultiLabel, predictions: LabelPredictions, rows: NDArray[np.int64]
    ) -> MultiLabel:
        """Add the mean average precision without them."""
        return mark_repeated_labels(result, predictions, rows)

    def read_evaluation(self, path: Path) -> tuple[MultiLabel, LabelPredictions]:
        """Read numbers and logits, and compare the two."""
        result = from_json(MultiLabel, read_json(path), str(path))
        predictions = LabelPredictions.load(path)
        for name, expected, found, right in _checks(result, predictions):
            if not right:
                raise VitkitError(
                    f"{path}: {name}: expected {expected}, found {str(found)[:200]}. Run the evaluation "
                    "again to write it anew."
                )
        return result, predictions

    def score_images(self, predictions: LabelPredictions) -> NDArray[np.float64]:
        """Count for each image the fraction of its labels, there or not, that are predicted rightly."""
        right: NDArray[np.float64] = self._right(predictions).mean(1)
        return right

    def truth(self, predictions: LabelPredictions, class_names: Sequence[str]) -> NDArray[np.int64]:
        """Tell of every label, in the order of the alphabet, whether an image has it, `(N, K)`."""
        return predictions.targets[:, np.argsort(np.array(class_names))].astype(np.int64)

    def right_by_class(
        self, result: MultiLabel, predictions: LabelPredictions
    ) -> dict[str, NDArray[np.bool_]]:
        """Tell for each label whether the answer to it is right, on all images."""
        return dict(zip(result.class_names, self._right(predictions).T, strict=True))

    def _right(self, predictions: LabelPredictions) -> NDArray[np.bool_]:
        """Tell for each image and label whether the answer is right, `(N, K)`."""
        answers = [self.answers(rows).astype(np.bool_) for rows in in_parts(predictions.logits)]
        right: NDArray[np.bool_] = np.concatenate(answers) == predictions.targets
        return right

    def measures(self, result: MultiLabel) -> tuple[tuple[str, str], ...]:
        """Name average precisions, F1 and fractions of right answers."""
        rows = [("mean average precision", f"{_figure(result)}{_interval(result)}")]
        if result.repeated is not None and result.repeated.count:
            images = pluralize(result.repeated.count, "training image")
            rows.append(
                (f"the same without {images}", _share(result.repeated.mean_average_precision_without))
            )
        rows += [
            ("micro average precision", _share(result.micro_average_precision)),
            ("macro F1", _share(result.macro_f1)),
            ("micro F1", _share(result.micro_f1)),
            ("all labels of an image right", _share(result.subset_accuracy)),
            ("single labels wrong", _share(result.hamming_loss)),
            ("loss (nats)", f"{result.loss:.4f}"),
        ]
        return tuple(rows)

    def compare_sureness(self, first: MultiLabel, second: MultiLabel, labels: tuple[str, str]) -> Plot | None:
        """Draw nothing: what is kept of each label has no bins of confidence."""
        return None

    def show(
        self, result: MultiLabel, predictions: LabelPredictions, rows: NDArray[np.int64]
    ) -> list[ShownImage]:
        """Name the labels of each image and those that are said of it, and the probability of the answer
        that the model is least sure of."""
        from vitkit.tasks.multi_label.report import shown_image  # matplotlib: only a page shows images

        shares = probabilities(predictions.logits, "sigmoid")
        least = np.maximum(shares, 1 - shares).min(1)
        return [shown_image(result, predictions, shares, row, float(least[row])) for row in rows.tolist()]

    def pool(self, parts: Sequence[tuple[float, int]]) -> None:
        """Pool nothing: a mean average precision ranks images by the scores of one model."""

    def explain_outdated(self, result: MultiLabel, learned: card.Task) -> str:
        """Say so where an early version gave an interval that other images hold less often than it says."""
        whole, mean = result.mean_average_precision_interval, result.mean_average_precision
        if whole is None or mean is None:
            return ""
        # Only those of an early version, of the spread of resampled images, lie evenly around the value, or
        # are told though a label is too rare for one.
        if result.too_rare or abs(sum(whole) - 2 * mean) <= 1e-12:
            return "has a 95% interval of an early version, which is too narrow"
        return ""

    def line(self, result: MultiLabel) -> str:
        """Tell the mean average precision with its interval."""
        unread = f", {result.bad} unreadable" if result.bad else ""
        figure = _figure(result)
        return (
            f"{figure} mean average precision on {result.count:,} images{unread}{_interval(result)}"
            f"{_repeats(result)}"
        )

    def summary(self, result: MultiLabel, images: str) -> tuple[str, str]:
        """Tell the mean average precision, and by other measures how good the model is."""
        return _figure(result), (
            f" mean average precision of {result.labels_that_occur} labels on {result.count:,} "
            f"{images}{_interval(result)}; micro {_share(result.micro_average_precision)}, macro F1 "
            f"{_share(result.macro_f1)}, micro F1 {_share(result.micro_f1)}, all labels of an image right "
            f"{result.subset_accuracy:.2%}, single labels wrong {result.hamming_loss:.2%}; loss "
            f"{result.loss:.4f}{_repeats(result)}"
        )

    def details(self, result: MultiLabel) -> Table:
        """Tell the numbers of every label, the worst first."""
        from vitkit.tasks.multi_label.report import label_table

        return label_table(result, worst_first=True)

    def guesses(self, outputs: NDArray[np.float32], card: Card, top: int) -> list[list[Guess]]:
        """Give every label with its probability, the most probable first: each is a question of its own, so
        that `top` leaves none out."""
        shares = probabilities(outputs, "sigmoid")
        names = card.class_names or tuple(f"label {i}" for i in range(outputs.shape[1]))
        return [
            [Guess(names[i], float(row[i])) for i in (-row).argsort(kind="stable").tolist()] for row in shares
        ]

    def answers(self, outputs: NDArray[np.float32]) -> NDArray[np.int64]:
        """Tell of every label whether it is predicted, `(B, K)`."""
        return (probabilities(outputs, "sigmoid") >= THRESHOLD).astype(np.int64)

    def guess_headings(self, top: int) -> tuple[str, ...]:
        """Give the headings: the predicted labels, and the most probable of the others."""
        return (f"labels (probability {THRESHOLD:g} or more)", "next")

    def guess_cells(self, guesses: Sequence[Guess], top: int) -> list[list[str]]:
        """Write the predicted labels, and the most probable one of those that are not predicted."""
        there = [
            f"{guess.name} {guess.probability:.1%}" for guess in guesses if guess.probability >= THRESHOLD
        ]
        others = [f"{guess.name} {guess.probability:.1%}" for guess in guesses[len(there) :]]
        return [there or ["none"], others[:1]]

    def guess_json(self, guesses: Sequence[Guess]) -> dict[str, Any]:
        """List the predicted labels, and the probabilities of all labels."""
        return {
            "labels": [guess.name for guess in guesses if guess.probability >= THRESHOLD],
            "predictions": [
                {"class": guess.name, "probability": round(guess.probability, 6)} for guess in guesses
            ],
        }

    def report(
        self, evaluations: Mapping[str, tuple[MultiLabel, LabelPredictions]], split: str | None
    ) -> TaskReport:
        """Say how well the labels are found, and where they are not."""
        from vitkit.tasks.multi_label.report import report  # matplotlib: only a report draws

        return report(evaluations, split)


def _figure(result: MultiLabel) -> str:
    return _share(result.mean_average_precision)


def _share(share: float | None) -> str:
    return "undefined" if share is None else f"{share:.2%}"


def _interval(result: MultiLabel) -> str:
    if result.mean_average_precision_interval is None:
        reason = result.explain_no_interval()
        return f" ({reason})" if reason else ""
    low, high = result.mean_average_precision_interval
    return f" (95 % interval {percent(low)} to {percent(high)})"


def _repeats(result: MultiLabel) -> str:
    """Say how many of the images are training images, and the mean average precision without them."""
    found = result.repeated
    if found is None or not found.count:
        return ""
    is_known = pluralize(found.count, "image is a training image", "images are training images")
    if found.count == result.count:
        return f"; all {is_known} too"
    without = _share(found.mean_average_precision_without)
    if found.interval_without is not None:
        low, high = found.interval_without
        without += f" ({percent(low)} to {percent(high)})"
    return f"; {is_known} too: without them {without}"


def _checks(result: MultiLabel, predictions: LabelPredictions) -> Iterator[tuple[str, str, Any, bool]]:
    """Yield each field with what is expected, what it holds and whether that is right, the simplest first."""
    count, classes = predictions.targets.shape
    unreadable = len(predictions.bad)
    yield "count", f"{count}, as in the predictions", result.count, result.count == count > 0
    yield "bad", f"{unreadable}, as in the predictions", result.bad, result.bad == unreadable
    yield "per_label", f"{classes} labels", len(result.per_label), len(result.per_label) == classes
    yield "loss", "0 or more", result.loss, 0 <= result.loss < math.inf
    shares = (
        "mean_average_precision", "micro_average_precision", "macro_f1", "micro_f1", "subset_accuracy",
        "hamming_loss",
    )  # fmt: skip
    for name in shares:
        yield name, "a share from 0 to 1", getattr(result, name), _is_share(getattr(result, name))
    whole = result.mean_average_precision_interval
    yield "mean_average_precision_interval", "two shares", whole, all(map(_is_share, whole or ()))
    if result.repeated is not None:
        known = result.repeated
        others = (known.mean_average_precision_without, *(known.interval_without or ()))
        sizes = 0 <= known.count <= count and all(map(_is_share, others))
        yield "repeated", "a count and shares of the other images", known, sizes
    totals = predictions.targets.sum(0).tolist()
    for i, (score, total) in enumerate(zip(result.per_label, totals, strict=True)):
        found = (score.average_precision, score.precision, score.recall, score.f1, score.best_f1)
        ends = (*(score.average_precision_interval or ()), score.best_threshold)
        counts = score.count == total and 0 <= score.correct <= min(score.count, score.predicted) <= count
        right = counts and all(map(_is_share, (*found, *ends)))
        yield f"per_label: {i}", "counts and shares of one label", score, right


def _is_share(value: float | None) -> bool:
    """Whether a fraction is from 0 to 1, or not defined; rounding may leave it a little above."""
    return value is None or 0 <= value <= 1 + 1e-9

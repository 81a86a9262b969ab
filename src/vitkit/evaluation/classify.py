"""Measure how well a model classifies: its predictions on a data set, and every number computed from them.

`predict` runs the model once and scores each image; `classification` counts. Keeping the two apart lets the
same predictions be counted again, compared with another model's, or looked at one by one.

Conventions:

- What a logit means depends on the loss that the model was trained with (`scores`): softmax or sigmoid.
- The prediction is the class with the largest logit; among equals, the lowest class number. A true class is
  within the top five if fewer than five classes stand before it by the same order.
- Predictions are ordered by id. Everything but loss and calibration is a ratio of integer counts, so it does
  not depend on how the images were batched.
- Images that could not be read are named in `bad` and count neither as right nor as wrong.
- A ratio whose denominator is zero (the precision of a class never predicted, say) is None, never 0 or NaN.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vitkit import config
from vitkit.data.batch import Batch
from vitkit.errors import NonFiniteError, VitkitError
from vitkit.evaluation.calibration import (
    CalibrationBin,
    Overconfidence,
    calibration_bins,
    calibration_error,
    overconfidence,
)
from vitkit.evaluation.guessing import Guessing, compare_with_guessing
from vitkit.evaluation.intervals import wilson_interval
from vitkit.evaluation.logits import LogitsAsTheyCome
from vitkit.evaluation.predictions import Predictions
from vitkit.evaluation.scores import ImageScores, check_labels, image_scores
from vitkit.models.card import LossFunction
from vitkit.models.precision import autocast
from vitkit.models.precision_config import Precision
from vitkit.models.zoo import ModelConfig

__all__ = [
    "ClassScore",
    "Classification",
    "Predictions",
    "Repeated",
    "classification",
    "evaluation_mode",
    "explain_no_classes",
    "mark_repeats",
    "predict",
    "wilson_interval",
]


@dataclass(frozen=True)
class ClassScore:
    """The numbers of one class."""

    name: str
    count: int
    """Images of this class."""
    predicted: int
    """Images predicted to be of this class."""
    correct: int
    """Images of this class predicted to be of it."""
    precision: float | None
    """correct / predicted"""
    recall: float | None
    """correct / count, the accuracy within the class"""
    f1: float | None
    """2 correct / (count + predicted), the harmonic mean of the two"""


@dataclass(frozen=True)
class Repeated:
    """The images that are training images too, pixel for pixel, and the accuracy without them."""

    count: int
    correct: int
    """Those of them that the model is right on."""
    accuracy_without: float | None
    """On the other images; None where there are no others."""
    interval_without: tuple[float, float]
    """Wilson's 95% interval of that."""


@dataclass(frozen=True)
class Classification:
    """The numbers of one data set; fractions are from 0 to 1."""

    count: int
    """Readable images: what all numbers are about."""
    bad: int
    """Images that could not be read."""
    correct: int
    accuracy: float
    accuracy_interval: tuple[float, float]
    """Wilson's 95 % interval of the accuracy on other images drawn alike."""
    top5_accuracy: float | None
    """Fraction with the true class among the five largest logits; None with five classes or fewer."""
    loss: float
    """Mean over the images, in nats: cross entropy; of a sigmoid model, the sum over all classes of their
    binary cross entropies. As in training, but for label smoothing and mixup."""
    balanced_accuracy: float
    """Mean recall of the classes that occur."""
    macro_f1: float
    """Mean F1 of the classes that occur or are predicted."""
    calibration_error: float
    """Expected calibration error: mean of the bins' |accuracy - confidence|, weighted by their counts."""
    calibration: tuple[CalibrationBin, ...]
    """15 bins of equal width (Guo et al. 2017)."""
    per_class: tuple[ClassScore, ...]
    confusion_cells: tuple[tuple[int, int, int], ...]
    """`(true, predicted, count)` where the count is not 0, sorted: 21k classes would not fit as a matrix."""
    loss_function: LossFunction = "softmax"
    """The loss that the model was trained with: probabilities, loss and calibration depend on it."""
    guessing: Guessing | None = None
    """Whether it is better than always answering the most frequent class; None as early versions wrote it."""
    overconfidence: Overconfidence | None = None
    """Mean confidence - accuracy, with an interval; None as early versions wrote it."""
    repeated: Repeated | None = None
    """Images that the model was trained on; None where they were not looked for."""

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(score.name for score in self.per_class)

    @property
    def confusion(self) -> NDArray[np.int64]:
        """`(K, K)` counts, rows the true classes and columns the predicted ones; 3.8 GB of 21,843 classes."""
        matrix = np.zeros((len(self.per_class),) * 2, np.int64)
        for true, predicted, count in self.confusion_cells:
            matrix[true, predicted] = count
        return matrix

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        return config.to_json(self)


def explain_no_classes(config: ModelConfig) -> str:
    """Say why a model of this configuration cannot classify, in words that follow its name; "" if it can."""
    if not config.num_classes:
        return (
            "has no head: it gives features, not classes. Take a checkpoint that has a head, or train one "
            "with vitkit finetune"
        )
    if not config.pools:
        return (
            "has no pooling (pool none): what it says of each token is no prediction for an image. "
            "Choose pool token, mean or map when the model is made"
        )
    return ""


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode without gradients, and every module back into its mode afterwards."""
    # Module by module, because a frozen part may be in evaluation mode while the rest trains.
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True


def predict(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    device: torch.device | str = "cpu",
    precision: Precision = "float32",
    progress: Callable[[int], None] | None = None,
    loss: LossFunction = "softmax",
    keep_logits: bool = True,
    folder: Path | None = None,
) -> Predictions:
    """Run a model over a data set once.

    Each batch is scored as it comes, so that memory holds some numbers for each image and no more.

    Args:
        model: images `(B, 3, H, W)` to logits `(B, K)`; already on `device`.
        batches: every image once. Unreadable images take part in the forward pass, so that batches keep their
            shape, and are dropped after it.
        device: where batches are moved to.
        precision: that the model computes in; the logits are kept as float32 either way.
        progress: called after each batch with the number of its images.
        loss: the one that the model was trained with, which decides what its logits mean.
        keep_logits: Whether the logits can be asked for afterwards; more than 64 MiB of them are kept in a
            file.
        folder: where that file is made, without a name; None: the system's folder for temporary files.

    Raises:
        VitkitError: the model gives no single row of logits per image, logits that are not finite, or fewer
            than the labels need; the logits find no room.
    """
    device = torch.device(device)
    gathered = _Gathered(loss, LogitsAsTheyCome(folder) if keep_logits else None)
    with evaluation_mode(model), autocast(device, precision):
        for batch in batches:
            moved = batch.to(device)
            output = model(moved.images)
            if output.ndim != 2:
                raise VitkitError(
                    f"Classification needs one row of logits per image, found an output of shape "
                    f"{tuple(output.shape)}: choose pool='token' or 'mean'."
                )
            gathered.add(output[moved.mask].float().cpu().numpy(), batch)
            if progress is not None:
                progress(len(batch.ids))
    return gathered.predictions()


class _Gathered:
    """Collects scores, labels and ids batch by batch while a model runs over a data set.

    Everything is copied: a batch lies in memory that is shared with the worker that made it, and holds a file
    descriptor for as long as anything refers to it.
    """

    def __init__(self, loss: LossFunction, logits: LogitsAsTheyCome | None) -> None:
        self.loss, self.logits = loss, logits
        self.classes = self.not_finite = 0
        self.scores: list[ImageScores] = []
        self.labels: list[NDArray[np.int64]] = []
        self.ids: list[NDArray[np.int64]] = []
        self.bad: list[NDArray[np.int64]] = []

    def add(self, rows: NDArray[np.float32], batch: Batch) -> None:
        """Count a batch, whose readable images have the logits `rows` `(n, K)`."""
        mask, ids = batch.mask.cpu().numpy(), batch.ids.cpu().numpy()
        labels, self.classes = batch.labels.cpu().numpy()[mask], rows.shape[1]  # indexing copies
        self.labels.append(labels)
        self.ids.append(ids[mask])
        self.bad.append(ids[~mask])
        self.not_finite += int((~np.isfinite(rows).all(1)).sum())
        if self.not_finite:
            return  # there will be no result: only count such images, for the error
        check_labels(labels, self.classes)
        self.scores.append(image_scores(rows, labels, self.loss))
        if self.logits is not None:
            self.logits.add(rows)

    def predictions(self) -> Predictions:
        """Return everything that was collected, ordered by id."""
        if not self.ids:
            raise VitkitError(
                "There is no image to evaluate on: the data set (or this split of it) is empty."
            )
        ids = np.concatenate(self.ids)
        if self.not_finite:
            raise NonFiniteError(
                f"The model's logits are not finite (NaN or infinite) for {self.not_finite} of {len(ids)} "
                "images. Its weights have diverged, or overflow in this precision: evaluate an earlier "
                "checkpoint, or in float32."
            )
        order = ids.argsort(kind="stable")
        if self.logits is not None:
            self.logits.arrange(order)
        return Predictions(
            self.logits,
            labels=np.concatenate(self.labels)[order],
            ids=ids[order],
            bad=np.sort(np.concatenate(self.bad)),
            loss=self.loss,
            classes=self.classes,
            scores=ImageScores.concatenate(self.scores).select(order),
        )


def classification(predictions: Predictions, class_names: Sequence[str]) -> Classification:
    """Compute every number of a classifier, by the conventions at the head of this file.

    Args:
        predictions: those of a model of K classes.
        class_names: K names, in the order of the logits.

    Raises:
        VitkitError: no image could be read, or the names or labels do not fit the logits.
    """
    count, bad, classes = len(predictions), len(predictions.bad), predictions.classes
    if count == 0:
        raise VitkitError(
            f"There is no readable image to evaluate on ({bad} could not be read): check this split's data."
        )
    if len(class_names) != classes:
        raise VitkitError(
            f"The model has {classes} outputs, but {len(class_names)} class names were given: use the names "
            "that were saved with the model."
        )
    check_labels(predictions.labels, classes)
    scores, labels, predicted = predictions.scores, predictions.labels, predictions.predicted
    right = predicted == labels
    correct = int(right.sum())
    per_class = _class_scores(class_names, labels, predicted)
    recalls = [score.recall for score in per_class if score.recall is not None]
    f1s = [score.f1 for score in per_class if score.f1 is not None]
    bins = calibration_bins(scores.confidence, right)
    # `fsum` rounds once: no number depends on the order of the images or on how they were batched.
    return Classification(
        count=count,
        bad=bad,
        correct=correct,
        accuracy=correct / count,
        accuracy_interval=wilson_interval(correct, count),
        top5_accuracy=int((scores.rank < 5).sum()) / count if classes > 5 else None,
        loss=math.fsum(scores.loss) / count,
        balanced_accuracy=math.fsum(recalls) / len(recalls),
        macro_f1=math.fsum(f1s) / len(f1s),
        calibration_error=calibration_error(bins),
        calibration=bins,
        per_class=per_class,
        confusion_cells=_confusion_cells(labels, predicted, classes),
        loss_function=predictions.loss,
        guessing=compare_with_guessing(
            class_names, [score.count for score in per_class], [score.correct for score in per_class]
        ),
        overconfidence=overconfidence(scores.confidence, right),
    )


def mark_repeats(result: Classification, predictions: Predictions, rows: NDArray[np.int64]) -> Classification:
    """Add the accuracy without the images that were trained on.

    Args:
        result: the numbers of `predictions`.
        predictions: of all images of a split.
        rows: numbers of the images of the split that are training images too.
    """
    known = np.isin(predictions.ids, rows)
    count, right = int(known.sum()), predictions.predicted == predictions.labels
    correct = int(right[known].sum())
    others, hits = result.count - count, result.correct - correct
    found = Repeated(count, correct, _ratio(hits, others), wilson_interval(hits, others))
    return replace(result, repeated=found)


def _class_scores(
    class_names: Sequence[str], labels: NDArray[np.int64], predicted: NDArray[np.int64]
) -> tuple[ClassScore, ...]:
    """Count the images of each class, those predicted to be of it, and those that are both."""
    classes = len(class_names)
    counts = zip(
        class_names,
        np.bincount(labels, minlength=classes).tolist(),
        np.bincount(predicted, minlength=classes).tolist(),
        np.bincount(labels[predicted == labels], minlength=classes).tolist(),
        strict=True,
    )
    return tuple(
        ClassScore(
            name=name,
            count=count,
            predicted=taken,
            correct=hits,
            precision=_ratio(hits, taken),
            recall=_ratio(hits, count),
            f1=_ratio(2 * hits, count + taken),
        )
        for name, count, taken, hits in counts
    )


def _confusion_cells(
    labels: NDArray[np.int64], predicted: NDArray[np.int64], classes: int
) -> tuple[tuple[int, int, int], ...]:
    """Count the images of each pair `(true, predicted)` that occurs."""
    # One number for each pair: no K x K matrix is needed.
    pairs, counts = np.unique(labels * classes + predicted, return_counts=True)
    return tuple(
        (*divmod(pair, classes), cell) for pair, cell in zip(pairs.tolist(), counts.tolist(), strict=True)
    )


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None

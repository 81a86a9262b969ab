"""How well a model classifies: its predictions on a data set, and every number drawn from them.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vitkit import config
from vitkit.data.loader import Batch
from vitkit.errors import VitkitError
from vitkit.evaluation.logits import LogitsAsTheyCome
from vitkit.evaluation.predictions import Predictions
from vitkit.evaluation.scores import ImageScores, check_labels, image_scores
from vitkit.models.card import LossFunction
from vitkit.models.precision import autocast
from vitkit.models.precision_config import Precision
from vitkit.models.zoo import ModelConfig

__all__ = [
    "CalibrationBin",
    "ClassScore",
    "Classification",
    "Predictions",
    "classification",
    "evaluating",
    "explain_no_classes",
    "predict",
    "wilson_interval",
]

CALIBRATION_BINS = 15
NORMAL_95 = 1.959963984540054  # the standard normal's 97.5% point


@dataclass(frozen=True)
class ClassScore:
    """One class among all."""

    name: str
    count: int
    """Images of this class."""
    predicted: int
    """Images said to be of this class."""
    correct: int
    """Images of this class said to be so."""
    precision: float | None
    """correct / predicted"""
    recall: float | None
    """correct / count, the accuracy within the class"""
    f1: float | None
    """2 correct / (count + predicted), the harmonic mean of the two"""


@dataclass(frozen=True)
class CalibrationBin:
    """Images whose confidence (the predicted class's probability) lies in `(lower, upper]`."""

    lower: float
    upper: float
    count: int
    confidence: float | None
    """Mean over the bin's images."""
    accuracy: float | None


@dataclass(frozen=True)
class Classification:
    """The numbers of one data set. Shares are from 0 to 1."""

    count: int
    """Readable images: what all numbers are about."""
    bad: int
    """Images that could not be read."""
    correct: int
    accuracy: float
    accuracy_interval: tuple[float, float]
    """Wilson's 95% interval: what the accuracy on other images drawn alike may plausibly be."""
    top5_accuracy: float | None
    """None with five classes or fewer, where it would be 1 always."""
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
    """What the logits were scored by: probabilities, loss and calibration depend on it."""

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
        """All numbers as plain data."""
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
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients within; afterwards every module is in the mode it was in."""
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
    with evaluating(model), autocast(device, precision):
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
    """What is kept of the batches while a model runs over them.

    All of it is copied: a batch lies in memory that is shared with the process that made it, and holds a file
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
        labels = batch.labels.cpu().numpy()[mask]  # indexing copies
        self.classes = rows.shape[1]
        self.labels.append(labels)
        self.ids.append(ids[mask])
        self.bad.append(ids[~mask])
        self.not_finite += int((~np.isfinite(rows).all(1)).sum())
        if self.not_finite:
            return  # there will be no result: what is left to do is to count
        check_labels(labels, self.classes)
        self.scores.append(image_scores(rows, labels, self.loss))
        if self.logits is not None:
            self.logits.add(rows)

    def predictions(self) -> Predictions:
        """All of it, ordered by id."""
        if not self.ids:
            raise VitkitError(
                "There is no image to evaluate on: the data set (or this split of it) is empty."
            )
        ids = np.concatenate(self.ids)
        if self.not_finite:
            raise VitkitError(
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
            scores=ImageScores.joined(self.scores).taken(order),
        )


def classification(predictions: Predictions, class_names: Sequence[str]) -> Classification:
    """Every number of a classifier, by the conventions at the head of this file.

    Args:
        predictions: of K classes.
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
    bins = _calibration(scores.confidence, right)
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
        calibration_error=_calibration_error(bins),
        calibration=bins,
        per_class=per_class,
        confusion_cells=_confusion_cells(labels, predicted, classes),
        loss_function=predictions.loss,
    )


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
    """Count the images of each pair `(true, predicted)` that occurs, told apart by true * K + predicted."""
    pairs, counts = np.unique(labels * classes + predicted, return_counts=True)
    return tuple(
        (*divmod(pair, classes), cell) for pair, cell in zip(pairs.tolist(), counts.tolist(), strict=True)
    )


def _calibration_error(bins: Sequence[CalibrationBin]) -> float:
    """Average the bins' |accuracy - confidence| over their images."""
    gaps = [
        b.count * abs(b.accuracy - b.confidence)
        for b in bins
        if b.accuracy is not None and b.confidence is not None
    ]
    return math.fsum(gaps) / sum(b.count for b in bins)


def wilson_interval(correct: int, count: int) -> tuple[float, float]:
    """95% confidence interval of a share, `(0, 1)` where nothing was counted (Wilson 1927).

    Unlike the textbook's p +- 1.96 sigma it is right for few images and for accuracies near 0 and 1.
    """
    if count == 0:
        return 0.0, 1.0
    share, z2 = correct / count, NORMAL_95**2
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = NORMAL_95 / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    # Exact at the ends, where rounding would leave 1e-17.
    lower = 0.0 if correct == 0 else centre - half
    upper = 1.0 if correct == count else centre + half
    return lower, upper


def _calibration(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> tuple[CalibrationBin, ...]:
    number = np.clip(np.ceil(confidence * CALIBRATION_BINS) - 1, 0, CALIBRATION_BINS - 1)
    bins = []
    for i in range(CALIBRATION_BINS):
        inside = number == i
        count = int(inside.sum())
        bins.append(
            CalibrationBin(
                lower=i / CALIBRATION_BINS,
                upper=(i + 1) / CALIBRATION_BINS,
                count=count,
                confidence=math.fsum(confidence[inside]) / count if count else None,
                accuracy=_ratio(int(right[inside].sum()), count),
            )
        )
    return tuple(bins)


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None

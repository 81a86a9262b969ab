"""Scores of a model that finds the labels of images, which have several, or none.

`predict_labels` runs the model once; `multi_label` counts. Each label is a yes or no of its own, scored by
the sigmoid of its logit.

Conventions:

- How well a label's logits rank images is its average precision (`ranking`); the logits themselves are
  ranked, so that no rounding of probabilities makes them equal.
- A label is predicted from a probability of 0.5, a logit of 0.
- Predictions are ordered by id. Everything is computed in float64 from that order, so it does not depend on
  how the images were batched.
- Images that could not be read are named in `bad` and count for nothing.
- A label that no image has, has no average precision: it is None, and left out of the mean. A ratio whose
  denominator is zero is None, never 0 or NaN.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit import config
from vitkit.data.listing import join_names, pluralize
from vitkit.errors import VitkitError
from vitkit.evaluation.label_predictions import LabelPredictions
from vitkit.evaluation.ranking import FEWEST_POSITIVES, Interval, Ranking, intervals_95

THRESHOLD = 0.5
"""Probability from which a label is predicted."""


@dataclass(frozen=True)
class LabelScore:
    """One label among all."""

    name: str
    count: int
    """Images that have the label."""
    predicted: int
    """Images for which the label is predicted."""
    correct: int
    """Images that have the label and for which it is predicted."""
    average_precision: float | None
    average_precision_interval: Interval | None
    """95%; None if it was not asked for, or fewer than three images have the label."""
    precision: float | None
    """correct / predicted"""
    recall: float | None
    """correct / count"""
    f1: float | None
    """2 correct / (count + predicted), the harmonic mean of the two"""
    best_f1: float | None
    """The largest F1 that another threshold reaches on these images; on others it will be lower."""
    best_threshold: float | None
    """The probability that is this threshold."""


@dataclass(frozen=True)
class RepeatedLabels:
    """The images that are training images too, pixel for pixel, and the numbers without them."""

    count: int
    mean_average_precision_without: float | None
    """On the other images, over the labels that occur there; None where there are none."""
    interval_without: Interval | None
    """95%; None if one of these labels has fewer than three of the others."""
    labels_that_occur: int
    """Labels of the other images."""


@dataclass(frozen=True)
class MultiLabel:
    """The numbers of one data set; fractions are from 0 to 1."""

    count: int
    """Readable images: what all numbers are about."""
    bad: int
    """Images that could not be read."""
    mean_average_precision: float | None
    """Mean over the labels that occur; None if no image has a label."""
    mean_average_precision_interval: Interval | None
    """95%; None if it was not asked for, or `too_rare` names labels."""
    labels_that_occur: int
    """Labels that the mean is over."""
    micro_average_precision: float | None
    """Average precision of all pairs of image and label, ranked together."""
    macro_f1: float | None
    """Mean F1 of the labels that occur or are predicted."""
    micro_f1: float | None
    """F1 of all pairs of image and label, counted together."""
    subset_accuracy: float
    """Fraction of the images for which exactly the right labels are predicted."""
    hamming_loss: float
    """Fraction of the pairs of image and label that are predicted wrongly."""
    loss: float
    """Mean over the images, in nats, of the sum over all labels of their binary cross entropies. As in
    training, but for label smoothing and mixup."""
    labels_per_image: float
    predicted_per_image: float
    per_label: tuple[LabelScore, ...]
    repeated: RepeatedLabels | None = None
    """None where nobody looked for them."""

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(score.name for score in self.per_label)

    @property
    def too_rare(self) -> tuple[str, ...]:
        """The labels that occur, but on too few images to say how far their ranking holds for others."""
        return tuple(score.name for score in self.per_label if 0 < score.count < FEWEST_POSITIVES)

    def explain_no_interval(self) -> str:
        """Say why the mean average precision has no interval, without a full stop; "" where it has one."""
        if self.mean_average_precision_interval is not None or not self.too_rare:
            return ""
        are, named = pluralize(len(self.too_rare), "label is", "labels are"), join_names(self.too_rare, 3)
        return f"no 95% interval: {are} on fewer than {FEWEST_POSITIVES} images ({named})"

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        return config.to_json(self)


def multi_label(
    predictions: LabelPredictions, class_names: Sequence[str], intervals: bool = True
) -> MultiLabel:
    """Count every number, by the conventions at the head of this file.

    Args:
        predictions: of K labels.
        class_names: K names, in the order of the logits.
        intervals: whether to estimate them.

    Raises:
        VitkitError: no image could be read, or the names do not fit the logits.
    """
    count, classes = len(predictions), predictions.targets.shape[1]
    _check(predictions, class_names)
    logits, targets = predictions.logits, predictions.targets
    # A logit of 0 is a probability of 0.5 by the sigmoid: from there on the label is predicted.
    predicted = logits >= 0
    hits, wrong = predicted & targets, predicted != targets
    rankings = [Ranking.from_scores(logits[:, label], targets[:, label]) for label in range(classes)]
    pooled = Ranking.from_scores(logits.reshape(-1), targets.reshape(-1))  # all labels as one
    whole, singles = intervals_95(rankings) if intervals else (None, [None] * classes)
    per_label = tuple(
        _label_score(*row)
        for row in zip(
            class_names,
            targets.sum(0).tolist(),
            predicted.sum(0).tolist(),
            hits.sum(0).tolist(),
            rankings,
            singles,
            strict=True,
        )
    )
    precisions = [one.average_precision for one in per_label if one.average_precision is not None]
    f1s = [one.f1 for one in per_label if one.f1 is not None]
    mean = math.fsum(precisions) / len(precisions) if precisions else None
    total, named = int(targets.sum()), int(predicted.sum())
    return MultiLabel(
        count=count,
        bad=len(predictions.bad),
        mean_average_precision=mean,
        mean_average_precision_interval=whole,
        labels_that_occur=len(precisions),
        micro_average_precision=pooled.average_precision(),
        macro_f1=math.fsum(f1s) / len(f1s) if f1s else None,
        micro_f1=_ratio(2 * int(hits.sum()), total + named),
        subset_accuracy=int((~wrong.any(1)).sum()) / count,
        hamming_loss=int(wrong.sum()) / wrong.size,
        loss=math.fsum(_losses(predictions)) / count,
        labels_per_image=total / count,
        predicted_per_image=named / count,
        per_label=per_label,
    )


def mark_repeated_labels(
    result: MultiLabel, predictions: LabelPredictions, rows: NDArray[np.int64]
) -> MultiLabel:
    """Add the mean average precision without the images that were trained on.

    Args:
        result: the numbers of `predictions`.
        predictions: of all images of a split.
        rows: numbers of the images of the split that are training images too.
    """
    known = np.isin(predictions.ids, rows)
    count = int(known.sum())
    if not count:
        mean, interval = result.mean_average_precision, result.mean_average_precision_interval
        found = RepeatedLabels(0, mean, interval, result.labels_that_occur)
    elif count == len(predictions):
        found = RepeatedLabels(count, None, None, 0)
    else:
        kept = (predictions.logits[~known], predictions.targets[~known], predictions.ids[~known])
        others = multi_label(LabelPredictions(*kept, predictions.bad), result.class_names)
        found = RepeatedLabels(
            count,
            others.mean_average_precision,
            others.mean_average_precision_interval,
            others.labels_that_occur,
        )
    return replace(result, repeated=found)


def _check(predictions: LabelPredictions, class_names: Sequence[str]) -> None:
    """Refuse what cannot be counted."""
    count, classes = predictions.targets.shape
    if count == 0:
        raise VitkitError(
            f"There is no readable image to evaluate on ({len(predictions.bad)} could not be read): check "
            "this split's data."
        )
    if len(class_names) != classes:
        raise VitkitError(
            f"The model has {classes} outputs, but {len(class_names)} label names were given: use the names "
            "that were saved with the model."
        )


def probability(logit: float) -> float:
    """Compute the sigmoid of a logit."""
    return float(np.exp(-np.logaddexp(0, -np.float64(logit))))


def _label_score(
    name: str, count: int, predicted: int, hits: int, ranking: Ranking, interval: Interval | None
) -> LabelScore:
    best = ranking.best_f1()
    average_precision = ranking.average_precision()
    return LabelScore(
        name=name,
        count=count,
        predicted=predicted,
        correct=hits,
        average_precision=average_precision,
        average_precision_interval=interval,
        precision=_ratio(hits, predicted),
        recall=_ratio(hits, count),
        f1=_ratio(2 * hits, count + predicted),
        best_f1=None if best is None else best[0],
        best_threshold=None if best is None else probability(best[1]),
    )


def _losses(predictions: LabelPredictions) -> list[float]:
    """Sum the labels' binary cross entropies of every image."""
    losses: list[float] = []
    for rows in predictions.parts():
        targets = predictions.targets[len(losses) : len(losses) + len(rows)]
        wide = rows.astype(np.float64)
        # log(1 + e^x) of a label that is not there, log(1 + e^-x) of one that is.
        losses += np.logaddexp(0, np.where(targets, -wide, wide)).sum(1).tolist()
    return losses


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None

"""Score single images: probabilities, prediction and loss from the logits; and a class by its counts.

What a logit means depends on the loss that the model was trained with. Softmax: the classes exclude each
other and their probabilities sum to one. Sigmoid: each class is a yes or no of its own.

Everything is computed in float64 and row by row, so that no number depends on how images were batched.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitkit.errors import VitkitError
from vitkit.models.config import LossFunction

Logits = NDArray[np.float32]


class ImageScores(NamedTuple):
    """The scores of N images, from which everything else is counted."""

    predicted: NDArray[np.int64]
    """`(N,)` classes with the largest logit; among equals the lowest class number."""
    confidence: NDArray[np.float64]
    """`(N,)` probabilities of the predicted classes; of a sigmoid model the class's own, whatever the other
    classes' are."""
    loss: NDArray[np.float64]
    """`(N,)` in nats."""
    rank: NDArray[np.int64]
    """`(N,)` numbers of classes that stand before the true one."""

    @classmethod
    def concatenate(cls, parts: Iterable["ImageScores"]) -> "ImageScores":
        """Join the scores of several groups of images."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


def probabilities(logits: Logits, loss: LossFunction) -> NDArray[np.float64]:
    """Compute the probability of each class for a model trained with that loss.

    Args:
        logits: `(N, K)`
        loss: softmax: a row sums to one; sigmoid: each class by itself.

    Returns:
        `(N, K)`
    """
    match loss:
        case "sigmoid":
            sigmoid: NDArray[np.float64] = np.exp(-np.logaddexp(0, -logits.astype(np.float64)))
            return sigmoid
        case "softmax":
            powers = np.exp(logits - logits.max(1, keepdims=True).astype(np.float64))
            softmax: NDArray[np.float64] = powers / powers.sum(1, keepdims=True)
            return softmax


def sureness(logits: Logits) -> NDArray[np.float64]:
    """Compute how sure a model of several labels is of its answer to each, yes or no, `(N, K)` from 0.5."""
    probability = probabilities(logits, "sigmoid")
    return np.maximum(probability, 1 - probability)


def likeliest(logits: Logits, count: int) -> NDArray[np.int64]:
    """Return the `count` classes with the largest logits, `(N, count)`, the largest first.

    Among equals the lowest class number comes first, as in `ImageScores.predicted`.

    Args:
        logits: `(N, K)`, finite, K at least `count`.
        count: classes for each image.
    """
    rest, classes = logits.copy(), np.empty((len(logits), count), np.int64)
    for place in range(count):  # a few passes are many times as fast as sorting a thousand classes
        classes[:, place] = rest.argmax(1)
        np.put_along_axis(rest, classes[:, place : place + 1], -np.inf, 1)
    return classes


def image_scores(logits: Logits, labels: NDArray[np.int64], loss: LossFunction) -> ImageScores:
    """Score each image by itself.

    Args:
        logits: `(N, K)`, finite.
        labels: `(N,)` true classes, from 0 to K - 1.
        loss: the loss that the model was trained with.
    """
    predicted = logits.argmax(1)
    confidence = np.take_along_axis(probabilities(logits, loss), predicted[:, None], 1)[:, 0]
    true = np.take_along_axis(logits, labels[:, None], 1)
    lower_number = np.arange(logits.shape[1]) < labels[:, None]
    ahead: NDArray[np.int64] = ((logits > true) | ((logits == true) & lower_number)).sum(1)
    return ImageScores(predicted, confidence, _losses(logits, labels, loss), ahead)


def check_labels(labels: NDArray[np.int64], classes: int) -> None:
    """Refuse labels that are no class of the model.

    Raises:
        VitkitError: a label is below 0 or not below `classes`.
    """
    if len(labels) and (labels.min() < 0 or labels.max() >= classes):
        raise VitkitError(
            f"Labels run from {labels.min()} to {labels.max()}, but the model has classes 0 to "
            f"{classes - 1}: evaluate on data with the classes that the model was trained on."
        )


def ratio(part: int, whole: int) -> float | None:
    """Divide two counts; None where there is nothing to divide by."""
    return part / whole if whole else None


def count_by_class(
    names: Sequence[str], *counts: Sequence[int]
) -> Iterator[tuple[str, int, int, int, float | None, float | None, float | None]]:
    """Yield the fields of each class or label: its name, the images of it, the images for which it is
    predicted, those for which it is predicted rightly; precision, recall and their harmonic mean, F1.

    Args:
        names: of K classes.
        counts: the three counts, each of K classes.
    """
    for name, count, predicted, correct in zip(names, *counts, strict=True):
        f1 = ratio(2 * correct, count + predicted)
        yield name, count, predicted, correct, ratio(correct, predicted), ratio(correct, count), f1


def _losses(logits: Logits, labels: NDArray[np.int64], loss: LossFunction) -> NDArray[np.float64]:
    """Compute the losses of training, without smoothing, `(N,)` in nats.

    They are the cross entropy, or the sum of the classes' binary cross entropies.
    """
    match loss:
        case "sigmoid":
            terms = np.logaddexp(0, logits.astype(np.float64))  # where the class is absent: log(1 + e^x)
            true = np.take_along_axis(logits, labels[:, None], 1).astype(np.float64)
            np.put_along_axis(terms, labels[:, None], np.logaddexp(0, -true), 1)
            sums: NDArray[np.float64] = terms.sum(1)
            return sums
        case "softmax":
            shifted = logits - logits.max(1, keepdims=True).astype(np.float64)
            true = np.take_along_axis(shifted, labels[:, None], 1)[:, 0]
            losses: NDArray[np.float64] = np.log(np.exp(shifted).sum(1)) - true
            return losses

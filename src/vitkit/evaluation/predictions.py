"""Score single images by their logits, and hold what a model predicted for every image of a data set, of one
class or of several labels each.

The loss that the model was trained with decides what a logit means. Softmax: the classes exclude each other
and their probabilities sum to one. Sigmoid: each class is a yes or no of its own.

Everything is computed in float64 and row by row, so that no number depends on how images were batched.

On the disk each array has an `.npy` file of its own, which is mapped when it is read:

test.logits.npy   (N, K) float32
test.labels.npy   (N,) int64, the true classes; of images with several labels (N, K) uint8, 0 or 1
test.ids.npy      (N,) int64, the readable images' numbers in their data set
test.bad.npy      (M,) int64, the numbers of the images that could not be read
"""

import io
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from vitkit.data.files import UnreadableFileError, regular_file
from vitkit.durable import replace_file
from vitkit.errors import VitkitError
from vitkit.models.config import LossFunction
from vitkit.text import first_line

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
    # The losses of training, without smoothing: the cross entropy, or the sum of the classes' binary ones.
    match loss:
        case "sigmoid":
            terms = np.logaddexp(0, logits.astype(np.float64))  # where the class is absent: log(1 + e^x)
            np.put_along_axis(terms, labels[:, None], np.logaddexp(0, -true.astype(np.float64)), 1)
            losses: NDArray[np.float64] = terms.sum(1)
        case "softmax":
            shifted = logits - logits.max(1, keepdims=True).astype(np.float64)
            losses = np.log(np.exp(shifted).sum(1)) - np.take_along_axis(shifted, labels[:, None], 1)[:, 0]
    return ImageScores(predicted, confidence, losses, ahead)


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


class Predictions:
    """The predictions of a model for the N readable images of a data set, ordered by id.

    Args:
        logits: `(N, K)`; None where they were not kept.
        labels: `(N,)` true classes; of images with several labels `(N, K)` bool, whether an image has each.
        ids: `(N,)` the images' numbers in their data set.
        bad: numbers of the images that could not be read.
        loss: the loss that the model was trained with, which decides what logits mean.
        classes: K; left out, the number of columns of the logits.
        scores: the images' scores; left out, they are computed from the logits when they are needed.
    """

    def __init__(
        self,
        logits: NDArray[np.float32] | None,
        labels: NDArray[Any],
        ids: NDArray[np.int64],
        bad: NDArray[np.int64],
        loss: LossFunction = "softmax",
        *,
        classes: int | None = None,
        scores: ImageScores | None = None,
    ) -> None:
        self._logits, self.labels, self.ids, self.bad, self.loss = logits, labels, ids, bad, loss
        if classes is None:
            classes = 0 if logits is None else logits.shape[1]
        self.classes = classes
        if scores is not None:
            self.scores = scores

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Predictions({len(self):,} images, {self.classes:,} classes, {len(self.bad):,} unreadable)"

    @property
    def logits(self) -> NDArray[np.float32]:
        """`(N, K)`; many are not in memory but mapped from a file, which cannot be written to.

        Raises:
            VitkitError: they were not kept.
        """
        if self._logits is None:
            raise VitkitError("The logits of these predictions were not kept: predict with keep_logits.")
        return self._logits

    @cached_property
    def scores(self) -> ImageScores:
        """The scores of each image, computed from its logits.

        Raises:
            VitkitError: a label is no class of the model.
        """
        check_labels(self.labels, self.classes)
        parts = in_parts(self.logits, self.labels)
        return ImageScores.concatenate(image_scores(rows, labels, self.loss) for rows, labels in parts)

    @property
    def predicted(self) -> NDArray[np.int64]:
        """`(N,)` classes with the largest logit."""
        return self.scores.predicted

    @property
    def right(self) -> NDArray[np.bool_]:
        """`(N,)` whether an image's predicted class is its own; of several labels `(N, K)` whether the answer
        to each is right: a label is predicted from a logit of 0, by the sigmoid a probability of 0.5."""
        answers = self.predicted if self.labels.ndim == 1 else self.logits >= 0
        right: NDArray[np.bool_] = answers == self.labels
        return right

    @property
    def confidence(self) -> NDArray[np.float64]:
        """`(N,)` probabilities of the predicted classes, by softmax or sigmoid; of several labels those of
        each image's least sure answer."""
        return self.scores.confidence if self.labels.ndim == 1 else sureness(self.logits).min(1)

    def surest_mistakes(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Find the rows of the images that are not wholly right, `(n,)`, the surest mistake first; and how
        sure the model is of the worst mistake in each image, `(N,)`, 0 where there is none."""
        wrong = ~self.right
        sure = self.confidence if wrong.ndim == 1 else sureness(self.logits)
        worst = np.atleast_2d(np.where(wrong, sure, 0.0).T).max(0)
        rows = np.flatnonzero(np.atleast_2d(wrong.T).any(0))
        return rows[np.argsort(-worst[rows], kind="stable")], worst

    def save(self, path: Path) -> None:
        """Write these files beside `path`, each in place of an older one at one instant.

        Raises:
            VitkitError: the logits were not kept.
        """
        labels = self.labels.astype(np.uint8) if self.labels.ndim == 2 else self.labels
        arrays = {"logits": self.logits, "labels": labels, "ids": self.ids, "bad": self.bad}
        for name, array in arrays.items():
            header = io.BytesIO()
            npy.write_array_header_1_0(header, npy.header_data_from_array_1_0(array))
            # A memoryview of no numbers cannot be cast to bytes.
            contents = [np.ascontiguousarray(array).data] if array.size else []
            replace_file(path.with_suffix(f".{name}.npy"), [header.getvalue(), *contents])

    @classmethod
    def load(cls, path: Path, loss: LossFunction = "softmax", several_labels: bool = False) -> "Predictions":
        """Read what `save` wrote. Nothing is trusted: all of it is read once, so that damage is noticed here.
        Logits that are too many for memory are mapped; they stay as they are when the file is replaced.

        Args:
            path: that was saved to, or any file of the evaluation, such as `test.json`.
            loss: the loss that the model was trained with.
            several_labels: whether an image has several labels or none, and not one class.

        Raises:
            VitkitError: there are no such files, or they hold no predictions.
        """
        files = {name: path.with_suffix(f".{name}.npy") for name in ("logits", "labels", "ids", "bad")}
        arrays = {name: _map_array(file, name) for name, file in files.items()}
        logits, labels = arrays["logits"], arrays["labels"]
        ids, bad = arrays["ids"].astype(np.int64), arrays["bad"].astype(np.int64)
        images = logits.shape[:1]
        shapes = (logits.ndim, labels.shape, ids.shape, bad.ndim)
        if shapes != (2, logits.shape if several_labels else images, images, 1):
            expected = "logits and labels (N, K)" if several_labels else "logits (N, K), labels (N,)"
            raise VitkitError(
                f"{files['logits']}: expected {expected}, ids (N,) and bad (M,), found {logits.shape}, "
                f"{labels.shape}, {ids.shape} and {bad.shape}. Run the evaluation again to write it anew."
            )
        every = np.concatenate([ids, bad])
        if len(np.unique(every)) != len(every):
            raise _damaged(files["ids"], "images that are there twice")
        limit = 2 if several_labels else logits.shape[1]
        if labels.size and labels.max() >= limit:
            raise _damaged(files["labels"], f"a label {labels.max()}, not below {limit}")
        labels = labels.astype(np.bool_ if several_labels else np.int64)
        logits = np.array(logits) if logits.nbytes <= IN_MEMORY else logits
        return cls(logits, labels, ids, bad, loss)


def refuse_uncountable(images: int, unreadable: int, outputs: int, names: Sequence[str], noun: str) -> None:
    """Refuse predictions that no number can be counted from.

    Args:
        images: that could be read.
        unreadable: images that could not be read.
        outputs: of the model.
        names: of its outputs.
        noun: class or label.

    Raises:
        VitkitError: no image could be read, or the names do not fit the outputs.
    """
    if not images:
        raise VitkitError(
            f"There is no readable image to evaluate on ({unreadable} could not be read): check this split's "
            "data."
        )
    if len(names) != outputs:
        raise VitkitError(
            f"The model has {outputs} outputs, but {len(names)} {noun} names were given: use the names that "
            "were saved with the model."
        )


IN_MEMORY = 64 << 20
"""Bytes of logits up to which they are held in memory; more stay in a file that is mapped: 50,000 images of
21,843 classes are 4.4 GB."""
PART = 1 << 22
"""Number of logits in a part; scoring makes a few copies of it in float64, 32 MiB each."""


def in_parts(logits: NDArray[np.float32], *beside: NDArray[Any]) -> Iterator[tuple[NDArray[Any], ...]]:
    """Yield all rows of `(N, K)` in order, about `PART` numbers at a time, and these rows of other arrays."""
    count = max(1, PART // max(logits.shape[1], 1))
    for start in range(0, len(logits), count):
        yield tuple(array[start : start + count] for array in (logits, *beside))


def _map_array(file: Path, name: str) -> NDArray[Any]:
    """Map the array in an `.npy` file, and refuse numbers that an array of this name cannot hold.

    One that claims more than its file holds cannot be mapped.
    """
    try:
        with regular_file(file):  # no pipe that nobody writes to, and no device: mapping could wait for ever
            pass
    except UnreadableFileError as error:
        said = f"The predictions {file} cannot be read: {error}. Run the evaluation again."
        raise VitkitError(said) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a header that numpy has to repair is damaged
            array = npy.open_memmap(file, mode="r")
    except Exception as error:  # numpy promises no list of what a damaged header raises
        raise _damaged(file, error) from None
    kind = f"{array.dtype} of shape {array.shape}"
    if name == "logits":
        if array.dtype != np.float32 or array.ndim != 2 or not array.flags.c_contiguous:
            raise _damaged(file, f"logits are {kind}, not rows of float32 (N, K)")
        if not all(np.isfinite(part).all() for (part,) in in_parts(array)):
            raise _damaged(file, "logits that are not finite")
    elif array.dtype.kind not in "iu":
        raise _damaged(file, f"{name} are {kind}, not integers")
    elif array.size and not 0 <= int(array.min()) <= int(array.max()) < 2**62:
        raise _damaged(file, f"{name} from {array.min()} to {array.max()}")
    return array


def _damaged(file: Path, reason: object) -> VitkitError:
    return VitkitError(
        f"{file}: expected arrays of predictions, found something else ({first_line(reason)}). Run the "
        "evaluation again to write it anew."
    )

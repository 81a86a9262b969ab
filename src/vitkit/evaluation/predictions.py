"""Hold what a model predicted for every image of a data set, of one class or of several labels each."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.errors import VitkitError
from vitkit.evaluation.scores import ImageScores, check_labels, image_scores, sureness
from vitkit.evaluation.stored import in_parts, load_arrays, save_arrays
from vitkit.models.config.card import LossFunction
from vitkit.text import pluralize


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
        """Write the files of `vitkit.evaluation.stored` beside `path`, in place of older ones.

        Raises:
            VitkitError: the logits were not kept.
        """
        labels = self.labels.astype(np.uint8) if self.labels.ndim == 2 else self.labels
        save_arrays(path, {"logits": self.logits, "labels": labels, "ids": self.ids, "bad": self.bad})

    @classmethod
    def load(cls, path: Path, loss: LossFunction = "softmax", several_labels: bool = False) -> "Predictions":
        """Read what `save` wrote.

        Args:
            path: that was saved to.
            loss: the loss that the model was trained with.
            several_labels: whether an image has several labels or none, and not one class.

        Raises:
            VitkitError: there are no such files, or they hold no predictions.
        """
        return cls(*load_arrays(path, several_labels), loss)


def repeats_clause(repeated: int, others: int, figure: str) -> str:
    """Say how many of the images are training images, to follow the figures; "" where none is.

    Args:
        repeated: images that are training images too.
        others: all other images.
        figure: the score on the others, and its interval.
    """
    if not repeated:
        return ""
    clause = pluralize(repeated, "image is a training image", "images are training images")
    if not others:
        return f"; all {clause} too"
    return f"; {clause} too: without {'it' if repeated == 1 else 'them'} {figure}"


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

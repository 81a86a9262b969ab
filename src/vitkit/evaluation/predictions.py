"""Keep what a model predicted for every image of a data set, in memory and in a file."""

from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitkit import durable
from vitkit.errors import VitkitError
from vitkit.evaluation.logits import IN_MEMORY, Logits, LogitsInFile, LogitsInMemory
from vitkit.evaluation.npz import OpenedArrays, npz_chunks
from vitkit.evaluation.scores import ImageScores, check_labels, image_scores
from vitkit.models.config.card import LossFunction


class Predictions:
    """The predictions of a model for the N readable images of a data set, ordered by id.

    Args:
        logits: `(N, K)`, an array or a store of logits; None where they were not kept.
        labels: `(N,)` true classes.
        ids: `(N,)` the images' numbers in their data set.
        bad: numbers of the images that could not be read.
        loss: the loss that the model was trained with, which decides what logits mean.
        classes: K; left out, the number of columns of the logits.
        scores: the images' scores; left out, they are computed from the logits when they are needed.
    """

    def __init__(
        self,
        logits: NDArray[np.float32] | Logits | None,
        labels: NDArray[np.int64],
        ids: NDArray[np.int64],
        bad: NDArray[np.int64],
        loss: LossFunction = "softmax",
        *,
        classes: int | None = None,
        scores: ImageScores | None = None,
    ) -> None:
        self._logits = LogitsInMemory(logits) if isinstance(logits, np.ndarray) else logits
        self.labels, self.ids, self.bad, self.loss = labels, ids, bad, loss
        if classes is None:
            classes = 0 if self._logits is None else self._logits.shape[1]
        self.classes = classes
        if scores is not None:
            self.scores = scores

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Predictions({len(self):,} images, {self.classes:,} classes, {len(self.bad):,} unreadable)"

    @property
    def logits(self) -> NDArray[np.float32]:
        """`(N, K)`. Many are not kept in memory: they are then read from a file, or mapped to one.

        Raises:
            VitkitError: they were not kept, or their file has been damaged since.
        """
        return self._stored_logits().array()

    @cached_property
    def scores(self) -> ImageScores:
        """The scores of each image, computed from its logits.

        Raises:
            VitkitError: a label is no class of the model.
        """
        check_labels(self.labels, self.classes)
        parts, start = [], 0
        for rows in self._stored_logits().parts():
            parts.append(image_scores(rows, self.labels[start : start + len(rows)], self.loss))
            start += len(rows)
        return ImageScores.concatenate(parts)

    @property
    def predicted(self) -> NDArray[np.int64]:
        """`(N,)` classes with the largest logit."""
        return self.scores.predicted

    @property
    def confidence(self) -> NDArray[np.float64]:
        """`(N,)` probabilities of the predicted classes, by softmax or sigmoid."""
        return self.scores.confidence

    def save(self, path: Path) -> None:
        """Write one `.npz` file, in place of an older one, part by part.

        Raises:
            VitkitError: the logits were not kept.
        """
        logits = self._stored_logits()
        whole = {"labels": self.labels, "ids": self.ids, "bad": self.bad}
        chunks = npz_chunks(
            {
                "logits": (logits.shape, np.dtype(np.float32), logits.parts()),
                **{name: (array.shape, np.dtype(np.int64), [array]) for name, array in whole.items()},
            }
        )
        durable.replace_file(path, chunks)

    @classmethod
    def load(cls, path: Path, loss: LossFunction = "softmax") -> "Predictions":
        """Read what `save` wrote. All of the file is read once, so that damage is noticed here.

        Args:
            path: the `.npz` file.
            loss: the loss that the model was trained with.

        Raises:
            VitkitError: there is no such file, or it holds no predictions.
        """
        with OpenedArrays(path) as arrays:
            shape = arrays.shape("logits")
            labels, ids, bad = (arrays.integers(name) for name in ("labels", "ids", "bad"))
            if len(shape) != 2 or not shape[0] == len(labels) == len(ids):
                raise VitkitError(
                    f"{path}: expected logits (N, K), labels (N,), ids (N,) and bad (M,), found {shape}, "
                    f"{labels.shape}, {ids.shape} and {bad.shape}. Run the evaluation again to write it anew."
                )
            every = np.concatenate([ids, bad])
            if len(np.unique(every)) != len(every):
                raise arrays.damaged("images that are there twice")
            if len(labels) and labels.max() >= shape[1]:
                raise arrays.damaged(f"a label {labels.max()} of {shape[1]} classes")
            parts: list[NDArray[np.float32]] = []
            scores: list[ImageScores] = []
            start = 0
            for rows in arrays.rows("logits"):
                scores.append(image_scores(rows, labels[start : start + len(rows)], loss))
                start += len(rows)
                if shape[0] * shape[1] * 4 <= IN_MEMORY:
                    parts.append(rows)
        if not scores:
            return cls(np.zeros((0, shape[1]), np.float32), labels, ids, bad, loss)
        logits = LogitsInMemory(np.concatenate(parts)) if parts else LogitsInFile(path, (shape[0], shape[1]))
        return cls(logits, labels, ids, bad, loss, scores=ImageScores.concatenate(scores))

    def _stored_logits(self) -> Logits:
        if self._logits is None:
            raise VitkitError("The logits of these predictions were not kept: predict with keep_logits.")
        return self._logits

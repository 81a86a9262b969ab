"""Keep what a model predicted for images with several labels each, in memory and in a file."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitkit import durable
from vitkit.errors import VitkitError
from vitkit.evaluation.logits import Logits, LogitsInMemory
from vitkit.evaluation.npz import OpenedArrays, npz_chunks


class LabelPredictions:
    """The logits of a model for the N readable images of a data set, ordered by id.

    Args:
        logits: `(N, K)`, an array or a store of logits.
        targets: `(N, K)` whether an image has a label.
        ids: `(N,)` the images' numbers in their data set.
        bad: numbers of the images that could not be read.
    """

    def __init__(
        self,
        logits: NDArray[np.float32] | Logits,
        targets: NDArray[np.bool_],
        ids: NDArray[np.int64],
        bad: NDArray[np.int64],
    ) -> None:
        self._logits = LogitsInMemory(logits) if isinstance(logits, np.ndarray) else logits
        self.targets, self.ids, self.bad = targets, ids, bad

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def logits(self) -> NDArray[np.float32]:
        """`(N, K)`; many of them are mapped from a file."""
        return self._logits.array()

    def parts(self) -> Iterator[NDArray[np.float32]]:
        """Yield all logits in order, some images at a time."""
        return self._logits.parts()

    def save(self, path: Path) -> None:
        """Write one `.npz` file, in place of an older one, part by part."""
        numbers = {"ids": self.ids, "bad": self.bad}
        chunks = npz_chunks(
            {
                "logits": (self._logits.shape, np.dtype(np.float32), self._logits.parts()),
                "labels": (self.targets.shape, np.dtype(np.uint8), [self.targets]),
                **{name: (array.shape, np.dtype(np.int64), [array]) for name, array in numbers.items()},
            }
        )
        durable.replace_file(path, chunks)

    @classmethod
    def load(cls, path: Path) -> "LabelPredictions":
        """Read what `save` wrote. All of the file is read once, so that damage is noticed here.

        Raises:
            VitkitError: there is no such file, or it holds no such predictions.
        """
        with OpenedArrays(path) as arrays:
            shape = arrays.shape("logits")
            ids, bad, targets = arrays.integers("ids"), arrays.integers("bad"), arrays.flags("labels")
            if not (len(shape) == 2 and shape == targets.shape and shape[0] == len(ids)):
                raise VitkitError(
                    f"{path}: expected logits and labels (N, K), ids (N,) and bad (M,), found "
                    f"{shape}, {targets.shape}, {ids.shape} and {bad.shape}. Run the evaluation again to "
                    "write it anew."
                )
            every = np.concatenate([ids, bad])
            if len(np.unique(every)) != len(every):
                raise arrays.damaged("images that are there twice")
            parts = list(arrays.rows("logits"))
        logits = np.concatenate(parts) if parts else np.zeros((0, shape[1]), np.float32)
        return cls(logits, targets, ids, bad)

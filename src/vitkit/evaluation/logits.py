"""Keep the logits of a data set: in memory while they are few, else in a file.

50,000 images of 21,843 classes are 4.4 GB of logits. They are written as they come and read again in parts,
so that memory holds no more than a part.
"""

import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vitkit.errors import VitkitError
from vitkit.evaluation.npz import OpenedArrays, rows_of_a_part

IN_MEMORY = 64 << 20
"""Bytes of logits up to which they are kept in memory; more are kept in a file."""

Rows = NDArray[np.float32]


class Logits(Protocol):
    """The logits of N images and K classes, wherever they are."""

    @property
    def shape(self) -> tuple[int, int]:
        """The number of images and of classes, `(N, K)`."""

    def parts(self) -> Iterator[Rows]:
        """Yield all rows in order, some at a time."""

    def array(self) -> Rows:
        """Return all rows at once, `(N, K)`."""


class LogitsInMemory:
    """Logits that are an array already."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.shape[0], self.rows.shape[1]

    def parts(self) -> Iterator[Rows]:
        count = rows_of_a_part(self.shape[1])
        for start in range(0, len(self.rows), count):
            yield self.rows[start : start + count]

    def array(self) -> Rows:
        return self.rows


class LogitsAsTheyCome:
    """Logits that are added batch by batch, in any order, and read when all are there.

    Up to `IN_MEMORY` bytes stay in memory; more go to a file without a name, which is gone with this object,
    or with the process however it ends.

    Args:
        folder: where that file is made; None: the system's folder for temporary files.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._file = tempfile.SpooledTemporaryFile(  # noqa: SIM115 (kept open)
            max_size=IN_MEMORY, dir=None if folder is None else str(folder)
        )
        weakref.finalize(self, self._file.close)
        self._where = folder or Path(tempfile.gettempdir())
        self._count = self._classes = 0
        self._order: NDArray[np.int64] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self._count, self._classes

    def add(self, rows: Rows) -> None:
        """Append `(n, K)`.

        Raises:
            VitkitError: the disk refuses them.
        """
        self._count += len(rows)
        self._classes = rows.shape[1]
        try:
            self._file.write(np.ascontiguousarray(rows).data)
        except OSError as error:
            raise VitkitError(
                f"The logits cannot be kept in {self._where}: {error.strerror}. They need "
                f"{rows.shape[1] * 4:,} bytes for each image: make room, or name another folder in the "
                "environment variable TMPDIR."
            ) from error

    def arrange(self, order: NDArray[np.int64]) -> None:
        """Put the rows in order: row i is from now on the `order[i]`-th that was added, counted from 0."""
        self._order = None if (order == np.arange(len(order))).all() else order

    def parts(self) -> Iterator[Rows]:
        count = rows_of_a_part(self._classes)
        for start in range(0, self._count, count):
            yield self._read(start, min(start + count, self._count))

    def array(self) -> Rows:
        if self._count * self._classes * 4 <= IN_MEMORY:
            return self._read(0, self._count) if self._count else np.empty(self.shape, np.float32)
        rows = np.memmap(self._file, np.float32, "r", shape=self.shape)
        mapped: Rows = rows if self._order is None else rows[self._order]
        return mapped

    def _read(self, start: int, stop: int) -> Rows:
        if self._order is None:
            return self._read_added(start, stop - start)
        rows = np.empty((stop - start, self._classes), np.float32)
        for place, number in enumerate(self._order[start:stop].tolist()):
            rows[place] = self._read_added(number, 1)[0]
        return rows

    def _read_added(self, start: int, count: int) -> Rows:
        self._file.seek(start * self._classes * 4)
        content = bytearray(self._file.read(count * self._classes * 4))  # so that the array may be written to
        return np.frombuffer(content, np.float32).reshape(count, self._classes)


class LogitsInFile:
    """Logits in an `.npz` file of predictions, read from it at each access."""

    def __init__(self, path: Path, shape: tuple[int, int]) -> None:
        self.path, self._shape = path, shape

    @property
    def shape(self) -> tuple[int, int]:
        return self._shape

    def parts(self) -> Iterator[Rows]:
        with OpenedArrays(self.path) as arrays:
            if arrays.shape("logits") != self._shape:
                raise arrays.damaged("the file has changed since it was opened")
            yield from arrays.rows("logits")

    def array(self) -> Rows:
        return np.concatenate(list(self.parts()))

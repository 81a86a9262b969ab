"""Notice whether the files of a data set have changed: by their sizes, times and, if asked, bytes.

The listing's fingerprint knows names and labels alone; an image that was drawn over keeps both.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitkit.data.listing import Files
from vitkit.durable import hash_file
from vitkit.errors import VitkitError

if TYPE_CHECKING:
    from vitkit.data.sources import ImageData

_AT_A_TIME = 1024  # files that a thread looks at before progress is told
_THREADS = 16
"""Threads that read states: a disk that is reached over a network answers many questions at once."""

States = NDArray[np.int64]
"""(N, 2) of size in bytes and time of the last change in nanoseconds; (N, 6) with the four numbers of a
SHA-256 of the bytes. One row for each file on the disk, split after split; -1 where a file cannot be read."""


def file_states(
    data: "ImageData", content: bool, progress: Callable[[int, int], None] = lambda done, total: None
) -> States:
    """Read the states of all files that hold the images of a data set; none for data that is in no files.

    Args:
        data: a listed data set, nothing of it in memory.
        content: whether to read every byte, which takes as long as reading the data set.
        progress: called with the files done and their number.
    """
    columns = 6 if content else 2
    portions = [
        (files, numbers[start : start + _AT_A_TIME])
        for files, numbers in _on_disk(data)
        for start in range(0, len(numbers), _AT_A_TIME)
    ]
    total, done = sum(len(numbers) for _, numbers in portions), 0
    found = [np.zeros((0, columns), dtype=np.int64)]
    with ThreadPoolExecutor(_THREADS) as pool:
        for rows in pool.map(lambda portion: _states(portion[0], portion[1], content), portions):
            found.append(rows)
            done += len(rows)
            progress(done, total)
    return np.concatenate(found)


def changed_files(data: "ImageData", before: States, now: States) -> list[Path]:
    """List the files whose state has changed; where both states have hashes, times do not matter."""
    paths = [(files, number) for files, numbers in _on_disk(data) for number in numbers.tolist()]
    if len(before) != len(now):
        return [files.path(number) for files, number in paths]
    columns = [0, *range(2, 6)] if min(before.shape[1], now.shape[1]) == 6 else [0, 1]
    differs = (before[:, columns] != now[:, columns]).any(axis=1)
    return [paths[index][0].path(paths[index][1]) for index in np.flatnonzero(differs).tolist()]


def _on_disk(data: "ImageData") -> list[tuple[Files, NDArray[np.int64]]]:
    """Return the files of each split that has any, and the numbers of those on the disk."""
    from vitkit.data.sources import FileSamples  # whoever reads a run's record without its data needs none

    splits = [samples for samples in data.splits.values() if isinstance(samples, FileSamples)]
    return [(samples.files, samples.files.on_disk(samples.numbers)) for samples in splits]


def _states(files: Files, numbers: NDArray[np.int64], content: bool) -> States:
    return np.array([_state(files.path(number), content) for number in numbers.tolist()], dtype=np.int64)


def _state(path: Path, content: bool) -> list[int]:
    try:
        status = path.stat()
        state = [status.st_size, status.st_mtime_ns]
        if content:
            digest = bytes.fromhex(hash_file(path)[1])
            state += np.frombuffer(digest, dtype="<i8").tolist()
    except (OSError, VitkitError):
        return [-1] * (6 if content else 2)
    return state

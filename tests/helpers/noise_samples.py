"""Samples of random pixels for tests of loaders, some of which cannot be read."""

from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.data.config import DEFAULT_RULE, Augmentation, Preprocessing
from vitkit.data.decode.image import Header
from vitkit.data.listing import Files, Targets
from vitkit.data.sources import Samples
from vitkit.data.stream.loader import Batch, TrainLoader
from vitkit.errors import DecodeError

PREPROCESSING = Preprocessing((8, 8))
AUGMENTATION = Augmentation(shift=1)


class Noise(Samples):
    """Samples of random pixels and varying size; those in `bad` cannot be read."""

    def __init__(
        self, count: int, bad: frozenset[int] = frozenset(), late: frozenset[int] = frozenset()
    ) -> None:
        numbers = np.arange(count, dtype=np.int64)
        super().__init__(cast("Files", None), numbers, numbers % 7, DEFAULT_RULE)
        self.places = np.random.default_rng(count).random((count, 2))
        self.bad = bad
        self.late = late  # readable header, unreadable pixels

    @property
    def targets(self) -> Targets:
        return {"labels": self.labels, "places": self.places}

    def key(self, index: int) -> str:
        return f"noise {index}"

    def file(self, index: int) -> bytes | Path:
        return b""

    def header(self, index: int) -> Header:
        if index in self.bad:
            raise DecodeError("broken on purpose")
        return Header("PNG", "RGB", (8 + index % 3, 9))

    def size(self, index: int) -> tuple[int, int]:
        return self.header(index).size

    def decode(self, index: int) -> NDArray[np.uint8]:
        return self.made(index) if self.held is None else super().decode(index)

    def made(self, index: int) -> NDArray[np.uint8]:
        height, width = self.size(index)
        if index in self.late:
            raise DecodeError("broken late")
        return np.random.default_rng(index).integers(1, 256, (height, width, 3), dtype=np.uint8)


def train_loader(samples: Samples, batch_size: int = 16, workers: int = 0, quota: float = 1.0) -> TrainLoader:
    return TrainLoader(
        samples, PREPROCESSING, AUGMENTATION, batch_size=batch_size, seed=3, workers=workers, bad_quota=quota
    )


def assert_equal(first: list[Batch], second: list[Batch]) -> None:
    assert len(first) == len(second)
    for batch, same in zip(first, second, strict=True):
        assert batch.targets.keys() == same.targets.keys()
        assert all(torch.equal(a, b) for a, b in zip(batch.tensors(), same.tensors(), strict=True))

"""Damaged files of predictions: read, or one clean refusal."""

import io
from pathlib import Path
from random import Random

import numpy as np

from tests.faults.entry import Refusal, read_predictions
from tests.faults.harness import Kind, Outcome
from tests.faults.mutate import mutant


class Evaluations(Kind):
    """Mutants of files of predictions, and files of other arrays under their names."""

    name, count, limit = "evaluations", 3_000, 10.0
    sample = tuple(range(100))
    most_memory = 256 << 20  # the files have 3 kB
    per_process = 1000

    def prepare(self, folder: Path) -> None:
        """Nothing is shared: the file is made of a few numbers."""

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        arrays: dict[str, np.ndarray] = {
            "logits": np.arange(90, dtype=np.float32).reshape(30, 3),
            "labels": np.arange(30) % 3,
            "ids": np.arange(30),
            "bad": np.array([31]),
        }
        if number % 10 == 0:  # whole, but of other arrays
            name = draw.choice(list(arrays))
            other = draw.choice(
                (np.zeros(()), np.zeros((30, 0)), np.zeros(30, complex), np.array(["x"] * 30))
            )
            arrays[name] = draw.choice((other, np.full(30, np.nan), np.full(30, 2**62), np.zeros((2, 2, 2))))
        path = folder / "test.json"
        contents = dict[Path, bytes]()
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array)
            contents[path.with_suffix(f".{name}.npy")] = buffer.getvalue()
        damaged = draw.choice(list(contents)) if number % 10 else None
        for file, data in contents.items():
            file.write_bytes(mutant(data, draw) if file == damaged else data)
        try:
            read_predictions(path)
        except Refusal as refusal:
            return Outcome("words", str(refusal))
        return Outcome("right")

"""Folders in the layout of VTAB-1k, made from images at hand."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from sklearn.datasets import load_digits


def write_task(
    folder: Path, images: Sequence[Image.Image], labels: Sequence[int], train: int = 800, val: int = 200
) -> Path:
    """Write a task: the first images are train800, the next val200, the others test.

    As NOAH's `get_vtab1k.py` does, train800val200 has files of its own.
    """
    parts = {
        "train800": range(train),
        "val200": range(train, train + val),
        "train800val200": range(train + val),
        "test": range(train + val, len(images)),
    }
    for name, numbers in parts.items():
        (folder / "images" / name).mkdir(parents=True, exist_ok=True)
        lines = []
        for place, number in enumerate(numbers):
            path = f"images/{name}/{place:06d}.jpg"
            images[number].convert("RGB").save(folder / path, quality=95)
            lines.append(f"{path} {labels[number]}\n")
        (folder / f"{name}.txt").write_text("".join(lines))
    return folder


def digit_images(classes: int, count: int, seed: int = 0) -> tuple[list[Image.Image], list[int]]:
    """Some of the built-in digits below `classes`, shuffled."""
    pixels, targets = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(np.flatnonzero(targets < classes))[:count]
    grey = np.round(pixels.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return [Image.fromarray(grey[i]) for i in order], [int(targets[i]) for i in order]


def small_task(folder: Path, classes: int = 4, seed: int = 0) -> Path:
    """A task of 40 training, 10 validation and 50 test images of digits."""
    return write_task(folder, *digit_images(classes, 100, seed), train=40, val=10)


def write_parquet(task: Path, name: str, file: Path) -> None:
    """Write a list as a Parquet file, as the `datasets` library stores images."""
    lines = [line.split() for line in (task / f"{name}.txt").read_text().splitlines()]
    cells = [{"bytes": (task / path).read_bytes(), "path": path} for path, _ in lines]
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"image": cells, "label": [int(label) for _, label in lines]}), file)

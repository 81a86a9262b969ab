"""Folders in the layout of VTAB-1k, made from images at hand.

By hand, `python -m tests.vtab_layout ROOT DATA` makes stand-ins of six tasks from the data beside the
project. They carry the names of VTAB's tasks and are not VTAB: cifar is CIFAR-10, svhn is MNIST,
patch_camelyon is cats and dogs, eurosat is Imagenette, kitti is which way CIFAR-10 images are turned,
clevr_count is digits 0 to 7.
"""

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits


def write_task(
    folder: Path,
    images: Sequence[Image.Image],
    labels: Sequence[int],
    train: int = 800,
    val: int = 200,
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


def _parquet_images(
    folder: Path, count: int, classes: NDArray[np.int64] | None = None
) -> tuple[list[Image.Image], list[int]]:
    """Draw images of a data set in Parquet, alike from all of its files."""
    import pyarrow.parquet as pq

    cells, labels = [], []
    for path in sorted(folder.rglob("*.parquet")):
        table = pq.read_table(path)
        image = next(name for name in table.column_names if name in ("image", "img"))
        cells += table.column(image).to_pylist()
        labels += table.column("label").to_pylist()
    targets = np.array(labels)
    chosen = np.arange(len(targets)) if classes is None else np.flatnonzero(np.isin(targets, classes))
    order = np.random.default_rng(0).permutation(chosen)[:count]
    return [Image.open(io.BytesIO(cells[i]["bytes"])) for i in order], targets[order].tolist()


def main(root: Path, data: Path) -> None:
    """Make the six stand-ins, with 200 test images each."""
    count = 1_200
    cifar, labels = _parquet_images(data / "cifar10", count)
    write_task(root / "cifar", cifar, labels)
    write_task(root / "svhn", *_parquet_images(data / "mnist", count))
    animals, which = _parquet_images(data / "cifar10", count, np.array([3, 5]))
    write_task(root / "patch_camelyon", animals, [int(label == 5) for label in which])
    write_task(root / "eurosat", *_parquet_images(data / "imagenette-224-small", count))
    turns = [number % 4 for number in range(count)]
    turned = [image.rotate(90 * turn) for image, turn in zip(cifar, turns, strict=True)]
    write_task(root / "kitti", turned, turns)
    write_task(root / "clevr_count", *digit_images(8, count))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

"""Make stand-ins of six tasks of VTAB-1k from the data beside the project.

`python -m benchmarks.vtab_stand_ins ROOT DATA` writes them. They carry the names of VTAB's tasks and are not
VTAB: cifar is CIFAR-10, svhn is MNIST, patch_camelyon is cats and dogs, eurosat is Imagenette, kitti is which
way CIFAR-10 images are turned, clevr_count is digits 0 to 7.
"""

import io
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image
from tests.vtab_layout import digit_images, write_task


def _parquet_images(
    folder: Path, count: int, classes: NDArray[np.int64] | None = None
) -> tuple[list[Image.Image], list[int]]:
    """Draw images of a data set in Parquet, alike from all of its files."""
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

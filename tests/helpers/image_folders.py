"""Data sets of tiny images for tests: class folders."""

import io
from collections.abc import Mapping
from pathlib import Path

from PIL import Image

from vitkit.data.config import Splits
from vitkit.data.sources import ImageData

WHOLE = Splits(0, 0)


def image_bytes(level: int = 0, size: tuple[int, int] = (4, 3)) -> bytes:
    stream = io.BytesIO()
    Image.new("L", size, level).save(stream, "PNG")
    return stream.getvalue()


def plant(root: Path, files: Mapping[str, int]) -> Path:
    """Class folders with so many images, each of another grey: {"train/cats": 3}."""
    planted = 0
    for folder, count in files.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            size = (4, 3 + planted // 256)  # beyond 256 greys, another size
            (root / folder / f"{number:03d}.png").write_bytes(image_bytes(planted % 256, size))
            planted += 1
    return root


def keys(data: ImageData, split: str) -> list[str]:
    samples = data.splits[split]
    return [samples.key(index) for index in range(len(samples))]

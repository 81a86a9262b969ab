"""Data sets of tiny images for tests: class folders, CSV and Parquet files."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
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


def write_csv(path: Path, text: str, encoding: str = "utf-8") -> str:
    path.write_text(text, encoding=encoding)
    return str(path)


def write_parquet(
    path: Path,
    labels: Sequence[Any],
    names: Sequence[str] | None = None,
    *,
    image: str = "image",
    label: str = "label",
    binary: bool = False,
    first: int = 0,
    more: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [image_bytes(first + number) for number in range(len(labels))]
    cells: list[Any] = list(files) if binary else [{"bytes": file, "path": None} for file in files]
    table = pa.table({image: cells, label: list(labels), **(more or {})})
    if names is not None:
        info = {"info": {"features": {label: {"names": list(names), "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, path, row_group_size=2)

"""The file of a benchmark's records: `{"machine": {...}, "records": [{"kind": "speed", ...}, ...]}`.

`vitkit bench` writes the same, with `vitkit.jobs.bench.Speed` as its only kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitkit.config import to_json, write
from vitkit.engines.libraries import EnginePrecision
from vitkit.jobs.bench import Speed


@dataclass(frozen=True, kw_only=True)
class Record:
    """The head of a record: which model was measured, and how it was computed."""

    kind: str
    """The name of the measurement in the file."""
    model: str
    image_size: tuple[int, int]
    """Height and width in pixels."""
    name: str
    """The name of the contestant: "vitkit bfloat16"."""
    precision: EnginePrecision


def write_records(path: Path, machine: Mapping[str, Any], records: Sequence[Record | Speed]) -> None:
    """Write the file, in place of an earlier one.

    Raises:
        OSError: it cannot be written.
    """
    write(path, {"machine": machine, "records": [to_json(record) for record in records]})

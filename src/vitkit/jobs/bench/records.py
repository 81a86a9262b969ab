"""The records of a benchmark and their file: `{"machine": {...}, "records": [{"kind": "speed", ...}, ...]}`.

`vitkit bench` and the scripts of benchmarks/ write the same file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from vitkit.config import COUNT, Positive, Range, to_json
from vitkit.durable import replace_json
from vitkit.engines.libraries import EnginePrecision
from vitkit.runs.timing import BenchPhase, Latency


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


@dataclass(frozen=True, kw_only=True)
class Response(Record):
    """The time from one image to its logits."""

    kind: Literal["latency"] = "latency"
    latency: Latency


@dataclass(frozen=True, kw_only=True)
class BatchRecord(Record):
    """The head of a record of a step: whether it was training, and of how many images."""

    phase: BenchPhase
    batch_size: Annotated[int, Range("a number of images", 1, COUNT)]


@dataclass(frozen=True, kw_only=True)
class Speed(BatchRecord):
    """The speed of one contestant."""

    kind: Literal["speed"] = "speed"
    library: str
    rounds: int
    images_per_second: Positive
    """The median of its rounds."""
    quartiles: tuple[float, float]
    """The quartiles of the images per second."""
    seconds: float
    """Seconds of a step, the median."""
    least_seconds: float
    reference: str
    """The contestant that ratios are taken to."""
    ratio: float
    """Its speed over the reference's, the median of the rounds."""
    ratio_quartiles: tuple[float, float]
    mfu: float | None
    """FLOPs of the whole model in a second, over the FLOPs of matrix products of its shapes in its precision,
    measured in the same rounds; None where there are no such products."""
    mfu_executed: float | None
    """The same by the FLOPs that are executed: fewer where work is left out. None for engines."""


@dataclass(frozen=True, kw_only=True)
class Memory(BatchRecord):
    """The memory of a step of vitkit."""

    kind: Literal["memory"] = "memory"
    peak: int
    """Bytes: weights, and the optimiser's state in training, and what a step allocates on top."""
    room: int
    """Bytes that the largest batch may take."""
    largest_batch: int | None
    """None where there was no time to find out."""
    tried: bool
    """Whether the largest batch was run; else it follows from smaller ones."""


@dataclass(frozen=True)
class Bench:
    """The measurements of a benchmark, and what they were made on."""

    machine: Mapping[str, Any]
    records: tuple[Speed | Memory | Response, ...]

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return to_json(self)


def write_records(path: Path, machine: Mapping[str, Any], records: Sequence[Record]) -> None:
    """Write the file, in place of an earlier one.

    Raises:
        OSError: it cannot be written.
    """
    replace_json(path, {"machine": machine, "records": [to_json(record) for record in records]})

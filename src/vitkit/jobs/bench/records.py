"""The records of a benchmark and their file: `{"machine": {...}, "records": [{"kind": "speed", ...}, ...]}`.

`vitkit bench` and the scripts of benchmarks/ write the same file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from vitkit.config import COUNT, Count, Positive, Range, to_json
from vitkit.durable import replace_json
from vitkit.engines.libraries import EnginePrecision
from vitkit.result import Block, Result, table_of
from vitkit.runs.timing import BenchPhase, Latency
from vitkit.text import format_bytes


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
    seconds: Positive
    """Seconds of a step, the median."""
    least_seconds: Positive
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
    peak: Count
    """Bytes: weights, and the optimiser's state in training, and what a step allocates on top."""
    room: Count
    """Bytes that the largest batch may take."""
    largest_batch: Count
    """The estimate of training; 0 where not even one image fits."""


@dataclass(frozen=True, repr=False)
class Bench(Result):
    """The measurements of a benchmark, and what they were made on."""

    machine: Mapping[str, Any]
    records: tuple[Speed | Memory | Response, ...]

    def summary(self) -> str:
        """Describe the machine."""
        machine = self.machine
        load = "" if machine["load"] is None else f", load {machine['load']:.1f} at the start"
        kernels = ", ".join(f"{name}: {state}" for name, state in machine["kernels"].items())
        return (
            f"{machine['device']}, {machine['threads']} of {machine['cores']} cores{load}; "
            f"{machine['clock']}; torch {machine['torch']}\nkernels: {kernels}"
        )

    def blocks(self) -> Sequence[Block]:
        """Return the machine, and the tables."""
        return [self.summary(), *self.tables()]

    def tables(self) -> list[Block]:
        """Return for each model and size its tables, and what their numbers mean."""
        blocks: list[Block] = []
        for model, size in dict.fromkeys((record.model, record.image_size) for record in self.records):
            own = [record for record in self.records if (record.model, record.image_size) == (model, size)]
            for phase in get_args(BenchPhase):
                speeds = [record for record in own if isinstance(record, Speed) and record.phase == phase]
                if speeds:
                    title = f"{model} at {size[0]} pixels, {phase}, batch {speeds[0].batch_size}"
                    blocks.append(f"{title}, compared with {speeds[0].reference}")
                    blocks += [table_of(speeds, SPEEDS), *headlines(speeds)]
            if responses := [record for record in own if isinstance(record, Response)]:
                blocks.append(table_of(responses, LATENCIES))
            if memories := [record for record in own if isinstance(record, Memory)]:
                blocks.append(table_of(memories, MEMORIES))
        return [*blocks, ABOUT]


def _share(utilisation: float | None) -> str:
    return "not measured" if utilisation is None else f"{utilisation:.0%}"


SPEEDS: Mapping[str, Callable[[Speed], str]] = {
    "": lambda speed: speed.name,
    "images/s": lambda speed: f"{speed.images_per_second:,.1f}",
    "ms": lambda speed: f"{1e3 * speed.seconds:,.1f}",
    "ratio": lambda speed: f"{speed.ratio:.2f}",
    "quartiles": lambda speed: "{:.2f} to {:.2f}".format(*speed.ratio_quartiles),
    "utilisation": lambda speed: _share(speed.mfu),
    "executed": lambda speed: _share(speed.mfu_executed),
}
LATENCIES: Mapping[str, Callable[[Response], str]] = {
    "latency of one image": lambda response: response.name,
    "p50": lambda response: f"{1e3 * response.latency.p50:,.1f} ms",
    "p90": lambda response: f"{1e3 * response.latency.p90:,.1f} ms",
    "p99": lambda response: (
        "not measured" if response.latency.p99 is None else f"{1e3 * response.latency.p99:,.1f} ms"
    ),
    "calls": lambda response: f"{response.latency.calls:,}",
}
MEMORIES: Mapping[str, Callable[[Memory], str]] = {
    "memory": lambda memory: f"{memory.phase}, {memory.name}",
    "batch": lambda memory: f"{memory.batch_size:,}",
    "peak": lambda memory: format_bytes(memory.peak),
    "largest batch": lambda memory: f"{memory.largest_batch:,}",
    "of": lambda memory: format_bytes(memory.room),
}
ABOUT = (
    "Ratios are medians of rounds, with quartiles. Utilisation is the FLOPs per second of the whole model, "
    "and the executed ones, over the FLOPs per second of PyTorch's matrix products of its shapes, in the "
    "same precision and the same rounds; an engine with faster products is above 100 %. The largest batch "
    "follows from the memory estimate, as in training."
)


def headlines(speeds: Sequence[Speed]) -> list[str]:
    """Say, by precision, the speed of vitkit's fastest engine over the best peer's; of one model and size."""
    lines = []
    for precision in dict.fromkeys(speed.precision for speed in speeds):
        timed = [s for s in speeds if s.precision == precision and s.library != "vitkit exact"]
        own = [s for s in timed if s.library.startswith("vitkit")]
        peers = [s for s in timed if not s.library.startswith("vitkit")]
        if own and peers:
            mine, best = (min(side, key=lambda speed: speed.seconds) for side in (own, peers))
            least = best.least_seconds / mine.least_seconds
            lines.append(
                f"{precision}: {mine.name} has {best.seconds / mine.seconds:.2f} times the speed of the best "
                f"peer ({best.name}) by medians, {least:.2f} by least times"
            )
    return lines


def write_records(path: Path, machine: Mapping[str, Any], records: Sequence[Record]) -> None:
    """Write the file, in place of an earlier one.

    Raises:
        OSError: it cannot be written.
    """
    replace_json(path, {"machine": machine, "records": [to_json(record) for record in records]})

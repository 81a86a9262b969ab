"""Write the records of a benchmark, speed, latency and memory, as JSON and as the paper's figure."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitkit.analysis.bench_figure import throughput_figure
from vitkit.analysis.drawing import save_figure
from vitkit.durable import replace_json
from vitkit.engines.engine_config import Numbers
from vitkit.jobs.bench.contestants import BenchPhase
from vitkit.jobs.bench.speed import Speed, Timed
from vitkit.jobs.bench.timing import Latency


@dataclass(frozen=True)
class Response(Timed):
    """The time from one image to its logits."""

    name: str
    precision: Numbers
    latency: Latency


@dataclass(frozen=True)
class Memory(Timed):
    """The memory of a step of vitkit."""

    phase: BenchPhase
    name: str
    precision: Numbers
    batch_size: int
    peak: int
    """Bytes: weights, and the optimiser's state in training, and what a step allocates on top."""
    room: int
    """Bytes that the largest batch may take."""
    largest_batch: int | None
    """None where there was no time to find out."""
    tried: bool
    """Whether the largest batch was run; else it follows from smaller ones."""


Record = Speed | Response | Memory


@dataclass(frozen=True)
class Bench:
    """The measurements of one model, and what they were made on."""

    machine: dict[str, Any]
    records: tuple[Record, ...]

    def to_json(self) -> dict[str, Any]:
        """Give everything as plain data."""
        kinds = {Speed: "speed", Response: "latency", Memory: "memory"}
        return {
            "machine": self.machine,
            "records": [{"kind": kinds[type(record)], **asdict(record)} for record in self.records],
        }


def keep(found: Bench, folder: Path) -> list[Path]:
    """Write the records as JSON and, of several sizes, the paper's Figure 12 as PNG and SVG.

    Returns:
        The files.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "bench.json"
    replace_json(path, found.to_json())
    timed = [
        s for s in found.records if isinstance(s, Speed) and s.library == "vitkit" and s.phase == "inference"
    ]
    if len({s.image_size for s in timed}) < 2:
        return [path]
    last = timed[-1].precision  # of several the fastest
    speeds = {(s.model, s.image_size[0]): s.images_per_second for s in timed if s.precision == last}
    batches = {
        (m.model, m.image_size[0]): m.largest_batch or 0
        for m in found.records
        if isinstance(m, Memory) and m.phase == "training" and m.precision == last
    }
    figure = throughput_figure(speeds, batches, found.machine["device"], last)
    return [path, *save_figure(figure, folder / "bench")]

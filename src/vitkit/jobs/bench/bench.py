"""Measure models on this machine, images per second, latency and memory, also beside other libraries; and
write the records as JSON and as the paper's figure.

The paper's Appendix D.5 measures the same: images per second and the largest batch, over image sizes.
"""

import os
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import torch

from vitkit._version import __version__
from vitkit.analysis.drawing import save_figure
from vitkit.analysis.study_figures import throughput_figure
from vitkit.durable import replace_json
from vitkit.engines.libraries import EnginePrecision
from vitkit.errors import VitkitError
from vitkit.jobs.bench.contestants import (
    PEERS,
    BenchPhase,
    Contestant,
    TorchPrecision,
    installed_peers,
    peer_contestants,
    timed_precisions,
    vitkit_contestants,
)
from vitkit.jobs.bench.options import BenchOptions
from vitkit.jobs.bench.speed import Speed, compare, products, step_of
from vitkit.jobs.bench.timing import (
    LEAST_ROUNDS,
    Clock,
    Latency,
    Step,
    largest_batch,
    latency,
    peak_memory,
    use_threads,
)
from vitkit.jobs.cost import configuration
from vitkit.kernels import gelu, resample
from vitkit.listener import Listener, Progress, hushed
from vitkit.models.config.compute_config import Precision
from vitkit.models.measure import forward_flops, inference_memory, parameters, training_memory
from vitkit.models.zoo import ModelConfig
from vitkit.notebook import AUTOMATIC
from vitkit.runs.folder import is_checkpoint
from vitkit.runs.machine import available_memory, find_device, keep_freed_memory, require_threads
from vitkit.text import format_bytes, format_duration
from vitkit.training.checkpoint import processor_name
from vitkit.weights import LoadOptions

SCRIPT = "scripts/bench-peers"
PATIENCE = 2.0
"""A measurement is skipped where it would take this many times its share of the time."""
LEAST_PATIENCE = 5.0
"""Seconds that finding the largest batch may always take."""
PROBE = 0.2
"""Seconds that matrix products are timed for, to guess how long a step takes."""


@dataclass(frozen=True)
class Response:
    """The time from one image to its logits."""

    model: str
    image_size: tuple[int, int]
    name: str
    precision: EnginePrecision
    latency: Latency


@dataclass(frozen=True)
class Memory:
    """The memory of a step of vitkit."""

    model: str
    image_size: tuple[int, int]
    phase: BenchPhase
    name: str
    precision: EnginePrecision
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


def keep(bench: Bench, folder: Path) -> list[Path]:
    """Write the records as JSON and, of several sizes, the paper's Figure 12 as PNG and SVG.

    Returns:
        The files.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "bench.json"
    replace_json(path, bench.to_json())
    timed = [
        s for s in bench.records if isinstance(s, Speed) and s.library == "vitkit" and s.phase == "inference"
    ]
    if len({s.image_size for s in timed}) < 2:
        return [path]
    last = timed[-1].precision  # of several the fastest
    speeds = {(s.model, s.image_size[0]): s.images_per_second for s in timed if s.precision == last}
    batches = {
        (m.model, m.image_size[0]): m.largest_batch or 0
        for m in bench.records
        if isinstance(m, Memory) and m.phase == "training" and m.precision == last
    }
    figure = throughput_figure(speeds, batches, bench.machine["device"], last)
    return [path, *save_figure(figure, folder / "bench")]


def bench(
    *models: str,
    sizes: str = "",
    batch_size: int = 8,
    training: bool = True,
    peers: bool = False,
    minutes: float = 1.0,
    precision: Precision = "auto",
    memory_gb: float | None = None,
    threads: int | None = None,
    device: str = "auto",
    quiet: bool = False,
    listener: Listener = AUTOMATIC,
) -> Bench:
    """Measure how fast models are: `vitkit.bench("ViT-S/16", peers=True)`.

    Args:
        models, sizes, batch_size, training, peers, minutes: as `vitkit bench --help` describes them.
        precision, memory_gb, threads, device, quiet, listener: the same.

    Raises:
        VitkitError: the options do not fit, or a model or the device is not there.
    """
    # A function of a dataclass takes no *models: its options stand here too, which a test compares.
    options = BenchOptions(
        models,
        sizes,
        batch_size,
        training,
        peers,
        minutes,
        precision,
        memory_gb,
        threads,
        device,
        quiet=quiet,
        listener=hushed(listener, quiet),
    )
    keep_freed_memory()  # as training does; whoever is compared has the same
    return Bench(describe_machine(options), tuple(measure(options)))


def describe_machine(options: BenchOptions) -> dict[str, Any]:
    """Name what is measured on, and what besides the model decides the numbers."""
    device, threads = find_device(options.device), options.threads or torch.get_num_threads()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name(),
        "kind": device.type,
        "cores": os.cpu_count(),
        "threads": threads,
        "clock": Clock(device, threads).name,
        "load": load,
        "system": platform.platform(),
        "torch": torch.__version__,
        "vitkit": __version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "kernels": {
            "gelu": gelu.why_no_kernel() or "compiled",
            "resample": resample.why_no_kernel() or "compiled",
        },
    }


def measure(options: BenchOptions) -> Iterator[Record]:
    """Measure, and give each record when it is there: whoever is interrupted has those before.

    Raises:
        VitkitError: a model or the device is not there, or more threads than PyTorch takes.
    """
    require_threads(options.threads)
    device, listener = find_device(options.device), options.listener
    cases = [
        (name, configuration(name, LoadOptions(image_size=size)))
        for name in options.models
        for size in options.image_sizes or (None,)
    ]
    peers = _peers(options, listener)
    total = 60 * options.minutes * len(options.models)
    listener.note(f"Measuring for about {format_duration(total)}.")
    with (
        use_threads(options.threads),
        listener.progress("measuring", round(total), unit="seconds") as progress,
    ):
        clock = Clock(device, torch.get_num_threads())
        # A part that computes four times as much gets twice the time: fewer rounds, but enough of them.
        work = {
            (number, phase): sqrt(forward_flops(config, head=True) * (3 if phase == "training" else 1))
            for number, (_, config) in enumerate(cases)
            for phase in options.phases
        }
        timer = _Timer(total, list(work.values()), progress)
        for number, phase in work:
            name, config = cases[number]
            shown = name if not is_checkpoint(name) else Path(name.rstrip("/")).name
            case = _Case(shown, config, device, clock, options, peers, timer, listener)
            yield from case.measure(phase)
            timer.parts.pop(0)


class _Timer:
    """The time there is, shared out among what is still to be measured.

    Args:
        total: seconds.
        parts: how much of them each part gets, in any unit.
        progress: hears how it goes.
    """

    def __init__(self, total: float, parts: list[float], progress: Progress) -> None:
        self.started, self.total, self.parts, self.progress = time.perf_counter(), total, parts, progress
        self.planned = total / sum(parts)  # seconds for a unit
        self.detail = ""

    def share(self) -> float:
        """Seconds for the next part: a quarter of what was planned at least, if others took too long."""
        left = (self.total - (time.perf_counter() - self.started)) / sum(self.parts)
        return self.parts[0] * max(self.planned / 4, left)

    def tick(self) -> None:
        """Say how far it is; what takes longer than planned stays a second short of the end."""
        done = min(time.perf_counter() - self.started, self.total - 1)
        self.progress(max(0, int(done)), detail=self.detail)


@dataclass(frozen=True)
class _Case:
    """A model at one image size."""

    model: str
    config: ModelConfig
    device: torch.device
    clock: Clock
    options: BenchOptions
    peers: Sequence[str]
    timer: _Timer
    listener: Listener

    @property
    def words(self) -> str:
        return f"{self.model} at {self.config.image_size[0]} pixels"

    def measure(self, phase: BenchPhase) -> Iterator[Record]:
        """Measure speed, latency and memory of one phase, if there is the time and the memory."""
        precisions = timed_precisions(self.options.precision, self.device)
        self.timer.detail = f"{self.words}, {phase}"
        self.timer.tick()
        share = self.timer.share()
        needed = self._needed(phase)
        room = available_memory()
        if room is not None and self.device.type == "cpu" and needed > room:
            self.listener.warn(
                f"{self.words}, {phase}: not measured. It needs about {format_bytes(needed)}, and "
                f"{format_bytes(room)} are free."
            )
            return
        flops = forward_flops(self.config, head=True)
        # Ours are one more than the precisions; peers have two forms of attention.
        expected = len(precisions) + 1 + 2 * len(precisions) * len(self.peers)
        batch, seconds = self._fitting_batch(phase, flops, expected, share)
        if not batch:
            self.listener.warn(
                f"{self.words}, {phase}: not measured. With one image at a time it would take about "
                f"{format_duration(seconds)} of {format_duration(share)}: allow more --minutes."
            )
            return
        try:
            images = self._images(batch)
            contestants = self._contestants(phase, images, precisions)
            yield from compare(
                *(self.model, self.config, phase, contestants, images, self.clock, 0.6 * share),
                flops=flops,
                tick=self.timer.tick,
            )
            ours = [contestant for contestant in contestants if contestant.library == "vitkit"]
            if phase == "inference":
                yield from self._latencies(ours, 0.25 * share)
            for contestant in ours:
                yield self._memory(phase, contestant, batch, 0.15 * share / len(ours))
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            self.listener.warn(
                f"{self.words}, {phase}: not measured. {batch} images do not fit into the memory of the GPU: "
                "choose a smaller --batch-size."
            )

    def _contestants(
        self, phase: BenchPhase, images: torch.Tensor, precisions: tuple[TorchPrecision, ...]
    ) -> list[Contestant]:
        contestants = list(vitkit_contestants(self.config, self.device, phase, precisions))
        for peer in self.peers:
            try:
                contestants += peer_contestants(peer, self.config, images, phase, precisions)
            except VitkitError as error:
                self.listener.warn(str(error))
            self.timer.tick()
        return contestants

    def _images(self, batch: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        shape = (batch, self.config.in_channels, *self.config.image_size)
        return torch.randn(shape, generator=generator).to(self.device)

    def _needed(self, phase: BenchPhase) -> int:
        """Bytes that one image needs, for every library that takes part."""
        if phase == "training":
            return training_memory(self.config, 1).peak * (1 + len(self.peers))
        return inference_memory(self.config, 1).peak * (1 + len(self.peers))

    def _fitting_batch(
        self, phase: BenchPhase, flops: int, contestants: int, share: float
    ) -> tuple[int, float]:
        """Return the batch that the time is enough for, 0 where there is none, and the seconds for one image.

        No model is faster than its matrix products, which are timed here once.
        """
        made = products(self.config, 1, self.device, "float32")
        if made is None:  # a ResNet: one forward pass tells
            model = next(iter(vitkit_contestants(self.config, self.device, phase, ("float32",))))
            made = step_of(model, "inference", self._images(1), {}), flops
        step, count = made
        step()
        calls, started = 0, time.perf_counter()  # on the wall: what else the machine does counts too
        while (passed := time.perf_counter() - started) < PROBE or not calls:
            step()
            calls += 1
        for_image = passed / calls / count * flops * (3 if phase == "training" else 1)
        rounds = (LEAST_ROUNDS + 1) * contestants * for_image
        batch = self.options.batch_size
        while batch and batch * rounds > PATIENCE * share:
            batch //= 2
        return batch, rounds

    def _latencies(self, contestants: Sequence[Contestant], seconds: float) -> Iterator[Response]:
        image = self._images(1)
        for contestant in contestants:
            step = step_of(contestant, "inference", image, {})
            contestant.prepare()
            times = latency(step, self.device, seconds / len(contestants), self.timer.tick)
            yield Response(self.model, self.config.image_size, contestant.name, contestant.precision, times)

    def _memory(self, phase: BenchPhase, contestant: Contestant, batch: int, seconds: float) -> Memory:
        """Measure the memory of a step, and find the largest batch."""
        optimizers: dict[torch.nn.Module, torch.optim.Optimizer] = {}

        def at(count: int) -> Step:
            if contestant.model is not None:  # the gradients of the step before would be gone in this one
                contestant.model.zero_grad()
            return step_of(contestant, phase, self._images(count), optimizers)

        contestant.prepare()
        at(1)()  # the optimiser's state is there from now on
        step = at(batch)
        # There before a step: weights; in training also AdamW's two moments.
        lasting = parameters(self.config) * 4 * (3 if phase == "training" else 1)
        limit = self.options.memory_gb
        room = int(limit * 1e9) if limit is not None else (available_memory() or 0) + lasting
        if self.device.type == "cuda":
            room = torch.cuda.get_device_properties(self.device).total_memory
        started = time.perf_counter()
        peak = peak_memory(step, self.device)
        small = self._small_batch(phase, contestant.precision)
        measuring = 3 * small / batch * (time.perf_counter() - started)
        if self.device.type == "cpu" and measuring > max(LEAST_PATIENCE, PATIENCE * seconds):
            largest = None
        else:
            largest = largest_batch(at, self.device, room - lasting, seconds, small)
        self.timer.tick()
        return Memory(
            self.model,
            self.config.image_size,
            phase,
            contestant.name,
            contestant.precision,
            batch,
            lasting + peak,
            room,
            None if largest is None else largest.images,
            largest is not None and largest.tried,
        )

    def _small_batch(self, phase: BenchPhase, precision: EnginePrecision) -> int:
        """Count the images that need as much memory as what is there whatever their number: the gradients of
        all weights in training, and the weights as bfloat16 where they are rounded."""
        weights = 4 * parameters(self.config)
        if phase == "training":
            return max(2, ceil(weights / training_memory(self.config, 1).activations))
        rounded = weights // 2 if precision == "bfloat16" else 0
        return max(2, ceil(rounded / inference_memory(self.config, 1).activations))


def _peers(options: BenchOptions, listener: Listener) -> list[str]:
    """Return the peers that take part, and say which are not there and how to get them."""
    if not options.peers:
        return []
    there, missing = installed_peers()
    if missing:
        packages = " ".join(dict.fromkeys(package for name in missing for package in PEERS[name][1]))
        listener.note(
            f"Not installed, so left out: {', '.join(missing)}. Install what you like beside vitkit (pip "
            f"install {packages}), or run {SCRIPT} in vitkit's repository: it makes an environment "
            "with all of them."
        )
    return there

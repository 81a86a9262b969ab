"""Measure the speed, latency and memory of models on this machine, also beside other libraries.

The paper's Appendix D.5 measures images per second and the largest batch too, over image sizes (Figure 12).
"""

import bisect
import math
import os
import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit._version import __version__
from vitkit.analysis.drawing import cut, save_figure
from vitkit.analysis.study_figures import line_figure
from vitkit.engines.libraries import EnginePrecision
from vitkit.errors import VitkitError
from vitkit.jobs.bench.contestants import (
    PEERS,
    Contestant,
    Optimizers,
    TorchPrecision,
    installed_peers,
    peer_contestants,
    step_of,
    subject,
    timed_precisions,
    vitkit_contestants,
)
from vitkit.jobs.bench.records import Bench, Memory, Response, Speed, write_records
from vitkit.jobs.cost import configuration
from vitkit.jobs.options import require_at_least
from vitkit.kernels import gelu, resample
from vitkit.kernels.compile import load as load_kernel
from vitkit.listener import Listener, hushed
from vitkit.models.config.compute_config import Compute, Precision
from vitkit.models.measure import executed_flops, forward_flops, inference_memory, parameters, training_memory
from vitkit.models.zoo import ModelConfig
from vitkit.notebook import AUTOMATIC
from vitkit.runs.folder import is_checkpoint
from vitkit.runs.machine import available_memory, find_device, keep_freed_memory, require_threads
from vitkit.runs.timing import (
    LEAST_ROUNDS,
    BenchPhase,
    Clock,
    Step,
    Ticking,
    Turn,
    latency,
    peak_memory,
    spread,
    take_turns,
    use_threads,
)
from vitkit.text import format_bytes, format_duration
from vitkit.training.checkpoint import processor_name
from vitkit.weights.format_names import LoadOptions


def products(
    config: ModelConfig, batch: int, device: torch.device, precision: EnginePrecision
) -> tuple[Step, int] | None:
    """Return a step of the matrix products of one block of a ViT, and its FLOPs.

    They are the ceiling that utilisation is measured against: PyTorch's products alone, of qkv, the output
    projection and the MLP, for all tokens of a batch at once. None for a ResNet, which has no such block, and
    for integers, of which PyTorch has no products. Engines with products of their own may exceed it.
    """
    dtype: torch.dtype = getattr(torch, precision)
    if config.num_tokens is None or not dtype.is_floating_point:
        return None
    vit: Any = config  # a configuration with tokens is a ViT or a hybrid
    rows, width = batch * config.num_tokens, vit.width
    shapes = ((width, 3 * width), (width, width), (width, vit.mlp_dim), (vit.mlp_dim, width))
    pairs = [
        (torch.randn(rows, k, device=device, dtype=dtype), torch.randn(n, k, device=device, dtype=dtype))
        for k, n in shapes
    ]

    def step() -> None:
        with torch.inference_mode():
            for rows, weights in pairs:
                F.linear(rows, weights)

    return step, sum(2 * rows * k * n for k, n in shapes)


def count_executed(contestant: Contestant, images: Tensor) -> int | None:
    """Count the FLOPs that a forward pass of images executes; None for engines."""
    if contestant.model is None:
        return None
    contestant.prepare()
    return executed_flops(lambda: contestant.logits(images))


def compare(
    model: str,
    config: ModelConfig,
    phase: BenchPhase,
    contestants: Sequence[Contestant],
    images: Tensor,
    clock: Clock,
    seconds: float,
    *,
    tick: Ticking = lambda: None,
) -> Iterator[Speed]:
    """Time contestants in turns, with the matrix products of the model's shapes among them.

    After an interruption (Ctrl-C) the records of the whole rounds come first, and then the interruption.

    Args:
        model: the model's name in the records.
        config: the architecture of all contestants.
        phase: inference or training.
        contestants: the models and their ways to compute.
        images: `(B, C, H, W)`, normalised.
        clock: the clock of the device.
        seconds: the time for all of it.
        tick: called after every step.
    """
    batch, device = len(images), images.device
    optimizers: Optimizers = {}
    turns = {c.name: Turn(step_of(c, phase, images, optimizers), c.prepare) for c in contestants}
    executed = {c.name: count_executed(c, images[:1]) for c in contestants}
    ceilings = {
        precision: made
        for precision in dict.fromkeys(c.precision for c in contestants)
        if (made := products(config, batch, device, precision))
    }
    turns |= {f"products {precision}": Turn(step) for precision, (step, _) in ceilings.items()}
    times: dict[str, list[float]] = {}
    interruption = None
    try:
        take_turns(turns, clock, seconds, times, tick)
    except KeyboardInterrupt as stopped:
        rounds = min((len(measured) for measured in times.values()), default=0)
        if rounds < 2:  # a single round has no quartiles
            raise
        times, interruption = {name: measured[:rounds] for name, measured in times.items()}, stopped
    rates = {p: count / statistics.median(times[f"products {p}"]) for p, (_, count) in ceilings.items()}
    # Ratios are taken to timm's fastest in float32, else to our plain way.
    base = [c.name for c in contestants if c.library == "timm" and c.precision == "float32"]
    plain = [c.name for c in contestants if c.library == "vitkit exact"]
    reference = min(base or plain or [contestants[-1].name], key=lambda name: statistics.median(times[name]))
    # Every product of the forward pass has two of its size in the backward pass.
    passes, flops = 3 if phase == "training" else 1, forward_flops(config, head=True)
    for contestant in contestants:
        own, rate = times[contestant.name], rates.get(contestant.precision)
        low, middle, high = spread(own)
        ratios = spread([other / mine for mine, other in zip(own, times[reference], strict=True)])
        mfu, mfu_executed = (
            None if rate is None or count is None else passes * count * batch / middle / rate
            for count in (flops, executed[contestant.name])
        )
        yield Speed(
            **subject(contestant, model, config),
            phase=phase,
            library=contestant.library,
            batch_size=batch,
            rounds=len(own),
            images_per_second=batch / middle,
            quartiles=(batch / high, batch / low),
            seconds=middle,
            least_seconds=min(own),
            reference=reference,
            ratio=ratios[1],
            ratio_quartiles=(ratios[0], ratios[2]),
            mfu=mfu,
            mfu_executed=mfu_executed,
        )
    if interruption is not None:
        raise interruption


PAPER_SIZES = (64, 128, 224, 384, 512)
"""Pixels a side that the paper's Figure 12 shows (Appendix D.5)."""
SCRIPT = "scripts/bench-peers"
PATIENCE = 2.0
"""A measurement is skipped where it would take this many times its part of the time."""
MOST_IMAGES = 2**20
"""More images than any memory has room for."""


def keep(bench: Bench, folder: Path) -> list[Path]:
    """Write the records as JSON and, of several sizes, the paper's Figure 12 as PNG and SVG.

    Returns:
        The files.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "bench.json"
    write_records(path, bench.machine, bench.records)
    timed = [
        record
        for record in bench.records
        if isinstance(record, Speed) and (record.library, record.phase) == ("vitkit", "inference")
    ]
    if len({speed.image_size for speed in timed}) < 2:
        return [path]
    last = timed[-1].precision  # the fastest, where there are several
    points: list[tuple[str, Speed | Memory, float]]
    points = [("images per second, inference", speed, speed.images_per_second) for speed in timed]
    points += [
        ("largest batch, training", record, record.largest_batch)
        for record in bench.records
        if isinstance(record, Memory) and record.phase == "training"
    ]
    panels: dict[str, dict[str, list[tuple[float, float, None]]]] = {}
    for panel, record, height in points:
        if record.precision == last and height:  # on a logarithmic axis 0 has no place
            line = panels.setdefault(panel, {}).setdefault(record.model, [])
            line.append((record.image_size[0], height, None))
    title = f"Speed by image size in {last} on {cut(bench.machine['device'], 60)}"
    figure = line_figure(panels, "image size in pixels", "", title=[title], is_fraction=False)
    return [path, *save_figure(figure, folder / "bench")]


def bench(
    *models: str,
    image_size: int | str = "",
    batch_size: int = 8,
    training: bool = True,
    peers: bool = False,
    minutes: float = 1.0,
    precision: Precision = "auto",
    memory_gb: float | None = None,
    threads: int | None = None,
    device: str = "auto",
    into: "list[Bench] | None" = None,  # in quotes: help imports no torch
    quiet: bool = False,
    listener: Listener = AUTOMATIC,
) -> Bench:
    """Time models: images per second, latency, memory and largest batch, also beside other libraries.

    VITKIT_NO_KERNELS=1 switches compiled kernels off.

    Args:
        models: names (ViT-S/16), run folders or checkpoints; only their shapes matter.
        image_size: pixels a side: 224, or 64,128,224, or 64..512 for the paper's sizes between these; left
            out, 224 or the checkpoint's own.
        batch_size: images at a time; fewer where a step would outlast its part of --minutes.
        training: time training steps as well as inference.
        peers: time other libraries in turns with vitkit, whichever are installed.
        minutes: for each model, all sizes together; large models take longer, for each is timed a few times.
        precision: auto times float32, and bfloat16 where the device has it.
        memory_gb: memory for the largest batch, in GB; left out, what is free.
        threads: of the processor; left out, as PyTorch chooses.
        device: auto, cpu, cuda.
        into: receives the result after each record, so that an interruption loses none.
        quiet: print nothing but warnings.
        listener: hears the progress and remarks; left out, a notebook shows them and a script is silent.

    Raises:
        VitkitError: the options do not fit, or a model or the device is not there.
    """
    if not models:
        raise VitkitError("Name a model: vitkit bench ViT-S/16. Names are listed by vitkit models.")
    require_at_least(1, batch_size=batch_size)
    for name, value in (("minutes", minutes), ("memory_gb", memory_gb)):
        if value is not None and not 0 < value < math.inf:
            raise VitkitError(f"{name} is a number above 0, found {value}.")
    require_threads(threads)
    listener, chosen = hushed(listener, quiet), find_device(device)
    keep_freed_memory()  # as training does, for every contestant
    result = Bench(describe_machine(chosen, threads), ())
    cases = [
        (name, configuration(name, LoadOptions(image_size=size)))
        for name in models
        for size in read_sizes(str(image_size)) or (None,)
    ]
    others, missing = installed_peers() if peers else ([], [])
    if missing:
        packages = " ".join(dict.fromkeys(package for name in missing for package in PEERS[name][1]))
        listener.note(
            f"Not installed, so left out: {', '.join(missing)}. Install what you like beside vitkit (pip "
            f"install {packages}), or run {SCRIPT} in vitkit's repository: it makes an environment "
            "with all of them."
        )
    total = 60 * minutes * len(models)
    listener.note(f"Measuring for about {format_duration(total)}.")
    with use_threads(threads), listener.progress("measuring", round(total), unit="seconds") as progress:
        clock = Clock(chosen, torch.get_num_threads())
        phases: tuple[BenchPhase, ...] = ("inference", "training") if training else ("inference",)
        # A part that computes four times as much gets twice the time: fewer rounds, but enough of them.
        work = {
            (number, phase): math.sqrt(forward_flops(config, head=True) * (3 if phase == "training" else 1))
            for number, (_, config) in enumerate(cases)
            for phase in phases
        }
        planned, started = total / sum(work.values()), time.perf_counter()
        for part, (number, phase) in enumerate(work):
            name, config = cases[number]
            shown = name if not is_checkpoint(name) else Path(name.rstrip("/")).name
            precisions = timed_precisions(precision, chosen)
            passed = time.perf_counter() - started
            weights = [*work.values()][part:]
            # The time that is left, by weight; at least a quarter of the plan, if the parts before overran.
            seconds = weights[0] * max(planned / 4, (total - passed) / sum(weights))

            def tick(detail: str = f"{shown} at {config.image_size[0]} pixels, {phase}") -> None:
                # A measurement that overruns the plan stays a second short of the end.
                done = min(time.perf_counter() - started, total - 1)
                progress(max(0, int(done)), detail=detail)

            options = (precisions, batch_size, memory_gb, others, seconds, tick, listener)
            for record in _Case(shown, config, phase, clock, *options).measure():
                result = replace(result, records=(*result.records, record))
                if into is not None:
                    into.append(result)
    return result


def read_sizes(sizes: str) -> tuple[int, ...]:
    """Read the sizes of images in pixels; empty where each model has its own.

    Raises:
        VitkitError: it is no list of numbers, and no range that has one of the paper's.
    """
    if not sizes:
        return ()
    first, dots, last = sizes.partition("..")
    sides = [first, last] if dots else sizes.split(",")
    are_numbers = all(side.strip().isascii() and side.strip().isdigit() and int(side) for side in sides)
    numbers = tuple(dict.fromkeys(map(int, sides))) if are_numbers else ()
    if dots and numbers:
        numbers = tuple(size for size in PAPER_SIZES if numbers[0] <= size <= numbers[-1])
    if not numbers:
        raise VitkitError(
            "image_size is pixels a side, as 224 or 64,128,224, or 64..512 for those of the paper's sizes "
            f"{', '.join(map(str, PAPER_SIZES))} that lie between, found '{sizes}'."
        )
    return numbers


def describe_machine(device: torch.device, threads: int | None) -> dict[str, Any]:
    """Describe the machine, and what else besides the model decides the numbers."""
    threads = threads or torch.get_num_threads()
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
            "gelu": load_kernel(gelu.SOURCE, compile_it=True).reason or "compiled",
            "resample": load_kernel(resample.SOURCE, compile_it=True).reason or "compiled",
        },
    }


@dataclass(frozen=True)
class _Case:
    """A model at one image size."""

    model: str
    config: ModelConfig
    phase: BenchPhase
    clock: Clock
    precisions: tuple[TorchPrecision, ...]
    batch_size: int
    memory_gb: float | None
    peers: Sequence[str]
    seconds: float
    """The time of its measurements."""
    tick: Ticking
    """Called after every step."""
    listener: Listener

    @property
    def device(self) -> torch.device:
        return self.clock.device

    def measure(self) -> Iterator[Speed | Memory | Response]:
        """Measure speed, latency and memory, if there is the time and the memory."""
        self.tick()
        title = f"{self.model} at {self.config.image_size[0]} pixels, {self.phase}"
        needed = self._estimate(1, "float32") * (1 + len(self.peers))
        room = available_memory()
        if room is not None and self.device.type == "cpu" and needed > room:
            self.listener.warn(
                f"{title}: not measured. It needs about {format_bytes(needed)}, and "
                f"{format_bytes(room)} are free."
            )
            return
        # vitkit has a contestant more than precisions, --exact; a peer has two forms of attention.
        count = len(self.precisions)
        expected = count + 1 + 2 * count * len(self.peers)
        batch = 1
        try:
            batch, least = self._fitting_batch(expected)
            if not batch:
                self.listener.warn(
                    f"{title}: not measured. With one image at a time it would take about "
                    f"{format_duration(least)} of {format_duration(self.seconds)}: allow more --minutes."
                )
                return
            images = self._images(batch)
            contestants = list(vitkit_contestants(self.config, self.device, self.phase, self.precisions))
            for peer in self.peers:
                try:
                    contestants += peer_contestants(peer, self.config, images, self.phase, self.precisions)
                except VitkitError as error:
                    self.listener.warn(str(error))
                self.tick()
            yield from compare(
                *(self.model, self.config, self.phase, contestants, images, self.clock, 0.7 * self.seconds),
                tick=self.tick,
            )
            ours = [contestant for contestant in contestants if contestant.library == "vitkit"]
            for contestant in ours if self.phase == "inference" else ():
                step = step_of(contestant, "inference", images[:1], {})
                contestant.prepare()
                times = latency(step, self.device, 0.25 * self.seconds / len(ours), self.tick)
                yield Response(**subject(contestant, self.model, self.config), latency=times)
            for contestant in ours:
                yield self._memory(contestant, batch)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            too_large = "One image does not fit into the memory of the GPU."
            if batch > 1:
                too_large = (
                    f"{batch} images do not fit into the memory of the GPU: choose a smaller --batch-size."
                )
            self.listener.warn(f"{title}: not measured. {too_large}")

    def _images(self, batch: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        shape = (batch, self.config.in_channels, *self.config.image_size)
        return torch.randn(shape, generator=generator).to(self.device)

    def _fitting_batch(self, contestants: int) -> tuple[int, float]:
        """Return the batch that the seconds suffice for, 0 if for none, and the seconds of batches of one.

        A forward pass of one image is timed; a training step takes three times as long.
        """
        model = next(iter(vitkit_contestants(self.config, self.device, self.phase, ("float32",))))
        step = step_of(model, "inference", self._images(1), {})
        step()
        # Two threads mean wall time: other load on the machine counts too.
        clock = Clock(self.device, threads=2)
        forward = statistics.median(clock.seconds(step) for _ in range(LEAST_ROUNDS))
        image = forward * (3 if self.phase == "training" else 1)
        rounds = (LEAST_ROUNDS + 1) * contestants * image
        batch = self.batch_size
        while batch and batch * rounds > PATIENCE * self.seconds:
            batch //= 2
        return batch, rounds

    def _memory(self, contestant: Contestant, batch: int) -> Memory:
        """Measure the memory of a step, and estimate the largest batch as training does before it begins."""
        optimizers: Optimizers = {}
        contestant.prepare()
        # A step that the optimiser's state is there after, which is allocated once.
        step_of(contestant, self.phase, self._images(1), optimizers)()
        if contestant.model is not None:  # else the step would free the gradients of the one before
            contestant.model.zero_grad()
        peak = peak_memory(step_of(contestant, self.phase, self._images(batch), optimizers), self.device)
        self.tick()
        # Allocated before a step: weights of 4 bytes, and in training AdamW's two moments.
        lasting = parameters(self.config) * 4 * (3 if self.phase == "training" else 1)
        if self.memory_gb is not None:
            room = int(self.memory_gb * 1e9)
        elif self.device.type == "cuda":
            room = torch.cuda.get_device_properties(self.device).total_memory
        else:
            room = (available_memory() or 0) + lasting
        return Memory(
            **subject(contestant, self.model, self.config),
            phase=self.phase,
            batch_size=batch,
            peak=lasting + peak,
            room=room,
            largest_batch=bisect.bisect_right(
                range(1, MOST_IMAGES),
                room,
                key=lambda images: self._estimate(images, contestant.precision),
            ),
        )

    def _estimate(self, images: int, precision: EnginePrecision) -> int:
        """Estimate the most bytes of a step of so many images."""
        if self.phase == "training":
            compute = Compute("bfloat16" if precision == "bfloat16" else "float32")
            return training_memory(self.config, images, compute).peak
        return inference_memory(self.config, images).peak

"""Measure the speed, memory and latency of models on this machine, as vitkit computes them: plainly and as it
chooses.

The paper's Appendix D.5 measures images per second over image sizes (Figure 12). Other libraries are timed by
the same functions in `benchmarks/peers.py`, which scripts/bench-peers runs.
"""

import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from vitkit._version import __version__
from vitkit.analysis.figures import line_figure, save_figure, shortened
from vitkit.config import COUNT, Count, Positive, Range, write
from vitkit.engines.libraries import EnginePrecision
from vitkit.errors import VitkitError
from vitkit.jobs.cost import configuration
from vitkit.jobs.options import StrPath, require_at_least
from vitkit.kernels import block, resample
from vitkit.kernels.compile import load as load_kernel
from vitkit.listener import AUTOMATIC, Listener, hushed
from vitkit.models import build, image_model, measure
from vitkit.models.config import PLAIN, Precision
from vitkit.models.zoo import ModelConfig
from vitkit.report.template import write_page
from vitkit.result import Block, Plot, Result, Section, table_of
from vitkit.runs import machine, timing
from vitkit.runs.folder import is_checkpoint, make_folder, require_folder
from vitkit.text import format_bytes, format_duration
from vitkit.training.checkpoint import processor_name
from vitkit.training.config import OptimizerConfig
from vitkit.training.optim import create_optimizer
from vitkit.weights.format_names import LoadOptions

TorchPrecision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Contestant:
    """A way to compute a model: one of vitkit's, or in benchmarks/ another library's."""

    name: str
    library: str
    precision: EnginePrecision
    model: nn.Module | None
    """None for an engine, which computes logits and cannot be trained: a step of it is always inference."""
    logits: Callable[[Tensor], Any]
    """Computes logits `(B, K)` of normalised images `(B, 3, H, W)`."""
    prepare: Callable[[], None] = lambda: None
    """Have the model, which other contestants share, compute in this way."""


Optimizers: TypeAlias = dict[nn.Module, torch.optim.Optimizer]
"""The optimiser of each model that has been trained: contestants share models."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The speed of one contestant; of vitkit also the memory of a step and the latency of one image."""

    kind: Literal["speed"] = "speed"
    model: str
    image_size: tuple[int, int]
    """Height and width in pixels."""
    name: str
    """The name of the contestant: "vitkit bfloat16"."""
    precision: EnginePrecision
    phase: timing.BenchPhase
    batch_size: Annotated[int, Range("a number of images", 1, COUNT)]
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
    memory: Count | None = None
    """Bytes: weights, and the optimiser's state in training, and what a step allocates on top."""
    latency: timing.Latency | None = None
    """The time from one image to its logits; of inference alone."""


@dataclass(frozen=True, repr=False)
class Bench(Result):
    """The measurements of a benchmark, and what they were made on."""

    machine: Mapping[str, Any]
    records: tuple[Speed, ...]

    def summary(self) -> str:
        """Describe the machine."""
        on = self.machine
        load = "" if on["load"] is None else f", load {on['load']:.1f} at the start"
        kernels = ", ".join(f"{name}: {state}" for name, state in on["kernels"].items())
        return (
            f"{on['device']}, {on['threads']} of {on['cores']} cores{load}; "
            f"{on['clock']}; torch {on['torch']}\nkernels: {kernels}"
        )

    def heading(self) -> str:
        """Name the processor."""
        return f"Speed of models on {self.machine['device']}"

    def sections(self) -> Sequence[Section]:
        """Return the machine, the tables of each model and size, and the figure of several sizes."""
        parts = [Section("The machine", [self.summary()])]
        for model, size in dict.fromkeys((record.model, record.image_size) for record in self.records):
            own = [record for record in self.records if (record.model, record.image_size) == (model, size)]
            blocks: list[Block] = []
            for phase in get_args(timing.BenchPhase):
                if speeds := [record for record in own if record.phase == phase]:
                    title = f"{model} at {size[0]} pixels, {phase}, batch {speeds[0].batch_size}"
                    blocks += [f"{title}, compared with {speeds[0].reference}", table_of(speeds, SPEEDS)]
            if whole := [record for record in own if record.memory is not None]:
                blocks.append(table_of(whole, COSTS))
            parts.append(Section(f"{model} at {size[0]} pixels", blocks))
        return [*parts, Section("What the numbers mean", [self.plot(), ABOUT])]

    def plot(self) -> Plot | None:
        """Draw the paper's Figure 12, images per second over the size of an image; None of a single size."""
        timed = [r for r in self.records if (r.library, r.phase) == ("vitkit", "inference")]
        if len({speed.image_size for speed in timed}) < 2:
            return None
        lines: dict[str, list[tuple[float, float, None]]] = {}
        last = timed[-1].precision  # the fastest, where there are several
        for speed in timed:
            if speed.precision == last:
                lines.setdefault(speed.model, []).append((speed.image_size[0], speed.images_per_second, None))
        title = f"Speed by image size in {last} on {shortened(str(self.machine.get('device')), 60)}"
        draw = partial(line_figure, {"": lines}, "image size in pixels", "images per second, inference")
        described = "Images per second by image size, as in the tables."
        return Plot(partial(draw, title=[title], is_fraction=False), "speed", described)


def _milliseconds(part: str, speed: Speed) -> str:
    seconds: float | None = getattr(speed.latency, part, None)
    return "–" if seconds is None else f"{1e3 * seconds:,.1f} ms"


SPEEDS: Mapping[str, Callable[[Speed], str]] = {
    "": lambda speed: speed.name,
    "images/s": lambda speed: f"{speed.images_per_second:,.1f}",
    "ms": lambda speed: f"{1e3 * speed.seconds:,.1f}",
    "ratio": lambda speed: f"{speed.ratio:.2f}",
    "quartiles": lambda speed: "{:.2f} to {:.2f}".format(*speed.ratio_quartiles),
}
COSTS: Mapping[str, Callable[[Speed], str]] = {
    "of a step, of one image": lambda speed: f"{speed.phase}, {speed.name}",
    "memory": lambda speed: format_bytes(speed.memory or 0),
    **{part: partial(_milliseconds, part) for part in ("p50", "p90", "p99")},
    "calls": lambda speed: f"{speed.latency.calls:,}" if speed.latency else "–",
}
ABOUT = (
    "Ratios are medians of rounds, with quartiles. p50 to p99 are the latency of one image: of 100 calls 50, "
    "90 and 99 are at most so long."
)


def timed_precisions(precision: Precision, device: torch.device) -> tuple[TorchPrecision, ...]:
    """Return the precisions that are timed on a device."""
    if precision == "auto":
        fast = not machine.device_features(device).isdisjoint({*machine.BFLOAT16_FEATURES, "bfloat16"})
        return ("float32", "bfloat16") if fast else ("float32",)
    return (precision,)


def vitkit_contestants(
    config: ModelConfig,
    device: torch.device,
    phase: timing.BenchPhase,
    precisions: Sequence[TorchPrecision],
    batch_size: int,
) -> Iterator[Contestant]:
    """Give vitkit's chosen way to compute in each precision, and last the plain way (`--exact`)."""
    model: image_model.ImageModel = build.build_model(config).to(device)
    for precision in precisions:
        of_phase: Literal["training", "evaluation"] = "training" if phase == "training" else "evaluation"
        way = machine.choose_for(config, device, precision, phase=of_phase, exact=False, images=batch_size)
        name = f"vitkit {precision}"
        yield Contestant(name, "vitkit", precision, model, model, partial(machine.compute_as, model, way))
    plain = partial(machine.compute_as, model, PLAIN)
    yield Contestant("vitkit --exact", "vitkit exact", "float32", model, model, plain)


def step_of(
    contestant: Contestant, phase: timing.BenchPhase, images: Tensor, optimizers: Optimizers
) -> timing.Step:
    """Return the step that is timed, one forward pass or one training step, and set the model to that phase.

    A training step is forward, cross-entropy, backward and a fused AdamW.

    Args:
        contestant: the model and its way to compute.
        phase: inference or training.
        images: `(B, C, H, W)`, normalised.
        optimizers: those that are there already; a new one is added.
    """
    model = contestant.model
    if phase == "training" and model is not None:
        if model not in optimizers:
            optimizers[model] = create_optimizer(model, OptimizerConfig())
        step = timing.training_step(model, contestant.logits, contestant.precision, images, optimizers[model])
        if not contestant.library.startswith("vitkit"):
            return step

        def train() -> None:
            with machine.deterministic(images.device):  # as `vitkit train` does
                step()

        return train
    if model is not None:
        model.eval()
    is_cast = model is not None and contestant.precision == "bfloat16"
    autocast = torch.autocast(images.device.type, torch.bfloat16, enabled=is_cast)

    def infer() -> None:
        with torch.inference_mode(), autocast:
            contestant.logits(images)

    return infer


def compare(
    model: str,
    config: ModelConfig,
    phase: timing.BenchPhase,
    contestants: Sequence[Contestant],
    references: Sequence[str],
    images: Tensor,
    clock: timing.Clock,
    seconds: float,
    optimizers: Optimizers,
    tick: timing.Ticking = lambda: None,
) -> Iterator[Speed]:
    """Time contestants in turns.

    Args:
        model: the model's name in the records.
        config: the architecture of all contestants.
        phase: inference or training.
        contestants: the models and their ways to compute.
        references: names of contestants, to the fastest of which ratios are taken.
        images: `(B, C, H, W)`, normalised.
        clock: the clock of the device.
        seconds: the time for all of it.
        optimizers: as in `step_of`.
        tick: called after every step.
    """
    batch = len(images)
    turns = {c.name: timing.Turn(step_of(c, phase, images, optimizers), c.prepare) for c in contestants}
    times = timing.take_turns(turns, clock, seconds, tick)
    reference = min(references, key=lambda name: statistics.median(times[name]))
    for contestant in contestants:
        own = times[contestant.name]
        low, middle, high = timing.spread(own)
        ratios = timing.spread([other / mine for mine, other in zip(own, times[reference], strict=True)])
        yield Speed(
            model=model,
            image_size=config.image_size,
            name=contestant.name,
            precision=contestant.precision,
            phase=phase,
            batch_size=batch,
            library=contestant.library,
            rounds=len(own),
            images_per_second=batch / middle,
            quartiles=(batch / high, batch / low),
            seconds=middle,
            least_seconds=min(own),
            reference=reference,
            ratio=ratios[1],
            ratio_quartiles=(ratios[0], ratios[2]),
        )


PATIENCE = 2.0
"""A measurement is skipped where it would take this many times its part of the time."""


def bench(
    *models: str,
    image_size: int | Sequence[int] = (),
    batch_size: int = 8,
    training: bool = True,
    minutes: float = 1.0,
    precision: Precision = "auto",
    out: StrPath | None = None,
    threads: int | None = None,
    device: str = "auto",
    quiet: bool = False,
    listener: Listener = AUTOMATIC,
) -> Bench:
    """Time models: images per second, latency and memory, as vitkit chooses to compute and in the plain way.

    VITKIT_NO_KERNELS=1 switches compiled kernels off. In vitkit's repository scripts/bench-peers times other
    libraries in turns with vitkit.

    Args:
        models: names (ViT-S/16), run folders or checkpoints; only their shapes matter.
        image_size: pixels a side, or several such as 64,128,224; left out, 224 or the checkpoint's own.
        batch_size: images at a time; fewer where a step would outlast its part of `minutes`.
        training: time training steps as well as inference.
        minutes: for each model, all sizes together; large models take longer, for each is timed a few times.
        precision: auto times float32, and bfloat16 where the device has it.
        out: folder for bench.json, report.html with the tables and, for several sizes, the paper's Figure 12
            as PNG and SVG.
        threads: of the processor; left out, as PyTorch chooses.
        device: auto, cpu, cuda.
        quiet: print nothing but warnings.
        listener: hears the progress, each speed and remarks; left out, a notebook shows them and a script is
            silent.

    Raises:
        VitkitError: the options do not fit, or a model or the device is not there.

    Unstable: its parameters and what it returns may change in any release.
    """
    if not models:
        raise VitkitError("Name a model: vitkit bench ViT-S/16. Names are listed by vitkit models.")
    sizes = (image_size,) if isinstance(image_size, int) else tuple(dict.fromkeys(image_size))
    if not all(isinstance(size, int) for size in sizes):  # the characters of a text
        raise VitkitError(f"image_size is a number of pixels or a list of them, found {image_size!r}.")
    require_at_least(1, batch_size=batch_size, image_size=min(sizes, default=1))
    if not 0 < minutes < math.inf:
        raise VitkitError(f"minutes is a number above 0, found {minutes}.")
    machine.require_threads(threads)
    folder = require_folder(out)
    if folder is not None:  # before minutes of measurements
        make_folder(folder)
    listener, chosen = hushed(listener, quiet), machine.find_device(device)
    machine.keep_freed_memory()  # as training does
    phases: tuple[timing.BenchPhase, ...] = ("inference", "training") if training else ("inference",)
    sized = ((name, LoadOptions(image_size=size)) for name in models for size in sizes or (None,))
    configs = [(name, configuration(name, options)) for name, options in sized]
    cases = [(name, config, phase) for name, config in configs for phase in phases]
    # A part that computes four times as much gets twice the time: fewer rounds, but enough of them.
    flops = {"training": measure.training_flops, "inference": measure.forward_flops}
    work = [math.sqrt(flops[phase](config, head=True)) for _, config, phase in cases]
    described, records = describe_machine(chosen, threads), list[Speed]()
    total = 60 * minutes * len(models)
    listener.note(f"Measuring for about {format_duration(total)}.")
    measuring = listener.progress("measuring", round(total), unit="seconds")
    with timing.use_threads(threads), measuring as progress:
        clock, started = timing.Clock(chosen, torch.get_num_threads()), time.perf_counter()
        for (name, config, phase), weight in zip(cases, work, strict=True):
            shown = name if not is_checkpoint(name) else Path(name.rstrip("/")).name
            title = f"{shown} at {config.image_size[0]} pixels, {phase}"

            def tick(detail: str = title) -> None:
                # A measurement that overruns the plan stays a second short of the end.
                progress(max(0, int(min(time.perf_counter() - started, total - 1))), detail=detail)

            precisions, seconds = timed_precisions(precision, chosen), total * weight / sum(work)
            try:
                for speed in _measure(shown, config, phase, precisions, batch_size, clock, seconds, tick):
                    listener.note(f"{title}: {speed.name} {speed.images_per_second:,.1f} images/s")
                    records.append(speed)
            except VitkitError as error:
                listener.warn(f"{title}: not measured. {error}")
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                listener.warn(
                    f"{title}: not measured. Up to {batch_size} images do not fit into the memory of the "
                    "GPU: choose a smaller --batch-size."
                )
            finally:  # also after Ctrl-C
                result = Bench(described, tuple(records))
                if folder is not None:
                    write(folder / "bench.json", result.to_json())
    if folder is not None:
        plot = result.plot()
        written = [folder / "bench.json", *(save_figure(plot.draw(), folder / "bench") if plot else ())]
        written.append(write_page(result, folder / "report.html"))
        listener.show([("written", [str(path) for path in written])])
    return result


def describe_machine(device: torch.device, threads: int | None) -> dict[str, Any]:
    """Describe the machine, and what else besides the model decides the numbers."""
    threads = threads or torch.get_num_threads()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name(),
        "kind": device.type,
        "cores": os.cpu_count(),
        "threads": threads,
        "clock": timing.Clock(device, threads).name,
        "load": load,
        "system": platform.platform(),
        "torch": torch.__version__,
        "vitkit": __version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "kernels": {
            "gelu": load_kernel(block.GELU, compile_it=True).reason or "compiled",
            "resample": load_kernel(resample.SOURCE, compile_it=True).reason or "compiled",
        },
    }


def _measure(
    model: str,
    config: ModelConfig,
    phase: timing.BenchPhase,
    precisions: Sequence[TorchPrecision],
    batch: int,
    clock: timing.Clock,
    seconds: float,
    tick: timing.Ticking,
) -> Iterator[Speed]:
    """Yield the speed of each way to compute a model, with its memory and its latency.

    Args:
        model: the model's name in the records.
        config: its architecture at an image size.
        phase: inference or training.
        precisions: those that are timed.
        batch: images at a time; fewer where a step would outlast the time.
        clock: the clock of the device.
        seconds: the time for all of it.
        tick: called after every step.

    Raises:
        VitkitError: the memory or the time is too little for one image.
        OutOfMemoryError: the memory of the GPU is too little.
    """
    tick()
    device, is_training = clock.device, phase == "training"
    needed = (measure.training_memory if is_training else measure.inference_memory)(config, 1).peak
    room = machine.available_memory()
    if room is not None and device.type == "cpu" and needed > room:
        raise VitkitError(f"It needs about {format_bytes(needed)}, and {format_bytes(room)} are free.")
    ways, optimizers = list(vitkit_contestants(config, device, phase, precisions, batch)), Optimizers()
    shape, generator = (batch, config.in_channels, *config.image_size), torch.Generator().manual_seed(0)
    images = torch.randn(shape, generator=generator).to(device)
    # A forward pass of one image is timed; a training step takes three times as long.
    ways[0].prepare()
    step = step_of(ways[0], "inference", images[:1], optimizers)
    step()
    # Two threads mean wall time: other load on the machine counts too.
    wall = timing.Clock(device, threads=2)
    forward = statistics.median(wall.seconds(step) for _ in range(timing.LEAST_ROUNDS))
    least = (timing.LEAST_ROUNDS + 1) * len(ways) * forward * (3 if is_training else 1)
    while batch * least > PATIENCE * seconds:
        batch //= 2
        if not batch:
            raise VitkitError(
                f"With one image at a time it would take about {format_duration(least)} of "
                f"{format_duration(seconds)}: allow more --minutes."
            )
    images = images[:batch]
    plain = [way.name for way in ways if way.library == "vitkit exact"]
    speeds = compare(model, config, phase, ways, plain, images, clock, 0.7 * seconds, optimizers, tick)
    for way, speed in zip(ways, speeds, strict=True):
        way.prepare()
        if is_training:
            assert way.model is not None
            way.model.zero_grad()  # else the step would free the gradients of the one before
        peak = timing.peak_memory(step_of(way, phase, images, optimizers), device)
        # Allocated before a step: weights of 4 bytes, and in training AdamW's two moments.
        speed = replace(speed, memory=peak + measure.parameters(config) * 4 * (3 if is_training else 1))
        if not is_training:
            step = step_of(way, phase, images[:1], optimizers)
            speed = replace(speed, latency=timing.latency(step, device, 0.25 * seconds / len(ways), tick))
        tick()
        yield speed

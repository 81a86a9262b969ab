"""Measure a GPU in one run: speed, utilisation, largest batch, a loop that never waits.

    python -m benchmarks.gpu --out gpu.json                          # on a GPU: about half an hour
    python -m benchmarks.gpu --device cpu --small --out small.json   # the same path on a processor

Inference and training steps of B/16, L/16 and H/14 in bfloat16, of vitkit (plain, chosen, and compiled) and
of timm where it is installed (eager and compiled, trained with fused AdamW too), take turns with the
matrix products of the model's shapes: utilisation is measured against those, by the FLOPs of the whole model
and by those that are executed. Then the largest batch of each, with activations kept and recomputed; and some
steps of the training loop, in which a GPU is never waited for.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from benchmarks.contestants import installed_peers, peer_contestants
from benchmarks.records import Record, write_records
from benchmarks.slow_peers import compiled
from benchmarks.utilisation import compare_utilisation
from torch import nn

from vitkit.data.stream.loader import Batch
from vitkit.errors import VitkitError
from vitkit.jobs.bench import (
    Contestant,
    Optimizers,
    Speed,
    TorchPrecision,
    describe_machine,
    step_of,
    timed_precisions,
)
from vitkit.models.build import build_model
from vitkit.models.config import Compute, ViTConfig
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import vit_config
from vitkit.runs.machine import choose_for, compute_as, deterministic, find_device
from vitkit.runs.timing import BenchPhase, Clock, Step
from vitkit.training.config import ClassificationConfig, OptimizerConfig, TrainingConfig
from vitkit.training.objectives import Classification
from vitkit.training.trainer import StepNumbers, Trainer

MODELS = {"ViT-B/16": (256, 128), "ViT-L/16": (128, 64), "ViT-H/14": (64, 32)}
"""Batches of inference and of training that fill an 80 GB GPU's units and not its memory."""
SMALL = {"ViT-64x3x2/8": (4, 4)}
PHASES: tuple[BenchPhase, ...] = ("inference", "training")


def ours(config: ViTConfig, device: torch.device, phase: BenchPhase, backend: str) -> Iterator[Contestant]:
    """Give vitkit in its plain way, as it chooses, and compiled: all by one model."""
    model: ImageModel = build_model(config).to(device)
    precision = timed_precisions("auto", device)[-1]
    plain, eager = (
        replace(
            choose_for(
                config,
                device,
                precision,
                phase="training" if phase == "training" else "evaluation",
                exact=exact,
            ),
            graph="eager",
        )
        for exact in (True, False)
    )
    # Kernels of C cannot be compiled into a graph; on a GPU none is chosen.
    whole = replace(eager, gelu="pytorch", block="modules")
    ways: list[tuple[str, str, Compute]] = [
        ("vitkit exact", "plain", plain),
        ("vitkit", "chosen", eager),
        ("vitkit", "whole", whole),
    ]
    for library, word, way in ways:

        def prepare(way: Compute = way) -> None:
            compute_as(model, way)

        made = Contestant(f"vitkit {precision} {word}", library, precision, model, model, prepare)
        yield compiled(made, backend) if way is whole else made


def timms(
    config: ViTConfig, images: torch.Tensor, phase: BenchPhase, precision: TorchPrecision, backend: str
) -> Iterator[Contestant]:
    """Give timm's model where it is installed, eager and compiled, with fused attention."""
    if "timm" not in installed_peers()[0]:
        return
    try:
        contestants = peer_contestants("timm", config, images, phase, (precision,))
    except VitkitError as error:
        print(error, file=sys.stderr)
        return
    fused = next(timm for timm in contestants if timm.name.endswith("fused"))
    yield fused
    yield compiled(fused, backend)


def random_images(config: ViTConfig, count: int, device: torch.device) -> torch.Tensor:
    return torch.randn(count, config.in_channels, *config.image_size, device=device)


def speeds(
    name: str,
    config: ViTConfig,
    phase: BenchPhase,
    contestants: list[Contestant],
    images: torch.Tensor,
    seconds: float,
) -> Iterator[Speed]:
    """Time contestants in turns, and give their records."""
    clock = Clock(images.device, torch.get_num_threads())
    plain = [contestant.name for contestant in contestants if contestant.library == "vitkit exact"]
    for speed in compare_utilisation(name, config, phase, contestants, plain, images, clock, seconds):
        low, high = speed.ratio_quartiles
        utilisation = f"MFU {speed.mfu or 0:.0%}, {speed.mfu_executed or 0:.0%} executed"
        print(
            f"  {speed.name:36} {speed.images_per_second:10,.1f} images/s {speed.ratio:6.2f} "
            f"({low:.2f} to {high:.2f})  {utilisation}",
            flush=True,
        )
        yield speed


@dataclass(frozen=True, kw_only=True)
class Largest(Record):
    """The largest batch of one contestant."""

    kind: Literal["largest batch"] = "largest batch"
    phase: BenchPhase
    recompute: bool
    images: int


def largest_that_fits(step_of: Callable[[int], Step], seconds: float) -> int:
    """Double the batch until it does not fit, then halve the step, down to a sixteenth of what fits."""
    end, fits, fails = time.perf_counter() + seconds, 0, 0
    while time.perf_counter() < end and (not fails or fails - fits > max(1, fits // 16)):
        count = (fits + fails) // 2 if fails else max(1, 2 * fits)
        try:
            step_of(count)()
            fits = count
        except torch.OutOfMemoryError:
            fails = count
        if fails == count:  # out here, where the error no longer holds what did not fit
            torch.cuda.empty_cache()
    return fits


def largest(
    name: str,
    config: ViTConfig,
    phase: BenchPhase,
    contestant: Contestant,
    device: torch.device,
    seconds: float,
) -> Iterator[Largest]:
    """Search the largest batch of a contestant, for our training also with recomputed activations."""
    ours = isinstance(contestant.model, ImageModel) and phase == "training"
    for recompute in (False, True) if ours else (False,):
        optimizers = Optimizers()
        model = contestant.model
        assert model is not None
        if isinstance(model, ImageModel):
            model.recompute = recompute

        def at(
            count: int,
            model: nn.Module = model,
            optimizers: Optimizers = optimizers,
        ) -> Step:
            model.zero_grad()
            return step_of(contestant, phase, random_images(config, count, device), optimizers)

        contestant.prepare()
        at(1)()
        images = largest_that_fits(at, seconds)
        if isinstance(model, ImageModel):
            model.recompute = False
        way = " recomputed" if recompute else ""
        print(f"  largest batch, {phase}, {contestant.name}{way}: {images:,}", flush=True)
        yield Largest(
            model=name,
            image_size=config.image_size,
            name=contestant.name,
            precision=contestant.precision,
            phase=phase,
            recompute=recompute,
            images=images,
        )


@dataclass(frozen=True, kw_only=True)
class Loop(Record):
    """The speed of the training loop."""

    kind: Literal["loop"] = "loop"
    batch_size: int
    steps: int
    images_per_second: float
    losses: list[float]
    compute: dict[str, Any]
    watched_for_waits: bool


def loop(
    name: str, config: ViTConfig, device: torch.device, batch: int, steps: int = 8, graphs: bool = False
) -> Loop:
    """Make steps of training as `vitkit train` does, in which an error is raised if a GPU is waited for.

    On a processor there is nothing to wait for, and the steps are made all the same.
    """
    images = torch.randint(0, 256, (batch, config.in_channels, *config.image_size), dtype=torch.uint8)
    ids = torch.arange(batch)
    repeated = Batch(images, {"labels": ids % config.num_classes}, ids >= 0, ids)
    chosen = choose_for(config, device, "auto", phase="training", exact=False)
    model: ImageModel = build_model(config).to(device)
    compute_as(model, chosen)
    with tempfile.TemporaryDirectory(prefix="vitkit-") as folder, deterministic(device):
        objective = Classification(ClassificationConfig(), config.num_classes)
        training = TrainingConfig(steps=steps, batch_size=batch, cuda_graphs=graphs)
        trainer = Trainer(
            Path(folder),
            model,
            objective,
            _Repeated(repeated),
            batch,
            training,
            OptimizerConfig(),
        )
        for step in range(2):  # compiles, and allocates
            trainer.launch(repeated, step, 1e-5).read()
        watched = device.type == "cuda"
        if watched:
            torch.cuda.synchronize(device)
            torch.cuda.set_sync_debug_mode("error")
        try:
            launched: list[StepNumbers] = []

            def make_steps() -> None:
                launched.extend(trainer.launch(repeated, step, 1e-5) for step in range(2, steps))

            seconds = Clock(device, torch.get_num_threads()).seconds(make_steps)
        finally:
            if watched:
                torch.cuda.set_sync_debug_mode("default")
        losses = [numbers.read()["loss"] for numbers in launched]
    speed = (steps - 2) * batch / seconds
    waited = "and waited for nothing" if watched else "on a processor"
    command = "vitkit train --cuda-graphs" if graphs else "vitkit train"
    print(f"  loop of {command}, batch {batch}: {speed:,.1f} images/s {waited}", flush=True)
    return Loop(
        model=name,
        image_size=config.image_size,
        name=command,
        precision=chosen.precision,
        batch_size=batch,
        steps=steps - 2,
        images_per_second=speed,
        losses=losses,
        compute=asdict(chosen),
        watched_for_waits=watched,
    )


class _Repeated:
    """A source of one batch, again and again."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        return iter([self.batch] * (stop - start))


def run(
    models: dict[str, tuple[int, int]],
    device: torch.device,
    seconds: float,
    backend: str,
    keep: Callable[[Record | Speed], None],
) -> None:
    """Measure everything of some models; `keep` receives each record at once."""
    precision = timed_precisions("auto", device)[-1]
    for name, batches in models.items():
        config = vit_config(name, 1000, 224 if name in MODELS else 32)
        for phase, batch in zip(PHASES, batches, strict=True):
            print(f"{name}, {phase}, batch {batch}, {precision}", flush=True)
            images = random_images(config, batch, device)
            contestants = [
                *ours(config, device, phase, backend),
                *timms(config, images, phase, precision, backend),
            ]
            for speed in speeds(name, config, phase, contestants, images, seconds):
                keep(speed)
            for contestant in contestants:
                if not contestant.name.endswith("compiled"):  # every batch would be compiled anew
                    for record in largest(name, config, phase, contestant, device, seconds):
                        keep(record)
            del contestants, images
        for graphs in (False, True):
            keep(loop(name, config, device, batches[1], graphs=graphs))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    parser.add_argument("--models", nargs="*", choices=[*MODELS, *SMALL], help="all if none")
    parser.add_argument("--small", action="store_true", help="a model of a toy's size, to try the path")
    parser.add_argument("--seconds", type=float, default=60, help="for each model, phase and search")
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    device = find_device(options.device)
    if device.type != "cuda" and not options.small:
        parser.error("there is no GPU here; --small tries the same path on a processor")
    every = SMALL if options.small else MODELS
    models = {name: every[name] for name in options.models or every}
    machine = describe_machine(device, None)
    print(f"{machine['device']}, torch {machine['torch']}")
    records: list[Record | Speed] = []

    def keep(record: Record | Speed) -> None:
        records.append(record)
        write_records(options.out, machine, records)

    run(models, device, options.seconds, options.backend, keep)
    print(options.out)


if __name__ == "__main__":
    main()

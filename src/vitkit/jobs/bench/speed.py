"""Measure the speed of contestants in turn, beside the matrix products of the machine."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.engines.libraries import EnginePrecision
from vitkit.jobs.bench.contestants import BenchPhase, Contestant
from vitkit.jobs.bench.timing import Clock, Step, Ticking, Turn, spread, take_turns
from vitkit.models.measure import executed_flops
from vitkit.models.zoo import ModelConfig
from vitkit.training.config import OptimizerConfig
from vitkit.training.optim import create_optimizer

LEARNING_RATE = 1e-5
"""Small, so that many steps on the same images change little."""


@dataclass(frozen=True)
class Timed:
    """The model that a record is of."""

    model: str
    image_size: tuple[int, int]


@dataclass(frozen=True)
class Speed(Timed):
    """The speed of one contestant."""

    phase: BenchPhase
    name: str
    library: str
    precision: EnginePrecision
    batch_size: int
    rounds: int
    images_per_second: float
    """The median of its rounds."""
    quartiles: tuple[float, float]
    """The spread of the images per second."""
    seconds: float
    """Seconds of a step, the median."""
    least_seconds: float
    reference: str
    """The contestant that ratios are taken to."""
    ratio: float
    """Its speed to that of the reference, the median of the rounds."""
    ratio_quartiles: tuple[float, float]
    mfu: float | None
    """FLOPs of the whole model in a second, to those of matrix products of its shapes in its precision,
    measured in the same rounds; None where there are no such products."""
    mfu_executed: float | None
    """The same by the FLOPs that are executed: fewer where work is left out. None for engines."""


def step_of(
    contestant: Contestant,
    phase: BenchPhase,
    images: Tensor,
    optimizers: dict[nn.Module, torch.optim.Optimizer],
) -> Step:
    """Return what is timed: one forward pass, or one training step, and set its model to that phase.

    A training step is forward, cross-entropy, backward and a fused AdamW.

    Args:
        contestant: whose step.
        phase: which of the two.
        images: `(B, C, H, W)`, normalised.
        optimizers: of the models that have one already: contestants share models.
    """
    model, device = contestant.model, images.device
    autocast = torch.autocast(
        device.type, torch.bfloat16, enabled=model is not None and contestant.precision == "bfloat16"
    )
    if phase == "inference":
        if model is not None:
            model.eval()

        def infer() -> None:
            with torch.inference_mode(), autocast:
                contestant.logits(images)

        return infer
    assert model is not None, "engines take no part in training"
    model.train()
    if model not in optimizers:
        optimizers[model] = create_optimizer(model, OptimizerConfig())
    optimizer = optimizers[model]
    for group in optimizer.param_groups:
        group["lr"] = LEARNING_RATE
    labels = torch.zeros(len(images), dtype=torch.long, device=device)

    def train() -> None:
        optimizer.zero_grad()
        with autocast:
            logits = contestant.logits(images)
        F.cross_entropy(logits.float(), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return train


def products(
    config: ModelConfig, batch: int, device: torch.device, precision: EnginePrecision
) -> tuple[Step, int] | None:
    """Return a step of the matrix products of one block of a ViT, and its FLOPs; None for a model without.

    They are the ceiling that utilisation is measured against: nothing but PyTorch's products, of qkv, the
    output projection and the MLP, for all tokens of a batch at once. Of integers it has none.
    Engines with products of their own may exceed it.
    """
    dtype: torch.dtype = getattr(torch, precision)
    if config.num_tokens is None or not dtype.is_floating_point:
        return None
    vit: Any = config  # what has tokens is a ViT or a hybrid
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


def best_name(names: Sequence[Contestant], seconds: Mapping[str, Sequence[float]]) -> str:
    """Name the contestant that ratios are taken to: timm's fastest in float32, else our plain way."""
    base = [c.name for c in names if c.library == "timm" and c.precision == "float32"]
    ours = [c.name for c in names if c.library == "vitkit exact"]
    return min(base or ours or [names[-1].name], key=lambda name: statistics.median(seconds[name]))


def compare(
    model: str,
    config: ModelConfig,
    phase: BenchPhase,
    contestants: Sequence[Contestant],
    images: Tensor,
    clock: Clock,
    seconds: float,
    *,
    flops: int,
    tick: Ticking = lambda: None,
) -> Iterator[Speed]:
    """Time contestants in turns, with the matrix products of the model's shapes among them.

    Who is interrupted gets what the rounds before tell, and then the interruption.

    Args:
        model: as it is shown.
        config: the architecture of all.
        phase: what is timed.
        contestants: who takes part.
        images: `(B, C, H, W)`, normalised.
        clock: of the device.
        seconds: that it should take.
        flops: of the whole model's forward pass, for one image.
        tick: called after every step.
    """
    batch, device = len(images), images.device
    optimizers: dict[nn.Module, torch.optim.Optimizer] = {}
    turns = {c.name: Turn(step_of(c, phase, images, optimizers), c.prepare) for c in contestants}
    executed = {c.name: count_executed(c, images[:1]) for c in contestants}
    ceilings = {
        precision: made
        for precision in dict.fromkeys(c.precision for c in contestants)
        if (made := products(config, batch, device, precision))
    }
    turns |= {f"products {precision}": Turn(step) for precision, (step, _) in ceilings.items()}
    times, interruption = _whole_rounds(turns, clock, seconds, tick)
    rates = {p: count / statistics.median(times[f"products {p}"]) for p, (_, count) in ceilings.items()}
    reference = best_name(contestants, times)
    # Every product of the forward pass has two of its size in the backward pass.
    passes = 3 if phase == "training" else 1

    def utilization(contestant: Contestant, count: int | None) -> float | None:
        rate, middle = rates.get(contestant.precision), statistics.median(times[contestant.name])
        return None if rate is None or count is None else passes * count * batch / middle / rate

    for contestant in contestants:
        mfu = utilization(contestant, flops), utilization(contestant, executed[contestant.name])
        own, best = times[contestant.name], times[reference]
        yield _speed(Timed(model, config.image_size), phase, contestant, batch, reference, own, best, mfu)
    if interruption is not None:
        raise interruption


def _whole_rounds(
    turns: Mapping[str, Turn], clock: Clock, seconds: float, tick: Ticking
) -> tuple[dict[str, list[float]], KeyboardInterrupt | None]:
    """Let contestants take turns; return their times, and the interruption after which there were no more."""
    times: dict[str, list[float]] = {}
    try:
        take_turns(turns, clock, seconds, times, tick)
    except KeyboardInterrupt as stopped:
        rounds = min((len(measured) for measured in times.values()), default=0)
        if rounds < 2:  # of one there are no quartiles
            raise
        return {name: measured[:rounds] for name, measured in times.items()}, stopped
    return times, None


def _speed(
    timed: Timed,
    phase: BenchPhase,
    contestant: Contestant,
    batch: int,
    reference: str,
    own: Sequence[float],
    best: Sequence[float],
    mfu: tuple[float | None, float | None],
) -> Speed:
    """Make the record of a contestant from its times and those of the reference, in seconds."""
    ratios = spread([other / mine for mine, other in zip(own, best, strict=True)])
    low, middle, high = spread(own)
    return Speed(
        model=timed.model,
        image_size=timed.image_size,
        phase=phase,
        name=contestant.name,
        library=contestant.library,
        precision=contestant.precision,
        batch_size=batch,
        rounds=len(own),
        images_per_second=batch / middle,
        quartiles=(batch / high, batch / low),
        seconds=middle,
        least_seconds=min(own),
        reference=reference,
        ratio=ratios[1],
        ratio_quartiles=(ratios[0], ratios[2]),
        mfu=mfu[0],
        mfu_executed=mfu[1],
    )


def headlines(speeds: Sequence[Speed]) -> list[str]:
    """Say, by precision, how fast vitkit's fastest engine is over the best peer: of one model and size."""
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

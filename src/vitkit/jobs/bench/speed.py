"""Measure the speed of contestants in turns, beside the machine's own matrix products."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.engines.libraries import EnginePrecision
from vitkit.jobs.bench.contestants import Contestant, step_of, subject
from vitkit.jobs.bench.records import Speed
from vitkit.models.measure import executed_flops
from vitkit.models.zoo import ModelConfig
from vitkit.runs.timing import BenchPhase, Clock, Step, Ticking, Turn, spread, take_turns


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

    After an interruption (Ctrl-C) the records of the whole rounds come first, and then the interruption.

    Args:
        model: the model's name in the records.
        config: the architecture of all contestants.
        phase: inference or training.
        contestants: the models and their ways to compute.
        images: `(B, C, H, W)`, normalised.
        clock: the clock of the device.
        seconds: the time for all of it.
        flops: FLOPs of the whole model's forward pass, for one image.
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


def _whole_rounds(
    turns: Mapping[str, Turn], clock: Clock, seconds: float, tick: Ticking
) -> tuple[dict[str, list[float]], KeyboardInterrupt | None]:
    """Let contestants take turns; return the times of whole rounds, and the interruption that ended them."""
    times: dict[str, list[float]] = {}
    try:
        take_turns(turns, clock, seconds, times, tick)
    except KeyboardInterrupt as stopped:
        rounds = min((len(measured) for measured in times.values()), default=0)
        if rounds < 2:  # a single round has no quartiles
            raise
        return {name: measured[:rounds] for name, measured in times.items()}, stopped
    return times, None


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

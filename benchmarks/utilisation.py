"""Utilisation: the FLOPs of a model in a second, over those of matrix products of the same shapes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from vitkit.engines.libraries import EnginePrecision
from vitkit.jobs.bench import Contestant, Optimizers, Speed, compare
from vitkit.models.measure import forward_flops
from vitkit.models.zoo import ModelConfig
from vitkit.runs.timing import BenchPhase, Clock, Step


@dataclass(frozen=True, kw_only=True)
class Utilised(Speed):
    """The speed of a contestant, and its utilisation."""

    mfu: float | None
    """FLOPs of the whole model in a second, over the FLOPs of matrix products of its shapes in its precision,
    measured in the same rounds; None where there are no such products."""
    mfu_executed: float | None
    """The same by the FLOPs that are executed: fewer where work is left out. None for engines."""


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


def executed_flops(compute: Callable[[], object]) -> int:
    """Count the FLOPs that a call executes in products and convolutions, products with padding included.

    Any library's model can be counted so; `forward_flops` counts from a configuration.
    """
    # PyTorch's counter does not know the fused attention of processors.
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def attention(query: list[int], key: list[int], value: list[int], *_: object, **__: object) -> int:
        return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]

    counter = FlopCounterMode(display=False, custom_mapping={fused: attention})
    # What is compiled would not pass by the counter.
    with torch.no_grad(), torch.compiler.set_stance("force_eager"), counter:
        compute()
    return counter.get_total_flops()


def count_executed(contestant: Contestant, images: Tensor) -> int | None:
    """Count the FLOPs that a forward pass of images executes; None for engines."""
    if contestant.model is None:
        return None
    contestant.prepare()
    return executed_flops(lambda: contestant.logits(images))


def _ignoring_images(step: Step, images: Tensor) -> None:
    step()


def compare_utilisation(
    model: str,
    config: ModelConfig,
    phase: BenchPhase,
    contestants: Sequence[Contestant],
    references: Sequence[str],
    images: Tensor,
    clock: Clock,
    seconds: float,
) -> Iterator[Utilised]:
    """Time contestants, as `vitkit.jobs.bench.compare` does, with the matrix products among them."""
    ceilings = {
        precision: made
        for precision in dict.fromkeys(c.precision for c in contestants)
        if (made := products(config, len(images), images.device, precision))
    }
    executed = {c.name: count_executed(c, images[:1]) for c in contestants}
    steps = [
        Contestant(f"products {precision}", "products", precision, None, partial(_ignoring_images, step))
        for precision, (step, _) in ceilings.items()
    ]
    timed = (model, config, phase, [*contestants, *steps], references, images, clock, seconds)
    speeds = list(compare(*timed, Optimizers()))
    rates = {s.precision: ceilings[s.precision][1] / s.seconds for s in speeds if s.library == "products"}
    # Every product of the forward pass has two of its size in the backward pass.
    passes, flops = 3 if phase == "training" else 1, forward_flops(config, head=True)
    for speed in speeds:
        if speed.library == "products":
            continue
        rate = rates.get(speed.precision)
        mfu, mfu_executed = (
            None if rate is None or count is None else passes * count * len(images) / speed.seconds / rate
            for count in (flops, executed[speed.name])
        )
        yield Utilised(**vars(speed), mfu=mfu, mfu_executed=mfu_executed)

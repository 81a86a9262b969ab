"""Measure where the time of a training step and of a prediction goes, by kind of operation.

    python -m benchmarks.profile [--model ViT-S/16] [--batch 8] [--steps 5] [--device cpu] [--json FILE]

Printed is a table in Markdown: for each way to compute (`--exact`, which is the plain one, and what is chosen
in float32 and in bfloat16) the milliseconds of a step and the fractions of the kinds. An operation's own time
counts, without that of those it calls, as PyTorch's profiler sees it; on a GPU that of its kernels. Small
operations look longer than they are, and on a busy machine all of them do.
"""

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import torch
from benchmarks.records import Record, write_records
from torch.profiler import ProfilerActivity, profile, record_function

from vitkit.jobs.bench import (
    Contestant,
    describe_machine,
    step_of,
    timed_precisions,
    vitkit_contestants,
)
from vitkit.kernels.block import Kernels
from vitkit.models.zoo import model_config
from vitkit.runs.machine import find_device
from vitkit.runs.timing import BenchPhase, Clock, Step

KINDS: dict[str, tuple[str, ...]] = {
    "products": ("aten::addmm", "aten::mm", "aten::linear", "mkldnn", "aten::convolution"),
    # Only the attention of a ViT multiplies batches of matrices.
    "attention": ("bmm", "scaled_dot_product", "softmax", "flash", "efficient", "block::attention"),
    # The compiled block's norms and sums share a pass over memory.
    "norm": ("layer_norm", "group_norm", "block::norm", "block::add"),
    "GELU": ("gelu",),
    "optimiser": ("adam", "sgd", "aten::_foreach", "optimizer"),
    "casts and copies": ("aten::copy_", "aten::_to_copy", "aten::to", "aten::contiguous", "aten::clone"),
    "sums": ("aten::add", "aten::sum", "aten::mul", "aten::div", "aten::sub"),
}
"""Parts of the names of operations, of which the first match decides; one without any is the rest."""
REST = "rest"


@contextmanager
def named_kernels() -> Iterator[None]:
    """Have the profiler see the parts of a compiled block by name while the context lasts."""
    plain = Kernels.call

    def call(self: Kernels, name: str, *arguments: Any) -> Any:
        with record_function(f"block::{name}"):
            return plain(self, name, *arguments)

    with mock.patch.object(Kernels, "call", call):
        yield


@dataclass(frozen=True, kw_only=True)
class Shares(Record):
    """The time of one kind of step."""

    kind: Literal["profile"] = "profile"
    batch: int
    phase: BenchPhase
    milliseconds: float
    """The median of steps without the profiler."""
    shares: dict[str, float]
    """The fraction of each kind; 1 in all."""


def kind_of(operation: str) -> str:
    """Give the kind of an operation by its name."""
    lowered = operation.lower()
    kinds = (kind for kind, parts in KINDS.items() if any(part in lowered for part in parts))
    return next(kinds, REST)


def shares_of(step: Step, steps: int, device: torch.device) -> dict[str, float]:
    """Profile steps one by one and give the median fraction of each kind."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would print when it begins and ends
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    times: dict[str, list[float]] = {kind: [0.0] * steps for kind in (*KINDS, REST)}
    for number in range(steps):
        with named_kernels(), profile(activities=activities, acc_events=True) as profiler:
            step()
        for event in profiler.key_averages():
            own: Any = event.self_device_time_total if cuda else event.self_cpu_time_total
            times[kind_of(event.key)][number] += own
    middles = {kind: statistics.median(spent) for kind, spent in times.items()}
    return {kind: middle / sum(middles.values()) for kind, middle in middles.items()}


def measure(
    model: str, batch: int, phase: BenchPhase, contestant: Contestant, images: torch.Tensor, steps: int
) -> Shares:
    """Time the steps of a contestant, and then profile them."""
    step = step_of(contestant, phase, images, {})
    contestant.prepare()
    clock = Clock(images.device, torch.get_num_threads())
    step()
    seconds = statistics.median(clock.seconds(step) for _ in range(steps))
    shares = shares_of(step, steps, images.device)
    return Shares(
        model=model,
        image_size=(images.shape[2], images.shape[3]),
        name=contestant.name,
        precision=contestant.precision,
        batch=batch,
        phase=phase,
        milliseconds=1e3 * seconds,
        shares=shares,
    )


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="ViT-S/16")
    parser.add_argument("--size", type=int, default=224, help="pixels a side")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, help="where the numbers are written")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    device = find_device(options.device)
    config = model_config(options.model, 1000, options.size)
    machine = describe_machine(device, options.threads)
    print(
        f"{machine['device']}, {options.threads} threads, torch {machine['torch']}, {time.strftime('%F')}\n"
    )
    kinds, records = [*KINDS, REST], list[Shares]()
    print(row(f"{options.model}, batch {options.batch}", "ms", *kinds))
    print(row("---", *["---:"] * (1 + len(kinds))))
    images = torch.randn(options.batch, config.in_channels, *config.image_size).to(device)
    phases: tuple[BenchPhase, ...] = ("training", "inference")
    for phase in phases:
        precisions = timed_precisions("auto", device)
        *chosen, plain = vitkit_contestants(config, device, phase, precisions, options.batch)
        for contestant in (plain, *chosen):
            record = measure(options.model, options.batch, phase, contestant, images, options.steps)
            records.append(record)
            percent = (f"{record.shares[kind]:.0%}" for kind in kinds)
            print(row(f"{phase}, {record.name}", f"{record.milliseconds:.1f}", *percent), flush=True)
            if options.json is not None:
                write_records(options.json, machine, records)


if __name__ == "__main__":
    main()

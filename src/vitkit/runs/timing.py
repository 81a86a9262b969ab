"""Time several steps in turns, and measure the most memory that a step takes."""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

BenchPhase: TypeAlias = Literal["inference", "training"]
Step = Callable[[], Any]
Ticking = Callable[[], None]
"""A function that is called after every step, to show progress."""

LEAST_ROUNDS = 3
"""Fewer rounds have no median to speak of."""
LEAST_FOR_P99 = 100
"""Calls of which the slowest hundredth is a call at least."""


@dataclass(frozen=True)
class Clock:
    """The clock of a device: a GPU's events; for a single thread the processor time, which other programs on
    the machine do not lengthen; for several threads, which wait for one another, the wall time."""

    device: torch.device
    threads: int

    @property
    def name(self) -> str:
        """Return the name of the clock in records."""
        if self.device.type == "cuda":
            return "CUDA events"
        return "processor time" if self.threads == 1 else "wall time"

    def seconds(self, step: Step) -> float:
        """Run a step and return how long it took."""
        if self.device.type == "cuda":
            event: Any = torch.cuda.Event
            begin, end = event(enable_timing=True), event(enable_timing=True)
            begin.record()
            step()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1e3
        now = time.process_time if self.threads == 1 else time.perf_counter
        started = now()
        step()
        return now() - started


LEARNING_RATE = 1e-5
"""Small, so that many steps on the same images change little."""


def training_step(
    model: nn.Module,
    logits: Callable[[Tensor], Any],
    precision: str,
    images: Tensor,
    optimizer: torch.optim.Optimizer,
) -> Step:
    """Return a training step that can be timed, and set the model to training.

    A step is forward, cross-entropy, backward and an update.

    Args:
        model: to be trained.
        logits: computes its logits `(B, K)` of images.
        precision: of the computation; with "bfloat16" under autocast.
        images: `(B, C, H, W)`, normalised.
        optimizer: of the model.
    """
    autocast = torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "bfloat16")
    model.train()
    for group in optimizer.param_groups:
        group["lr"] = LEARNING_RATE
    labels = torch.zeros(len(images), dtype=torch.long, device=images.device)

    def train() -> None:
        optimizer.zero_grad()
        with autocast:
            answers = logits(images)
        F.cross_entropy(answers.float(), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return train


@dataclass(frozen=True)
class Turn:
    """A step that takes turns with others."""

    step: Step
    prepare: Step = lambda: None
    """Called before the step, untimed: steps may share a model that computes in several ways."""


def take_turns(
    turns: Mapping[str, Turn],
    clock: Clock,
    seconds: float,
    tick: Ticking = lambda: None,
) -> dict[str, list[float]]:
    """Time steps in turns, once in each round and in an order that rotates, so that a busy machine slows all.

    Args:
        turns: the steps by name; each runs once before, to warm up.
        clock: the clock of their device.
        seconds: after which no further round begins, warming up counted; at least `LEAST_ROUNDS` are run.
        tick: called after every step.

    Returns:
        The seconds of each step in each round.
    """
    end = time.perf_counter() + seconds
    for turn in turns.values():
        turn.prepare()
        turn.step()
        tick()
    times: dict[str, list[float]] = {name: [] for name in turns}
    names = list(turns)
    rounds = 0
    while rounds < LEAST_ROUNDS or time.perf_counter() < end:
        first = rounds % len(names)
        for name in names[first:] + names[:first]:
            turns[name].prepare()
            times[name].append(clock.seconds(turns[name].step))
            tick()
        rounds += 1
    return times


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


@dataclass(frozen=True)
class Latency:
    """Seconds on the wall from the call with one image to its logits."""

    p50: float
    p90: float
    p99: float | None
    """None where there were too few calls to tell."""
    calls: int


def latency(step: Step, device: torch.device, seconds: float, tick: Ticking = lambda: None) -> Latency:
    """Measure the latency of a step for some seconds, by wall time: a person waits for it."""
    for _ in range(2):
        step()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < LEAST_ROUNDS or time.perf_counter() < end:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
        tick()
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    p99 = cuts[98] if len(times) >= LEAST_FOR_P99 else None
    return Latency(cuts[49], cuts[89], p99, len(times))


def peak_memory(step: Step, device: torch.device) -> int:
    """Return the most bytes that PyTorch allocates for a step, on top of what was allocated before.

    On a CPU the workspaces of its libraries are left out: no counter has them.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would print when it begins and ends
    # acc_events: PyTorch 2.11 warns of what it does without.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        step()
    results = profiler.profiler and profiler.profiler.kineto_results
    assert results is not None
    changes = sorted((e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]")
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


@contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Compute with some number of threads while the block lasts: the number belongs to the process."""
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)

#!/usr/bin/env python
"""Measure the memory and the time of processes that each hold the whole model, or a part of it.

    python -m benchmarks.sharding [--model ViT-B/16] [--processes 2] [--steps 6] [--rounds 3]

Processes train on noise at 64 pixels, in turns as replicas and sharded by FSDP2, with AdamW and an average of
the weights. The table shows the peak of the memory that a process takes for a step, beyond what it had before
the model was built: of the process that needs the most; that of the process that writes a checkpoint; and the
seconds of a step, the median over rounds with quartiles.
"""

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from benchmarks.saving import Noise

from vitkit.runs.machine import keep_freed_memory
from vitkit.training.config import ClassificationConfig, OptimizerConfig, Sharding, TrainingConfig
from vitkit.training.objectives import Classification
from vitkit.training.trainer import Trainer
from vitkit.weights.create import create_model
from vitkit.world import World

BATCH = 8
SHARDINGS: tuple[Sharding, ...] = ("replicas", "fsdp")


def memory(field: str) -> int:
    """Give a number of bytes of this process: "VmRSS" now, "VmHWM" at most since `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")  # the kernel's number for that


def work(
    rank: int, size: int, folder: Path, model: str, steps: int, sharding: Sharding, results: Any
) -> None:
    torch.set_num_threads(max(1, torch.get_num_threads() // size))
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    keep_freed_memory(sharding == "replicas")  # as runs do
    torch.manual_seed(0)  # all begin with the same weights
    before = memory("VmRSS")
    trainer = Trainer(
        folder,
        create_model(model, num_classes=10, image_size=64),
        Classification(ClassificationConfig(), 10),
        Noise(64, BATCH // size),
        BATCH,
        TrainingConfig(steps=steps, batch_size=BATCH, evaluate_every=10**6),
        OptimizerConfig(warmup_steps=0, polyak=0.999),
        world=World(rank, size, rank, size),
        sharding=sharding,
    )
    seconds, peak, saving = [], 0, 0
    for report in trainer.fit():
        seconds.append(report.seconds)
        if report.step == 2:  # the model was whole before it was divided, and the first steps make states
            forget_peak()
        if report.step == steps - 1:
            peak = memory("VmHWM") - before
            forget_peak()
        if report.finished:
            saving = memory("VmHWM") - before
    results.put((rank, peak, saving, seconds[2:-1]))
    dist.destroy_process_group()


def measure(model: str, size: int, steps: int, sharding: Sharding) -> tuple[int, int, list[float]]:
    """Train; returns the peak of a step, that of the checkpoint, and the seconds of steps."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (size, Path(folder), model, steps, sharding, results)
        processes = [context.Process(target=work, args=(rank, *arguments)) for rank in range(size)]
        for process in processes:
            process.start()
        made = sorted(results.get() for _ in processes)
        for process in processes:
            process.join()
    return max(peak for _, peak, _, _ in made), made[0][2], made[0][3]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="ViT-B/16")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows: dict[Sharding, list[tuple[int, int, list[float]]]] = {name: [] for name in SHARDINGS}
    for _ in range(options.rounds):
        for sharding in SHARDINGS:
            began = time.monotonic()
            rows[sharding].append(measure(options.model, options.processes, options.steps, sharding))
            print(f"{sharding}: {time.monotonic() - began:.0f} s", flush=True)
    print("| | GB in a step | GB while a checkpoint is written | seconds a step |\n|---|---|---|---|")
    for sharding, of_rounds in rows.items():
        low, middle, high = np.quantile(
            [s for _, _, seconds in of_rounds for s in seconds], [0.25, 0.5, 0.75]
        )
        peaks = [np.median([row[place] for row in of_rounds]) / 1e9 for place in (0, 1)]
        times = f"{middle:.2f} ({low:.2f} to {high:.2f})"
        print(f"| {sharding} | {peaks[0]:.2f} | {peaks[1]:.2f} | {times} |")


if __name__ == "__main__":
    main()

#!/usr/bin/env python
"""Measure how long loading takes, and how much memory, for one model in every format.

    python benchmarks/loading.py [ViT-B/16]

Each load runs in a process of its own, after one that warms the disk's cache. Memory is the rise of the
process's highest resident size during the load, over the size of the weights: 1 means they were held once.
The checks of the files (checksums of archives, hashes) are part of a load. One row is what numpy alone takes
to read the arrays of big_vision's file, and the last copies the weights once more on purpose, to show that
the measurement would notice.
"""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import cast

import torch

from vitkit import load_model
from vitkit.models.measure import parameters
from vitkit.weights.create import create_model
from vitkit.weights.format_names import MODULES, Format
from vitkit.weights.loading import save_model
from vitkit.weights.table import find_format

REPEATS = 5

CHILD = """
import sys, time
import numpy as np
import torch
from vitkit import load_model
from vitkit.weights.create import create_model
path, heads, extra = sys.argv[1:]
create_model("ViT-16x1x2/16")(torch.zeros(1, 3, 224, 224))  # libraries loaded, threads started
rss = lambda: 1024 * next(int(line.split()[1]) for line in open("/proc/self/status") if "VmHWM" in line)
before, start = rss(), time.perf_counter()
if extra == "numpy":
    parameters = [torch.from_numpy(array) for array in dict(np.load(path)).values()]
else:
    parameters = list(load_model(path, num_heads=int(heads)).parameters())
seconds = time.perf_counter() - start
sum(float(p.sum()) for p in parameters)  # pages that are mapped are really read
copies = [p.detach().clone() for p in parameters] if extra == "twice" else []
print(seconds, rss() - before)
"""


def measure(path: Path, heads: int, extra: str = "") -> tuple[float, float]:
    """Return the seconds and bytes of one load in a fresh process: vitkit's, that of "numpy", or "twice"."""
    command = [sys.executable, "-c", CHILD, str(path), str(heads), extra]
    seconds, memory = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(seconds), float(memory)


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "ViT-B/16"
    model = create_model(name)
    torch.nn.init.normal_(model.head.weight)  # type: ignore[arg-type]
    weights = 4 * parameters(model.config)
    heads = model.config.num_heads
    print(f"{name}: weights of {weights / 1e6:.0f} MB, {REPEATS} loads each\n")
    print("| format | seconds, median (least - most) | memory / weights |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for format in map(find_format, MODULES):
            path = save_model(model, Path(folder) / format.name, cast("Format", format.name))
            load_model(path, num_heads=heads)
            loads = [measure(path, heads) for _ in range(REPEATS)]
            _row(format.name, loads, weights)
            if format.name == "big_vision":
                _row("big_vision, np.load", [measure(path, heads, "numpy") for _ in range(REPEATS)], weights)
        _row("vitkit, and a copy", [measure(Path(folder) / "vitkit", heads, "twice")], weights)


def _row(name: str, loads: list[tuple[float, float]], weights: int) -> None:
    seconds = [duration for duration, _ in loads]
    memory = statistics.median(taken for _, taken in loads) / weights
    spread = f"{min(seconds):.2f} - {max(seconds):.2f}"
    print(f"| {name} | {statistics.median(seconds):.2f} ({spread}) | {memory:.2f} |", flush=True)


if __name__ == "__main__":
    main()

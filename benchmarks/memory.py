"""Hold the memory that `vitkit cost` measures on a few layers against whole models that are trained.

    python -m benchmarks.memory                          models of docs/results/speed.md, a process each
    python -m benchmarks.memory ViT-S/16 224 bfloat16 8  one of them: name, pixels, precision, images

A line of the table says what was estimated and what was measured, in MiB: the activations that autograd keeps
(`saved_tensors_hooks`), the highest moment of a step by PyTorch's allocations (its profiler), and the same by
the memory of the process, without the pages of files: once while the C library hands freed memory back to the
system at once, which is what a step needs, and once while it keeps it, as `vitkit train` has it do, because
that is faster. What it keeps lies in pieces between what is used, and the process is larger by these.
"""

import ctypes
import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.kernels.block import Outline
from vitkit.models.build import build_model
from vitkit.models.config import Precision
from vitkit.models.measure import parameters, training_memory
from vitkit.models.zoo import model_config
from vitkit.runs.machine import M_MMAP_THRESHOLD, choose_for, compute_as, keep_freed_memory
from vitkit.runs.timing import peak_memory
from vitkit.training.config import OptimizerConfig
from vitkit.training.optim import create_optimizer

CASES = (
    ("ViT-S/16", 224, 8),
    ("ViT-B/16", 384, 2),
    ("R50+ViT-B/16", 224, 4),
    ("BiT-R50x1", 224, 8),
    ("Axial-ViT-B/16", 224, 2),
)
MIB = 1 << 20
PAGE = 4096
"""Bytes of a page of Linux on x86, which /proc counts in."""


def taken() -> int:
    """Return the bytes of memory that are this process's own: pages of files, such as libraries, left out."""
    _, resident, of_files, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - of_files) * PAGE


def highest_taken(*steps: Callable[[], None]) -> int:
    """Run steps one after another, and return the most memory in bytes that this process had meanwhile."""
    highest, ended = 0, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not ended.wait(0.005):
            highest = max(highest, taken())

    watching = threading.Thread(target=watch)
    watching.start()
    for step in steps:
        step()
    ended.set()
    watching.join()
    return highest


def compare(name: str, pixels: int, precision: Precision, batch_size: int) -> str:
    """Train a whole model for a few steps, and return a line of the table."""
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 1 << 16)  # larger pieces are handed back to the system when they are freed
    config = model_config(name, 1000, pixels)
    way = choose_for(config, torch.device("cpu"), precision, phase="training", exact=False)
    estimate = training_memory(config, batch_size, way, Outline(way.precision))
    model = build_model(config).train()
    compute_as(model, way)
    optimizer = create_optimizer(model, OptimizerConfig())
    images = torch.randint(0, 256, (batch_size, 3, *config.image_size), dtype=torch.uint8)
    targets = torch.zeros(batch_size, 1000)

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            return F.cross_entropy(model(images), targets)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    for parameter in model.parameters():  # the optimiser's state is there before the first step is looked at
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    step()  # what the libraries make at first use, such as compiled kernels, is made
    optimizer.zero_grad()
    gc.collect()
    libc.malloc_trim(0)  # what the C library holds back would count as taken
    before = taken()
    handed_back = highest_taken(step) - before
    keep_freed_memory()
    with_freed = highest_taken(step, step, step) - before
    optimizer.zero_grad()

    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        graph = loss()
    activations = sum(
        tensor.untyped_storage().nbytes() for place, tensor in saved.items() if place not in weights
    )
    saved.clear()
    del graph
    most = peak_memory(step, torch.device("cpu"))
    # Weights, and the two moments of Adam, are there before the step, and so are the images.
    fixed = 12 * parameters(model.config) + images.numel()
    cells = [f"{name} {pixels}", f"{precision}, {batch_size} images", f"{way.attention}, {way.block}"]
    pairs = (
        (estimate.activations, activations),
        (estimate.peak, fixed + most),
        (estimate.peak, fixed + handed_back),
        (estimate.peak, fixed + with_freed),
    )
    cells += [f"{here / MIB:,.1f} / {there / MIB:,.1f} = {here / there:.3f}" for here, there in pairs]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the line of the case that is named, or the whole table."""
    if len(sys.argv) == 5:
        name, side, number_format, images = sys.argv[1:]
        assert number_format in get_args(Precision)
        print(compare(name, int(side), cast("Precision", number_format), int(images)))
        return
    print("| model | step | way | kept | most allocated | process, handed back | process, memory kept |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for name, pixels, batch_size in CASES:
        for precision in ("float32", "bfloat16"):
            case = [name, str(pixels), precision, str(batch_size)]
            subprocess.run([sys.executable, "-m", "benchmarks.memory", *case], check=True)


if __name__ == "__main__":
    main()

"""A training step of a tiny model with two threads, on free cores and beside a busy process.

    python benchmarks/threads.py

The settings of the OpenMP library take turns, three rounds; printed are the medians in milliseconds.
"""

import os
import statistics
import subprocess
import sys

STEP = """
import time, torch, torch.nn.functional as F
from vitkit.weights.create import create_model
from vitkit.training.optim import OptimizerConfig, create_optimizer
torch.set_num_threads(2)
model = create_model("ViT-64x4x4/4", 10, 16).train()
optimizer = create_optimizer(model, OptimizerConfig())
images, labels = torch.zeros(64, 3, 16, 16, dtype=torch.uint8), torch.zeros(64, dtype=torch.int64)
for step in range(25):
    if step == 5:
        started = time.monotonic()
    optimizer.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()
print((time.monotonic() - started) / 20 * 1000)
"""
SETTINGS: tuple[dict[str, str], ...] = ({}, {"GOMP_SPINCOUNT": "1000"}, {"OMP_WAIT_POLICY": "PASSIVE"})


def milliseconds(setting: dict[str, str]) -> float:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))}
    return float(subprocess.check_output([sys.executable, "-c", STEP], env=clean | setting))


def medians() -> list[float]:
    rounds = [[milliseconds(setting) for setting in SETTINGS] for _ in range(3)]
    return [statistics.median(values) for values in zip(*rounds, strict=True)]


def main() -> None:
    free = medians()
    hog = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        busy = medians()
    finally:
        hog.kill()
        hog.wait()
    for setting, alone, beside in zip(SETTINGS, free, busy, strict=True):
        name = ", ".join(f"{key}={value}" for key, value in setting.items()) or "the library's default"
        print(f"| {name} | {alone:.0f} | {beside:.0f} |")


if __name__ == "__main__":
    main()

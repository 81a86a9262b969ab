#!/usr/bin/env python
"""Measure how long training waits for a checkpoint that is written at once, and for one written beside it.

    python -m benchmarks.saving [--model ViT-S/16] [--saves 8] [--threads 1] [--folder .]

Two runs train on noise in turns: one waits while its checkpoints are written, the other writes them in the
background. The table shows medians with quartiles, in the rows of `ROWS`.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from vitkit.data.stream.loader import Batch
from vitkit.training.config import ClassificationConfig, OptimizerConfig, TrainingConfig
from vitkit.training.objectives import Classification
from vitkit.training.trainer import Trainer
from vitkit.weights.create import create_model

EVERY = 24
"""Steps between saves: more than are made while one is written."""
WARM_UP = 2
"""Steps that are not counted: they take memory."""
ROWS = ("step, seconds", "step with a save, seconds", "lost by a save, seconds", "MB a second")
"""The rows of the table. The first is the time of a step without a save. The second is the time of a step
with the save after it, or with the beginning of that save. The third is the time by which a save makes the
run longer. The fourth is the bytes of a save divided by the time from its beginning to its commit."""


class Noise:
    """Batches of noise, the same each time."""

    def __init__(self, size: int, images: int) -> None:
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randint(0, 256, (images, 3, size, size), dtype=torch.uint8, generator=generator)
        self.batch = Batch(
            pixels,
            {"labels": torch.arange(images) % 10},
            torch.ones(images, dtype=torch.bool),
            torch.arange(images),
        )

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        yield from (self.batch for _ in range(start, stop))


def measure(folder: Path, model: str, saves: int, background: bool) -> dict[str, list[float]]:
    """Train with saves; returns the seconds by what was done in a step, and the bytes a second."""
    torch.manual_seed(0)
    size = 64
    trainer = Trainer(
        folder,
        create_model(model, num_classes=10, image_size=size),
        Classification(ClassificationConfig(), 10),
        Noise(size, 16),
        16,
        TrainingConfig(
            steps=EVERY * (saves + 1),
            batch_size=16,
            checkpoint_every=EVERY,
            log_every=EVERY,
            keep=1,
            evaluate_every=10**6,
        ),
        OptimizerConfig(warmup_steps=0, polyak=0.999),
        spare_memory=(lambda: 1 << 40) if background else None,
    )
    values: dict[str, list[float]] = {name: [] for name in ROWS}
    steps: list[float] = []
    before = began = time.monotonic()
    beside = 0  # steps that were made while the last save was written
    for report in trainer.fit():
        now = time.monotonic()
        begins = report.step % EVERY == 0
        if report.finished:  # waits for its save in any case
            break
        if begins:
            values["step with a save, seconds"].append(now - before)
            began, beside = before, 0
        elif began > 0 and beside >= 0 and report.step > EVERY:
            beside += 1
        else:
            steps.append(now - before)
        if report.checkpoint is not None:
            size = sum(path.stat().st_size for path in report.checkpoint.iterdir())
            values["MB a second"].append(size / 1e6 / (now - began))
            # All that the run takes longer than without the save.
            values["lost by a save, seconds"].append(now - began - (beside + 1) * float(np.median(steps)))
            beside = -1
        before = time.monotonic()
    values["step, seconds"] = steps[WARM_UP:]
    print(f"{'background' if background else 'plain'}: {size / 1e6:.0f} MB of state", flush=True)
    return values


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="ViT-S/16")
    parser.add_argument("--saves", type=int, default=8, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None, help="of training")
    parser.add_argument(
        "--folder", default=None, help="where checkpoints are written; a temporary one if left out"
    )
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    totals: dict[bool, dict[str, list[float]]] = {False: {}, True: {}}
    for _ in range(options.rounds):
        for background in (False, True):
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                for name, values in measure(Path(folder), options.model, options.saves, background).items():
                    totals[background].setdefault(name, []).extend(values)
    print("| | plain | background |\n|---|---|---|")
    for name in totals[False]:
        cells = []
        for background in (False, True):
            low, middle, high = np.quantile(totals[background][name], [0.25, 0.5, 0.75])
            digits = 0 if name == "MB a second" else 3
            cells.append(f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

#!/usr/bin/env python
"""How long training waits for a checkpoint that is written at once, and for one that is written beside it.

    python -m benchmarks.saving [--model ViT-S/16] [--saves 8] [--folder .]

Trains on noise, in turns: a run whose checkpoints are written while it waits, and one that writes them in the
background. Printed are, as medians with quartiles: the seconds of a step without a save, of a step with the
save after it, and of the steps that are made while a save is written; and the bytes a second from the
beginning of a save to its commit.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from vitkit.training.objectives.classification import Classification

from vitkit.data.stream.batch import Batch
from vitkit.models.build import create_model
from vitkit.training.checkpoint import environment, take_snapshot
from vitkit.training.config import ClassificationConfig, OptimizerConfig, TrainingConfig
from vitkit.training.trainer import Trainer

EVERY = 24
"""Steps between saves: more than are made while one is written."""


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
    found: dict[str, list[float]] = {
        "step": [],
        "step with a save": [],
        "step beside a save": [],
        "bytes a second": [],
    }
    before = began = time.monotonic()
    size_of_state, saving = take_snapshot(trainer.state, environment(torch.device("cpu"))).bytes, False
    for report in trainer.fit():
        now = time.monotonic()
        begins = report.step % EVERY == 0
        kind = "step with a save" if begins else "step beside a save" if saving else "step"
        if report.step > 2 and not report.finished:  # the first steps take memory
            found[kind].append(now - before)
        if begins:
            began, saving = before, True
        if report.checkpoint is not None and not report.finished:
            found["bytes a second"].append(size_of_state / (now - began))
        saving = saving and report.checkpoint is None
        before = time.monotonic()
    print(f"{'background' if background else 'plain'}: {size_of_state / 1e6:.0f} MB of state", flush=True)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="ViT-S/16")
    parser.add_argument("--saves", type=int, default=8, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--folder", default=None, help="where checkpoints are written; a temporary one if left out"
    )
    options = parser.parse_args()
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
            values = totals[background][name]
            low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]) if values else (np.nan,) * 3
            scale, digits = (1e-6, 0) if name == "bytes a second" else (1, 3)
            cells.append(" ".join(f"{scale * value:.{digits}f}" for value in (middle, low, high)))
        unit = "MB a second" if name == "bytes a second" else f"{name}, seconds"
        print(
            f"| {unit} | "
            + " | ".join(f"{c.split()[0]} ({c.split()[1]} to {c.split()[2]})" for c in cells)
            + " |"
        )


if __name__ == "__main__":
    main()

"""A training run of a few steps on the digits, for tests."""

from typing import Any

from vitkit.data.config import Preprocessing
from vitkit.runs.config import Run
from vitkit.training.config import OptimizerConfig, TrainingConfig


def small_run(steps: int | None, warmup_steps: int = 2, **training: Any) -> Run:
    """Train a ViT of one block on the digits, in batches of 16; the other options of training are given."""
    return Run(
        data="digits",
        model="ViT-16x1x2/4",
        preprocessing=Preprocessing((8, 8), resize="crop"),
        optimizer=OptimizerConfig(learning_rate=0.01, warmup_steps=warmup_steps),
        training=TrainingConfig(steps=steps, batch_size=16, **training),
    )


SMALL = small_run(6, evaluate_every=3, log_every=2)

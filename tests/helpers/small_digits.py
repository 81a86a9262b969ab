"""A training run of a few steps on the digits, for tests."""

from vitkit.data.config import Preprocessing
from vitkit.runs.config import Run
from vitkit.training.config import OptimizerConfig, TrainingConfig

SMALL = Run(
    data="digits",
    model="ViT-16x1x2/4",
    preprocessing=Preprocessing((8, 8), resize="crop"),
    optimizer=OptimizerConfig(learning_rate=0.01, warmup_steps=2),
    training=TrainingConfig(steps=6, batch_size=16, evaluate_every=3, log_every=2),
)

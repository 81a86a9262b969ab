"""Recipes of fine-tuning as in the paper (B.1.1, Table 4).

The paper gives SGD with momentum 0.9, cosine decay, batch 512, no weight decay, clipping at norm 1 and 384
pixels. The rest is from the released code (vision_transformer `configs/common.py` and
`configs/vit.py`): crops of 5 to 100 % of the area, flips, plain bilinear resizing, a base rate of 0.03, 500
steps of warm-up.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from vitkit.data.config import Augmentation, Preprocessing, Splits
from vitkit.runs.config import Run
from vitkit.training.config import ClassificationConfig, OptimizerConfig, TrainingConfig


class Table4Row(NamedTuple):
    """A fine-tuning of the paper's Table 4."""

    steps: int
    learning_rate: float
    warmup_steps: int
    val_fraction: float
    """The fraction of the training images that is held out."""


TABLE_4: dict[str, Table4Row] = {
    "finetune-imagenet": Table4Row(20_000, 0.03, 500, 0.01),
    "finetune-cifar100": Table4Row(10_000, 0.03, 500, 0.02),
    "finetune-cifar10": Table4Row(10_000, 0.03, 500, 0.02),
    "finetune-pets": Table4Row(500, 0.03, 50, 0.1),
    "finetune-flowers": Table4Row(500, 0.03, 50, 0.1),
    "finetune-vtab": Table4Row(2_500, 0.01, 250, 0.2),
}
"""The paper sweeps the rates (`IMAGENET_RATES`, `OTHER_RATES`); these are the released code's. Its README
warms up a short run for a tenth of the steps, and so do rows for which it gives no number."""
IMAGENET_RATES, OTHER_RATES = (0.003, 0.01, 0.03, 0.06), (0.001, 0.003, 0.01, 0.03)
"""The rates that Table 4 sweeps, for ImageNet and for the other data sets; VTAB has 0.01 alone."""
AUGMENTATION = Augmentation(crop_area=(0.25, 1.0))
"""The augmentation of fine-tuning without a recipe: crops of at least a quarter of an image, because the
original code's 5 % often miss the object."""
MULTIPLES = (0.1, 0.3, 1.0, 3.0)
"""Multiples of a run's own rate that are swept without a recipe of the paper, as far apart as Table 4's."""


def finetune_as_in_paper(steps: int, learning_rate: float, warmup_steps: int, val_fraction: float) -> Run:
    """Make a row of the paper's Table 4: SGD, batch 512, 384 pixels, and the last weights.

    Command: vitkit finetune START PATH --recipe finetune-cifar10
    Cost and result: not measured here; the paper's are its Tables 2 and 5.
    """
    return Run(
        model="",  # the start's
        preprocessing=Preprocessing(image_size=(384, 384), antialias=False),
        optimizer=OptimizerConfig(
            optimizer="sgd",
            learning_rate=learning_rate,
            weight_decay=0.0,
            momentum=0.9,
            clip_norm=1.0,
            schedule="cosine",
            warmup_steps=warmup_steps,
        ),
        training=TrainingConfig(steps=steps, batch_size=512, select="last"),
        splits=Splits(val_fraction=val_fraction, test_fraction=0.0),
    )


HYPER_RULE = ((20_000, 500, 50), (500_000, 10_000, 500), (math.inf, 20_000, 500))
"""Each row holds for fewer training images than its first number: steps and their warm-up (BiT-HyperRule,
big_transfer `bit_hyperrule.py`)."""


def paper(num_images: int = 0) -> Run:
    """Fine-tune as the paper does, on data of any size.

    Steps by BiT-HyperRule (big_transfer `bit_hyperrule.py`): 500 for fewer than 20,000 training images,
    10,000 for fewer than 500,000, else 20,000. Without `num_images` it has the fewest; `vitkit
    finetune` gives the number.

    Command: vitkit finetune START PATH --recipe paper
    Cost and result: not measured here; the paper's are its Tables 2 and 5.
    """
    steps, warmup = next((steps, warmup) for below, steps, warmup in HYPER_RULE if num_images < below)
    return replace(finetune_as_in_paper(steps, 0.03, warmup, val_fraction=0.1), splits=Splits())


def sweep_rates(run: Run, multiples: Sequence[float] = MULTIPLES) -> tuple[float, ...]:
    """Return the learning rates of a sweep over a run, from the lowest to the highest.

    Args:
        run: a run of the paper's recipes of fine-tuning, whose rates are the paper's; or any other run.
        multiples: the rates of any other run, as multiples of its own.
    """
    if run.recipe == "finetune-vtab":
        return (0.01,)
    if run.recipe == "finetune-imagenet" or (run.recipe == "paper" and run.training.steps == 20_000):
        return IMAGENET_RATES
    if run.recipe in (*TABLE_4, "paper"):
        return OTHER_RATES
    # Three digits, so that a folder is called rate-0.00015 and not rate-0.00015000000000000001.
    return tuple(float(f"{factor * run.optimizer.learning_rate:.3g}") for factor in multiples)


def departures(run: Run, num_images: int, papers: Run | None = None) -> list[str]:
    """List the options of a run that depart from the paper's fine-tuning (B.1.1), with the paper's values.

    Args:
        run: the run.
        num_images: training images.
        papers: the paper's run; left out, the recipe `paper`, or any number of steps in Table 4.
    """
    there = papers or paper(num_images)
    height, width = run.preprocessing.image_size
    own, theirs, objective = run.optimizer, there.optimizer, run.objective
    if not isinstance(objective, ClassificationConfig):
        return []  # the run does not learn classes
    pairs = [
        ("optimizer", own.optimizer, theirs.optimizer),
        ("schedule", own.schedule, theirs.schedule),
        ("weight decay", own.weight_decay, theirs.weight_decay),
        ("clipping", own.clip_norm, theirs.clip_norm),
        ("batch", run.training.batch_size, there.training.batch_size),
        ("pixels", f"{height}x{width}", "{}x{}".format(*there.preprocessing.image_size)),
        (
            "smallest crop",
            (run.augmentation.crop_area or (1.0,))[0],
            (there.augmentation.crop_area or (1.0,))[0],
        ),
        ("label smoothing", objective.label_smoothing, 0.0),
        ("mixup", objective.mixup, 0.0),
        ("head", run.start.head, "new"),
        ("frozen", own.freeze, "nothing"),
        ("factor of the head's rate", own.head_rate, 1.0),
    ]
    if own.freeze == "nothing":
        pairs += [
            ("layer decay", own.layer_decay, 1.0),
            ("frozen layers", own.freeze_layers, 0),
        ]
    changes = [f"{what} {_plain(here)} ({_plain(other)})" for what, here, other in pairs if here != other]
    steps = run.training.total_steps(num_images)
    usual = {there.training.steps, *(row.steps for row in TABLE_4.values() if papers is None)}
    if steps not in usual:
        changes.append(f"{steps:,} steps ({there.training.steps:,})")
    return changes


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)

"""Fine-tuning as in the paper (B.1.1, Table 4): named runs that begin from weights that are there already.

The paper says SGD with momentum 0.9, cosine decay, batch 512, no weight decay, clipping at norm 1 and 384
pixels. It is silent on the rest, which is the released code's (vision_transformer `configs/common.py` and
`configs/vit.py`): crops of 5 to 100 % of the area, flips, plain bilinear resizing, a base rate of 0.03, 500
steps of warm-up.
"""

from collections.abc import Sequence
from dataclasses import replace

from vitkit.data.config import Preprocessing, Splits
from vitkit.runs.config import Run
from vitkit.training.config import OptimizerConfig, TrainingConfig

TABLE_4: dict[str, tuple[int, float, int, float]] = {
    "finetune-imagenet": (20_000, 0.03, 500, 0.01),
    "finetune-cifar100": (10_000, 0.03, 500, 0.02),
    "finetune-cifar10": (10_000, 0.03, 500, 0.02),
    "finetune-pets": (500, 0.03, 50, 0.1),
    "finetune-flowers": (500, 0.03, 50, 0.1),
    "finetune-vtab": (2_500, 0.01, 250, 0.2),
}
"""Rows of Table 4: steps, rate, steps of warm-up, part of the training set held out. There rates are swept,
over 0.003 to 0.06 for ImageNet and 0.001 to 0.03 for the others but VTAB; these are the released code's.
Its README warms up a short run for a tenth of its steps, as is done here where it gives no number."""
IMAGENET_RATES, OTHER_RATES = (0.003, 0.01, 0.03, 0.06), (0.001, 0.003, 0.01, 0.03)
"""The rates that Table 4 sweeps: over ImageNet, and over the others but VTAB, which has 0.01 alone."""
MULTIPLES = (0.1, 0.3, 1.0, 3.0)
"""The rates that are swept without a recipe of the paper, over the run's own; as far apart as Table 4's."""


def finetune_as_in_paper(steps: int, learning_rate: float, warmup_steps: int, val_fraction: float) -> Run:
    """A row of the paper's Table 4: SGD, batch 512, 384 pixels, and the last weights.

    Command: vitkit finetune START --recipe finetune-cifar10 --data PATH
    Cost and result: not measured here; the paper's are its Tables 2 and 5.
    """
    return Run(
        model="",  # that of the start
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


def paper() -> Run:
    """The paper's fine-tuning for data of any size.

    Steps by BiT-HyperRule (big_transfer `bit_hyperrule.py`): 500 for fewer than 20,000 training images,
    10,000 for fewer than 500,000, else 20,000; `vitkit finetune` puts in those of the data, this run has the
    fewest.

    Command: vitkit finetune START --recipe paper --data PATH
    Cost and result: not measured here; the paper's are its Tables 2 and 5.
    """
    return replace(finetune_as_in_paper(*_rule(0), val_fraction=0.1), splits=Splits())


def fit_paper(run: Run, num_images: int) -> Run:
    """Put the steps and the warm-up for so many training images into a run of the recipe `paper`."""
    steps, rate, warmup = _rule(num_images)
    return replace(
        run,
        optimizer=replace(run.optimizer, learning_rate=rate, warmup_steps=warmup),
        training=replace(run.training, steps=steps),
    )


def _rule(num_images: int) -> tuple[int, float, int]:
    """Give steps, rate and warm-up for a number of training images."""
    if num_images < 20_000:
        return 500, 0.03, 50
    return (10_000 if num_images < 500_000 else 20_000), 0.03, 500


def sweep_rates(run: Run, multiples: Sequence[float] = MULTIPLES) -> tuple[float, ...]:
    """Give the learning rates that a sweep over a run tries, from the lowest to the highest.

    Args:
        run: of one of the paper's recipes of fine-tuning, which have rates; or any other.
        multiples: of the run's own rate, which are tried where it is any other.
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
    """Name what in a run is not the paper's fine-tuning (B.1.1), each with what the paper does.

    Args:
        run: its options.
        num_images: those of the training split.
        papers: the paper's run; left out, that for data of any size, or as many steps as a row of Table 4.
    """
    there = papers or fit_paper(paper(), num_images)
    height, width = run.preprocessing.image_size
    own, theirs = run.optimizer, there.optimizer
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
        ("label smoothing", run.objective.label_smoothing, 0.0),
        ("mixup", run.objective.mixup, 0.0),
        ("head", run.start.head, "new"),
        ("frozen", own.freeze, "nothing"),
        ("factor of the head's rate", own.head_rate, 1.0),
    ]
    if own.freeze == "nothing":
        pairs += [
            ("layer decay", own.layer_decay, 1.0),
            ("steps of the head alone", own.head_first, 0),
            ("frozen layers", own.freeze_layers, 0),
        ]
    found = [f"{what} {_plain(here)} ({_plain(other)})" for what, here, other in pairs if here != other]
    steps = run.training.total_steps(num_images)
    usual = {there.training.steps, *(row[0] for row in TABLE_4.values() if papers is None)}
    if steps not in usual:
        found.append(f"{steps:,} steps ({there.training.steps:,})")
    return found


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)

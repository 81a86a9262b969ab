"""Recipes: functions that make run configurations; their docstrings have command, cost and result.

The paper's fine-tuning (B.1.1, Table 4) is SGD with momentum 0.9, cosine decay, batch 512, no weight decay,
clipping at norm 1 and 384 pixels. The rest is from the released code (vision_transformer `configs/common.py`
and `configs/vit.py`): crops of 5 to 100 % of the area, flips, plain bilinear resizing, a base rate of 0.03,
500 steps of warm-up.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

from vitkit.config import nearest, to_json
from vitkit.data.config import Augmentation, Preprocessing, Splits
from vitkit.errors import VitkitError
from vitkit.jobs.reproduce.items import PAPER
from vitkit.models.config import ViTConfig
from vitkit.models.zoo import model_config
from vitkit.result import Listing, Table
from vitkit.runs.config import Architecture, Run, with_options
from vitkit.runs.run_options import OptionsOfRun
from vitkit.training.config import (
    ClassificationConfig,
    MAEConfig,
    MaskedPatchesConfig,
    OptimizerConfig,
    SimMIMConfig,
    TrainingConfig,
)


def digits() -> Run:
    """Train on the built-in demonstration: 8x8 scans of handwritten digits.

    Command: vitkit train --recipe digits
    Cost: 84 seconds of training on two cores. Result: 99.2 % of 360 test images, the mean of five seeds
    (docs/results/accuracy.md).
    """
    return Run(
        data="digits",
        # Enlarged to 16x16, so that crops and turns of less than one scanned pixel are possible.
        model="ViT-64x4x4x128/4",
        preprocessing=Preprocessing(image_size=(16, 16)),
        augmentation=Augmentation(crop_area=(0.8, 1.0), crop_aspect=(0.8, 1.25), flip=False, rotate=12.0),
        objective=ClassificationConfig(label_smoothing=0.1),
        optimizer=OptimizerConfig(learning_rate=2e-3, weight_decay=0.05, warmup_steps=100, polyak=0.999),
        training=TrainingConfig(epochs=100, batch_size=64, select="last"),
        splits=Splits(val_fraction=0.05, test_fraction=0.2),
    )


def small_images() -> Run:
    """Train on pictures of about 32x32 pixels from scratch, on a CPU: CIFAR-10 and the like.

    Command: vitkit train --recipe small-images --data PATH
    Cost: ten minutes on two cores for 1,055 steps. Result: 48 % on CIFAR-10 from 4,500 images, 50 % from 3.5
    epochs of 45,000 (docs/results/accuracy.md); more time would raise both.
    """
    return Run(
        model="ViT-96x6x3/4",
        preprocessing=Preprocessing(image_size=(32, 32)),
        augmentation=Augmentation(crop_area=(0.4, 1.0), flip=True),
        objective=ClassificationConfig(label_smoothing=0.1),
        optimizer=OptimizerConfig(learning_rate=1e-3, weight_decay=0.1, warmup_steps=200, polyak=0.999),
        training=TrainingConfig(epochs=30, batch_size=128),
    )


def small_images_conv() -> Run:
    """Train on pictures of about 32x32 pixels from scratch, with a convolutional stem: more in the same time.

    Command: vitkit train --recipe small-images-conv --data PATH
    Cost: an hour of one core for CIFAR-10 (22 November 2026, one thread, bfloat16, 370 images a second).
    Result: 84.2 % of CIFAR-10's 10,000 test images (83.5 to 84.9) after 28.7 epochs of 49,000, seed 0.
    """
    return Run(
        model="ViT-192x2x4/8",
        # Two thirds of the computation are convolutions, half of which keep the map's size. With three of
        # stride 2, four blocks and batches of 128 at 2e-3, training accuracy in the sixth epoch was 59.5 %
        # instead of 67.3 %.
        # Branches that begin small: a Transformer of usual weights hides for hundreds of steps what the stem
        # has learned. After 160 steps of 64 images of CIFAR-10 the training loss was 1.84, without it 2.08
        # (class token: 2.01). Through small branches the class token would see nothing, hence the mean.
        architecture=Architecture(
            stem_channels=(32, 64, 64, 128, 128, 192),
            stem_strides=(1, 2, 1, 2, 1, 2),
            layer_scale=0.01,
            pool="mean",
        ),
        preprocessing=Preprocessing(image_size=(32, 32)),
        augmentation=Augmentation(crop_area=None, flip=True, shift=4),
        objective=ClassificationConfig(label_smoothing=0.05),
        optimizer=OptimizerConfig(learning_rate=1.5e-3, weight_decay=0.05, warmup_steps=500, polyak=0.999),
        training=TrainingConfig(epochs=30, batch_size=64),
    )


def small_images_bit() -> Run:
    """Train a narrow BiT ResNet on pictures of about 32x32 pixels from scratch, to compare a ViT with.

    Command: vitkit train --recipe small-images-bit --data PATH
    Cost: an hour of one core for CIFAR-10 (22 November 2026, one thread, bfloat16, 290 images a second),
    with the batches, rate and regularisation of small-images-conv; its size was chosen by images a second.
    Result: 83.7 % of CIFAR-10's 10,000 test images (82.9 to 84.4) after 18.6 epochs of 49,000, seed 0.
    """
    conv = small_images_conv()
    return replace(
        conv,
        model="BiT-R2-2-2x0.5",
        architecture=Architecture(),
        # Enlarged, because the root and its pooling leave a quarter of each side.
        preprocessing=Preprocessing(image_size=(64, 64)),
        augmentation=replace(conv.augmentation, shift=8),
        training=replace(conv.training, epochs=20),
    )


def photos() -> Run:
    """Train on photographs from scratch, a thousand or more of them.

    Command: vitkit train --recipe photos --data PATH
    Cost: not measured. Result: not measured. From scratch on few photographs a ViT stays far below one that
    was fine-tuned.
    """
    return Run(
        model="ViT-192x9x3/8",
        preprocessing=Preprocessing(image_size=(128, 128), resize="crop"),
        augmentation=Augmentation(crop_area=(0.25, 1.0), flip=True),
        objective=ClassificationConfig(label_smoothing=0.1, mixup=0.2),
        optimizer=OptimizerConfig(learning_rate=1e-3, weight_decay=0.1, warmup_steps=200, polyak=0.999),
        training=TrainingConfig(epochs=100, batch_size=128),
    )


def pretrain_as_in_paper(
    model: str,
    epochs: float,
    lr: float,
    schedule: Literal["linear", "cosine"],
    decay: float,
    dropout: float,
    clip: float | None = None,
) -> Run:
    """Make a row of the paper's Table 3: Adam with decoupled decay, batch 4096, 10k steps of warm-up, 224
    pixels.

    The head of ViTs and hybrids has the tanh layer (3.1); gradients are clipped for ImageNet alone (B.1).

    Command: vitkit train --recipe imagenet-vit-b16 --data PATH
    Cost: the paper's Table 6, in exaFLOPs. Result: not measured here; the paper's are its Tables 2, 5 and 6.
    """
    config, architecture = model_config(model), Architecture()
    if isinstance(config, ViTConfig):
        architecture = Architecture(dropout=dropout, representation_size=config.width)
    return Run(
        model=model,
        architecture=architecture,
        preprocessing=Preprocessing(image_size=(224, 224), antialias=False),
        optimizer=OptimizerConfig(
            learning_rate=lr, weight_decay=decay, clip_norm=clip, schedule=schedule, warmup_steps=10_000
        ),
        training=TrainingConfig(epochs=epochs, batch_size=4096, select="last"),
        splits=Splits(test_fraction=0.0, val_fraction=0.01),
    )


def masked_patches() -> Run:
    """Pre-train by masked patch prediction as in the paper (B.1.2): ViT-B/16, a million steps of 4096 images.

    The paper is silent on weight decay and augmentation: nothing decays, and images are cropped and mirrored
    as in its other pre-training. After 100,000 steps it had most of the gain.

    Command: vitkit pretrain DATA --recipe masked-patches
    Cost and result: not measured here; the paper's ViT-B/16 reached 79.9 % on ImageNet (4.6).
    """
    return Run(
        task="masked-patches",
        model="ViT-B/16",
        objective=MaskedPatchesConfig(),
        optimizer=OptimizerConfig(
            optimizer="adam", learning_rate=2e-4, weight_decay=0.0, warmup_steps=10_000, clip_norm=None
        ),
        training=TrainingConfig(steps=1_000_000, batch_size=4096, select="last"),
        splits=UNLABELLED,
    )


def simmim() -> Run:
    """Pre-train SimMIM's ViT-B/16 (`configs/vit_base__800ep`) on ImageNet: 800 epochs, batch 2048.

    Unlike there, the rate falls by a cosine and not at once by ten at epoch 700, and positions are
    learned and not a shared bias of the attention.

    Command: vitkit pretrain DATA --recipe simmim
    Cost and result: not measured here; its authors report 83.8 % after fine-tuning (arXiv 2111.09886).
    """
    return Run(
        task="simmim",
        model="ViT-B/16",
        architecture=Architecture(drop_path=0.1),
        augmentation=Augmentation(crop_area=(0.67, 1.0)),
        objective=SimMIMConfig(),
        # 1e-4 for 512 images, and 10 epochs of warm-up.
        optimizer=OptimizerConfig(learning_rate=4e-4, weight_decay=0.05, warmup_steps=6_256, clip_norm=5.0),
        training=TrainingConfig(epochs=800, batch_size=2048, select="last"),
        splits=UNLABELLED,
    )


def mae() -> Run:
    """Pre-train MAE's ViT-B/16 (`PRETRAIN.md` of its authors) on ImageNet: 800 epochs, batch 4096.

    Unlike there, pixels are normalised by a mean and a deviation of 0.5 and not by ImageNet's.

    Command: vitkit pretrain DATA --recipe mae
    Cost and result: not measured here; its authors report 83.6 % after 1,600 epochs and fine-tuning.
    """
    return Run(
        task="mae",
        model="ViT-B/16",
        # Fine-tuned by the mean of the patches, which is its authors' default.
        architecture=Architecture(position="sincos_2d_mae", gelu="erf", pool="mean", extra_class_token=True),
        preprocessing=Preprocessing(image_size=(224, 224), interpolation="bicubic"),
        augmentation=Augmentation(crop_area=(0.2, 1.0)),
        objective=MAEConfig(),
        # 1.5e-4 for 256 images, and 40 epochs of warm-up.
        optimizer=OptimizerConfig(
            learning_rate=2.4e-3, weight_decay=0.05, beta2=0.95, warmup_steps=12_512, clip_norm=None
        ),
        training=TrainingConfig(epochs=800, batch_size=4096, select="last"),
        splits=UNLABELLED,
    )


def masked_patches_small() -> Run:
    """Predict mean colours of masked patches on two cores: pictures of about 32x32 pixels.

    Command: vitkit pretrain DATA --objective masked-patches
    Cost and result: not measured.
    """
    return replace(_small_unlabelled(), task="masked-patches", objective=MaskedPatchesConfig())


def simmim_small() -> Run:
    """Pre-train SimMIM on two cores: pictures of about 32x32 pixels, the pixels of masked patches.

    Command: vitkit pretrain DATA --objective simmim
    Cost and result: not measured.
    """
    # Patches are hidden one by one: one of 4 pixels is an eighth of the image's side, as SimMIM's squares of
    # 32 are a seventh of 224. Of squares of two by two there would be 16 alone to choose from.
    return replace(_small_unlabelled(), task="simmim", objective=SimMIMConfig(mask_block=1))


def mae_small() -> Run:
    """Pre-train MAE on two cores: pictures of about 32x32 pixels, a decoder of two blocks.

    Command: vitkit pretrain DATA --objective mae
    Cost and result: not measured.
    """
    run = _small_unlabelled()
    return replace(
        run,
        task="mae",
        architecture=replace(run.architecture, position="sincos_2d_mae", extra_class_token=True),
        objective=MAEConfig(decoder_width=96, decoder_depth=2, decoder_heads=3),
        optimizer=replace(run.optimizer, beta2=0.95),
    )


def _small_unlabelled() -> Run:
    """Make the run that the recipes for two cores without labels change."""
    return Run(
        model="ViT-192x6x3/4",
        # The loss is over patches: a class token would learn nothing.
        architecture=Architecture(pool="mean"),
        preprocessing=Preprocessing(image_size=(32, 32)),
        augmentation=Augmentation(crop_area=(0.4, 1.0)),
        optimizer=OptimizerConfig(learning_rate=1e-3, weight_decay=0.05, warmup_steps=200),
        training=TrainingConfig(epochs=30, batch_size=128, select="last"),
        splits=UNLABELLED,
    )


TABLE_4: Mapping[str, Mapping[str, Any]] = PAPER["recipes"]["table4"]
"""The rows of the paper's Table 4, which sweeps the rates (`IMAGENET_RATES`, `OTHER_RATES`)."""
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
        # The defaults have the paper's momentum of 0.9, clipping at norm 1 and the cosine.
        optimizer=OptimizerConfig("sgd", learning_rate, weight_decay=0.0, warmup_steps=warmup_steps),
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


TABLE_3: Mapping[str, Mapping[str, Any]] = PAPER["recipes"]["table3"]
"""The rows of the paper's Table 3."""
UNLABELLED = Splits(test_fraction=0.0, val_fraction=0.02)
"""Splits of images without labels: there is nothing to test, and few images suffice to measure a loss."""

OF_LABELS = (digits, small_images, small_images_conv, small_images_bit, photos)
OF_IMAGES_ALONE = (masked_patches, simmim, mae, masked_patches_small, simmim_small, mae_small)

RECIPES: dict[str, Callable[[], Run]] = {
    **{own.__name__.replace("_", "-"): own for own in (*OF_LABELS, *OF_IMAGES_ALONE)},
    **{name: partial(pretrain_as_in_paper, **row) for name, row in TABLE_3.items()},
    "paper": paper,
    **{name: partial(finetune_as_in_paper, **row) for name, row in TABLE_4.items()},
}


def recipe(name: str, /, **options: Unpack[OptionsOfRun]) -> Run:
    """Make the run configuration of a recipe: `recipe("photos", data="photos/", epochs=5)`.

    Args:
        name: a name of `vitkit recipes`.
        options: options of training that replace the recipe's, by their names in `vitkit train --help`, with
            "_" for "-" and for ".": `learning_rate=1e-3`, `splits_val_fraction=0.2`.

    Raises:
        VitkitError: there is no such recipe or option, and the nearest one is named; or no such value.
    """
    if name not in RECIPES:
        if Path(name).is_dir():
            raise VitkitError(
                f"{name} is a folder and no recipe: name a recipe, and give images with --data."
            )
        raise VitkitError(f"No recipe is named '{name}'. {nearest(name, RECIPES)}")
    return with_options(replace(RECIPES[name](), recipe=name), options)


def list_recipes() -> Listing:
    """List the recipes: named run configurations, every option of which can be changed on the command
    line."""
    rows, recipes = [], {}
    for name in RECIPES:
        run = recipe(name)
        training, (height, _) = run.training, run.preprocessing.image_size
        length = f"{training.epochs:g} epochs" if training.steps is None else f"{training.steps:,} steps"
        described = "the paper's Table 3"
        if name in TABLE_4:
            described = "the paper's Table 4: vitkit finetune START"
        elif name not in TABLE_3:
            described = (RECIPES[name].__doc__ or "").split("\n")[0]
        model, batch = run.model or "START's", str(training.batch_size)
        rows.append((name, model, str(height), length, batch, described))
        recipes[name] = to_json(run)
    table = Table(("recipe", "model", "pixels", "length", "batch", ""), tuple(rows), left=(0, 1, 5))
    uses = ("vitkit train PATH --recipe NAME", "vitkit finetune START PATH --recipe NAME")
    return Listing(f"{len(rows)} recipes", (table,), uses, {"recipes": recipes})


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
    crop, papers_crop = ((each.augmentation.crop_area or (1.0,))[0] for each in (run, there))
    own, theirs, objective = run.optimizer, there.optimizer, run.objective
    if not isinstance(objective, ClassificationConfig):
        return []  # the run does not learn classes
    pairs = [
        ("optimizer", own.optimizer, theirs.optimizer),
        ("schedule", own.schedule, theirs.schedule),
        ("weight decay", own.weight_decay, theirs.weight_decay),
        ("clipping", own.clip_norm or "none", theirs.clip_norm or "none"),
        ("batch", run.training.batch_size, there.training.batch_size),
        ("pixels", f"{height}x{width}", "{}x{}".format(*there.preprocessing.image_size)),
        ("smallest crop", crop, papers_crop),
        ("label smoothing", objective.label_smoothing, 0.0),
        ("mixup", objective.mixup, 0.0),
        ("head", run.start.head, "new"),
        ("frozen", own.freeze, "nothing"),
        ("factor of the head's rate", own.head_rate, 1.0),
    ]
    if own.freeze == "nothing":
        pairs += [("layer decay", own.layer_decay, 1.0), ("frozen layers", own.freeze_layers, 0)]
    changes = []
    for what, *values in pairs:
        if values[0] != values[1]:
            here, other = (f"{value:g}" if isinstance(value, float) else value for value in values)
            changes.append(f"{what} {here} ({other})")
    steps = run.training.total_steps(num_images)
    usual = {there.training.steps, *(row["steps"] for row in TABLE_4.values() if papers is None)}
    if steps not in usual:
        changes.append(f"{steps:,} steps ({there.training.steps:,})")
    return changes

"""Fit the options of fine-tuning to a number of training images, where neither a person nor a recipe gives
them."""

import math
from dataclasses import replace
from typing import Literal

from vitkit.data.config import Augmentation
from vitkit.jobs.finetune_recipes import fit_paper
from vitkit.models.zoo import ModelConfig
from vitkit.runs.config import Run
from vitkit.training.config import ClassificationConfig, OptimizerConfig, TrainingConfig

# Training images below which: epochs, batch. Chosen so that two cores finish a small ViT in minutes: few
# images are seen often, many a few times. The paper's 500 steps of 512 are 256,000 images for any of them.
LENGTHS = ((1_000, 50, 32), (10_000, 20, 64), (100_000, 10, 128), (1 << 62, 3, 128))
AUGMENTATION = Augmentation(crop_area=(0.25, 1.0))
"""Crops of at least a quarter of an image: the original code's 5 % often miss the object."""
LEAST_STEPS = 200
"""The fewest steps for a new head, however often they show each image: on 45 digits, from a start on other
digits, 71 steps reached 16 % and 400 steps 46 %."""
RATE, HEAD_RATE = 5e-4, 3e-3
"""Learning rates of AdamW for the layers of the start; and for a new head, which has nothing to forget. A
head of zeros that learned at the lower rate held short runs back: Adam moves a weight by about its rate a
step. Higher rates for all layers gained on images unlike the start's and lost more on images like them
(docs/decisions.md)."""
VALIDATIONS = 10
"""Validations of a run of default length, each with a checkpoint."""
LAYER_DECAY = 0.75
"""The layer decay of a model of up to 12 layers, as in BEiT and MAE; in a deeper model the first layer is as
slow. Without it, models of 4 layers lost up to 5 points on a few images like the start's; deeper ones were
not measured."""


def fit_images(
    run: Run, config: ModelConfig, num_images: int, freeze: Literal["nothing", "trunk"] = "nothing"
) -> Run:
    """Fit a run to its number of training images; a recipe other than `paper` is left as it is.

    Args:
        run: the run, with its recipe if it has one.
        config: the configuration of the start's model.
        num_images: training images.
        freeze: "trunk" if the head alone learns.
    """
    if not run.recipe:
        return fit_data(run, config, num_images, freeze)
    return fit_paper(run, num_images) if run.recipe == "paper" else run


def fit_data(
    run: Run, config: ModelConfig, num_images: int, freeze: Literal["nothing", "trunk"] = "nothing"
) -> Run:
    """Choose the options of fine-tuning for a number of training images, without a recipe.

    AdamW has a low rate, a higher one for a head of zeros, and lower rates for lower layers: no rate has to
    be searched for, as it has for the paper's SGD. The head does not train first: with a rate of its own that
    gained nothing. The first screen of the run lists the departures from the paper.
    """
    epochs, batch_size = next((epochs, batch) for below, epochs, batch in LENGTHS if num_images < below)
    batch_size = max(min(batch_size, num_images), 1)
    epochs = max(epochs, math.ceil(LEAST_STEPS * batch_size / max(num_images, 1)))
    decay = LAYER_DECAY ** min(1.0, 12 / max(config.num_layers, 1))
    alone, zeros = freeze == "trunk", run.start.head == "new"
    run = replace(
        run,
        augmentation=AUGMENTATION,
        objective=ClassificationConfig(label_smoothing=0.1),
        optimizer=OptimizerConfig(
            learning_rate=HEAD_RATE if alone else RATE,
            weight_decay=0.05,
            layer_decay=round(decay, 4),
            head_rate=HEAD_RATE / RATE if zeros and not alone else 1.0,
        ),
        training=TrainingConfig(epochs=epochs, batch_size=batch_size),
    )
    return fit_length(run, num_images)


def fit_length(run: Run, num_images: int) -> Run:
    """Warm up in a twentieth of a run's steps, and validate ten times.

    An epoch of few images is a few steps: a validation and a checkpoint after each would write a ViT-B/16 of
    1 GB forty times, and choose the best of forty by a handful of validation images.
    """
    steps = run.training.total_steps(num_images)
    return replace(
        run,
        optimizer=replace(run.optimizer, warmup_steps=steps // 20),
        training=replace(run.training, evaluate_every=max(1, math.ceil(steps / VALIDATIONS))),
    )

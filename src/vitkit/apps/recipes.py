"""Named runs. A recipe is a function that returns one; its docstring says command, cost and result."""

from collections.abc import Callable
from dataclasses import replace

import tyro

from vitkit.apps import console
from vitkit.apps.run import Architecture, Run
from vitkit.config import nearest
from vitkit.data.sources import Splits
from vitkit.data.transforms import Augmentation, Preprocessing
from vitkit.errors import VitkitError
from vitkit.training.objectives import ClassificationConfig
from vitkit.training.optim import OptimizerConfig
from vitkit.training.trainer import TrainingConfig


def digits() -> Run:
    """The built-in demonstration: 8x8 scans of handwritten digits, on any machine in under two minutes.

    Command: vitkit train --recipe digits
    Cost and result: docs/results.md
    """
    return Run(
        data="digits",
        model="ViT-64x4x4/1",
        preprocessing=Preprocessing(image_size=(8, 8)),
        augmentation=Augmentation(crop_area=None, flip=False, shift=1, rotate=10.0),
        objective=ClassificationConfig(label_smoothing=0.1),
        optimizer=OptimizerConfig(learning_rate=2e-3, weight_decay=0.05, warmup_steps=100, polyak=0.999),
        training=TrainingConfig(epochs=60, batch_size=64, select="last"),
    )


def small_images() -> Run:
    """Pictures of about 32x32 pixels from scratch, on a CPU: CIFAR-10 and the like.

    Command: vitkit train --recipe small-images --data PATH
    Cost and result: docs/results.md
    """
    return Run(
        model="ViT-128x6x4/4",
        preprocessing=Preprocessing(image_size=(32, 32)),
        augmentation=Augmentation(crop_area=(0.4, 1.0), flip=True),
        objective=ClassificationConfig(label_smoothing=0.1),
        optimizer=OptimizerConfig(learning_rate=1e-3, weight_decay=0.1, warmup_steps=500, polyak=0.999),
        training=TrainingConfig(epochs=30, batch_size=128),
    )


def photos() -> Run:
    """Photographs from scratch, a thousand or more of them.

    Command: vitkit train --recipe photos --data PATH
    Cost: not measured. Result: not measured. From scratch on few photographs a ViT stays far below one that
    was fine-tuned.
    """
    return Run(
        model="ViT-192x9x3/8",
        preprocessing=Preprocessing(image_size=(128, 128), resize="crop"),
        augmentation=Augmentation(crop_area=(0.25, 1.0), flip=True),
        objective=ClassificationConfig(label_smoothing=0.1, mixup=0.2),
        optimizer=OptimizerConfig(learning_rate=1e-3, weight_decay=0.1, warmup_steps=500, polyak=0.999),
        training=TrainingConfig(epochs=100, batch_size=128),
    )


def paper(
    model: str, epochs: float, learning_rate: float, schedule: str, weight_decay: float, dropout: float
) -> Callable[[], Run]:
    """A row of the paper's Table 3 (Adam, batch 4096, warm-up of 10k steps, 224 pixels).

    Cost: Table 6, in exaFLOPs. Result: not measured; the paper's are its Tables 2, 5 and 6.
    """

    def row() -> Run:
        return Run(
            model=model,
            architecture=Architecture(dropout=dropout, representation_size=None),
            preprocessing=Preprocessing(image_size=(224, 224), antialias=False),
            augmentation=Augmentation(),
            optimizer=OptimizerConfig(
                learning_rate=learning_rate,
                weight_decay=weight_decay,
                schedule="linear" if schedule == "linear" else "cosine",
                warmup_steps=10_000,
            ),
            training=TrainingConfig(epochs=epochs, batch_size=4096, select="last"),
            splits=Splits(test_fraction=0.0, val_fraction=0.01),
        )

    return row


RECIPES: dict[str, Callable[[], Run]] = {
    "digits": digits,
    "small-images": small_images,
    "photos": photos,
    "jft-vit-b16": paper("ViT-B/16", 7, 8e-4, "linear", 0.1, 0.0),
}


def recipe(name: str) -> Run:
    """The run that a recipe stands for.

    Raises:
        VitkitError: no such recipe; the nearest one is named.
    """
    if name not in RECIPES:
        raise VitkitError(f"No recipe is named '{name}'. {nearest(name, RECIPES)}")
    return replace(RECIPES[name](), recipe=name)


def main(arguments: list[str]) -> None:
    def command() -> None:
        """List the recipes: named runs whose every option can be changed on the command line."""
        for name, make in RECIPES.items():
            run = make()
            doc = (make.__doc__ or "").strip().splitlines()
            console.out.print(f"[bold]{name}[/]  {doc[0] if doc else ''}", soft_wrap=True)
            console.out.print(f"    {run.model} at {run.preprocessing.image_size[0]} pixels")
        console.out.print("\nNext: vitkit train --recipe NAME --data PATH")

    tyro.cli(command, args=arguments, prog="vitkit recipes")

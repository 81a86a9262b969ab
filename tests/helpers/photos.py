"""Photos as people have them, and tiny models to train on them."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import vitkit

TINY = (
    *("--model", "ViT-16x2x2/4", "--image-size", "16", "--batch-size", "8", "--warmup-steps", "0"),
    *("--epochs", "2"),
)
"""The options of `vitkit train` for a run of two epochs in a second."""


def picture(colour: tuple[int, int, int], seed: int) -> Image.Image:
    """Draw a picture of a colour with noise, whose size follows from the seed."""
    draw = np.random.default_rng(seed)
    height, width = draw.integers(12, 40, 2)
    noise = draw.integers(-40, 40, (height, width, 3))
    return Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8))


def image_folder(folder: Path, images: int = 60, seed: int = 0) -> Path:
    """Class folders of small PNG files, half of them dark and half light."""
    generator = np.random.default_rng(seed)
    for number in range(images):
        path = folder / ("dark" if number % 2 else "light") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 128, (9 + number % 5, 11, 3)) + 120 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    return folder


def saved(name: str, num_classes: int, out: Path, size: int = 16, **changes: Any) -> str:
    """Save a model with new weights; return its path."""
    config = dataclasses.replace(vitkit.model_config(name, num_classes, size), **changes)
    return str(vitkit.save_model(vitkit.build_model(config), out))


def noise_image(path: Path, seed: int, size: tuple[int, int] = (8, 8), **options: Any) -> None:
    """Write a small image of noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, **options)


def noise_images(root: Path, count: int = 12) -> Path:
    """Write a folder of two classes of noise, and return it."""
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number:02d}.png")
    return root

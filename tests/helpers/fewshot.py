"""Images and checkpoints for few-shot evaluation."""

import hashlib
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image

import vitkit
from vitkit.weights.loading import save_model
from vitkit.weights.model_card import ModelCard

SIZE = (8, 12)
Seen = list[str]
"""The hashes of the images that went through a model in one process."""


def write_image(path: Path, seed: int, level: int) -> None:
    """An image of other proportions than the model's, with noise around a grey of its class."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(-60, 60, (16, 18, 3))
    Image.fromarray((level + noise).clip(0, 255).astype(np.uint8)).save(path)


def class_folders(root: Path, counts: dict[str, int]) -> Path:
    """Class folders: the names are in the order of their greys."""
    for number, (name, count) in enumerate(counts.items()):
        for i in range(count):
            write_image(root / name / f"{i:02d}.png", 100 * number + i, 60 + 60 * number)
    return root


def save_start(
    path: Path, seed: int = 0, num_classes: int = 0, card: ModelCard | None = None, **model: Any
) -> str:
    name = model.pop("name", "ViT-16x2x2/4")
    made = vitkit.create_model(name, num_classes=num_classes, image_size=SIZE, **model)
    made.init_weights(torch.Generator().manual_seed(seed))
    if card is not None:
        made.card = card
    save_model(made, path)
    return str(path)


def counted(seen: Seen) -> Any:
    """Make the models of this process note the images that go through them."""
    original = vitkit.ViT.features

    def features(self: vitkit.ViT, images: torch.Tensor, *rest: Any) -> Any:
        seen.extend(hashlib.sha256(image.numpy().tobytes()).hexdigest() for image in images if image.any())
        return original(self, images, *rest)

    return patch.object(vitkit.ViT, "features", features)

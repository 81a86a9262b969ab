"""Small models for tests of engines, with a head that is not all zeros."""

from dataclasses import replace

import torch
from torch import nn

from vitkit.models.build import build_model
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import ModelConfig, model_config
from vitkit.weights.card import ModelCard

SMALL = "ViT-32x2x4/8"
NAMES = ("ant", "bee", "cow", "dog", "eel")


def small(name: str = SMALL, size: tuple[int, int] = (16, 24), channels: int = 3) -> ImageModel:
    """Make a model whose images are rectangles, with pixel statistics that are not 0.5."""
    config = replace(
        model_config(name, len(NAMES), size),
        in_channels=channels,
        image_mean=tuple(0.3 + 0.1 * i for i in range(channels)),
        image_std=tuple(0.2 + 0.05 * i for i in range(channels)),
    )
    return drawn(config)


def drawn(config: ModelConfig) -> ImageModel:
    """Build a model whose weights are the same at every call."""
    generator = torch.Generator().manual_seed(3)
    model = build_model(config, generator).eval()
    assert isinstance(model.head, nn.Linear)
    nn.init.normal_(model.head.weight, std=0.5, generator=generator)
    model.card = ModelCard(class_names=NAMES)
    return model

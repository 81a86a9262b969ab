"""Models in which no parameter is zero or one, so that a lost or swapped tensor shows."""

import dataclasses
from typing import Any

import torch

from vitkit.models.build import build_model
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import vit_config
from vitkit.weights.model_card import ModelCard

PLAIN = "ViT-64x2x2/16"
"""A ViT that every format has a name for."""


def random_model(name: str, size: int = 32, seed: int = 0, **changes: Any) -> ImageModel:
    """Make a model in which every parameter is random, its head too."""
    generator = torch.Generator().manual_seed(seed)
    model = build_model(dataclasses.replace(vit_config(name, 3, size), **changes), generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    model.card = ModelCard(class_names=("cat", "dog", "émeu"))
    return model.eval()

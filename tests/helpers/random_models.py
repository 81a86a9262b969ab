"""Models with random weights, a tiny one among them, and the comparison of two models."""

import torch

from vitkit.models.build import build_model
from vitkit.models.config import ViTConfig
from vitkit.models.image_model import ImageModel
from vitkit.models.vit import ViT
from vitkit.models.zoo import ModelConfig

TINY = ViTConfig(
    image_size=(12, 16), patch_size=(4, 4), width=24, depth=2, num_heads=3, mlp_dim=40, num_classes=5
)


def random_model(config: ModelConfig) -> ImageModel:
    """Build a model in which no parameter is a constant, its head and its norms too."""
    model = build_model(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def same_bits(first: ImageModel, second: ImageModel) -> bool:
    """Whether two models have the same parameters, bit by bit."""
    ours, theirs = first.state_dict(), second.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


def model_with_random_head(config: ViTConfig, seed: int = 0) -> ViT:
    """New models answer zero; a random head makes differences visible."""
    generator = torch.Generator().manual_seed(seed)
    model = ViT(config, generator=generator)
    torch.nn.init.normal_(model.get_parameter("head.weight"), generator=generator)
    return model.eval()

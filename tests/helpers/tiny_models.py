"""A tiny Vision Transformer for tests."""

import torch

from vitkit.models.config import ViTConfig
from vitkit.models.vit import ViT

TINY = ViTConfig(
    image_size=(12, 16), patch_size=(4, 4), width=24, depth=2, num_heads=3, mlp_dim=40, num_classes=5
)


def model_with_random_head(config: ViTConfig, seed: int = 0) -> ViT:
    """New models answer zero; a random head makes differences visible."""
    generator = torch.Generator().manual_seed(seed)
    model = ViT(config, generator=generator)
    torch.nn.init.normal_(model.get_parameter("head.weight"), generator=generator)
    return model.eval()

"""A ViT of every kind that the faster ways to compute are tried on, and what makes one and its images."""

from dataclasses import replace

import torch
from torch import Tensor

from vitkit.models.build import build_model
from vitkit.models.config import DINOV3_ROTARY, PLAIN, BackboneConfig, Compute, ViTConfig
from vitkit.models.fast import compute_as
from vitkit.models.vit import ViT
from vitkit.models.zoo import VIT5

SMALL = ViTConfig((12, 20), (4, 4), width=32, depth=2, num_heads=4, mlp_dim=48, num_classes=5)
VARIANTS = {
    "the original": SMALL,
    "registers": replace(SMALL, register_tokens=3),
    "pre-norm and layer scale": replace(SMALL, norm_before_blocks=True, layer_scale=0.3),
    "norm after pooling": replace(SMALL, norm_after_pooling=True),
    "positions at every layer": replace(SMALL, position_at="every_layer"),
    "representation": replace(SMALL, representation_size=7),
    "RMSNorm": replace(SMALL, norm="rms"),
    "QK-norm": replace(SMALL, qk_norm=True),
    "no biases of queries, keys and values": replace(SMALL, qkv_bias=False),
    "ViT-5": replace(SMALL, **VIT5),
    "one block": replace(SMALL, depth=1),
    "relative positions": replace(SMALL, position="relative"),
    "rotary positions": replace(SMALL, rotary=DINOV3_ROTARY),
    "mean": replace(SMALL, pool="mean"),
    "mean beside a class token": replace(SMALL, pool="mean", extra_class_token=True),
    "max": replace(SMALL, pool="max"),
    "map": replace(SMALL, pool="map"),
    "no pooling": replace(SMALL, pool="none"),
    "axial": replace(SMALL, pool="mean", attention="axial"),
    "convolutional stem": replace(SMALL, patch_size=(4, 4), stem_channels=(8, 16), stem_strides=(2, 2)),
    "other sizes": replace(
        SMALL,
        image_size=(16, 12),
        patch_size=(2, 3),
        width=24,
        num_heads=2,
        mlp_dim=20,
        num_classes=3,
        in_channels=1,
        image_mean=(0.4,),
        image_std=(0.3,),
    ),
    "other numbers": replace(SMALL, gelu="erf", norm_eps=0.1),
    "quick GELU": replace(SMALL, gelu="quick"),
    "a class token without a position": replace(SMALL, class_token_position=False),
    "dropped in training alone": replace(SMALL, dropout=0.1, attention_dropout=0.1, drop_path=0.1),
    "hybrid": replace(SMALL, image_size=(32, 48), patch_size=(1, 1), backbone=BackboneConfig((1, 1))),
}
ALL = Compute("float32", "explicit", "class_token", "compiled", "folded", "compiled")


def make(config: ViTConfig, way: Compute = PLAIN) -> ViT:
    """A model whose every parameter matters: nothing is left at zero."""
    model = build_model(config, torch.Generator().manual_seed(0))
    assert isinstance(model, ViT)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    compute_as(model, way)
    return model.double().eval()


def images(config: ViTConfig, count: int = 20) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    shape = (count, config.in_channels, *config.image_size)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)

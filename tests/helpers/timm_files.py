"""timm's files without timm: tensors under its names, and its config.json."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from vitkit.models.config import ViTConfig

TINY = ViTConfig(
    image_size=(12, 16),
    patch_size=(4, 4),
    width=32,
    depth=2,
    num_heads=4,
    mlp_dim=44,
    num_classes=5,
    gelu="erf",
)


def state(
    width: int = 32, positions: int = 13, extra: Mapping[str, tuple[int, ...]] | None = None
) -> dict[str, Tensor]:
    """Draw the tensors of a ViT of two blocks for 12x16 images; an empty shape in `extra` removes one."""
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, width),
        "pos_embed": (1, positions, width),
        "patch_embed.proj.weight": (width, 3, 4, 4),
        "patch_embed.proj.bias": (width,),
        "norm.weight": (width,),
        "norm.bias": (width,),
        "head.weight": (5, width),
        "head.bias": (5,),
    }
    for i in range(2):
        for name, out, into in (
            ("attn.qkv", 3 * width, width),
            ("attn.proj", width, width),
            ("mlp.fc1", 44, width),
            ("mlp.fc2", width, 44),
        ):
            shapes[f"blocks.{i}.{name}.weight"] = (out, into)
            shapes[f"blocks.{i}.{name}.bias"] = (out,)
        for name in ("norm1", "norm2"):
            shapes[f"blocks.{i}.{name}.weight"] = (width,)
            shapes[f"blocks.{i}.{name}.bias"] = (width,)
    shapes |= extra or {}
    return {name: torch.randn(shape) for name, shape in shapes.items() if shape}


def config_json(architecture: str = "vit_tiny_patch16_224", **arguments: Any) -> dict[str, Any]:
    return {
        "architecture": architecture,
        "num_classes": 5,
        "model_args": {"img_size": [12, 16], "embed_dim": TINY.width, "num_heads": 4, **arguments},
        "pretrained_cfg": {
            "input_size": [3, 12, 16],
            "mean": [0.485, 0.456, 0.406],
            "std": [0.229, 0.224, 0.225],
            "interpolation": "bilinear",
            "crop_pct": 0.9,
            "crop_mode": "center",
        },
    }


def folder_of(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> Path:
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder

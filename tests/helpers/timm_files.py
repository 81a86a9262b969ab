"""timm's files without timm: tensors under its names, its config.json, and its forward pass step by step."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
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


def slow_logits(tensors: Mapping[str, Tensor], images: Tensor, described: Mapping[str, Any]) -> Tensor:
    """Compute timm's VisionTransformer step by step, with patches of 4 and 4 heads."""
    arguments = described["model_args"]
    rough = any(word in described["architecture"] for word in ("_clip_", "_dinov3"))
    epsilon = 1e-5 if rough else 1e-6

    def norm(x: Tensor, name: str) -> Tensor:
        if f"{name}.weight" not in tensors:
            return x
        if arguments.get("norm_layer") == "rmsnorm":
            return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * tensors[f"{name}.weight"]
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).square().mean(-1, keepdim=True)
        return (x - mean) / (variance + epsilon).sqrt() * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    def scale(*names: str) -> Tensor:
        return next((tensors[name] for name in names if name in tensors), torch.ones(()))

    def activate(x: Tensor) -> Tensor:
        name = arguments.get("act_layer", "gelu")
        if name == "quick_gelu":
            return x / (1 + torch.exp(-1.702 * x))
        if name == "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))

    x = F.conv2d(images, tensors["patch_embed.proj.weight"], tensors.get("patch_embed.proj.bias"), stride=4)
    x = x.flatten(2).mT
    prefix = [tensors[name].expand(len(x), -1, -1) for name in ("cls_token", "reg_token") if name in tensors]
    first = sum(part.shape[1] for part in prefix)
    positions = tensors.get("pos_embed", torch.zeros(1, x.shape[1], 1))
    if positions.shape[1] == x.shape[1]:
        x = torch.cat([*prefix, x + positions], 1)
    else:
        x = torch.cat([*prefix, x], 1) + positions
    x = norm(x, "norm_pre")
    for i in range(2):
        block = f"blocks.{i}"
        qkv = norm(x, f"{block}.norm1") @ tensors[f"{block}.attn.qkv.weight"].T
        if f"{block}.attn.q_bias" in tensors:
            bias = tensors[f"{block}.attn.q_bias"], torch.zeros(TINY.width), tensors[f"{block}.attn.v_bias"]
            qkv = qkv + torch.cat(bias)
        else:
            qkv = qkv + tensors.get(f"{block}.attn.qkv.bias", torch.zeros(()))
        q, k, v = (part.reshape(*x.shape[:2], 4, -1).transpose(1, 2) for part in qkv.chunk(3, -1))
        q, k = norm(q, f"{block}.attn.q_norm"), norm(k, f"{block}.attn.k_norm")
        if f"{block}.gamma_1" in tensors:
            q, k = turned(q, described, first), turned(k, described, first)
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        attended = linear((weights @ v).transpose(1, 2).flatten(2), f"{block}.attn.proj")
        x = x + attended * scale(f"{block}.ls1.gamma", f"{block}.gamma_1")
        hidden = linear(activate(linear(norm(x, f"{block}.norm2"), f"{block}.mlp.fc1")), f"{block}.mlp.fc2")
        x = x + hidden * scale(f"{block}.ls2.gamma", f"{block}.gamma_2")
    x = norm(x, "norm")
    pools = {
        "token": lambda x: x[:, 0],
        "avg": lambda x: x[:, first:].mean(1),
        "max": lambda x: x[:, first:].amax(1),
        "": lambda x: x,
    }
    return linear(norm(pools[arguments.get("global_pool", "token")](x), "fc_norm"), "head")


def turned(x: Tensor, described: Mapping[str, Any], first: int) -> Tensor:
    """Turn queries or keys `(B, h, T, 8)` of a 3x4 grid by their patch's row and column, pair by pair."""
    name = described["architecture"]
    out = x.clone()
    for number in range(12):
        row, column = divmod(number, 4)
        if "dinov3" in name:
            axes = [2 * math.pi * (2 * (row + 0.5) / 3 - 1), 2 * math.pi * (2 * (column + 0.5) / 4 - 1)]
            pairs, temperature = [(0, 4), (1, 5), (2, 6), (3, 7)], 100.0
        elif "reg1_gap" in name:
            axes = [row / 3 * 16, column / 4 * 16]
            pairs, temperature = [(0, 1), (2, 3), (4, 5), (6, 7)], 10_000.0
        else:
            axes = [float(column), float(row)]
            pairs, temperature = [(0, 1), (2, 3), (4, 5), (6, 7)], 100.0
        angles = [axis / temperature ** (i / 2) for axis in axes for i in range(2)]
        for (i, j), angle in zip(pairs, angles, strict=True):
            a, b = x[:, :, first + number, i], x[:, :, first + number, j]
            out[:, :, first + number, i] = a * math.cos(angle) - b * math.sin(angle)
            out[:, :, first + number, j] = b * math.cos(angle) + a * math.sin(angle)
    return out

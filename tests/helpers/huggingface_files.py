"""Folders of Hugging Face made by hand: a ViT and a BiT, and the forward pass of transformers' ViT."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from tests.helpers.random_models import random_model
from vitkit.models.config import ResNetConfig
from vitkit.weights.loading import save_model

WIDTH, DEPTH, HEADS, HIDDEN, CLASSES = 16, 2, 2, 24, 3


CONFIG: dict[str, Any] = {
    "model_type": "vit",
    "num_attention_heads": HEADS,
    "image_size": [8, 12],
    "patch_size": [4, 2],
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}


BIT_CONFIG: dict[str, Any] = {
    "model_type": "bit",
    "embedding_size": 32,
    "hidden_sizes": [128, 256],
    "depths": [2, 1],
    "layer_type": "preactivation",
    "global_padding": None,
}


PROCESSOR: dict[str, Any] = {
    "do_resize": True,
    "size": {"height": 8, "width": 12},
    "resample": 2,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


IN_FILES = {
    "layers": "encoder.layer",
    "query": "attention.attention.query",
    "key": "attention.attention.key",
    "value": "attention.attention.value",
    "out": "attention.output.dense",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
}


IN_MODULES = {
    "layers": "layers",
    "query": "attention.q_proj",
    "key": "attention.k_proj",
    "value": "attention.v_proj",
    "out": "attention.o_proj",
    "fc1": "mlp.fc1",
    "fc2": "mlp.fc2",
}


def random_vit(prefix: str, names: Mapping[str, str], *, classifier: bool, pooler: bool) -> dict[str, Tensor]:
    """The arrays of a small ViT under their names: 8x12 pixels in patches of 4x2."""
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}embeddings.cls_token": (1, 1, WIDTH),
        f"{prefix}embeddings.position_embeddings": (1, 13, WIDTH),
        f"{prefix}embeddings.patch_embeddings.projection.weight": (WIDTH, 3, 4, 2),
        f"{prefix}embeddings.patch_embeddings.projection.bias": (WIDTH,),
        f"{prefix}layernorm.weight": (WIDTH,),
        f"{prefix}layernorm.bias": (WIDTH,),
    }
    for i in range(DEPTH):
        layer = f"{prefix}{names['layers']}.{i}"
        linears = {names[part]: (WIDTH, WIDTH) for part in ("query", "key", "value", "out")}
        linears |= {names["fc1"]: (HIDDEN, WIDTH), names["fc2"]: (WIDTH, HIDDEN)}
        for name, shape in linears.items():
            shapes |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
        for name in ("layernorm_before", "layernorm_after"):
            shapes |= {f"{layer}.{name}.weight": (WIDTH,), f"{layer}.{name}.bias": (WIDTH,)}
    if classifier:
        shapes |= {"classifier.weight": (CLASSES, WIDTH), "classifier.bias": (CLASSES,)}
    if pooler:
        shapes |= {f"{prefix}pooler.dense.weight": (10, WIDTH), f"{prefix}pooler.dense.bias": (10,)}
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) / 2 for name, shape in shapes.items()}


def their_answer(
    arrays: Mapping[str, Tensor], prefix: str, names: Mapping[str, str], images: Tensor
) -> Tensor:
    """A ViT as transformers computes it, with the exact GELU and an epsilon of 1e-12."""

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, arrays[f"{name}.weight"], arrays[f"{name}.bias"])

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (WIDTH,), arrays[f"{name}.weight"], arrays[f"{name}.bias"], 1e-12)

    stem = f"{prefix}embeddings.patch_embeddings.projection"
    patches = F.conv2d(images, arrays[f"{stem}.weight"], arrays[f"{stem}.bias"], stride=(4, 2))
    token = arrays[f"{prefix}embeddings.cls_token"].expand(len(images), -1, -1)
    x = torch.cat([token, patches.flatten(2).transpose(1, 2)], 1)
    x = x + arrays[f"{prefix}embeddings.position_embeddings"]
    for i in range(DEPTH):
        layer = f"{prefix}{names['layers']}.{i}"
        y = norm(x, f"{layer}.layernorm_before")
        q, k, v = (
            linear(y, f"{layer}.{names[part]}").reshape(len(y), -1, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        weights = (q @ k.mT * (WIDTH // HEADS) ** -0.5).softmax(-1)
        x = x + linear((weights @ v).transpose(1, 2).flatten(2), f"{layer}.{names['out']}")
        y = F.gelu(linear(norm(x, f"{layer}.layernorm_after"), f"{layer}.{names['fc1']}"))
        x = x + linear(y, f"{layer}.{names['fc2']}")
    x = norm(x, f"{prefix}layernorm")[:, 0]
    if "classifier.weight" in arrays:
        return linear(x, "classifier")
    return linear(x, f"{prefix}pooler.dense").tanh() if f"{prefix}pooler.dense.weight" in arrays else x


def write_folder(
    folder: Path,
    arrays: Mapping[str, Tensor],
    config: Mapping[str, Any] | None = CONFIG,
    processor: Mapping[str, Any] | None = PROCESSOR,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(arrays), folder / "model.safetensors", metadata={"format": "pt"})
    for name, content in (("config.json", config), ("preprocessor_config.json", processor)):
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    return folder


def vit_folder(
    folder: Path, config: Mapping[str, Any] | None = CONFIG, processor: Mapping[str, Any] | None = PROCESSOR
) -> Path:
    arrays = random_vit("vit.", IN_FILES, classifier=True, pooler=False)
    return write_folder(folder, arrays, config, processor)


def bit(**changes: Any) -> ResNetConfig:
    config = ResNetConfig((32, 40), (2, 1), 5, width_factor=0.5, standardization_eps=1e-8)
    return dataclasses.replace(config, **changes)


def bit_folder(folder: Path, processor: Mapping[str, Any] | None = None, **changes: Any) -> Path:
    save_model(random_model(bit()), folder, "huggingface")
    (folder / "config.json").write_text(json.dumps(BIT_CONFIG | changes))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor or {"size": {"shortest_edge": 32}}))
    return folder

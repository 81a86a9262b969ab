"""torchvision's format: a `.pth` of the state dict of `vit_b_16`, `vit_l_16`, `vit_h_14` and the like.

A state dict says nothing of arithmetic or preprocessing: torchvision's own is assumed, and `card.origin` says
so. Facts: torchvision 0.28, `models/vision_transformer.py`.
"""

import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from vitkit.data.config import Preprocessing
from vitkit.durable import WRITE_SIZE, replace_file
from vitkit.errors import VitkitError
from vitkit.models.config import ViTConfig
from vitkit.models.image_model import ImageModel
from vitkit.weights import table
from vitkit.weights.files.source import Source
from vitkit.weights.model_card import card_of_state_dict, fraction_of

NORM_EPS = 1e-6
"""Epsilon of every LayerNorm of torchvision's ViTs."""
HEADS = {768: 12, 1024: 16, 1280: 16}
"""Heads by width, of the five models that torchvision names."""
BLOCK = "encoder.layers.encoder_layer_#."
NAMES = {
    "stem": "conv_proj",
    "class_token": "class_token",
    "positions.embedding": "encoder.pos_embedding",
    "blocks.norm1": f"{BLOCK}ln_1",
    "blocks.attention.qkv": f"{BLOCK}self_attention.in_proj_",
    "blocks.attention.out": f"{BLOCK}self_attention.out_proj",
    "blocks.norm2": f"{BLOCK}ln_2",
    "blocks.mlp.fc1": f"{BLOCK}mlp.0",
    "blocks.mlp.fc2": f"{BLOCK}mlp.3",
    "norm": "encoder.ln",
    "pre_logits": "heads.pre_logits",
    "head": "heads.head",
}
"""The parts of a ViT, and torchvision's names for them."""
OLD_NAMES = NAMES | {"blocks.mlp.fc1": f"{BLOCK}mlp.linear_1", "blocks.mlp.fc2": f"{BLOCK}mlp.linear_2"}
"""The same before its release 0.13."""


def recognises(source: Source) -> bool:
    return "encoder.pos_embedding" in source and "class_token" in source


def read(source: Source, hints: table.Hints) -> table.Translation:
    """Read the ViT whose tensors have these names and shapes.

    Raises:
        VitkitError: it begins with several convolutions; its grid is not square and its size not given; or
            the number of heads is neither usual for the width nor given.
    """
    if "conv_proj.weight" not in source:
        raise VitkitError(
            f"{source.path}: expected one convolution that cuts patches, conv_proj.weight (D, C, p, p), "
            "found none: ViTs with a stem of several convolutions are not read."
        )
    names = OLD_NAMES if "encoder.layers.encoder_layer_0.mlp.linear_1.bias" in source else NAMES
    sizes = table.read_sizes(source, names)
    width, channels, patch_size = sizes["width"], sizes["in_channels"], sizes["patch_size"]
    positions = table.count_tokens(source, "encoder.pos_embedding") - 1
    given = None if math.isqrt(max(positions, 0)) ** 2 == positions else hints.image_size
    config = ViTConfig(
        **sizes,
        image_size=table.image_size_of(source, patch_size, positions, given)[0],
        num_heads=table.require_heads(source, hints.num_heads or HEADS.get(width), width),
        num_classes=table.first_axis(source, "heads.head.bias", 1),
        representation_size=table.first_axis(source, "heads.pre_logits.bias", 1) or None,
        gelu="erf",
        norm_eps=NORM_EPS,
        image_mean=table.by_channel(table.IMAGENET_MEAN, channels),
        image_std=table.by_channel(table.IMAGENET_STD, channels),
    )
    card = card_of_state_dict(config, preprocessing_for(config), "torchvision's", "torchvision")
    return table.Translation(config, table.named_rows(config, names), card)


def preprocessing_for(config: ViTConfig) -> Preprocessing:
    """Return torchvision's own preprocessing for weights of this architecture and size.

    For weights it trained itself, at 224, the shortest side is resized to 256 (`vit_l_16`: 242), bilinearly;
    for SWAG's weights, all others and all of `vit_h_14`, to their own size by bicubic interpolation. SWAG's
    linear heads on `vit_b_16` and `vit_l_16` at 224 cannot be distinguished from the former.
    """
    kind, (rows, columns) = (config.width, config.patch_size[0]), config.image_size
    if (rows, columns) != (224, 224) or kind == (1280, 14):
        return Preprocessing(config.image_size, "shortest", 1.0, interpolation="bicubic")
    return Preprocessing(config.image_size, "shortest", fraction_of(rows, 242 if kind == (1024, 16) else 256))


def write(model: ImageModel, path: Path, notes: list[str]) -> Path:
    """Write a `.pth`, a dictionary of tensors that torchvision's models load with `load_state_dict`."""
    config: ViTConfig = model.config
    path = path if path.suffix == ".pth" else path.with_name(path.name + ".pth")
    tensors = table.to_file_tensors(model.state_dict(), table.named_rows(config, NAMES))
    replace_file(path, _pth_chunks(tensors, path.parent))
    return path


def unsupported(config: ViTConfig) -> list[str]:
    """List what torchvision's ViT cannot build."""
    lacks = {
        f"images of {config.in_channels} channels": config.in_channels != 3,
        "rectangular images or patches": len({*config.image_size}) + len({*config.patch_size}) > 2,
        "images that are no multiple of the patch": config.image_size[0] % config.patch_size[0] > 0,
        "a ViT without a head": config.num_classes == 0,
    }
    lacking = [phrase for phrase, is_lacking in lacks.items() if is_lacking]
    return table.unsupported_values(config, table.PLAIN) + lacking


def _pth_chunks(tensors: Mapping[str, Tensor], folder: Path) -> Iterator[bytes]:
    """Yield the output of `torch.save`, through an unnamed file because it cannot be written piece by piece.

    A tensor that is part of a larger memory is copied out of it, or all of that would be written.
    """
    own = {
        name: tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
        for name, tensor in tensors.items()
    }
    with tempfile.TemporaryFile(dir=folder) as file:
        torch.save(own, file)
        file.seek(0)
        while piece := file.read(WRITE_SIZE):
            yield piece


def lost_numerics(config: ViTConfig) -> Iterator[str]:
    """Name the arithmetic that torchvision's models lack, and numbers that a state dict does not record."""
    yield from table.training_alone(config)
    if config.gelu != "erf":
        yield f"GELU in its {config.gelu} form (torchvision: exact)"
    if config.norm_eps != NORM_EPS:
        yield f"LayerNorm's epsilon {config.norm_eps} (torchvision: {NORM_EPS})"
    if HEADS.get(config.width) != config.num_heads:
        yield f"{config.num_heads} attention heads (torchvision's models: 12 for 768, 16 for 1024 and 1280)"
    if (config.image_mean, config.image_std) != (table.IMAGENET_MEAN, table.IMAGENET_STD):
        yield f"pixel mean {config.image_mean} and std {config.image_std} (torchvision: ImageNet's)"


HOLDINGS = {"ViT": table.Holding(write, unsupported, lost_numerics)}
CHECKPOINT_FORMAT = table.CheckpointFormat(
    "torchvision", recognises, read, HOLDINGS, others=" of this kind", is_folder=False
)

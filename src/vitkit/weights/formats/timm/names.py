"""Every parameter of a ViT, a hybrid or a BiT ResNet, and where timm keeps it."""

from typing import Literal

import torch

from vitkit.models.config.resnet_config import BackboneConfig, ResNetConfig
from vitkit.models.config.vit_config import ViTConfig
from vitkit.weights.table import Row, renamed, weight_and_bias

QKVBias = Literal["fused", "split", "none"]
"""Biases of queries, keys and values: one tensor; two, as the keys have none (timm's class Eva); or none."""

BACKBONE = "patch_embed.backbone."
"""Before the names of a hybrid's ResNet."""


def vit_rows(config: ViTConfig, *, qkv_bias: QKVBias = "fused", stem_bias: bool = True) -> list[Row]:
    """Pair every parameter of a ViT or hybrid of `config` with the tensors where timm keeps it.

    Where `qkv_bias` is "none" the file has no biases of queries, keys and values, without `stem_bias` none of
    the patch projection: zeros, which is the same.
    """
    rows: list[Row] = []
    if config.backbone:
        rows += _hybrid_rows(config.backbone)
    stem, theirs = "stem.projection" if config.backbone else "stem", "patch_embed.proj"
    rows.append(renamed(f"{stem}.weight", f"{theirs}.weight"))
    rows.append(_bias(f"{stem}.bias", theirs, stem_bias))
    if config.class_token:
        rows.append(renamed("class_token", "cls_token"))
    if config.register_tokens:
        rows.append(renamed("register_tokens", "reg_token"))
    if config.position == "learned":
        rows.append(renamed("positions.0.embedding", "pos_embed"))
    for i in range(config.depth):
        block = f"blocks.{i}"
        rows += weight_and_bias(f"{block}.norm1", f"{block}.norm1")
        rows.append(renamed(f"{block}.attention.qkv.weight", f"{block}.attn.qkv.weight"))
        if qkv_bias == "split":
            names = (f"{block}.attn.q_bias", f"{block}.attn.v_bias")
            rows.append(Row(f"{block}.attention.qkv.bias", names, _between_zeros))
        else:
            rows.append(_bias(f"{block}.attention.qkv.bias", f"{block}.attn.qkv", qkv_bias == "fused"))
        rows += weight_and_bias(f"{block}.attention.out", f"{block}.attn.proj")
        rows += weight_and_bias(f"{block}.norm2", f"{block}.norm2")
        rows += weight_and_bias(f"{block}.mlp.fc1", f"{block}.mlp.fc1")
        rows += weight_and_bias(f"{block}.mlp.fc2", f"{block}.mlp.fc2")
        if config.layer_scale is not None:
            names = ("gamma_1", "gamma_2") if config.rotary is not None else ("ls1.gamma", "ls2.gamma")
            rows.append(renamed(f"{block}.attention_scale", f"{block}.{names[0]}"))
            rows.append(renamed(f"{block}.mlp_scale", f"{block}.{names[1]}"))
    if config.norm_before_blocks:
        rows += weight_and_bias("pre_norm", "norm_pre")
    rows += weight_and_bias("norm", "fc_norm" if config.norm_after_pooling else "norm")
    if config.pool == "map":
        rows += _attention_pool_rows()
    if config.representation_size:
        rows += weight_and_bias("pre_logits", "pre_logits.fc")
    return rows + (weight_and_bias("head", "head") if config.num_classes else [])


def _attention_pool_rows() -> list[Row]:
    """List the attention pooling's parameters: timm keeps the query's projection apart from the others."""
    ours, theirs = "pooling", "attn_pool"
    rows = [renamed(f"{ours}.probe", f"{theirs}.latent")]
    for part in ("weight", "bias"):
        names = (f"{theirs}.q.{part}", f"{theirs}.kv.{part}")
        rows.append(Row(f"{ours}.attention.qkv.{part}", names, torch.cat, _query_and_rest))
    rows += weight_and_bias(f"{ours}.attention.out", f"{theirs}.proj")
    rows += weight_and_bias(f"{ours}.norm", f"{theirs}.norm")
    rows += weight_and_bias(f"{ours}.mlp.fc1", f"{theirs}.mlp.fc1")
    return rows + weight_and_bias(f"{ours}.mlp.fc2", f"{theirs}.mlp.fc2")


def _bias(ours: str, theirs: str, there: bool) -> Row:
    """Pair a layer's bias; where the file has none, it is read as zeros, and written nowhere."""
    if there:
        return renamed(ours, f"{theirs}.bias")
    return Row(ours, (f"{theirs}.weight",), _zeros)


def _zeros(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return the zero bias for a layer that has none in the file."""
    return tensors[0].new_zeros(len(tensors[0]))


def _between_zeros(biases: list[torch.Tensor]) -> torch.Tensor:
    """Join the biases of queries and values; timm's class Eva has none for the keys."""
    queries, values = biases
    return torch.cat([queries, torch.zeros_like(queries), values])


def _query_and_rest(qkv: torch.Tensor) -> list[torch.Tensor]:
    width = len(qkv) // 3
    return [qkv[:width], qkv[width:]]


def _unit_rows(ours: str, theirs: str, projects: bool, normed: bool) -> list[Row]:
    """List a bottleneck's parameters; the projection, timm's `downsample`, has a norm in hybrids alone."""
    rows: list[Row] = []
    for number in (1, 2, 3):
        rows.append(renamed(f"{ours}.conv{number}.weight", f"{theirs}.conv{number}.weight"))
        rows += weight_and_bias(f"{ours}.norm{number}", f"{theirs}.norm{number}")
    if projects:
        rows.append(renamed(f"{ours}.proj.weight", f"{theirs}.downsample.conv.weight"))
        if normed:
            rows += weight_and_bias(f"{ours}.proj_norm", f"{theirs}.downsample.norm")
    return rows


def _stage_rows(ours: str, theirs: str, layers: tuple[int, ...], normed: bool) -> list[Row]:
    return [
        row
        for s, units in enumerate(layers)
        for u in range(units)
        for row in _unit_rows(f"{ours}stages.{s}.{u}", f"{theirs}stages.{s}.blocks.{u}", u == 0, normed)
    ]


def _hybrid_rows(backbone: BackboneConfig) -> list[Row]:
    root = f"{BACKBONE}stem." if backbone.layers else BACKBONE
    rows = [renamed("stem.root.weight", f"{root}conv.weight")]
    rows += weight_and_bias("stem.root_norm", f"{root}norm")
    return rows + _stage_rows("stem.", BACKBONE, backbone.layers, normed=True)


def bit_rows(config: ResNetConfig) -> list[Row]:
    """List every parameter of a BiT ResNet with its name in timm, where the head is a 1x1 convolution."""
    rows = [renamed("root.weight", "stem.conv.weight"), *_stage_rows("", "", config.layers, normed=False)]
    rows += weight_and_bias("norm", "norm")
    if config.num_classes:
        rows += [
            Row(
                "head.weight",
                ("head.fc.weight",),  # (K, C, 1, 1)
                lambda tensors: tensors[0].flatten(1),
                lambda tensor: [tensor[:, :, None, None]],
            ),
            renamed("head.bias", "head.fc.bias"),
        ]
    return rows

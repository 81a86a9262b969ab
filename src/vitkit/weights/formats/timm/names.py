"""Every parameter of a ViT, a hybrid or a BiT ResNet, and where timm keeps it."""

from typing import Literal

import torch

from vitkit.models.config.resnet_config import BackboneConfig, ResNetConfig
from vitkit.models.config.vit_config import ViTConfig
from vitkit.weights import table

QKVBias = Literal["fused", "split", "none"]
"""Biases of queries, keys and values: one tensor; two, as the keys have none (timm's class Eva); or none."""

BACKBONE = "patch_embed.backbone."
"""Before the names of a hybrid's ResNet."""


def vit_rows(config: ViTConfig, *, qkv_bias: QKVBias = "fused", stem_bias: bool = True) -> list[table.Row]:
    """Pair every parameter of a ViT or hybrid of `config` with the tensors where timm keeps it.

    Where `qkv_bias` is "none" the file has no biases of queries, keys and values, without `stem_bias` none of
    the patch projection: zeros, which is the same.
    """
    rows: list[table.Row] = []
    if config.backbone:
        rows += _hybrid_rows(config.backbone)
    stem, theirs = "stem.projection" if config.backbone else "stem", "patch_embed.proj"
    rows.append(table.renamed(f"{stem}.weight", f"{theirs}.weight"))
    rows.append(_bias(f"{stem}.bias", theirs, stem_bias))
    if config.class_token:
        rows.append(table.renamed("class_token", "cls_token"))
    if config.register_tokens:
        rows.append(table.renamed("register_tokens", "reg_token"))
    if config.position == "learned":
        rows.append(table.renamed("positions.0.embedding", "pos_embed"))
    for i in range(config.depth):
        block = f"blocks.{i}"
        rows += _norm(config, f"{block}.norm1", f"{block}.norm1")
        rows.append(table.renamed(f"{block}.attention.qkv.weight", f"{block}.attn.qkv.weight"))
        if config.qk_norm:
            for name in ("q_norm", "k_norm"):
                rows += _norm(config, f"{block}.attention.{name}", f"{block}.attn.{name}")
        if qkv_bias == "split":
            names = (f"{block}.attn.q_bias", f"{block}.attn.v_bias")
            rows.append(table.Row(f"{block}.attention.qkv.bias", names, _between_zeros))
        else:
            rows.append(_bias(f"{block}.attention.qkv.bias", f"{block}.attn.qkv", qkv_bias == "fused"))
        rows += table.weight_and_bias(f"{block}.attention.out", f"{block}.attn.proj")
        rows += _norm(config, f"{block}.norm2", f"{block}.norm2")
        rows += table.weight_and_bias(f"{block}.mlp.fc1", f"{block}.mlp.fc1")
        rows += table.weight_and_bias(f"{block}.mlp.fc2", f"{block}.mlp.fc2")
        if config.layer_scale is not None:
            names = ("gamma_1", "gamma_2") if config.rotary is not None else ("ls1.gamma", "ls2.gamma")
            rows.append(table.renamed(f"{block}.attention_scale", f"{block}.{names[0]}"))
            rows.append(table.renamed(f"{block}.mlp_scale", f"{block}.{names[1]}"))
    if config.norm_before_blocks:
        rows += _norm(config, "pre_norm", "norm_pre")
    rows += _norm(config, "norm", "fc_norm" if config.norm_after_pooling else "norm")
    if config.pool == "map":
        rows += _attention_pool_rows(config)
    if config.representation_size:
        rows += table.weight_and_bias("pre_logits", "pre_logits.fc")
    return rows + (table.weight_and_bias("head", "head") if config.num_classes else [])


def _attention_pool_rows(config: ViTConfig) -> list[table.Row]:
    """List the attention pooling's parameters: timm keeps the query's projection apart from the others."""
    ours, theirs = "pooling", "attn_pool"
    rows = [table.renamed(f"{ours}.probe", f"{theirs}.latent")]
    for part in ("weight", "bias"):
        names = (f"{theirs}.q.{part}", f"{theirs}.kv.{part}")
        rows.append(table.Row(f"{ours}.attention.qkv.{part}", names, torch.cat, _query_and_rest))
    rows += table.weight_and_bias(f"{ours}.attention.out", f"{theirs}.proj")
    rows += _norm(config, f"{ours}.norm", f"{theirs}.norm")
    rows += table.weight_and_bias(f"{ours}.mlp.fc1", f"{theirs}.mlp.fc1")
    return rows + table.weight_and_bias(f"{ours}.mlp.fc2", f"{theirs}.mlp.fc2")


def _norm(config: ViTConfig, ours: str, theirs: str) -> list[table.Row]:
    """Pair a norm's scale, and the shift that LayerNorm alone has."""
    return table.weight_and_bias(ours, theirs)[: 2 if config.norm == "layer" else 1]


def _bias(ours: str, theirs: str, there: bool) -> table.Row:
    """Pair a layer's bias; where the file has none, it is read as zeros, and written nowhere."""
    if there:
        return table.renamed(ours, f"{theirs}.bias")
    return table.Row(ours, (f"{theirs}.weight",), lambda weight: weight[0].new_zeros(len(weight[0])))


def _between_zeros(biases: list[torch.Tensor]) -> torch.Tensor:
    """Join the biases of queries and values; timm's class Eva has none for the keys."""
    queries, values = biases
    return torch.cat([queries, torch.zeros_like(queries), values])


def _query_and_rest(qkv: torch.Tensor) -> list[torch.Tensor]:
    width = len(qkv) // 3
    return [qkv[:width], qkv[width:]]


def _unit_rows(ours: str, theirs: str, projects: bool, normed: bool) -> list[table.Row]:
    """List a bottleneck's parameters; the projection, timm's `downsample`, has a norm in hybrids alone."""
    rows: list[table.Row] = []
    for number in (1, 2, 3):
        rows.append(table.renamed(f"{ours}.conv{number}.weight", f"{theirs}.conv{number}.weight"))
        rows += table.weight_and_bias(f"{ours}.norm{number}", f"{theirs}.norm{number}")
    if projects:
        rows.append(table.renamed(f"{ours}.proj.weight", f"{theirs}.downsample.conv.weight"))
        if normed:
            rows += table.weight_and_bias(f"{ours}.proj_norm", f"{theirs}.downsample.norm")
    return rows


def _stage_rows(ours: str, theirs: str, layers: tuple[int, ...], normed: bool) -> list[table.Row]:
    return [
        row
        for s, units in enumerate(layers)
        for u in range(units)
        for row in _unit_rows(f"{ours}stages.{s}.{u}", f"{theirs}stages.{s}.blocks.{u}", u == 0, normed)
    ]


def _hybrid_rows(backbone: BackboneConfig) -> list[table.Row]:
    root = f"{BACKBONE}stem." if backbone.layers else BACKBONE
    rows = [table.renamed("stem.root.weight", f"{root}conv.weight")]
    rows += table.weight_and_bias("stem.root_norm", f"{root}norm")
    return rows + _stage_rows("stem.", BACKBONE, backbone.layers, normed=True)


def bit_rows(config: ResNetConfig) -> list[table.Row]:
    """List every parameter of a BiT ResNet with its name in timm, where the head is a 1x1 convolution."""
    rows = [
        table.renamed("root.weight", "stem.conv.weight"),
        *_stage_rows("", "", config.layers, normed=False),
    ]
    rows += table.weight_and_bias("norm", "norm")
    if config.num_classes:
        rows += [
            table.Row(
                "head.weight",
                ("head.fc.weight",),  # (K, C, 1, 1)
                lambda tensors: tensors[0].flatten(1),
                lambda tensor: [tensor[:, :, None, None]],
            ),
            table.renamed("head.bias", "head.fc.bias"),
        ]
    return rows

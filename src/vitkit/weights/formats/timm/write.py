"""Writing models as folders that `timm.create_model("local-dir:FOLDER", pretrained=True)` loads."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from vitkit.data.config import Preprocessing
from vitkit.models.config import GROUPS, NORM_NAMES, ResNetConfig, ViTConfig
from vitkit.models.image_model import ImageModel
from vitkit.text import format_size
from vitkit.weights import table
from vitkit.weights.files.safetensors import write_folder
from vitkit.weights.formats.bit import absent_from_libraries, has_usual_channels
from vitkit.weights.formats.timm import settings as timm
from vitkit.weights.formats.timm.settings import bit_rows, vit_rows
from vitkit.weights.model_card import border_colour, changed_pixels_noted, fraction_of, preprocessing_of

CLIP_NAME = "vit_base_patch16_clip_224"
"""Written where LayerNorm's epsilon is CLIP's: the name alone decides it, the arguments the rest."""
PATCHES = {
    **dict.fromkeys(("small", "base"), (8, 16, 32)),
    **dict.fromkeys(("huge", "giant", "gigantic"), (14,)),
    "tiny": (16,),
    "large": (14, 16, 32),
}
"""The patch sizes of timm's plain ViTs, by the word for their width."""
HYBRID_NAMES: dict[tuple[int, ...], str] = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
BIT_NAMES: dict[tuple[tuple[int, ...], int], str] = {
    ((3, 4, 6, 3), 1): "resnetv2_50x1_bit",
    ((3, 4, 6, 3), 3): "resnetv2_50x3_bit",
    ((3, 4, 23, 3), 1): "resnetv2_101x1_bit",
    ((3, 4, 23, 3), 3): "resnetv2_101x3_bit",
    ((3, 8, 36, 3), 2): "resnetv2_152x2_bit",
    ((3, 8, 36, 3), 4): "resnetv2_152x4_bit",
}


Parts = tuple[str, dict[str, Any], list[table.Row], tuple[str, str]]
"""The name that timm's `create_model` knows, its `model_args`, the tensors, and timm's names of the first
convolution and of the classifier."""


def _parts_of_a_vit(config: ViTConfig, tensors: dict[str, Tensor]) -> Parts:
    if config.norm_before_blocks:
        # Then timm's projection of patches has no bias: it is moved into the positions, its only other place.
        # Every patch gets the same sum.
        bias = tensors.pop("stem.projection.bias" if config.backbone else "stem.bias")
        embedding = tensors["positions.0.embedding"].clone()
        embedding[:, config.prefix_positions :] += bias
        tensors["positions.0.embedding"] = embedding
    rows = [row for row in vit_rows(config) if row.ours in tensors]
    first = next(row.theirs[0] for row in rows if row.ours in config.first_filters)
    return _vit_name(config), _vit_arguments(config), rows, (first.removesuffix(".weight"), "head")


def _parts_of_a_bit(config: ResNetConfig, tensors: dict[str, Tensor]) -> Parts:
    factor, arguments = 1, _shared_arguments(config)
    if _is_named(config):
        factor = config.root_channels // 64
    else:  # the architecture's name says the units, and the channels where it can
        arguments |= {"channels": list(config.stage_channels), "stem_chs": config.root_channels}
    return BIT_NAMES[config.layers, factor], arguments, bit_rows(config), ("stem.conv", "head.fc")


def _write(parts_of: Callable[[Any, Any], Parts], model: ImageModel, path: Path, notes: list[str]) -> Path:
    """Write a folder that `timm.create_model("local-dir:FOLDER", pretrained=True)` loads.

    Args:
        parts_of: gives what differs between families, of a configuration and its tensors.
        model, path, notes: as for `CheckpointFormat.write`.

    Raises:
        VitkitError: the folder holds a model of our own format.
    """
    config, tensors = model.config, dict(model.state_dict())
    architecture, arguments, rows, ends = parts_of(config, tensors)
    theirs = nearest_transform(preprocessing_of(model), config.image_mean)
    straight = theirs.resize == "stretch"  # which timm has as squashed to its own size
    notes += changed_pixels_noted(model, theirs, "config.json")
    pretrained: dict[str, Any] = {
        "custom_load": False,
        "input_size": [config.in_channels, *config.image_size],
        "fixed_input_size": config.num_tokens is not None,
        "interpolation": theirs.interpolation,
        "crop_mode": next((m for m, resize in timm.CROP_MODES.items() if resize == theirs.resize), "squash"),
        "crop_pct": 1.0 if straight else theirs.crop_fraction,
        "mean": list(config.image_mean),
        "std": list(config.image_std),
        "num_classes": config.num_classes,
        "pool_size": None,
        "first_conv": ends[0],
        "classifier": ends[1],
    }
    description = {
        "architecture": architecture,
        "num_classes": config.num_classes,
        "num_features": config.width,
        "global_pool": arguments["global_pool"],
        **({"label_names": list(model.card.class_names)} if model.card.class_names else {}),
        "model_args": arguments,
        "pretrained_cfg": pretrained,
    }
    return write_folder(path, table.to_file_tensors(tensors, rows), {"config.json": description})


def _shared_arguments(config: ResNetConfig | ViTConfig) -> dict[str, Any]:
    return {"in_chans": config.in_channels, "num_classes": config.num_classes, "global_pool": "avg"}


def _vit_arguments(config: ViTConfig) -> dict[str, Any]:
    """Give all `model_args`, so that nothing depends on the architecture's name."""
    ratio = config.mlp_dim / config.width
    if int(config.width * ratio) != config.mlp_dim:  # timm truncates the product
        ratio = (config.mlp_dim + 0.5) / config.width
    return {
        **_shared_arguments(config),
        "img_size": list(config.image_size),
        "patch_size": list(config.patch_size),
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "mlp_ratio": ratio,
        "class_token": config.class_token,
        "global_pool": next(theirs for theirs, ours in timm.POOLS.items() if ours == config.pool),
        "fc_norm": config.norm_after_pooling,
        "pre_norm": config.norm_before_blocks,
        "init_values": None if config.layer_scale is None else config.layer_scale or timm.LAYER_SCALE,
        "reg_tokens": config.register_tokens,
        "no_embed_class": not config.class_token_position,
        **({"pool_include_prefix": True} if config.pool == "map" and config.prefix_tokens else {}),
        "pos_embed": "learn" if config.position == "learned" else "none",
        "act_layer": next(theirs for theirs, ours in timm.GELUS.items() if ours == config.gelu),
        "pos_drop_rate": config.dropout,
        "proj_drop_rate": config.dropout,
        "attn_drop_rate": config.attention_dropout,
        **({"drop_path_rate": config.drop_path} if config.drop_path else {}),
        **({} if config.norm == "layer" else {"norm_layer": NORM_NAMES[config.norm].lower()}),
        **({"qk_norm": True} if config.qk_norm else {}),
        **({} if config.qkv_bias else {"qkv_bias": False}),
    }


def _is_named(config: ResNetConfig) -> bool:
    """Whether one of timm's architectures has these units and channels."""
    factor = config.root_channels // 64
    usual = has_usual_channels(config) and config.root_channels % 64 == 0
    return usual and (config.layers, factor) in BIT_NAMES


def _has_clip_eps(config: ViTConfig) -> bool:
    """Whether timm's name of CLIP's ViT says the epsilon; it says none of an RMSNorm."""
    return config.norm == "layer" and config.norm_eps == timm.CLIP_NORM_EPS


def _vit_name(config: ViTConfig) -> str:
    """Choose timm's name nearest to a configuration that it can build; the arguments say the rest."""
    if config.backbone:
        return HYBRID_NAMES[config.backbone.layers]
    if _has_clip_eps(config):
        return CLIP_NAME
    word = next((word for word, (width, _) in timm.SIZES.items() if width == config.width), "base")
    side = config.patch_size[0]
    return f"vit_{word}_patch{side}_224" if side in PATCHES.get(word, ()) else "vit_base_patch16_224"


def _unsupported_bit(config: ResNetConfig) -> Iterator[str]:
    """Name what timm's BiT cannot build."""
    yield from absent_from_libraries(config)
    if config.groups != GROUPS:
        yield f"groups {config.groups} (only {GROUPS})"
    if not _is_named(config) and (config.layers, 1) not in BIT_NAMES:
        yield f"a ResNet of {config.layers} units (only {', '.join(BIT_NAMES.values())})"


def _unsupported_vit(config: ViTConfig) -> Iterator[str]:
    """Name what timm's ViTs and hybrids cannot build."""
    storable = {key: table.PLAIN[key] for key in ("stem_channels", "position_at", "attention", "rotary")}
    storable |= {"position": ("learned", "none"), "pool": tuple(timm.POOLS.values())}
    yield from table.unsupported_values(config, storable)
    if config.norm_before_blocks and config.position != "learned":
        yield "a norm before the blocks without position embeddings (its patches would lose a bias)"
    if config.representation_size is not None:
        yield "a tanh layer before the head (load with head='new' to drop it)"
    if backbone := config.backbone:
        rows, columns = backbone.feature_map(config.image_size)
        if backbone.layers not in HYBRID_NAMES:
            yield f"a hybrid of {backbone.layers} units (only {', '.join(map(str, HYBRID_NAMES))})"
        if backbone.width_factor != 1:
            yield f"a hybrid's ResNet {backbone.width_factor:g} times as wide"
        if rows % config.patch_size[0] or columns % config.patch_size[1]:
            yield (
                f"a feature map of {format_size((rows, columns))} cut into {format_size(config.patch_size)}"
            )


def nearest_transform(rule: Preprocessing, mean: tuple[float, ...]) -> Preprocessing:
    """Return timm's evaluation transform that is nearest to a preprocessing of vitkit's."""
    size, resize, fraction = rule.image_size, rule.resize, rule.crop_fraction
    if resize == "stretch":
        return Preprocessing(size, interpolation=rule.interpolation)
    if resize in ("none", "crop"):
        fraction = 1.0 if resize == "none" else fraction_of(size[0], rule.resized(0))
        resize = "shortest"
    border = border_colour(mean) if resize == "longest" else (0, 0, 0)
    return Preprocessing(size, resize, fraction, interpolation=rule.interpolation, border=border)


def _lost_of_a_bit(config: ResNetConfig) -> list[str]:
    """Name the numerics that timm has no argument for."""
    return table.differences(
        "timm",
        ("GroupNorm's epsilon", config.norm_eps, timm.GROUP_NORM_EPS),
        ("weight standardisation's epsilon", config.standardization_eps, timm.STANDARDIZATION_EPS),
        ("max-pooling padded with", config.max_pool_padding, "zeros"),
    )


def _lost_of_a_vit(config: ViTConfig) -> Iterator[str]:
    """Name the numerics that timm has no argument for."""
    if config.backbone or not _has_clip_eps(config):
        yield from table.differences(
            "timm", (f"{NORM_NAMES[config.norm]}'s epsilon", config.norm_eps, timm.NORM_EPS)
        )
    if config.layer_scale == 0:
        yield f"layer scale that begins at 0 (timm: {timm.LAYER_SCALE})"
    if backbone := config.backbone:
        form = {"std": "w / (std + eps)", "variance": "w / sqrt(var + eps)"}
        yield from table.differences(
            "timm",
            ("GroupNorm's epsilon", backbone.norm_eps, timm.GROUP_NORM_EPS),
            ("weight standardisation", form[backbone.standardization], form["variance"]),
            ("weight standardisation's epsilon", backbone.standardization_eps, timm.STANDARDIZATION_EPS),
        )


HOLDINGS = {
    "ViT": table.Holding(partial(_write, _parts_of_a_vit), _unsupported_vit, _lost_of_a_vit),
    "ResNet": table.Holding(partial(_write, _parts_of_a_bit), _unsupported_bit, _lost_of_a_bit),
}

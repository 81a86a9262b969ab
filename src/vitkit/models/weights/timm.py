"""timm's layout: `model.safetensors` beside the `config.json` that `create_model("local-dir:FOLDER")` reads.

Read are its plain ViTs and DeiTs, the hybrids with a GroupNorm ResNet, and the BiT ResNets; also from the
tensors alone, where timm's usual arithmetic is assumed and `card.origin` says so. What timm has and we have
not is refused by name.

Facts: timm 1.0, `models/vision_transformer.py`, `vision_transformer_hybrid.py`, `resnetv2.py`.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from vitkit.durable import replace_file, replace_json
from vitkit.errors import VitkitError
from vitkit.models.card import ModelCard
from vitkit.models.image_model import ImageModel, by
from vitkit.models.resnet import BackboneConfig, ResNetConfig
from vitkit.models.vit import ViTConfig
from vitkit.models.weights.native import safetensors_chunks
from vitkit.models.weights.source import Source
from vitkit.models.weights.table import (
    PLAIN,
    Dialect,
    Hints,
    Row,
    Translation,
    departures,
    pair,
    same,
    to_theirs,
)
from vitkit.models.zoo import ModelConfig

NORM_EPS = 1e-6
"""Of timm's LayerNorm in ViTs."""
GROUP_NORM_EPS = 1e-5
STANDARDIZATION_EPS = 1e-8
"""In w / sqrt(var + eps), of hybrids and BiT."""
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

SIZES = {
    "tiny": (192, 3),
    "small": (384, 6),
    "medium": (512, 8),
    "betwixt": (640, 10),
    "base": (768, 12),
    "so150m": (896, 14),
    "large": (1024, 16),
    "so400m": (1152, 16),
    "huge": (1280, 16),
    "giant": (1408, 16),
    "giantopt": (1536, 16),
    "gigantic": (1664, 16),
}
"""Width and heads of the word in a name like vit_base_patch16_224."""
OTHER_HEADS = {"vit_base_patch16_gap_224": 16, "test_vit": 2}
"""Names that do not keep to the table."""
TANH_NAMES = re.compile(
    r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip_.*|vit_large_patch16_siglip_(gap_)?512"
)
"""Architectures whose GELU is the tanh form without being told; timm's default is the exact one."""
UNLIKE_NAMES = re.compile(r"rope|relpos|quickgelu|_xp_|naflex|samvit|radio")
"""Architectures whose arithmetic differs where their tensors may not."""

PLAIN_NAMES = (
    "vit_tiny_patch16_224",
    "vit_small_patch8_224",
    "vit_small_patch16_224",
    "vit_small_patch32_224",
    "vit_base_patch8_224",
    "vit_base_patch16_224",
    "vit_base_patch32_224",
    "vit_large_patch14_224",
    "vit_large_patch16_224",
    "vit_large_patch32_224",
    "vit_huge_patch14_224",
    "vit_giant_patch14_224",
    "vit_gigantic_patch14_224",
)
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

BACKBONE = "patch_embed.backbone."
"""Before the names of a hybrid's ResNet."""

POOLS: dict[str, Literal["token", "mean", "map", "none"]] = {
    "token": "token",
    "avg": "mean",
    "map": "map",
    "": "none",
}
GELUS: dict[str, Literal["erf", "tanh"]] = {"gelu": "erf", "gelu_tanh": "tanh"}

READ_ARGUMENTS = {
    *("img_size", "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "num_heads", "mlp_ratio"),
    *("class_token", "global_pool", "fc_norm", "no_embed_class", "reg_tokens", "pool_include_prefix"),
    *("act_layer", "norm_layer", "pos_embed", "qkv_bias", "final_norm", "proj_bias"),
    *("padding_same", "proj_drop_rate", "pos_drop_rate", "attn_drop_rate"),
}
"""`model_args` that are understood here, or show in the tensors' names and shapes."""
HARMLESS_ARGUMENTS = {
    *("drop_rate", "drop_path_rate", "patch_drop_rate", "weight_init", "fix_init", "zero_init_last"),
    *("dynamic_img_size", "dynamic_img_pad", "strict_img_size"),
}
"""Those that change nothing of what a trained model answers at its own size."""

UNKNOWN_PARTS = {
    "dist_token": "a distillation token",
    "head_dist": "a distillation head",
    "fc_norm": "a norm after the pooling (fc_norm)",
    "norm_pre": "a norm before the blocks (pre_norm)",
    "mask_token": "a mask token (DINOv2)",
    "ls1": "layer scale",
    "ls2": "layer scale",
    "gamma_1": "layer scale",
    "gamma_2": "layer scale",
    "q_norm": "norms of queries and keys (qk_norm)",
    "rope": "rotary position embeddings",
    "rel_pos": "relative position embeddings of another kind",
    "relative_position_bias_table": "relative position embeddings of another kind",
    "running_mean": "batch normalisation",
    "decoder_embed": "a decoder (MAE pre-training)",
}
"""Words in the names of tensors that stand for what we do not have."""


class Settings:
    """What `config.json` says, whatever its age; every question has an answer without one."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.known = isinstance(config.get("architecture"), str)
        config = config if self.known else {}
        self.architecture = str(config.get("architecture", "")).partition(".")[0]
        self.arguments: dict[str, Any] = dict(config.get("model_args") or {})
        # Old files are one flat dictionary.
        self.pretrained: Mapping[str, Any] = config.get("pretrained_cfg", config) or {}
        names = config.get("label_names") or self.pretrained.get("label_names") or config.get("labels") or ()
        self.class_names = tuple(str(name) for name in names) if isinstance(names, list) else ()
        self.global_pool = self.arguments.get("global_pool", config.get("global_pool"))

    @property
    def image_size(self) -> tuple[int, int] | None:
        input_size: list[int] = self.pretrained.get("input_size") or []
        size: int | list[int] = self.arguments.get("img_size") or input_size[1:]
        if isinstance(size, int):
            return size, size
        return (int(size[0]), int(size[1])) if len(size) == 2 else None

    @property
    def num_heads(self) -> int | None:
        """Of the architecture's name, unless the arguments say another number."""
        if "num_heads" in self.arguments:
            return int(self.arguments["num_heads"])
        if self.architecture in OTHER_HEADS:
            return OTHER_HEADS[self.architecture]
        words = self.architecture.split("_")
        named = len(words) > 1 and words[0] in ("vit", "deit", "flexivit") and words[1] in SIZES
        return SIZES[words[1]][1] if named else None

    @property
    def gelu(self) -> Literal["erf", "tanh"]:
        default = "gelu_tanh" if TANH_NAMES.fullmatch(self.architecture) else "gelu"
        name = self.arguments.get("act_layer") or default
        if name not in GELUS:
            raise VitkitError(
                f"timm's config.json: act_layer: known here are gelu, gelu_tanh, found {name!r}."
            )
        return GELUS[name]

    @property
    def dropouts(self) -> tuple[float, float]:
        """In the blocks and after the position embeddings: with us they are one number."""
        blocks, positions = (self.arguments.get(name) for name in ("proj_drop_rate", "pos_drop_rate"))
        return float(blocks or 0), float(positions or 0)

    def statistics(self, name: str, channels: int, default: tuple[float, ...]) -> tuple[float, ...]:
        """Mean or std, a value for each channel."""
        found = self.pretrained.get(name)
        values = tuple(float(value) for value in found) if found else default
        return values if len(values) == channels else (sum(values) / len(values),) * channels


def recognises(source: Source) -> bool:
    """By the names of a ViT's or a BiT's first tensors."""
    vit = "patch_embed.proj.weight" in source and any(key.startswith("blocks.0.") for key in source.shapes)
    return vit or ("stem.conv.weight" in source and "stages.0.blocks.0.conv1.weight" in source)


def read(source: Source, hints: Hints) -> Translation:
    """The model that config and tensors stand for.

    Raises:
        VitkitError: it has a part that ours has not; or what the tensors cannot tell was not given, the
            number of heads or the image size of a grid that is not square.
    """
    settings = Settings(source.config)
    _refuse(source, settings)
    if "stem.conv.weight" in source:
        return _read_bit(source, settings, hints)
    config = _vit_config(source, settings, hints)
    rows = vit_rows(config, qkv_bias="blocks.0.attn.qkv.bias" in source)
    return Translation(config, rows, _card(settings, config, source))


def _refuse(source: Source, settings: Settings) -> None:
    """Name what timm has and we have not."""
    found = {
        what: key for key in source.shapes for word, what in UNKNOWN_PARTS.items() if word in key.split(".")
    }
    if found:
        parts = "; ".join(f"{what}: {key}" for what, key in sorted(found.items()))
        raise VitkitError(f"{source.path}: this timm model has parts that ViTs here have not: {parts}.")
    if UNLIKE_NAMES.search(settings.architecture):
        raise VitkitError(
            f"{source.path}: {settings.architecture} computes something else with tensors of the same names: "
            "it is none of the architectures of timm that are read."
        )
    understood = READ_ARGUMENTS | HARMLESS_ARGUMENTS
    strange = {name: value for name, value in settings.arguments.items() if value and name not in understood}
    if settings.arguments.get("padding_same") is False:
        strange["padding_same"] = False
    if settings.arguments.get("norm_layer") not in (None, "layernorm", "layernormfp32"):
        strange["norm_layer"] = settings.arguments["norm_layer"]
    if settings.pretrained.get("label_offset"):
        strange["label_offset"] = settings.pretrained["label_offset"]
    if strange:
        listed = ", ".join(f"{name}={value!r}" for name, value in sorted(strange.items()))
        raise VitkitError(f"{source.path}: config.json asks for what models here do not have: {listed}.")


def _vit_config(source: Source, settings: Settings, hints: Hints) -> ViTConfig:
    shapes = source.shapes
    if len(shapes["patch_embed.proj.weight"]) != 4:
        raise VitkitError(
            f"{source.path}: patch_embed.proj.weight: expected a convolution's four axes, found "
            f"{shapes['patch_embed.proj.weight']}."
        )
    width, channels, *patch = shapes["patch_embed.proj.weight"]
    patch_size = (patch[0], patch[1])
    backbone = _backbone(source)
    if root := _hybrid_root(source):
        channels = shapes[root][1]
    pool, registers, include = _pooling(source, settings)
    prefix = (pool == "token") + registers
    if pool == "map" and prefix and not include:
        raise VitkitError(
            f"{source.path}: timm's attention pooling leaves out its {prefix} first tokens, ours sees all "
            "(timm: pool_include_prefix=True)."
        )
    image_size, inside = _image_size(source, settings, hints, prefix, patch_size, backbone)
    dropout, position_dropout = settings.dropouts
    mean, std = _default_statistics(settings)
    return ViTConfig(
        image_size=image_size,
        patch_size=patch_size,
        width=width,
        depth=_count(source, r"blocks\.(\d+)\."),
        num_heads=_num_heads(source, settings, hints, width),
        mlp_dim=shapes["blocks.0.mlp.fc1.weight"][0] if "blocks.0.mlp.fc1.weight" in source else 4 * width,
        num_classes=shapes["head.weight"][0] if "head.weight" in source else 0,
        in_channels=channels,
        backbone=backbone,
        pool=pool,
        register_tokens=registers,
        class_token_position=inside,
        position="learned" if "pos_embed" in source else "none",
        representation_size=shapes["pre_logits.fc.bias"][0] if "pre_logits.fc.bias" in source else None,
        dropout=dropout if dropout == position_dropout else 0.0,
        attention_dropout=float(settings.arguments.get("attn_drop_rate") or 0),
        gelu=settings.gelu,
        norm_eps=NORM_EPS,
        image_mean=settings.statistics("mean", channels, mean),
        image_std=settings.statistics("std", channels, std),
    )


def _default_statistics(settings: Settings) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Where nothing is said: timm's own default beside a config, that of its ViTs and BiTs without."""
    return (IMAGENET_MEAN, IMAGENET_STD) if settings.known else ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def _pooling(source: Source, settings: Settings) -> tuple[Literal["token", "mean", "map", "none"], int, bool]:
    """What the head sees, the register tokens, and whether a pooling over tokens sees these as well."""
    class_token = "cls_token" in source
    usual = "map" if "attn_pool.latent" in source else "token" if class_token else "avg"
    name = usual if settings.global_pool is None else settings.global_pool
    include = bool(settings.arguments.get("pool_include_prefix"))
    other = name not in POOLS or class_token != (name == "token")
    if other or (include and name == "avg"):
        token = "a class token" if class_token else "no class token"
        also = ", which the pooling includes" if include else ""
        raise VitkitError(
            f"{source.path}: global_pool {name!r} with {token}{also}: known here are 'token' with a class "
            "token, 'avg', 'map' and '' without."
        )
    registers = source.shapes["reg_token"][1] if "reg_token" in source else 0
    return POOLS[name], registers, include


def _num_heads(source: Source, settings: Settings, hints: Hints, width: int) -> int:
    heads = hints.num_heads or settings.num_heads
    if heads:
        return heads
    where = f"nor does config.json for '{settings.architecture}'" if settings.known else "and no config.json"
    usual = f" The usual answer: num_heads={width // 64}, 64 numbers each." if width % 64 == 0 else ""
    raise VitkitError(
        f"{source.path}: its tensors do not say how many attention heads share the width of {width}, "
        f"{where}: give num_heads.{usual}"
    )


def _image_size(
    source: Source,
    settings: Settings,
    hints: Hints,
    prefix: int,
    patch: tuple[int, int],
    backbone: BackboneConfig | None,
) -> tuple[tuple[int, int], bool]:
    """The size that the position embeddings are for, and whether the `prefix` tokens have one, too."""
    given = [size for size in (settings.image_size, hints.image_size) if size]
    if "pos_embed" not in source:
        if given:
            return given[0], True
        raise VitkitError(
            f"{source.path}: no position embeddings tell its image size: give image_size. The usual: 224."
        )
    count = source.shapes["pos_embed"][1]
    for height, width in given:
        rows, columns = backbone.feature_map((height, width)) if backbone else (height, width)
        patches = (rows // patch[0]) * (columns // patch[1])
        if count - patches in (0, prefix):
            return (height, width), count - patches == prefix
    stride = backbone.stride if backbone else 1
    found = []
    for before in {prefix, 0}:
        side = math.isqrt(max(count - before, 0))
        if side and side * side == count - before:
            found.append(((side * patch[0] * stride, side * patch[1] * stride), before == prefix))
    if len(found) != 1:
        raise VitkitError(
            f"{source.path}: its {count} position embeddings, for {prefix} tokens before the patches, are no "
            "one square grid: give the image size they were made for, image_size=(height, width)."
        )
    return found[0]


def _backbone(source: Source) -> BackboneConfig | None:
    """The hybrid's ResNet, with timm's arithmetic; its channels show in the root."""
    root = _hybrid_root(source)
    if root is None:
        if any(key.startswith(BACKBONE) for key in source.shapes):
            raise VitkitError(
                f"{source.path}: its convolutions before the Transformer are no ResNet with GroupNorm: of "
                f"timm's hybrids these are read: {', '.join(HYBRID_NAMES.values())}, ..."
            )
        return None
    return BackboneConfig(
        _layers(source, f"{BACKBONE}stages."),
        source.shapes[root][0] / 64,
        GROUP_NORM_EPS,
        "variance",
        STANDARDIZATION_EPS,
    )


def _hybrid_root(source: Source) -> str | None:
    """The first convolution of a hybrid."""
    names = (f"{BACKBONE}stem.conv.weight", f"{BACKBONE}conv.weight")
    return next((name for name in names if name in source), None)


def _layers(source: Source, start: str) -> tuple[int, ...]:
    """Units of each stage of a ResNet."""
    stages = _count(source, rf"{re.escape(start)}(\d+)\.")
    return tuple(_count(source, rf"{re.escape(start)}{s}\.blocks\.(\d+)\.") for s in range(stages))


def _count(source: Source, pattern: str) -> int:
    """How many different numbers stand at this place of the names."""
    matcher = re.compile(pattern)
    return len({match[1] for key in source.shapes if (match := matcher.match(key))})


def _read_bit(source: Source, settings: Settings, hints: Hints) -> Translation:
    if settings.known and not re.fullmatch(r"resnetv2_\d+x\d+_bit(m?.*)", settings.architecture):
        raise VitkitError(
            f"{source.path}: {settings.architecture} is no BiT: of timm's ResNets those named "
            "resnetv2_50x1_bit and so on are read."
        )
    if settings.global_pool not in (None, "avg"):
        raise VitkitError(f"{source.path}: global_pool: BiT's is 'avg', found {settings.global_pool!r}.")
    size = settings.image_size or hints.image_size
    if size is None:
        raise VitkitError(
            f"{source.path}: the tensors of a ResNet do not tell its image size: give image_size. The usual: "
            "224, and 448 where it was fine-tuned on ImageNet."
        )
    root = source.shapes["stem.conv.weight"]
    mean, std = _default_statistics(settings)
    config = ResNetConfig(
        size,
        _layers(source, "stages."),
        num_classes=source.shapes["head.fc.weight"][0] if "head.fc.weight" in source else 0,
        width_factor=root[0] / 64,
        in_channels=root[1],
        norm_eps=GROUP_NORM_EPS,
        standardization_eps=STANDARDIZATION_EPS,
        max_pool_padding="zeros",
        image_mean=settings.statistics("mean", root[1], mean),
        image_std=settings.statistics("std", root[1], std),
    )
    return Translation(config, bit_rows(config), _card(settings, config, source))


def _card(settings: Settings, config: ModelConfig, source: Source) -> ModelCard:
    """Class names, preprocessing, and what had to be assumed."""
    notes = []
    if not settings.known:
        notes.append(
            "no config.json: timm's usual arithmetic (exact GELU, its epsilons), pixel mean and std 0.5"
        )
    elif isinstance(config, ViTConfig) and settings.num_heads is None:
        notes.append(f"architecture '{settings.architecture}' is not known: timm's usual arithmetic")
    found = settings.pretrained.get("mean")
    if found and len(found) != config.in_channels:
        notes.append(f"pixel mean and std were given for {len(found)} channels: their average is taken")
    if len({*settings.dropouts}) > 1:
        notes.append("dropout of two different rates, in the blocks and after the positions: left out")
    names = settings.class_names
    if names and len(names) != config.num_classes:
        notes.append(f"{len(names)} class names for {config.num_classes} classes: left out")
        names = ()
    preprocessing, more = (
        _preprocessing(settings.pretrained, config.image_size) if settings.known else ({}, [])
    )
    origin: dict[str, Any] = {"architecture": settings.architecture} if settings.known else {}
    tag = settings.pretrained.get("tag")
    if tag:
        origin["tag"] = str(tag)
    if notes + more:
        origin["notes"] = notes + more
    return ModelCard(class_names=names, preprocessing=preprocessing, origin=origin)


def _preprocessing(pretrained: Mapping[str, Any], size: tuple[int, int]) -> tuple[dict[str, Any], list[str]]:
    """The fields of our `Preprocessing`, and what of timm's evaluation they cannot say."""
    fraction = float(pretrained.get("crop_pct") or 0.875)
    mode = pretrained.get("crop_mode", "center")
    notes = []
    interpolation = pretrained.get("interpolation", "bicubic")
    if interpolation != "bilinear":
        notes.append(f"timm resizes images by {interpolation} interpolation, vitkit by bilinear")
    if mode == "squash" and fraction == 1:
        return {"image_size": list(size), "resize": "stretch"}, notes
    if mode != "center" or fraction > 1:
        return {}, [f"preprocessing is not that of timm: crop_mode {mode!r}, crop_pct {fraction}"]
    resized = math.floor(
        size[0] / fraction
    )  # timm rounds down, we to the nearest: the same with this fraction
    return {"image_size": list(size), "resize": "crop", "crop_fraction": size[0] / resized}, notes


def write(model: ImageModel, path: Path) -> Path:
    """Write a folder that `timm.create_model("local-dir:FOLDER", pretrained=True)` loads.

    Raises:
        VitkitError: the folder holds a model of our own format.
    """
    config = model.config
    if isinstance(config, ResNetConfig):
        arguments, rows = _shared_arguments(config), bit_rows(config)
        first, head = "stem.conv", "head.fc"
    else:
        arguments, rows = _vit_arguments(config), vit_rows(config)
        root = next(row.theirs[0] for row in rows if row.ours in ("stem.root.weight", "stem.weight"))
        first, head = root.removesuffix(".weight"), "head"
    pretrained: dict[str, Any] = {
        "custom_load": False,
        "input_size": [config.in_channels, *config.image_size],
        "fixed_input_size": isinstance(config, ViTConfig),
        **_crop(model.card.preprocessing, config.image_size),
        "mean": list(config.image_mean),
        "std": list(config.image_std),
        "num_classes": config.num_classes,
        "pool_size": None,
        "first_conv": first,
        "classifier": head,
    }
    description = {
        "architecture": _architecture(config),
        "num_classes": config.num_classes,
        "num_features": config.width,
        "global_pool": arguments["global_pool"],
        **({"label_names": list(model.card.class_names)} if model.card.class_names else {}),
        "model_args": arguments,
        "pretrained_cfg": pretrained,
    }
    if (path / "model.json").exists():
        raise VitkitError(
            f"{path} holds a model of vitkit's own format, which this would overwrite: name another."
        )
    path.mkdir(parents=True, exist_ok=True)
    replace_file(path / "model.safetensors", safetensors_chunks(to_theirs(model.state_dict(), rows)))
    replace_json(path / "config.json", description)
    return path


def _shared_arguments(config: ResNetConfig | ViTConfig) -> dict[str, Any]:
    return {"in_chans": config.in_channels, "num_classes": config.num_classes, "global_pool": "avg"}


def _vit_arguments(config: ViTConfig) -> dict[str, Any]:
    """`model_args`: everything, so that nothing depends on the architecture's name."""
    return {
        **_shared_arguments(config),
        "img_size": list(config.image_size),
        "patch_size": list(config.patch_size),
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "mlp_ratio": _ratio(config.mlp_dim, config.width),
        "class_token": config.class_token,
        "global_pool": next(theirs for theirs, ours in POOLS.items() if ours == config.pool),
        "fc_norm": False,
        "reg_tokens": config.register_tokens,
        "no_embed_class": not config.class_token_position,
        **({"pool_include_prefix": True} if config.pool == "map" and config.register_tokens else {}),
        "pos_embed": "learn" if config.position == "learned" else "none",
        "act_layer": next(theirs for theirs, ours in GELUS.items() if ours == config.gelu),
        "pos_drop_rate": config.dropout,
        "proj_drop_rate": config.dropout,
        "attn_drop_rate": config.attention_dropout,
    }


def _ratio(mlp_dim: int, width: int) -> float:
    """A number whose product with the width timm cuts off to exactly `mlp_dim`."""
    ratio = mlp_dim / width
    return ratio if int(width * ratio) == mlp_dim else (mlp_dim + 0.5) / width


def _architecture(config: ModelConfig) -> str:
    """timm's name nearest to a configuration that it can build; the arguments say the rest."""
    if isinstance(config, ResNetConfig):
        return BIT_NAMES[config.layers, int(config.width_factor)]
    if config.backbone:
        return HYBRID_NAMES[config.backbone.layers]
    word = next((word for word, (width, _) in SIZES.items() if width == config.width), "base")
    name = f"vit_{word}_patch{config.patch_size[0]}_224"
    return name if name in PLAIN_NAMES else "vit_base_patch16_224"


def absent(config: ModelConfig) -> list[str]:
    """What timm cannot build."""
    if isinstance(config, ResNetConfig):
        named = (config.layers, int(config.width_factor)) in BIT_NAMES and config.width_factor % 1 == 0
        if named and config.mixing == "convolution":
            return []
        what = f"a ResNet of {config.layers} units, {config.width_factor:g} times as wide, {config.mixing}"
        return [f"{what} (only {', '.join(BIT_NAMES.values())})"]
    known = {key: PLAIN[key] for key in ("position_at", "attention")}
    words = departures(config, {**known, "position": ("learned", "none")})
    if config.representation_size is not None:
        words.append("a tanh layer before the head (load with head='new' to drop it)")
    backbone = config.backbone
    if backbone:
        rows, columns = backbone.feature_map(config.image_size)
        if backbone.layers not in HYBRID_NAMES:
            words.append(f"a hybrid of {backbone.layers} units (only {', '.join(map(str, HYBRID_NAMES))})")
        if backbone.width_factor != 1:
            words.append(f"a hybrid's ResNet {backbone.width_factor:g} times as wide")
        if rows % config.patch_size[0] or columns % config.patch_size[1]:
            words.append(f"a feature map of {by((rows, columns))} cut into {by(config.patch_size)}")
    return words


def _crop(preprocessing: Mapping[str, Any], size: tuple[int, int]) -> dict[str, Any]:
    """timm's evaluation transform for our `Preprocessing`; ours is bilinear, whatever else."""
    if preprocessing.get("resize", "stretch") == "stretch":
        return {"interpolation": "bilinear", "crop_mode": "squash", "crop_pct": 1.0}
    fraction = float(preprocessing.get("crop_fraction", 0.875))
    resized = round(size[0] / fraction)
    if math.floor(size[0] / fraction) != resized:  # timm rounds down, we to the nearest
        fraction = size[0] / (resized + 0.25)
    return {"interpolation": "bilinear", "crop_mode": "center", "crop_pct": fraction}


def unsaid(config: ModelConfig) -> list[str]:
    """Arithmetic that timm has no argument for."""
    words: list[str] = []

    def check(what: str, ours: object, theirs: object) -> None:
        if ours != theirs:
            words.append(f"{what} {ours} (timm: {theirs})")

    if isinstance(config, ResNetConfig):
        check("GroupNorm's epsilon", config.norm_eps, GROUP_NORM_EPS)
        check("weight standardisation's epsilon", config.standardization_eps, STANDARDIZATION_EPS)
        check("max-pooling padded with", config.max_pool_padding, "zeros")
        return words
    check("LayerNorm's epsilon", config.norm_eps, NORM_EPS)
    if config.backbone:
        form = {"std": "w / (std + eps)", "variance": "w / sqrt(var + eps)"}
        check("GroupNorm's epsilon", config.backbone.norm_eps, GROUP_NORM_EPS)
        check("weight standardisation", form[config.backbone.standardization], form["variance"])
        check("weight standardisation's epsilon", config.backbone.standardization_eps, STANDARDIZATION_EPS)
    return words


DIALECT = Dialect("timm", recognises, read, write, absent, unsaid)


def vit_rows(config: ViTConfig, qkv_bias: bool = True) -> list[Row]:
    """Every parameter of a ViT or hybrid of `config` and where timm keeps it.

    Without `qkv_bias` the file has no biases of queries, keys and values: zeros, which is the same.
    """
    rows: list[Row] = []
    if config.backbone:
        rows += _hybrid_rows(config.backbone)
    rows += pair("stem.projection" if config.backbone else "stem", "patch_embed.proj")
    if config.class_token:
        rows.append(same("class_token", "cls_token"))
    if config.register_tokens:
        rows.append(same("register_tokens", "reg_token"))
    if config.position == "learned":
        rows.append(same("positions.0.embedding", "pos_embed"))
    for i in range(config.depth):
        block = f"blocks.{i}"
        rows += pair(f"{block}.norm1", f"{block}.norm1")
        rows.append(same(f"{block}.attention.qkv.weight", f"{block}.attn.qkv.weight"))
        if qkv_bias:
            rows.append(same(f"{block}.attention.qkv.bias", f"{block}.attn.qkv.bias"))
        else:
            rows.append(Row(f"{block}.attention.qkv.bias", (f"{block}.attn.qkv.weight",), _zeros))
        rows += pair(f"{block}.attention.out", f"{block}.attn.proj")
        rows += pair(f"{block}.norm2", f"{block}.norm2")
        rows += pair(f"{block}.mlp.fc1", f"{block}.mlp.fc1")
        rows += pair(f"{block}.mlp.fc2", f"{block}.mlp.fc2")
    rows += pair("norm", "norm")
    if config.pool == "map":
        rows += _attention_pool_rows()
    if config.representation_size:
        rows += pair("pre_logits", "pre_logits.fc")
    return rows + (pair("head", "head") if config.num_classes else [])


def _attention_pool_rows() -> list[Row]:
    """timm keeps the query's projection apart from that of keys and values."""
    ours, theirs = "attention_pool", "attn_pool"
    rows = [same(f"{ours}.probe", f"{theirs}.latent")]
    for part in ("weight", "bias"):
        names = (f"{theirs}.q.{part}", f"{theirs}.kv.{part}")
        rows.append(Row(f"{ours}.attention.qkv.{part}", names, torch.cat, _query_and_rest))
    rows += pair(f"{ours}.attention.out", f"{theirs}.proj") + pair(f"{ours}.norm", f"{theirs}.norm")
    return rows + pair(f"{ours}.mlp.fc1", f"{theirs}.mlp.fc1") + pair(f"{ours}.mlp.fc2", f"{theirs}.mlp.fc2")


def _zeros(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The bias that a layer of this weight does without."""
    return tensors[0].new_zeros(len(tensors[0]))


def _query_and_rest(qkv: torch.Tensor) -> list[torch.Tensor]:
    width = len(qkv) // 3
    return [qkv[:width], qkv[width:]]


def _unit_rows(ours: str, theirs: str, projects: bool, normed: bool) -> list[Row]:
    """A bottleneck; its projection is `downsample` in timm, with a norm in hybrids alone."""
    rows: list[Row] = []
    for number in (1, 2, 3):
        rows.append(same(f"{ours}.conv{number}.weight", f"{theirs}.conv{number}.weight"))
        rows += pair(f"{ours}.norm{number}", f"{theirs}.norm{number}")
    if projects:
        rows.append(same(f"{ours}.proj.weight", f"{theirs}.downsample.conv.weight"))
        if normed:
            rows += pair(f"{ours}.proj_norm", f"{theirs}.downsample.norm")
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
    rows = [same("stem.root.weight", f"{root}conv.weight"), *pair("stem.root_norm", f"{root}norm")]
    return rows + _stage_rows("stem.", BACKBONE, backbone.layers, normed=True)


def bit_rows(config: ResNetConfig) -> list[Row]:
    """Every parameter of a BiT ResNet and where timm keeps it; its head is a 1x1 convolution there."""
    rows = [same("root.weight", "stem.conv.weight"), *_stage_rows("", "", config.layers, normed=False)]
    rows += pair("norm", "norm")
    if config.num_classes:
        rows += [
            Row(
                "head.weight",
                ("head.fc.weight",),  # (K, C, 1, 1)
                lambda tensors: tensors[0].flatten(1),
                lambda tensor: [tensor[:, :, None, None]],
            ),
            same("head.bias", "head.fc.bias"),
        ]
    return rows

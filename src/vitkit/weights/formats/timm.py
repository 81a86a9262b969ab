"""timm's format: `model.safetensors` next to the `config.json` that `create_model("local-dir:FOLDER")` reads.

Its ViTs and DeiTs are read (CLIP's, SigLIP's, DINOv2's, DINOv3's and MAE's among them), EVA, EVA-02, BEiT and
most of the Perception Encoder, the hybrids with a GroupNorm ResNet, and the BiT ResNets; also from the
tensors alone, where timm's usual arithmetic is assumed and `card.origin` says so. Parts that vitkit lacks are
refused by name: distillation tokens, parallel blocks, other relative and learned rotary positions.

From top to bottom: where timm keeps every parameter; its settings, in `config.json`, in the form of its hub,
in older flat ones, or none at all; writing; reading.

Facts: timm 1.0, `models/vision_transformer.py`, `vision_transformer_hybrid.py`, `eva.py`, `resnetv2.py`.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vitkit.data.config import Interpolation, Preprocessing, Resize
from vitkit.errors import VitkitError
from vitkit.models import config as models
from vitkit.models.config import GROUPS, NORM_NAMES, BackboneConfig, PoolKind, ResNetConfig, ViTConfig
from vitkit.models.image_model import ImageModel
from vitkit.text import format_size
from vitkit.weights import model_card, table
from vitkit.weights.files.source import Source, read_fields, write_folder
from vitkit.weights.formats.official import absent_from_libraries, has_usual_channels, with_channels

BACKBONE = "patch_embed.backbone."
"""Before the names of a hybrid's ResNet."""
UNIT = {
    **{part: part for part in ("conv1", "norm1", "conv2", "norm2", "conv3", "norm3")},
    "proj": "downsample.conv",
    "proj_norm": "downsample.norm",  # in hybrids alone
}
"""The layers of a bottleneck, and timm's names for them."""
NAMES: table.Names = {
    "stem": "patch_embed.proj",
    "stem.projection": "patch_embed.proj",
    "stem.root": f"{BACKBONE}stem.conv",
    "stem.root_norm": f"{BACKBONE}stem.norm",
    **{f"stem.stages.{part}": f"{BACKBONE}stages.#.blocks.#.{name}" for part, name in UNIT.items()},
    "class_token": "cls_token",
    "register_tokens": "reg_token",
    "positions.embedding": "pos_embed",
    "blocks.norm1": "blocks.#.norm1",
    "blocks.attention.qkv": "blocks.#.attn.qkv",
    "blocks.attention.q_norm": "blocks.#.attn.q_norm",
    "blocks.attention.k_norm": "blocks.#.attn.k_norm",
    "blocks.attention.relative_bias": "blocks.#.attn.relative_position_bias_table",
    "blocks.attention.out": "blocks.#.attn.proj",
    "blocks.attention_scale": "blocks.#.ls1.gamma",
    "blocks.norm2": "blocks.#.norm2",
    "blocks.mlp.fc1": "blocks.#.mlp.fc1",
    "blocks.mlp.norm": "blocks.#.mlp.norm",
    "blocks.mlp.fc2": "blocks.#.mlp.fc2",
    "blocks.mlp_scale": "blocks.#.ls2.gamma",
    "pre_norm": "norm_pre",
    "norm": "norm",
    "pooling.probe": "attn_pool.latent",
    "pooling.attention.out": "attn_pool.proj",
    "pooling.norm": "attn_pool.norm",
    "pooling.mlp.fc1": "attn_pool.mlp.fc1",
    "pooling.mlp.fc2": "attn_pool.mlp.fc2",
    "pre_logits": "pre_logits.fc",
    "head": "head",
}
"""The parts of ViTs and hybrids, and timm's names for them."""
APART = "blocks.#.attn.q_proj blocks.#.attn.k_proj blocks.#.attn.v_proj"
"""Queries, keys and values of timm's class Eva where each has a layer, that of the keys without a bias."""
GATES = "blocks.#.mlp.fc1_g blocks.#.mlp.fc1_x"
"""Gates and values of gated MLPs where they are two layers."""


def vit_rows(
    config: ViTConfig,
    names: table.Names = NAMES,
    unbiased: Collection[str] = (),
    special: Iterable[table.Row] = (),
) -> list[table.Row]:
    """Pair every parameter of a ViT or hybrid with the tensors where timm keeps it, as `table.named_rows`."""
    names = dict(names)
    if config.norm_after_pooling:
        names["norm"] = "fc_norm"
    if config.backbone and not config.backbone.layers:
        names |= {"stem.root": f"{BACKBONE}conv", "stem.root_norm": f"{BACKBONE}norm"}
    pooling = [  # timm keeps the query's projection apart from the others
        table.Row(
            f"pooling.attention.qkv.{kind}",
            (f"attn_pool.q.{kind}", f"attn_pool.kv.{kind}"),
            torch.cat,
            lambda qkv: [*qkv.tensor_split([len(qkv) // 3])],
        )
        for kind in (("weight", "bias") if config.pool == "map" else ())
    ]
    return table.named_rows(config, names, unbiased, [*special, *pooling])


def bit_rows(config: ResNetConfig) -> list[table.Row]:
    """List every parameter of a BiT ResNet with its name in timm, where the head is a 1x1 convolution."""
    names = {"root": "stem.conv", "norm": "norm", "head": "head.fc"}
    names |= {f"stages.{part}": f"stages.#.blocks.#.{name}" for part, name in UNIT.items()}
    head = table.Row(
        "head.weight",
        ("head.fc.weight",),  # (K, C, 1, 1)
        lambda tensors: tensors[0].flatten(1),
        lambda tensor: [tensor[:, :, None, None]],
    )
    return table.named_rows(config, names, special=[head] if config.num_classes else [])


NORM_EPS = 1e-6
"""Epsilon of timm's LayerNorm in ViTs."""
CLIP_NORM_EPS = 1e-5
"""Epsilon of LayerNorm in ViTs with CLIP in their name, which no argument in a file can choose."""
LAYER_SCALE = 1e-5
"""First value of layer scale where no argument says it: it matters to new weights alone."""
GROUP_NORM_EPS = 1e-5
"""Epsilon of GroupNorm in hybrids and ResNets; in transformers' BiT too, as the next (`modeling_bit.py`)."""
STANDARDIZATION_EPS = 1e-8
"""In w / sqrt(var + eps), of hybrids and BiT."""

SIZES = {
    "tiny": (192, 3),
    "wee": (256, 4),
    "little": (320, 5),
    "small": (384, 6),
    "medium": (512, 8),
    "mediumd": (512, 8),
    "betwixt": (640, 10),
    "base": (768, 12),
    "so150m2": (832, 13),
    "so150m": (896, 14),
    "large": (1024, 16),
    "so400m": (1152, 16),
    "huge": (1280, 16),
    "giant": (1408, 16),
    "giantopt": (1536, 16),
    "gigantic": (1664, 16),
}
"""Width and heads of the word in a name like vit_base_patch16_224."""
OTHER_SIZES: tuple[tuple[str, tuple[int, int]], ...] = (
    (r"vit_base_patch16_gap_224", (768, 16)),
    (r"vit_base_patch\d+_plus_.*", (896, 14)),
    (r"vit_giant_patch(14_(dinov2|reg4_dinov2|reg1_tipsv2)|16_lingbot)", (1536, 24)),
    (r"vit_huge_plus_patch16_dinov3.*", (1280, 20)),
    (r"vit_7b_patch16_dinov3", (4096, 32)),
    (r"test_vit\d*", (64, 2)),
)
"""Names that do not follow the table."""
SIZED = re.compile(
    r"(?:vit(?:_pe_(?:core|lang|spatial))?|deit3?|flexivit|eva(?:02)?|beit(?:v2)?)_([a-z0-9]+)(?:_.*)?"
)
"""Names that do, with the word."""
UNBIASED_NAMES = re.compile(
    r"vit_base_patch16_224_miil|vit_(medium|betwixt)_patch16_gap_\d+|vit_so150m2_.*|vit_base_patch16_rpn_224"
)
"""Architectures without biases of queries, keys and values where `qkv_bias` is absent; others have them."""
TANH_NAMES = re.compile(
    r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip_.*|vit_large_patch16_siglip_(gap_)?512"
)
"""Architectures whose GELU is the tanh form where `act_layer` is absent; timm's default is the exact one."""

ROTARY: tuple[tuple[str, models.RotaryConfig], ...] = (
    (r"vit_\w+_patch16_(dinov3|dinov3_qkvb|lingbot)", models.DINOV3_ROTARY),
    (r"eva02_(tiny|small|base|large)_patch14_\d+", models.EVA02_ROTARY),
    (r"vit_(small|base|large)_patch16_rope(_ape)?_224", models.ROPE_VIT_ROTARY),
    (r"vit_\w+_patch16_rope_reg\d_gap_256", models.EVA02_ROTARY),
)
"""Architectures with rotary positions, of timm's class Eva."""
PERCEPTION = re.compile(r"vit_pe_(core|lang|spatial)_(tiny|small|base|large)_patch(\d+)_(\d+)")
"""The Perception Encoder, of that class too; its largest models have attention pooling of another width."""
PERCEPTION_POOL_HEADS = 8
EVA_NAMES = re.compile(r"eva_giant_.*|beit(v2)?_.*")
"""Architectures of timm's classes Eva and Beit without rotary positions. Other names of Eva are refused."""
PACKED_NAMES = re.compile(
    r"vit_giant_patch14_(dinov2|reg4_dinov2|reg1_tipsv2)|eva02_(tiny|small)_patch14_\d+"
)
"""Architectures with a SwiGLU of one layer for gates and values; of others nothing says what gates what."""

POOLS: dict[str, PoolKind] = {"token": "token", "avg": "mean", "max": "max", "map": "map", "": "none"}
GELUS: dict[str, models.Gelu] = {
    "gelu": "erf",
    "gelu_tanh": "tanh",
    "quick_gelu": "quick",
    "quickgelu": "quick",
}
CROP_MODES: dict[str, Resize] = {"center": "shortest", "squash": "squash", "border": "longest"}
NORMS: dict[str, models.NormKind] = {"layernorm": "layer", "rmsnorm": "rms"}
"""Values of `norm_layer`; norms of other names are refused."""


@dataclass(frozen=True)
class ModelArguments:
    """The fields of `model_args` that are read, with timm's defaults; None: the architecture decides."""

    img_size: int | tuple[int, int] | None = None
    embed_dim: int | None = None
    num_heads: int | None = None
    global_pool: str | None = None
    pool_include_prefix: bool = False
    pos_embed: str | bool = "learn"
    qkv_bias: bool | None = None
    act_layer: str | None = None
    init_values: float | None = None
    norm_layer: str | None = None
    qk_norm: bool = False
    final_norm: bool = True
    padding_same: bool = True
    proj_drop_rate: float = 0.0
    pos_drop_rate: float = 0.0
    attn_drop_rate: float = 0.0
    drop_path_rate: float = 0.0


@dataclass(frozen=True)
class PretrainedFields:
    """The fields of `pretrained_cfg` that are read, with timm's defaults."""

    input_size: tuple[int, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    interpolation: Interpolation = "bicubic"
    crop_pct: float = 0.0
    """0 is 0.875, as in timm."""
    crop_mode: Literal["center", "squash", "border"] = "center"
    label_offset: int = 0
    label_names: Any = None
    tag: str = ""


@dataclass(frozen=True)
class TopFields(PretrainedFields):
    """The fields at the top of `config.json` that are read: an old file is one flat object."""

    architecture: str = ""
    model_args: Mapping[str, Any] = field(default_factory=dict)
    pretrained_cfg: Mapping[str, Any] | None = None
    global_pool: str | None = None
    labels: Any = None


class Settings:
    """The fields of a timm `config.json` of any age; every field has a value when there is no such file.

    Raises:
        VitkitError: a value of another type than timm's.
    """

    def __init__(self, source: Source) -> None:
        self.where = source.path.with_name("config.json")
        self.has_config = source.config.get("architecture") is not None
        config = source.config if self.has_config else {}
        fields = read_fields(TopFields, config, str(self.where))
        self.architecture = fields.architecture.partition(".")[0]
        self.values = fields.model_args
        """All of `model_args` as they stand there."""
        self.arguments = read_fields(ModelArguments, fields.model_args, f"{self.where}: model_args")
        self.pretrained: PretrainedFields = fields
        if fields.pretrained_cfg is not None:
            where = f"{self.where}: pretrained_cfg"
            self.pretrained = read_fields(PretrainedFields, fields.pretrained_cfg, where)
        names = fields.label_names or self.pretrained.label_names or fields.labels
        self.class_names = tuple(str(name) for name in names) if isinstance(names, list) else ()
        arguments, pretrained_cfg = self.arguments, self.pretrained
        pool = arguments.global_pool
        self.global_pool = fields.global_pool if pool is None else pool
        if (crop_fraction := pretrained_cfg.crop_pct) and crop_fraction < 0.01:
            raise VitkitError(
                f"{self.where}: crop_pct: a fraction of the image was expected, found {crop_fraction}."
            )
        size = arguments.img_size or pretrained_cfg.input_size[1:]
        is_size = isinstance(size, int) or len(size) == 2
        self.image_size = models.height_and_width(size) if is_size else None  # type: ignore[arg-type]
        others = (size for pattern, size in OTHER_SIZES if re.fullmatch(pattern, self.architecture))
        named = SIZED.fullmatch(self.architecture)
        self.named_size = next(others, SIZES.get(named[1]) if named else None)
        """The width and heads that the architecture's name stands for."""
        self.num_heads = arguments.num_heads
        """The number in the architecture's name, unless the arguments have another."""
        if self.num_heads is None and self.named_size:
            self.num_heads = self.named_size[1]
        kinds = (kind for pattern, kind in ROTARY if re.fullmatch(pattern, self.architecture))
        self.rotary = next(kinds, None)
        """Rotary positions, by the architecture's name alone."""
        self.final_norm = arguments.final_norm
        self.perception = PERCEPTION.fullmatch(self.architecture)
        if self.perception:
            kind, _, patch, side = self.perception.groups()
            self.rotary = replace(models.PE_ROTARY, reference_grid=(int(side) // int(patch),) * 2)
            self.final_norm = self.final_norm and kind == "core"
        self.is_eva = self.rotary is not None or EVA_NAMES.fullmatch(self.architecture) is not None
        """Whether it is of timm's classes Eva or Beit, whose parts their tensors show."""
        # timm takes names of norms in any spelling, with "fp32" for what is the rule here.
        norm = (arguments.norm_layer or "layernorm").replace("_", "").lower()
        self.norm = NORMS.get(norm.removesuffix("fp32"))

    @property
    def gelu(self) -> models.Gelu:
        default = "gelu_tanh" if TANH_NAMES.fullmatch(self.architecture) else "gelu"
        if "_quickgelu_" in self.architecture:
            default = "quick_gelu"
        name = self.arguments.act_layer or default
        if name not in GELUS:
            names = "gelu, gelu_tanh, quick_gelu"
            raise VitkitError(f"{self.where}: act_layer: expected one of {names}, found {name!r}.")
        return GELUS[name]

    def norm_eps(self, source: Source) -> float:
        """Epsilon of every LayerNorm: by the architecture's name; without one, CLIP shows in its norm_pre."""
        if self.rotary == models.DINOV3_ROTARY or self.perception:
            return CLIP_NORM_EPS
        if self.is_eva:
            return NORM_EPS
        clip = "_clip_" in self.architecture if self.has_config else "norm_pre.weight" in source
        return CLIP_NORM_EPS if clip and self.arguments.norm_layer is None else NORM_EPS

    def pixel_rule(self, size: tuple[int, int], mean: tuple[float, ...]) -> Preprocessing:
        """Return timm's evaluation transform (`data/transforms_factory.py`).

        Without a config it is as for timm's own ViTs: crop_pct 0.9 at 224 pixels and 1 above, bicubic.
        """
        if not self.has_config:
            fraction = 0.9 if max(size) <= 224 else 1.0
            return Preprocessing(size, "shortest", fraction, interpolation="bicubic")
        fields = self.pretrained
        resize, fraction = CROP_MODES[fields.crop_mode], fields.crop_pct or 0.875
        return transform(size, resize, fraction, fields.interpolation, mean)

    def statistics(self, channels: int) -> tuple[tuple[float, ...], ...]:
        """Return mean and std of pixels, a value for each channel.

        timm's defaults are its general ones beside a config, else its ViTs' and BiTs'.
        """
        defaults = (table.IMAGENET_MEAN, table.IMAGENET_STD) if self.has_config else ((0.5,), (0.5,))
        given = (self.pretrained.mean or defaults[0], self.pretrained.std or defaults[1])
        return tuple(table.by_channel(values, channels) for values in given)


def transform(
    size: tuple[int, int], resize: Resize, fraction: float, kind: Interpolation, mean: tuple[float, ...]
) -> Preprocessing:
    """Return an evaluation transform of timm's or open_clip's; squashed to its own size, it is a stretch."""
    border = model_card.border_colour(mean) if resize == "longest" else (0, 0, 0)
    rule = Preprocessing(size, resize, fraction, interpolation=kind, border=border)
    straight = resize == "squash" and (rule.resized(0), rule.resized(1)) == size
    return Preprocessing(size, interpolation=kind) if straight else rule


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


TimmModel = tuple[str, dict[str, Any], list[table.Row], tuple[str, str]]
"""The name that timm's `create_model` knows, its `model_args`, the tensors, and timm's names of the first
convolution and of the classifier."""


def _parts_of_a_vit(config: ViTConfig, tensors: dict[str, Tensor]) -> TimmModel:
    if config.norm_before_blocks:
        # timm's projection of patches then has no bias: it is added to every patch's position.
        bias = tensors.pop("stem.projection.bias" if config.backbone else "stem.bias")
        embedding = tensors["positions.0.embedding"].clone()
        embedding[:, config.prefix_positions :] += bias
        tensors["positions.0.embedding"] = embedding
    rows = [row for row in vit_rows(config) if row.ours in tensors]
    first = next(row.theirs[0] for row in rows if row.ours in config.first_filters)
    # timm's name nearest to the configuration; the arguments, which are all given, say the rest.
    word = next((word for word, (width, _) in SIZES.items() if width == config.width), "base")
    side = config.patch_size[0]
    name = f"vit_{word}_patch{side}_224" if side in PATCHES.get(word, ()) else "vit_base_patch16_224"
    if config.backbone or _has_clip_eps(config):
        name = HYBRID_NAMES[config.backbone.layers] if config.backbone else CLIP_NAME
    return name, _vit_arguments(config), rows, (first.removesuffix(".weight"), "head")


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
        "global_pool": next(theirs for theirs, ours in POOLS.items() if ours == config.pool),
        "fc_norm": config.norm_after_pooling,
        "pre_norm": config.norm_before_blocks,
        "init_values": None if config.layer_scale is None else config.layer_scale or LAYER_SCALE,
        "reg_tokens": config.register_tokens,
        "no_embed_class": not config.class_token_position,
        **({"pool_include_prefix": True} if config.pool == "map" and config.prefix_tokens else {}),
        "pos_embed": "learn" if config.position == "learned" else "none",
        "act_layer": next(theirs for theirs, ours in GELUS.items() if ours == config.gelu),
        "pos_drop_rate": config.dropout,
        "proj_drop_rate": config.dropout,
        "attn_drop_rate": config.attention_dropout,
        **({"drop_path_rate": config.drop_path} if config.drop_path else {}),
        **({} if config.norm == "layer" else {"norm_layer": NORM_NAMES[config.norm].lower()}),
        **({"qk_norm": True} if config.qk_norm else {}),
        **({} if config.qkv_bias else {"qkv_bias": False}),
        **({} if config.final_norm else {"final_norm": False}),
    }


def _parts_of_a_bit(config: ResNetConfig, tensors: dict[str, Tensor]) -> TimmModel:
    factor, arguments = 1, _shared_arguments(config)
    if _is_named(config):
        factor = config.root_channels // 64
    else:  # the architecture's name says the units, and the channels where it can
        arguments |= {"channels": list(config.stage_channels), "stem_chs": config.root_channels}
    return BIT_NAMES[config.layers, factor], arguments, bit_rows(config), ("stem.conv", "head.fc")


def _write(
    parts_of: Callable[[Any, Any], TimmModel], model: ImageModel, path: Path, notes: list[str]
) -> Path:
    """Write a folder that `timm.create_model("local-dir:FOLDER", pretrained=True)` loads.

    Args:
        parts_of: gives what differs between families, of a configuration and its tensors.
        model, path, notes: as for `Holding.write`.

    Raises:
        VitkitError: the folder holds a model of our own format.
    """
    config, tensors = model.config, dict(model.state_dict())
    architecture, arguments, rows, ends = parts_of(config, tensors)
    theirs = nearest_transform(model_card.preprocessing_of(model), config.image_mean)
    straight = theirs.resize == "stretch"  # which timm has as squashed to its own size
    notes += model_card.changed_pixels_noted(model, theirs, "config.json")
    pretrained: dict[str, Any] = {
        "custom_load": False,
        "input_size": [config.in_channels, *config.image_size],
        "fixed_input_size": config.num_tokens is not None,
        "interpolation": theirs.interpolation,
        "crop_mode": next((m for m, resize in CROP_MODES.items() if resize == theirs.resize), "squash"),
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


def _is_named(config: ResNetConfig) -> bool:
    """Whether one of timm's architectures has these units and channels."""
    factor = config.root_channels // 64
    usual = has_usual_channels(config) and config.root_channels % 64 == 0
    return usual and (config.layers, factor) in BIT_NAMES


def _has_clip_eps(config: ViTConfig) -> bool:
    """Whether a name of timm's CLIP gives the epsilon, which it does for LayerNorm alone."""
    return config.norm == "layer" and config.norm_eps == CLIP_NORM_EPS


def _unsupported_bit(config: ResNetConfig) -> Iterator[str]:
    """Name what timm's BiT cannot build."""
    yield from absent_from_libraries(config)
    yield from table.unsupported_values(config, {"groups": (GROUPS,)})
    if not _is_named(config) and (config.layers, 1) not in BIT_NAMES:
        yield f"a ResNet of {config.layers} units (only {', '.join(BIT_NAMES.values())})"


WRITTEN_FIELDS = {
    *("backbone", "register_tokens", "class_token_position", "extra_class_token", "norm", "qk_norm"),
    *("qkv_bias", "layer_scale", "norm_before_blocks", "norm_after_pooling", "final_norm"),
}
"""Fields of `table.PLAIN` of which timm's ViTs have any value. A new field is refused until it is here."""


def _unsupported_vit(config: ViTConfig) -> Iterator[str]:
    """Name what timm's ViTs and hybrids cannot build."""
    storable = {key: values for key, values in table.PLAIN.items() if key not in WRITTEN_FIELDS}
    storable |= {"position": ("learned", "none"), "pool": tuple(POOLS.values()), "pool_heads": (None,)}
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
            cut = format_size(config.patch_size)
            yield f"a feature map of {format_size((rows, columns))} cut into {cut}"


def nearest_transform(rule: Preprocessing, mean: tuple[float, ...]) -> Preprocessing:
    """Return timm's evaluation transform that is nearest to a preprocessing of vitkit's."""
    size, resize, fraction = rule.image_size, rule.resize, rule.crop_fraction
    if resize == "stretch":
        return Preprocessing(size, interpolation=rule.interpolation)
    if resize in ("none", "crop"):
        fraction = 1.0 if resize == "none" else model_card.fraction_of(size[0], rule.resized(0))
        resize = "shortest"
    border = model_card.border_colour(mean) if resize == "longest" else (0, 0, 0)
    return Preprocessing(size, resize, fraction, interpolation=rule.interpolation, border=border)


def lost_of_a_bit(config: ResNetConfig, library: str = "timm") -> list[str]:
    """Name the numerics that timm and transformers have no argument for."""
    return table.differences(
        library,
        ("GroupNorm's epsilon", config.norm_eps, GROUP_NORM_EPS),
        ("weight standardisation's epsilon", config.standardization_eps, STANDARDIZATION_EPS),
        ("max-pooling padded with", config.max_pool_padding, "zeros"),
    )


def _lost_of_a_vit(config: ViTConfig) -> Iterator[str]:
    """Name the numerics that timm has no argument for."""
    if config.backbone or not _has_clip_eps(config):
        numerics = (f"{NORM_NAMES[config.norm]}'s epsilon", config.norm_eps, NORM_EPS)
        yield from table.differences("timm", numerics)
    if config.layer_scale == 0:
        yield f"layer scale that begins at 0 (timm: {LAYER_SCALE})"
    if backbone := config.backbone:
        form = {"std": "w / (std + eps)", "variance": "w / sqrt(var + eps)"}
        yield from table.differences(
            "timm",
            ("GroupNorm's epsilon", backbone.norm_eps, GROUP_NORM_EPS),
            ("weight standardisation", form[backbone.standardization], form["variance"]),
            ("weight standardisation's epsilon", backbone.standardization_eps, STANDARDIZATION_EPS),
        )


HOLDINGS = {
    "ViT": table.Holding(partial(_write, _parts_of_a_vit), _unsupported_vit, _lost_of_a_vit),
    "ResNet": table.Holding(partial(_write, _parts_of_a_bit), _unsupported_bit, lost_of_a_bit),
}


UNLIKE_NAMES = re.compile(r"rope|relpos|_pe_|_xp_|_rpn_|naflex|samvit|radio|eva02_.*_clip|beit3")
"""Architectures with other numerics, whose tensors may have the same names and shapes."""
OTHERS = {
    "naflex": "images of any shape (NaFlex) are not read: load the same model of a fixed size",
    "radio": "C-RADIO has eight tokens before the patches, positions that are cropped and no final norm, and "
    "is not read: load DINOv3 or SigLIP 2 of a fixed size, which are",
}
"""Words in the names of some of these, and what to load in their place."""
READ_ARGUMENTS = {
    *ModelArguments.__dataclass_fields__,
    *("patch_size", "in_chans", "num_classes", "depth", "mlp_ratio", "class_token", "fc_norm", "reg_tokens"),
    *("no_embed_class", "proj_bias", "pre_norm"),
}
"""`model_args` that are understood here, or show in the tensors' names and shapes."""
HARMLESS_ARGUMENTS = {
    *("drop_rate", "drop_path_rate", "patch_drop_rate", "weight_init", "fix_init", "zero_init_last"),
    *("dynamic_img_size", "dynamic_img_pad", "strict_img_size"),
}
"""`model_args` that do not change the outputs of a trained model at its own size."""
RESNET_ARGUMENTS = {
    *("img_size", "in_chans", "num_classes", "global_pool"),
    *("layers", "channels", "stem_chs", "width_factor"),
}
"""`model_args` of a ResNet that are understood, in the place of `READ_ARGUMENTS`."""
USUAL_RESNET_ARGUMENTS = {
    "preact": True,
    "output_stride": 32,
    "bottle_ratio": 0.25,
    "act_layer": "relu",
    "stem_type": "fixed",
}
"""Arguments of timm's class ResNetV2 whose value in a BiT is not empty: any other value is refused."""
DEEP_STEM = "stem.conv1.weight"
"""The first of three convolutions of a ResNet, in the place of BiT's one."""
UNKNOWN_PARTS = {
    "dist_token": "a distillation token",
    "head_dist": "a distillation head",
    "gamma_1": "layer scale under the names of BEiT and EVA",
    "gamma_2": "layer scale under the names of BEiT and EVA",
    "in_proj": "attention and MLP of one projection (parallel blocks)",
    "lambda_q1": "differential attention",
    "attns": "several attentions side by side (parallel blocks)",
    "rope": "rotary position embeddings",
    "rel_pos": "relative position embeddings of another kind",
    "rel_pos_bias": "relative position embeddings that all blocks share",
    "relative_position_bias_table": "relative position embeddings of another kind",
    "running_mean": "batch normalisation",
    "decoder_embed": "a decoder (MAE pre-training)",
}
"""Words in the names of tensors, and the parts they stand for, which models here do not have."""
OF_EVA = ("gamma_1", "gamma_2", "relative_position_bias_table")
"""Those of them that timm's classes Eva and Beit have, and models here too."""
FIRST_GATES = "blocks.0.mlp.fc1_g.weight"
"""The first gates where gates and values are two layers."""


def recognises(source: Source) -> bool:
    """Recognise the format by the names of a ViT's or a BiT's first tensors."""
    vit = "patch_embed.proj.weight" in source and any(key.startswith("blocks.0.") for key in source.shapes)
    vit |= str(source.config.get("architecture")).startswith("naflexvit")  # which is refused by name
    root = {"stem.conv.weight", DEEP_STEM} & source.shapes.keys()
    return vit or (bool(root) and "stages.0.blocks.0.conv1.weight" in source)


def read(source: Source, hints: table.Hints) -> table.Translation:
    """Read the model that `config.json` and the tensors describe.

    Raises:
        VitkitError: it has a part that models here have not; or the number of heads, or the image size of a
            grid that is not square, is neither recorded nor given.
    """
    settings = Settings(source)
    _refuse(source, settings)
    if "stem.conv.weight" in source:
        return _read_bit(source, settings, hints)
    config = _vit_config(source, settings, hints)
    rows = _rows(source, settings, config)
    doubts = []
    if settings.has_config and settings.num_heads is None:
        doubts.append(f"architecture '{settings.architecture}' is not known: timm's usual arithmetic")
    if not settings.has_config and config.position == "none":
        doubts.append("no pos_embed among the tensors: taken for a model without position embeddings")
    card = _card(settings, config, doubts)
    # timm leaves the mask token out of its files: one without config.json that has it is not timm's own, and
    # what has timm's names then (iBOT) resizes positions as DINO does.
    if not settings.has_config and "mask_token" in source:
        card = replace(card, position_interpolation="dinov2")
    return table.Translation(config, rows, card, table.left_out(source, rows))


def _refuse(source: Source, settings: Settings) -> None:
    """Refuse parts and settings that timm has and models here have not."""
    if advice := next((text for word, text in OTHERS.items() if word in settings.architecture), None):
        raise VitkitError(f"{source.path}: {settings.architecture}: {advice}.")
    parts = {
        part: key
        for key in source.shapes
        for word, part in UNKNOWN_PARTS.items()
        if word in key.split(".") and not (settings.is_eva and word in OF_EVA)
    }
    inner = next((key for key in source.shapes if re.search(r"\.attn\.(norm|gate)\.", key)), None)
    if inner is not None:
        parts["a norm or gates behind the attention"] = inner
    if DEEP_STEM in source:
        parts["a stem of three convolutions (stem_type 'deep' or 'tiered')"] = DEEP_STEM
    if parts:
        listed = "; ".join(f"{part}: {key}" for part, key in sorted(parts.items()))
        raise VitkitError(f"{source.path}: this timm model has parts that models here have not: {listed}.")
    _refuse_shapes(source, settings)
    if UNLIKE_NAMES.search(settings.architecture) and not settings.is_eva:
        raise VitkitError(
            f"{source.path}: {settings.architecture} computes something else with tensors of the same names: "
            "it is none of the architectures of timm that are read."
        )
    understood = READ_ARGUMENTS | HARMLESS_ARGUMENTS
    usual: dict[str, Any] = {}
    if "stem.conv.weight" in source:
        understood, usual = RESNET_ARGUMENTS | HARMLESS_ARGUMENTS, USUAL_RESNET_ARGUMENTS
    strange = {
        name: value
        for name, value in settings.values.items()
        if (value != usual[name] if name in usual else value and name not in understood)
    }
    if not settings.arguments.padding_same:
        strange["padding_same"] = False
    if settings.norm is None:
        strange["norm_layer"] = settings.arguments.norm_layer
    if settings.pretrained.label_offset:
        strange["label_offset"] = settings.pretrained.label_offset
    if strange:
        listed = ", ".join(f"{name}={value!r}" for name, value in sorted(strange.items()))
        raise VitkitError(f"{source.path}: config.json asks for what models here do not have: {listed}.")


def _refuse_shapes(source: Source, settings: Settings) -> None:
    """Refuse a ViT without a final norm, unknown norms and unknown gates, which the tensors' shapes show, and
    one that two models may have."""
    shapes = source.shapes
    if "stem.conv.weight" in source:
        return
    if settings.final_norm and not {"norm.weight", "fc_norm.weight"} & shapes.keys():
        raise VitkitError(
            f"{source.path}: this timm model has no final norm, neither norm.weight nor fc_norm.weight, and "
            "no config.json says so (final_norm false): load the folder that timm saved."
        )
    if settings.norm == "layer" and "blocks.0.norm1.weight" in source and "blocks.0.norm1.bias" not in source:
        raise VitkitError(
            f"{source.path}: the norms of this timm model have no shift, and no norm_layer in config.json "
            "says whether they are RMSNorms or others without one: load the folder that timm saved."
        )
    first, second = (shapes.get(f"blocks.0.mlp.{name}.weight", ()) for name in ("fc1", "fc2"))
    packed = len(first) == len(second) == 2 and first[0] == 2 * second[1]
    if (packed and not PACKED_NAMES.fullmatch(settings.architecture)) or (
        FIRST_GATES in shapes and not settings.is_eva
    ):
        raise VitkitError(
            f"{source.path}: this timm model has a gated MLP, and no name in config.json says what its gates "
            "are: SwiGLU is read of DINOv2's and TIPSv2's giants, DINOv3, EVA-02 and LingBot-Vision."
        )
    # Without config.json an ordinary ViT may have the tensors of a post-norm model, which alone among timm's
    # architectures has a norm after the pooling, and no class token, no layer scale and no biases of queries,
    # keys and values.
    absent = {"cls_token", "blocks.0.attn.qkv.bias", "blocks.0.ls1.gamma"}
    if not settings.has_config and "fc_norm.weight" in shapes and not absent & shapes.keys():
        raise VitkitError(
            f"{source.path}: two models that compute differently have these tensors, with norms before the "
            "branches of a block, or after them (timm's vit_base_patch16_rpn_224), and no config.json says "
            "which this is: put the config.json that came with the weights beside them."
        )


def _vit_config(source: Source, settings: Settings, hints: table.Hints) -> ViTConfig:
    shapes, roots = source.shapes, (f"{BACKBONE}stem.conv.weight", f"{BACKBONE}conv.weight")
    hybrid_root = next((name for name in roots if name in source), None)
    is_recorded = settings.has_config and not settings.is_eva
    kind = settings.arguments.pos_embed
    if is_recorded and kind not in ("learn", "none", "", False):
        raise VitkitError(f"{settings.where}: pos_embed: expected learn or none, found {kind!r}.")
    positions = kind == "learn" if is_recorded else "pos_embed" in source
    if positions and "pos_embed" not in source:
        raise VitkitError(
            f"{source.path}: pos_embed: missing, and config.json does not say that this model has "
            'no position embeddings ("pos_embed": "none" in model_args).'
        )
    apart = FIRST_GATES in source
    sizes = table.read_sizes(source, {**NAMES, "blocks.mlp.fc1": GATES} if apart else NAMES)
    width, backbone = sizes["width"], _backbone(source, hybrid_root)
    if hybrid_root:
        sizes["in_channels"] = shapes[hybrid_root][1]
    pool, registers = _pooling(source, settings)
    class_token = "cls_token" in source
    prefix = class_token + registers
    if "pos_embed" in source:
        count, recorded = table.count_tokens(source, "pos_embed"), settings.image_size
        image_size, inside = table.image_size_of(
            source, sizes["patch_size"], count, hints.image_size, backbone, prefix, recorded
        )
    else:
        given, why = settings.image_size or hints.image_size, "no position embeddings show its image size"
        image_size, inside = table.require_image_size(source, given, why), True
    named, where = settings.named_size, ", and no config.json"
    # The name's heads would then be of another model, which would compute without complaint.
    if named and named[0] != width and settings.arguments.embed_dim is None:
        raise VitkitError(
            f"{source.path}: config.json says {settings.architecture}, whose width is {named[0]}, and the "
            f"tensors have a width of {width}: these two do not belong together."
        )
    if settings.has_config:
        where = f", nor does config.json for '{settings.architecture}'"
    by_offset = "blocks.0.attn.relative_position_bias_table" in source
    if by_offset and positions:
        raise VitkitError(
            f"{source.path}: this timm model has absolute and relative positions; ViTs here, one."
        )
    gated = apart or shapes["blocks.0.mlp.fc1.weight"][:1] == (2 * sizes["mlp_dim"],)
    has_layer_scale = {"blocks.0.ls1.gamma", "blocks.0.gamma_1"} & shapes.keys()
    arguments, (mean, std) = settings.arguments, settings.statistics(sizes["in_channels"])
    return ViTConfig(
        **sizes,
        image_size=image_size,
        num_heads=table.require_heads(source, settings.num_heads or hints.num_heads, width, where),
        num_classes=table.first_axis(source, "head.weight", 2),
        backbone=backbone,
        pool=pool,
        register_tokens=registers,
        class_token_position=inside,
        pool_heads=PERCEPTION_POOL_HEADS if pool == "map" and settings.is_eva else None,
        position="relative_bias" if by_offset else "learned" if positions else "none",
        extra_class_token=class_token and pool != "token",
        rotary=settings.rotary,
        norm=settings.norm or "layer",
        qk_norm=arguments.qk_norm or "blocks.0.attn.q_norm.weight" in source,
        mlp="swiglu" if gated else "gelu",
        mlp_norm="blocks.0.mlp.norm.weight" in source,
        layer_scale=(arguments.init_values or LAYER_SCALE) if has_layer_scale else None,
        norm_before_blocks="norm_pre.weight" in source,
        norm_after_pooling="fc_norm.weight" in source,
        final_norm=settings.final_norm,
        representation_size=table.first_axis(source, "pre_logits.fc.bias", 1) or None,
        dropout=arguments.pos_drop_rate if arguments.pos_drop_rate == arguments.proj_drop_rate else 0.0,
        attention_dropout=arguments.attn_drop_rate,
        drop_path=arguments.drop_path_rate,
        gelu=settings.gelu,
        norm_eps=settings.norm_eps(source),
        image_mean=mean,
        image_std=std,
    )


def _rows(source: Source, settings: Settings, config: ViTConfig) -> list[table.Row]:
    """Pair the parameters with the tensors, by the forms of layers in the file, the same in all blocks."""
    names, unbiased, special = {**NAMES}, set[str](), list[table.Row]()
    if config.norm_before_blocks and "patch_embed.proj.bias" not in source:
        unbiased.add(NAMES["stem"])
    if settings.is_eva:
        names |= {"blocks.attention_scale": "blocks.#.gamma_1", "blocks.mlp_scale": "blocks.#.gamma_2"}
    if FIRST_GATES in source:
        names["blocks.mlp.fc1"] = GATES
    has_bias = settings.arguments.qkv_bias
    if not settings.has_config or settings.is_eva:
        has_bias = any(re.fullmatch(r"blocks\.\d+\.attn\.qkv\.bias", key) for key in source.shapes)
    elif has_bias is None:
        has_bias = UNBIASED_NAMES.fullmatch(settings.architecture) is None
    if settings.is_eva and "blocks.0.attn.q_proj.weight" in source:
        names["blocks.attention.qkv"] = APART
        unbiased.add(APART.split()[1])
    elif settings.is_eva and "blocks.0.attn.q_bias" in source:  # keys have none
        for block in (f"blocks.{i}" for i in range(config.depth)):
            biases = (f"{block}.attn.q_bias", f"{block}.attn.v_bias")
            name = f"{block}.attention.qkv.bias"
            special.append(table.Row(name, biases, lambda b: torch.cat([b[0], torch.zeros_like(b[0]), b[1]])))
    elif not has_bias:
        unbiased.add(NAMES["blocks.attention.qkv"])
    return vit_rows(config, names, unbiased, special)


def _pooling(source: Source, settings: Settings) -> tuple[PoolKind, int]:
    """Find the pooling and the number of register tokens."""
    class_token = "cls_token" in source
    usual = "map" if "attn_pool.latent" in source else "token" if class_token else "avg"
    if class_token and "fc_norm.weight" in source:
        usual = "avg"  # MAE's fine-tuned files come without a config
    name = usual if settings.global_pool is None else settings.global_pool
    include = settings.arguments.pool_include_prefix
    if name not in POOLS or (name == "token" and not class_token) or (include and name in ("avg", "max")):
        token = "a class token" if class_token else "no class token"
        also = ", which the pooling includes" if include else ""
        raise VitkitError(
            f"{source.path}: global_pool {name!r} with {token}{also}: expected 'token' with a class token, "
            "or 'avg', 'max', 'map' or '' of the patches."
        )
    registers = table.count_tokens(source, "reg_token")
    if name == "map" and class_token + registers and not (include or settings.is_eva):
        raise VitkitError(
            f"{source.path}: timm's attention pooling leaves out its {class_token + registers} first tokens, "
            "ours sees all (timm: pool_include_prefix=True)."
        )
    return POOLS[name], registers


def _backbone(source: Source, root: str | None) -> BackboneConfig | None:
    """Return the hybrid's ResNet with timm's numerics; its widths are read from the first convolution."""
    if root is not None:
        table.check_axes(source, root, 4)
        layers, width_factor = _layers(source, f"{BACKBONE}stages."), source.shapes[root][0] / 64
        return BackboneConfig(layers, width_factor, GROUP_NORM_EPS, "variance", STANDARDIZATION_EPS)
    if any(key.startswith(BACKBONE) for key in source.shapes):
        raise VitkitError(
            f"{source.path}: its convolutions before the Transformer are no ResNet with GroupNorm: of "
            f"timm's hybrids these are read: {', '.join(HYBRID_NAMES.values())}, ..."
        )
    return None


def _layers(source: Source, start: str) -> tuple[int, ...]:
    """Count the units of each stage of a ResNet."""
    stages = table.count_layers(source, rf"{re.escape(start)}(\d+)\.")
    return tuple(
        table.count_layers(source, rf"{re.escape(start)}{s}\.blocks\.(\d+)\.") for s in range(stages)
    )


def _read_bit(source: Source, settings: Settings, hints: table.Hints) -> table.Translation:
    is_bit = re.fullmatch(r"resnetv2_\d+x\d+_bit.*", settings.architecture)
    if settings.has_config and not is_bit:
        raise VitkitError(
            f"{source.path}: {settings.architecture} is no BiT: timm's ResNets that are read are "
            "named resnetv2_50x1_bit and so on."
        )
    if settings.global_pool not in (None, "avg"):
        raise VitkitError(f"{source.path}: global_pool: BiT's is 'avg', found {settings.global_pool!r}.")
    size, why = settings.image_size or hints.image_size, "the tensors of a ResNet do not tell its image size"
    size = table.require_image_size(source, size, why, "224, and 448 where fine-tuned on ImageNet")
    table.check_axes(source, "stem.conv.weight", 4)
    root = source.shapes["stem.conv.weight"]
    mean, std = settings.statistics(root[1])
    config = ResNetConfig(
        size,
        _layers(source, "stages."),
        num_classes=table.first_axis(source, "head.fc.weight", 4),
        in_channels=root[1],
        norm_eps=GROUP_NORM_EPS,
        standardization_eps=STANDARDIZATION_EPS,
        max_pool_padding="zeros",
        image_mean=mean,
        image_std=std,
    )
    last = [f"stages.{s}.blocks.0.conv3.weight" for s in range(len(config.layers))]
    for key in last:
        table.check_axes(source, key, 4)
    config = with_channels(config, root[0], tuple(source.shapes[key][0] for key in last))
    return table.Translation(config, bit_rows(config), _card(settings, config))


def _card(settings: Settings, config: models.ModelConfig, doubts: Iterable[str] = ()) -> model_card.ModelCard:
    """Make the card: class names, preprocessing, assumptions, and notes, `doubts` among them."""
    notes = list(doubts)
    if not settings.has_config:
        notes.insert(0, "no config.json: timm's usual arithmetic (exact GELU, its epsilons)")
    if (given := settings.pretrained.mean) and len(given) != config.in_channels:
        notes.append(f"pixel mean and std were given for {len(given)} channels: their average is taken")
    if settings.arguments.proj_drop_rate != settings.arguments.pos_drop_rate:
        notes.append("dropout of two different rates, in the blocks and after the positions: left out")
    if (names := settings.class_names) and len(names) != config.num_classes:
        notes.append(f"{len(names)} class names for {config.num_classes} classes: left out")
        names = ()
    mean, std = config.image_mean, config.image_std
    rule = settings.pixel_rule(config.image_size, mean)
    assumed = list[model_card.Assumption]()
    if not settings.has_config:
        custom = "as timm's own ViTs"
        others = "DeiT, DINO and MAE have ImageNet's, 0.485 0.456 0.406 and 0.229 0.224 0.225"
        assumed.append(model_card.assumed_statistics(mean, std, f"{custom} ({others})"))
        assumed.append(model_card.assumed_resizing(rule, custom))
    elif not settings.pretrained.mean or not settings.pretrained.std:
        assumed.append(model_card.assumed_statistics(mean, std, "timm's default"))
    origin: dict[str, Any] = {"architecture": settings.architecture} if settings.has_config else {}
    if settings.pretrained.tag:
        origin["tag"] = settings.pretrained.tag
    if notes:
        origin["notes"] = notes
    return model_card.ModelCard(
        class_names=names,
        preprocessing=rule,
        assumed=tuple(assumed),
        origin=origin,
        position_interpolation="flexivit" if "flexi" in settings.architecture else "timm",
    )


CHECKPOINT_FORMAT = table.CheckpointFormat("timm", recognises, read, HOLDINGS)

"""The settings of timm: in `config.json`, in the form of its hub, in older flat ones, or none at all; and
where it keeps every parameter of a ViT, a hybrid or a BiT ResNet.

Facts: timm 1.0, `models/vision_transformer.py`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from vitkit.data.config import Interpolation, Preprocessing, Resize
from vitkit.errors import VitkitError
from vitkit.models import config
from vitkit.models.config import ResNetConfig, ViTConfig
from vitkit.weights import table
from vitkit.weights.files.source import Source, read_fields
from vitkit.weights.model_card import Assumption, assumed_resizing, assumed_statistics, border_colour
from vitkit.weights.table import IMAGENET_MEAN, IMAGENET_STD

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
        root = f"{BACKBONE}stem." if config.backbone.layers else BACKBONE
        rows.append(table.renamed("stem.root.weight", f"{root}conv.weight"))
        rows += table.weight_and_bias("stem.root_norm", f"{root}norm")
        rows += _stage_rows("stem.", BACKBONE, config.backbone.layers, normed=True)
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


def _query_and_rest(qkv: torch.Tensor) -> list[torch.Tensor]:
    return list(qkv.tensor_split([len(qkv) // 3]))


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


def _stage_rows(ours: str, theirs: str, layers: tuple[int, ...], normed: bool) -> list[table.Row]:
    """List the parameters of bottlenecks; the projection (`downsample`) has a norm in hybrids alone."""
    rows: list[table.Row] = []
    for s, u in ((s, u) for s, units in enumerate(layers) for u in range(units)):
        unit, block = f"{ours}stages.{s}.{u}", f"{theirs}stages.{s}.blocks.{u}"
        for number in (1, 2, 3):
            rows.append(table.renamed(f"{unit}.conv{number}.weight", f"{block}.conv{number}.weight"))
            rows += table.weight_and_bias(f"{unit}.norm{number}", f"{block}.norm{number}")
        if u == 0:
            rows.append(table.renamed(f"{unit}.proj.weight", f"{block}.downsample.conv.weight"))
        if u == 0 and normed:
            rows += table.weight_and_bias(f"{unit}.proj_norm", f"{block}.downsample.norm")
    return rows


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


NORM_EPS = 1e-6
"""Epsilon of timm's LayerNorm in ViTs."""
CLIP_NORM_EPS = 1e-5
"""Epsilon of LayerNorm in ViTs with CLIP in their name, which no argument in a file can choose."""
LAYER_SCALE = 1e-5
"""First value of layer scale where no argument says it: it matters to new weights alone."""
GROUP_NORM_EPS = 1e-5
"""Epsilon of GroupNorm in hybrids and ResNets."""
STANDARDIZATION_EPS = 1e-8
"""In w / sqrt(var + eps), of hybrids and BiT."""
USUAL_STANDARDIZATION_EPS = 1e-6
"""The same in other ResNets: the default of timm's StdConv2d, which no argument in a file can choose."""

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
    (r"vit_giant_patch14_(dinov2|reg4_dinov2|reg1_tipsv2)", (1536, 24)),
    (r"test_vit\d*", (64, 2)),
)
"""Names that do not follow the table."""
UNBIASED_NAMES = re.compile(
    r"vit_base_patch16_224_miil|vit_(medium|betwixt)_patch16_gap_\d+|vit_so150m2_.*|vit_base_patch16_rpn_224"
)
"""Architectures without biases of queries, keys and values where `qkv_bias` is absent; others have them."""
TANH_NAMES = re.compile(
    r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip_.*|vit_large_patch16_siglip_(gap_)?512"
)
"""Architectures whose GELU is the tanh form where `act_layer` is absent; timm's default is the exact one."""

ROTARY: tuple[tuple[str, config.RotaryConfig], ...] = (
    (r"vit_(tiny|small|base|large)_patch16_(dinov3|dinov3_qkvb|lingbot)", config.DINOV3_ROTARY),
    (r"vit_(small|base|large)_patch16_rope(_ape)?_224", config.ROPE_VIT_ROTARY),
    (r"vit_\w+_patch16_rope_reg\d_gap_256", config.EVA02_ROTARY),
)
"""Architectures with rotary positions, of timm's class Eva; other names of that class are refused."""

POOLS: dict[str, config.PoolKind] = {"token": "token", "avg": "mean", "max": "max", "map": "map", "": "none"}
GELUS: dict[str, config.Gelu] = {
    "gelu": "erf",
    "gelu_tanh": "tanh",
    "quick_gelu": "quick",
    "quickgelu": "quick",
}
CROP_MODES: dict[str, Resize] = {"center": "shortest", "squash": "squash", "border": "longest"}
NORMS: dict[str, config.NormKind] = {"layernorm": "layer", "rmsnorm": "rms"}
"""Values of `norm_layer`; norms of other names are refused."""


@dataclass(frozen=True)
class TopFields:
    """The fields at the top of `config.json` that are read."""

    architecture: str = ""
    model_args: Mapping[str, Any] = field(default_factory=dict)
    pretrained_cfg: Mapping[str, Any] | None = None
    global_pool: str | None = None
    label_names: Any = None
    labels: Any = None


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
    padding_same: bool = True
    layers: tuple[int, ...] = ()
    channels: tuple[int, ...] | None = None
    stem_chs: int = 64
    stem_type: str | None = None
    width_factor: float = 1
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
        pretrained, where = fields.pretrained_cfg, f"{self.where}: pretrained_cfg"
        if pretrained is None:  # an old file is one flat object
            pretrained, where = config, str(self.where)
        self.pretrained = read_fields(PretrainedFields, pretrained, where)
        names = fields.label_names or self.pretrained.label_names or fields.labels
        self.class_names = tuple(str(name) for name in names) if isinstance(names, list) else ()
        pool = self.arguments.global_pool
        self.global_pool = fields.global_pool if pool is None else pool
        if (crop_fraction := self.pretrained.crop_pct) and crop_fraction < 0.01:
            raise VitkitError(
                f"{self.where}: crop_pct: a fraction of the image was expected, found {crop_fraction}."
            )

    @property
    def image_size(self) -> tuple[int, int] | None:
        size = self.arguments.img_size or self.pretrained.input_size[1:]
        if isinstance(size, int):
            return size, size
        return (size[0], size[1]) if len(size) == 2 else None

    @property
    def learned_positions(self) -> bool:
        """Whether position embeddings are learned, as they are unless `pos_embed` is none."""
        if (pos_embed := self.arguments.pos_embed) not in ("learn", "none", "", False):
            raise VitkitError(f"{self.where}: pos_embed: expected learn or none, found {pos_embed!r}.")
        return pos_embed == "learn"

    @property
    def num_heads(self) -> int | None:
        """The number in the architecture's name, unless the arguments have another."""
        if self.arguments.num_heads is not None:
            return self.arguments.num_heads
        return self.named_size[1] if self.named_size else None

    @property
    def named_size(self) -> tuple[int, int] | None:
        """The width and heads that the architecture's name stands for."""
        for pattern, size in OTHER_SIZES:
            if re.fullmatch(pattern, self.architecture):
                return size
        parts = self.architecture.split("_")
        named = len(parts) > 1 and parts[0] in ("vit", "deit", "deit3", "flexivit")
        return SIZES.get(parts[1]) if named else None

    @property
    def gelu(self) -> config.Gelu:
        default = "gelu_tanh" if TANH_NAMES.fullmatch(self.architecture) else "gelu"
        if "_quickgelu_" in self.architecture:
            default = "quick_gelu"
        name = self.arguments.act_layer or default
        if name not in GELUS:
            names = "gelu, gelu_tanh, quick_gelu"
            raise VitkitError(f"{self.where}: act_layer: expected one of {names}, found {name!r}.")
        return GELUS[name]

    @property
    def rotary(self) -> config.RotaryConfig | None:
        """Rotary positions, by the architecture's name alone."""
        return next((kind for pattern, kind in ROTARY if re.fullmatch(pattern, self.architecture)), None)

    @property
    def norm(self) -> config.NormKind | None:
        """Kind of the norms, whose names timm takes in any spelling, "fp32" for what is the rule here."""
        name = (self.arguments.norm_layer or "layernorm").replace("_", "").lower()
        return NORMS.get(name.removesuffix("fp32"))

    def norm_eps(self, source: Source) -> float:
        """Epsilon of every LayerNorm: by the architecture's name; without one, CLIP shows in its norm_pre."""
        if self.rotary == config.DINOV3_ROTARY:
            return CLIP_NORM_EPS
        clip = "_clip_" in self.architecture if self.has_config else "norm_pre.weight" in source
        return CLIP_NORM_EPS if clip and self.arguments.norm_layer is None else NORM_EPS

    def pixel_rule(self, size: tuple[int, int], mean: tuple[float, ...]) -> Preprocessing:
        """Return timm's evaluation transform (`data/transforms_factory.py`).

        Without a config it is as for timm's own ViTs: crop_pct 0.9 at 224 pixels and 1 above, bicubic.
        """
        if not self.has_config:
            fraction = 0.9 if max(size) <= 224 else 1.0
            return Preprocessing(size, "shortest", fraction, interpolation="bicubic")
        fields, resize = self.pretrained, CROP_MODES[self.pretrained.crop_mode]
        border = border_colour(mean) if resize == "longest" else (0, 0, 0)
        fraction, kind = fields.crop_pct or 0.875, fields.interpolation
        rule = Preprocessing(size, resize, fraction, interpolation=kind, border=border)
        straight = resize == "squash" and (rule.resized(0), rule.resized(1)) == size
        return Preprocessing(size, interpolation=kind) if straight else rule

    def assumptions(
        self, rule: Preprocessing, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> tuple[Assumption, ...]:
        """List what the file does not record about its images, and what is assumed instead."""
        if not self.has_config:
            custom = "as timm's own ViTs"
            others = "DeiT, DINO and MAE have ImageNet's, 0.485 0.456 0.406 and 0.229 0.224 0.225"
            return (assumed_statistics(mean, std, f"{custom} ({others})"), assumed_resizing(rule, custom))
        missing = [name for name in ("mean", "std") if not getattr(self.pretrained, name)]
        return (assumed_statistics(mean, std, "timm's default"),) if missing else ()

    def statistics(self, channels: int) -> tuple[tuple[float, ...], ...]:
        """Return mean and std of pixels, a value for each channel.

        timm's defaults are its general ones beside a config, else its ViTs' and BiTs'.
        """
        defaults = (IMAGENET_MEAN, IMAGENET_STD) if self.has_config else ((0.5,), (0.5,))
        given = (self.pretrained.mean or defaults[0], self.pretrained.std or defaults[1])
        return tuple(v if len(v) == channels else (sum(v) / len(v),) * channels for v in given)

"""What timm's `config.json` says: of its hub layout, of older flat ones, or nothing at all.

Facts: timm 1.0, `models/vision_transformer.py`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vitkit.data.transforms import Interpolation, Preprocessing
from vitkit.errors import VitkitError
from vitkit.weights.assumptions import Assumption, assumed_resizing, assumed_statistics
from vitkit.weights.files.source import Source
from vitkit.weights.preprocessing import border_colour
from vitkit.weights.settings import typed

NORM_EPS = 1e-6
"""Of timm's LayerNorm in ViTs."""
GROUP_NORM_EPS = 1e-5
STANDARDIZATION_EPS = 1e-8
"""In w / sqrt(var + eps), of hybrids and BiT."""

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
UNBIASED_NAMES = {"vit_base_patch16_224_miil"}
"""Architectures without biases of queries, keys and values, not being told; timm's default is with."""
TANH_NAMES = re.compile(
    r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip_.*|vit_large_patch16_siglip_(gap_)?512"
)
"""Architectures whose GELU is the tanh form without being told; timm's default is the exact one."""

POOLS: dict[str, Literal["token", "mean", "map", "none"]] = {
    "token": "token",
    "avg": "mean",
    "map": "map",
    "": "none",
}
GELUS: dict[str, Literal["erf", "tanh"]] = {"gelu": "erf", "gelu_tanh": "tanh"}


@dataclass(frozen=True)
class Whole:
    """The fields of `config.json` that are asked for."""

    architecture: str = ""
    model_args: Mapping[str, Any] = field(default_factory=dict)
    pretrained_cfg: Mapping[str, Any] | None = None
    """Absent from old files, which are one flat object."""
    global_pool: str | None = None
    label_names: Any = None
    labels: Any = None


@dataclass(frozen=True)
class Arguments:
    """Those of `model_args`, with timm's defaults; None stands for what depends on the architecture."""

    img_size: int | tuple[int, int] | None = None
    embed_dim: int | None = None
    num_heads: int | None = None
    global_pool: str | None = None
    pool_include_prefix: bool = False
    pos_embed: str | bool = "learn"
    qkv_bias: bool | None = None
    act_layer: str | None = None
    norm_layer: str | None = None
    padding_same: bool = True
    proj_drop_rate: float = 0.0
    pos_drop_rate: float = 0.0
    attn_drop_rate: float = 0.0


@dataclass(frozen=True)
class Pretrained:
    """Those of `pretrained_cfg`, with timm's defaults."""

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
    """What `config.json` says, whatever its age; every question has an answer without one.

    Raises:
        VitkitError: a value of another type than timm's.
    """

    def __init__(self, source: Source) -> None:
        self.where = source.path.with_name("config.json")
        self.known = source.config.get("architecture") is not None
        config = source.config if self.known else {}
        whole = typed(Whole, config, str(self.where))
        flat = whole.pretrained_cfg is None
        self.architecture = whole.architecture.partition(".")[0]
        self.values = whole.model_args
        """All of `model_args` as they stand there."""
        self.arguments = typed(Arguments, whole.model_args, f"{self.where}: model_args")
        self.pretrained = (
            typed(Pretrained, config, str(self.where))
            if flat
            else typed(Pretrained, whole.pretrained_cfg or {}, f"{self.where}: pretrained_cfg")
        )
        names = whole.label_names or self.pretrained.label_names or whole.labels
        self.class_names = tuple(str(name) for name in names) if isinstance(names, list) else ()
        pool = self.arguments.global_pool
        self.global_pool = whole.global_pool if pool is None else pool
        share = self.pretrained.crop_pct
        if share and share < 0.01:
            raise VitkitError(f"{self.where}: crop_pct: a share of the image was expected, found {share}.")

    @property
    def image_size(self) -> tuple[int, int] | None:
        size = self.arguments.img_size or self.pretrained.input_size[1:]
        if isinstance(size, int):
            return size, size
        return (size[0], size[1]) if len(size) == 2 else None

    @property
    def learned_positions(self) -> bool:
        """`pos_embed`: learned ones unless it says none."""
        said = self.arguments.pos_embed
        if said not in ("learn", "none", "", False):
            raise VitkitError(f"{self.where}: pos_embed: known here are learn, none, found {said!r}.")
        return said == "learn"

    @property
    def qkv_bias(self) -> bool:
        said = self.arguments.qkv_bias
        return self.architecture not in UNBIASED_NAMES if said is None else said

    @property
    def num_heads(self) -> int | None:
        """Of the architecture's name, unless the arguments say another number."""
        if self.arguments.num_heads is not None:
            return self.arguments.num_heads
        if self.architecture in OTHER_HEADS:
            return OTHER_HEADS[self.architecture]
        return None if self._size is None else self._size[1]

    @property
    def named_width(self) -> int | None:
        """The width that the architecture's name stands for."""
        return None if self._size is None else self._size[0]

    @property
    def _size(self) -> tuple[int, int] | None:
        words = self.architecture.split("_")
        named = len(words) > 1 and words[0] in ("vit", "deit", "flexivit")
        return SIZES.get(words[1]) if named else None

    @property
    def gelu(self) -> Literal["erf", "tanh"]:
        default = "gelu_tanh" if TANH_NAMES.fullmatch(self.architecture) else "gelu"
        name = self.arguments.act_layer or default
        if name not in GELUS:
            raise VitkitError(f"{self.where}: act_layer: known here are gelu, gelu_tanh, found {name!r}.")
        return GELUS[name]

    @property
    def dropouts(self) -> tuple[float, float]:
        """In the blocks and after the position embeddings: with us they are one number."""
        return self.arguments.proj_drop_rate, self.arguments.pos_drop_rate

    def pixel_rule(self, size: tuple[int, int], mean: tuple[float, ...]) -> Preprocessing:
        """timm's evaluation transform (`data/transforms_factory.py`).

        Without a config it is that of timm's own ViTs: crop_pct 0.9 at 224 pixels and 1 above, bicubic.
        """
        if not self.known:
            fraction = 0.9 if max(size) <= 224 else 1.0
            return Preprocessing(size, "shortest", fraction, interpolation="bicubic")
        fraction = self.pretrained.crop_pct or 0.875
        kind = self.pretrained.interpolation
        if self.pretrained.crop_mode == "border":
            return Preprocessing(size, "longest", fraction, interpolation=kind, border=border_colour(mean))
        if self.pretrained.crop_mode == "center":
            return Preprocessing(size, "shortest", fraction, interpolation=kind)
        rule = Preprocessing(size, "squash", fraction, interpolation=kind)
        straight = (rule.resized(0), rule.resized(1)) == size
        return Preprocessing(size, interpolation=kind) if straight else rule

    def assumptions(
        self, rule: Preprocessing, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> tuple[Assumption, ...]:
        """What the file does not say about its images."""
        if not self.known:
            whose = "as timm's own ViTs"
            others = "DeiT, DINO and MAE have ImageNet's, 0.485 0.456 0.406 and 0.229 0.224 0.225"
            return (
                assumed_statistics(mean, std, f"{whose} ({others})"),
                assumed_resizing(rule, whose),
            )
        found = [name for name in ("mean", "std") if not getattr(self.pretrained, name)]
        return (assumed_statistics(mean, std, "timm's default"),) if found else ()

    def statistics(
        self, name: Literal["mean", "std"], channels: int, default: tuple[float, ...]
    ) -> tuple[float, ...]:
        """Mean or std, a value for each channel."""
        values = (self.pretrained.mean if name == "mean" else self.pretrained.std) or default
        return values if len(values) == channels else (sum(values) / len(values),) * channels

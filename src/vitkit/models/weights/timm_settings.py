"""What timm's `config.json` says: of its hub layout, of older flat ones, or nothing at all.

Facts: timm 1.0, `models/vision_transformer.py`.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

from vitkit.errors import VitkitError

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

"""The architectures of timm by their names, such as vit_base_patch16_224.augreg_in21k, without weights.

They have timm's numerics: the exact GELU, and the epsilons of its ResNets. Facts: timm 1.0.31,
`models/vision_transformer.py`, `vision_transformer_hybrid.py`, `deit.py`, `resnetv2.py`.
"""

import re
from dataclasses import dataclass, fields, replace
from typing import Any

from vitkit.models.config.image_config import Size
from vitkit.models.zoo import ModelConfig, model_config, name_here, with_statistics
from vitkit.weights import table
from vitkit.weights.formats.timm.settings import GROUP_NORM_EPS, STANDARDIZATION_EPS

# Names that describe their architecture in full. Others, such as vit_base_patch16_clip_224 and
# deit_base_distilled_patch16_224, have parts that the name does not show.
_NAMES = re.compile(
    r"(?P<architecture>"
    r"vit_(?:tiny|small|base|large|huge|giant|gigantic)_patch\d+_(?P<size>\d+)"
    r"|deit_(?:tiny|small|base)_patch\d+_(?P<deit>\d+)"
    r"|vit_(?:tiny_r_s16_p8|\w+_r(?:26|50)_s(?:16|32))_(?P<hybrid>\d+)"
    r"|resnetv2_(?:50|101|152)x\d_bit"
    r")(?:\.(?P<tag>\w+))?"
)

DEFAULT_TAGS = {
    "vit_base_patch8_224": "augreg2_in21k_ft_in1k",
    "vit_base_patch16_224": "augreg2_in21k_ft_in1k",
    "vit_small_patch8_224": "dino",
    "vit_large_patch32_224": "orig_in21k",
    "vit_large_patch32_384": "orig_in21k_ft_in1k",
    "vit_huge_patch14_224": "orig_in21k",
    "vit_base_r50_s16_224": "orig_in21k",
    "vit_base_r50_s16_384": "orig_in21k_ft_in1k",
    "vit_large_patch14_224": "",
    "vit_giant_patch14_224": "",
    "vit_gigantic_patch14_224": "",
    "vit_base_r26_s32_224": "",
    "resnetv2_50x1_bit": "goog_distilled_in1k",
    "resnetv2_152x2_bit": "goog_teacher_in21k_ft_in1k",
}
"""The tag of the weights that timm takes for a name without one, where it is not the usual tag; "": none."""
USUAL_TAGS = {"vit": "augreg_in21k_ft_in1k", "deit": "fb_in1k", "resnetv2": "goog_in21k_ft_in1k"}
"""The usual tags, by the first word of the name."""
IMAGENET_TAGS = ("dino", "mae", "fb_in1k")
"""Weights that were trained on pixels with the mean and standard deviation of ImageNet; others with 0.5."""


@dataclass(frozen=True)
class TimmName:
    """An architecture of timm, and the weights of it that a name stands for."""

    architecture: str
    tag: str
    """The weights, whether the name says it or timm chooses them; "" where timm has none."""
    side: int
    """Height and width in pixels; a BiT takes any: the size of its first training."""

    @property
    def address(self) -> str:
        """The place where timm publishes the weights."""
        return f"hf:timm/{self.architecture}.{self.tag}"


def parse_timm_name(name: str) -> TimmName | None:
    """Read a name of timm; None for any other name, and for an architecture that vitkit lacks."""
    if (match := _NAMES.fullmatch(name)) is None:
        return None
    architecture = match["architecture"]
    tag = match["tag"] or DEFAULT_TAGS.get(architecture, USUAL_TAGS[architecture.partition("_")[0]])
    return TimmName(architecture, tag, int(match["size"] or match["deit"] or match["hybrid"] or 224))


def timm_config(name: TimmName, num_classes: int, size: Size) -> ModelConfig:
    """Give the configuration of an architecture of timm.

    Args:
        name: its name.
        num_classes: K, the number of logits.
        size: of images in pixels, one number or `(height, width)`.

    Raises:
        VitkitError: the images are too small for it, or no model here has its name.
    """
    config = model_config(name_here(name.architecture) or name.architecture, num_classes, size)
    numerics: dict[str, Any] = {"gelu": "erf", "standardization_eps": STANDARDIZATION_EPS}
    backbone = getattr(config, "backbone", None)
    if backbone is not None:
        numerics["backbone"] = replace(
            backbone,
            norm_eps=GROUP_NORM_EPS,
            standardization="variance",
            standardization_eps=STANDARDIZATION_EPS,
        )
    names = {field.name for field in fields(config)}
    config = replace(config, **{key: value for key, value in numerics.items() if key in names})
    statistics = (table.IMAGENET_MEAN, table.IMAGENET_STD) if name.tag in IMAGENET_TAGS else ((0.5,), (0.5,))
    return with_statistics(config, *statistics)

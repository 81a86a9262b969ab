"""Create models by name, of this library or of timm, with new weights or published ones.

The architectures of timm's names, such as vit_base_patch16_224.augreg_in21k, have timm's numerics: the exact
GELU, and the epsilons of its ResNets. Facts: timm 1.0.31, `models/vision_transformer.py`,
`vision_transformer_hybrid.py`, `deit.py`, `resnetv2.py`.
"""

import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from vitkit.errors import VitkitError
from vitkit.models import build, zoo
from vitkit.models.config import ModelConfig, Size
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import model_config, name_here, with_statistics
from vitkit.text import without_places
from vitkit.weights import table
from vitkit.weights.format_names import LoadOptions
from vitkit.weights.formats.timm import GROUP_NORM_EPS, STANDARDIZATION_EPS
from vitkit.weights.loading import load
from vitkit.weights.model_card import log_notes
from vitkit.weights.published import find_start_named, starts

CLASSES, SIDE = 1000, 224
"""Classes and pixels of a model where the caller gives none: ImageNet's, as in timm."""


def create_model(
    name: str,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    *,
    pretrained: bool = False,
    in_chans: int | None = None,
    generator: torch.Generator | None = None,
) -> ImageModel:
    """Create a model, with new weights or with published ones.

    `create_model("vit_base_patch16_224", pretrained=True, num_classes=10)` gives the model of timm's name:
    with its exact GELU, its epsilons and the weights that timm has for it. `create_model("ViT-B/16")` is the
    paper's, with the numerics of its authors' code.

    Args:
        name: of the zoo's grammar, such as `ViT-B/16`, `R50+ViT-B/16` or `BiT-R50x1`; or of timm, with a tag
            or without; or, with `pretrained`, of `vitkit.starts`, or an address such as hf:org/name.
        num_classes: K, the number of logits; left out, 1000, or the published weights' own. Another number
            than theirs replaces their head by a new one of zeros (paper 3.1).
        image_size: pixels, one number or `(height, width)`; left out, that of the name, else 224. Positions
            of published weights are resized (paper 3.2).
        pretrained: whether the weights are published ones. They are fetched where they are not on this
            machine yet: nothing is fetched without it.
        in_chans: channels of the images; left out, 3, or the weights' own. The filters of published weights
            are summed for one channel, and repeated and scaled for others, as timm does it.
        generator: source of new weights; left out, PyTorch's default one.

    Returns:
        The model: with new weights in training mode, with published ones in evaluation mode.

    Raises:
        VitkitError: no model of this name, or no published weights of it; or they cannot be fetched, where
            the message says what to fetch elsewhere and where to put it.

    For another activation or dropout, change the configuration and build from that:
    `vitkit.build_model(dataclasses.replace(vitkit.model_config("ViT-B/16"), gelu="erf"))`.
    """
    timm_name = parse_timm_name(name)
    if pretrained:
        path = _published(name, timm_name)
        options = LoadOptions(num_classes, image_size, channels=in_chans)
        loaded = load(path, options)
        log_notes(path, loaded.notes, loaded.identity.left_out)
        return loaded.model
    classes = CLASSES if num_classes is None else num_classes
    if timm_name is None:
        config = zoo.model_config(name, classes, SIDE if image_size is None else image_size)
    else:
        config = timm_config(timm_name, classes, timm_name.side if image_size is None else image_size)
    if in_chans is not None:
        config = zoo.with_channels(config, in_chans)
    return build.build_model(config, generator)


def _published(name: str, timm_name: "TimmName | None") -> str:
    """Find where the weights of a name are published.

    Returns:
        A name of `vitkit.starts`, or an address.

    Raises:
        VitkitError: there are none, or several.
    """
    if find_start_named(name) is not None:
        return name
    address = name if name.startswith("hf:") else f"hf:{name}"
    if timm_name is not None:
        address = f"hf:timm/{timm_name.architecture}.{timm_name.tag}"
    listed = next((start for start in starts() if address in start.addresses), None)
    if listed is not None and not Path(listed.name).exists():  # a file here of that name would go first
        return listed.name
    if timm_name is not None and not timm_name.tag:
        raise VitkitError(f"timm has no weights of {name}: leave pretrained out, or choose another model.")
    if timm_name is not None or name.startswith("hf:"):
        return address
    name = zoo.zoo_name(name)
    if published := [start.name for start in starts() if start.model == name]:
        raise VitkitError(
            f"{name} is an architecture, and its published weights have names of their own: "
            f"{', '.join(published)}."
        )
    if Path(name).exists():
        raise VitkitError(f"{without_places(name)} is on this machine: load it with vitkit.load_model.")
    zoo.model_config(name)  # an unknown name has an error of its own
    raise VitkitError(
        f"No weights of {name} are published where vitkit looks for them. Give the name of one of "
        "vitkit.starts(), of timm, or an address (hf:org/name); or leave pretrained out, for new weights."
    )


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
"""Tags of weights whose pixels have ImageNet's mean and standard deviation; the others have 0.5."""


@dataclass(frozen=True)
class TimmName:
    """An architecture of timm, and the weights of it that a name stands for."""

    architecture: str
    tag: str
    """The weights, whether the name says it or timm chooses them; "" where timm has none."""
    side: int
    """Height and width in pixels; a BiT takes any: the size of its first training."""


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
    if (backbone := getattr(config, "backbone", None)) is not None:
        timm: dict[str, Any] = {"standardization": "variance", "standardization_eps": STANDARDIZATION_EPS}
        numerics["backbone"] = replace(backbone, norm_eps=GROUP_NORM_EPS, **timm)
    names = {field.name for field in fields(config)}
    config = replace(config, **{key: value for key, value in numerics.items() if key in names})
    statistics = (table.IMAGENET_MEAN, table.IMAGENET_STD) if name.tag in IMAGENET_TAGS else ((0.5,), (0.5,))
    return with_statistics(config, *statistics)

"""The grammar of model names, and configurations changed for other images. It needs no torch.

ViT-B/16            Base with 16x16 patches; the official file name ViT-B_16 is the same
ViT-S/8x4           patches 8 pixels high and 4 wide
ViT-96x6x3/4        width 96, 6 layers, 3 heads, an MLP four times as wide, 4x4 patches
ViT-1024x8x16x2048/32   the same with an MLP of 2048: the shapes of paper D.2
R50+ViT-B/16        hybrid: a ResNet makes the tokens; the number after the slash is the total stride
BiT-R50x1           the paper's ResNet baseline; x2 is twice as wide
BiT-R2-2-2x0.5      three stages of 2 units each, half as wide
R1-1x0.5+ViT-256x2x4/16   a hybrid with such a ResNet; the total stride is a multiple of the ResNet's
Axial-ViT-B/16, AxialResNet-50   axial attention (paper D.6)
ViT-5-B/16          RMSNorm, QK-norm, rotary positions, registers and layer scale (Wang et al. 2026)

Options of any ViT or hybrid, after its name: -gap mean pooling (paper D.3; -gap-norep is the same), -map
attention pooling, -max maximum pooling, -tokenmean the class token and the mean, -reg4 four register tokens;
-nopos, -pos2d, -relative, -relbias, -sincos2d, -sincos2dmae another position embedding, -everylayer and
-shared where it is added (paper D.4); -rms RMSNorm, -qknorm norms of queries and keys, -swiglu gated MLPs.
"""

import difflib
import fnmatch
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from vitkit.config import nearest, to_json
from vitkit.errors import VitkitError
from vitkit.models import config as configs
from vitkit.models.config import BackboneConfig, ResNetConfig, ViTConfig, height_and_width
from vitkit.models.config import ModelConfig as ModelConfig
from vitkit.text import format_size

FAMILIES: dict[str, type[ModelConfig]] = {config.family: config for config in (ViTConfig, ResNetConfig)}
"""The configurations by the name of their family, which `model.json` records."""
Statistics = tuple[float, ...] | None
"""A value for each channel, or one for all; None where none is given."""


class Shape(NamedTuple):
    """The numbers that the size in a ViT's name stands for."""

    width: int
    depth: int
    mlp_dim: int
    num_heads: int


# Base, Large, Huge: the paper's Table 1. b: Figure 4. Ti, S: the official releases. The others: big_vision
# models/vit.py. XL: ViT-5.
SIZES = {
    "mu": Shape(32, 1, 128, 2),
    "Ti": Shape(192, 12, 768, 3),
    "b": Shape(384, 12, 1536, 6),
    "S": Shape(384, 12, 1536, 6),
    "M": Shape(512, 12, 2048, 8),
    "B": Shape(768, 12, 3072, 12),
    "L": Shape(1024, 24, 4096, 16),
    "XL": Shape(1152, 28, 4608, 16),
    "So400m": Shape(1152, 27, 4304, 16),
    "H": Shape(1280, 32, 5120, 16),
    "g": Shape(1408, 40, 6144, 16),
    "g-opt": Shape(1536, 40, 6144, 16),
    "G": Shape(1664, 48, 8192, 16),
    "G-opt": Shape(1536, 48, 8192, 16),
    "e": Shape(1792, 56, 15360, 16),
}

RESNETS = {
    "R26": (2, 2, 2, 2),
    "R50": (3, 4, 6, 3),
    "R101": (3, 4, 23, 3),
    "R152": (3, 8, 36, 3),
    "R200": (3, 24, 36, 3),
}
"""Bottleneck units by stage (big_vision `models/bit.py:131-140`)."""

OPTIONS: dict[str, dict[str, Any]] = {
    "gap": {"pool": "mean"},
    "map": {"pool": "map"},
    "max": {"pool": "max"},
    "tokenmean": {"pool": "token+mean"},
    "norep": {},  # accepted and ignored: names never include the representation layer
    "nopos": {"position": "none"},
    "pos2d": {"position": "learned_2d"},
    "relative": {"position": "relative"},
    "relbias": {"position": "relative_bias"},
    "sincos2d": {"position": "sincos_2d"},
    "sincos2dmae": {"position": "sincos_2d_mae"},
    "everylayer": {"position_at": "every_layer"},
    "shared": {"position_at": "every_layer_shared"},
    "rms": {"norm": "rms"},
    "qknorm": {"qk_norm": True},
    "swiglu": {"mlp": "swiglu"},
    "conv": {},  # a convolutional stem, whose channels depend on width and patch
}

VIT5: dict[str, Any] = {
    "register_tokens": 4,
    "class_token_position": False,
    "rotary": configs.VIT5_ROTARY,
    "norm": "rms",
    "qk_norm": True,
    "qkv_bias": False,
    "layer_scale": 1e-4,
    "gelu": "erf",
}
"""The fields that make a ViT a ViT-5 (Wang et al. 2026, arXiv 2602.08071, and its `models_vit5.py`)."""

NAMES = (
    *("ViT-Ti/16", "ViT-S/16", "ViT-S/16-gap", "ViT-S/32", "ViT-S/32-gap", "ViT-b/32"),
    *("ViT-B/8", "ViT-B/16", "ViT-B/16-gap", "ViT-B/32", "ViT-B/32-gap"),
    *("ViT-L/16", "ViT-L/32", "ViT-H/14", "ViT-g/14", "ViT-G/14"),
    *("ViT-5-S/16", "ViT-5-B/16", "ViT-5-L/16", "ViT-5-XL/16"),
    *("R+ViT-Ti/16", "R26+ViT-S/32", "R26+ViT-B/32"),
    *("R50+ViT-B/16", "R50+ViT-B/32", "R50+ViT-L/16", "R50+ViT-L/32"),
    *("BiT-R26x1", "BiT-R50x1", "BiT-R50x2", "BiT-R50x3", "BiT-R101x1", "BiT-R101x3"),
    *("BiT-R152x1", "BiT-R152x2", "BiT-R152x4", "BiT-R200x3"),
    *("Axial-ViT-B/16", "Axial-ViT-B/32", "AxialResNet-50"),
    # Paper D.4, Table 8; the learned 1-D one at the stem is ViT-B/16 itself.
    *("ViT-B/16-nopos", "ViT-B/16-pos2d", "ViT-B/16-relative", "ViT-B/16-everylayer", "ViT-B/16-shared"),
    *("ViT-B/16-pos2d-everylayer", "ViT-B/16-pos2d-shared"),
)

LONGEST_NAME = 100
"""The most characters that a name of the grammar has; longer ones are refused before they are parsed."""

_RESNET = r"(?P<trunk>R(\d+(-\d+)+|\d*))"
_WIDTH = r"x(?P<width>\d+(\.\d+)?)"
_VIT = re.compile(
    rf"({_RESNET}({_WIDTH})?\+)?"
    r"(?P<axial>Axial-)?ViT-(?P<five>5-)?(?P<size>[A-Za-z0-9]+(-opt)?)[/_](?P<patch>\d+(x\d+)?)"
    r"(?P<options>(-[a-z0-9]+)*)"
)
_CUSTOM = re.compile(r"(\d+)x(\d+)x(\d+)(?:x(\d+))?")
_BIT = re.compile(rf"BiT-([SM]-)?{_RESNET}{_WIDTH}")

OTHER_SIZES = {
    "tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H", "giant": "g", "gigantic": "G",
    "b": "B", "l": "L", "h": "H",
}  # fmt: skip
"""The sizes of timm, Hugging Face and torchvision (one letter), and the zoo's names for them."""

# timm: vit_base_patch16_224.augreg_in21k, deit_small_patch16_224. Hugging Face: google/vit-base-patch16-224.
# Other words (clip, siglip, dinov2, rope, miil; deit3) stand for parts that the zoo's ViT of this size lacks.
_OTHER_PATCHES = re.compile(
    r"(?:.*/)?(?:vit|deit)[_-](?P<size>[a-z]+)[_-]patch(?P<patch>\d+)(?:[_-]\d+)?"
    r"(?:[_-](?:in\d+k|dino|mae|sam))?(?:\..*)?"
)
# timm: vit_base_r50_s16_224, vit_tiny_r_s16_p8_224.
_OTHER_HYBRID = re.compile(r"(?:.*/)?vit_(?P<size>[a-z]+)_(?P<trunk>r\d*)_s(?P<stride>\d+)(?:_p\d+)?_.*")
# torchvision: vit_b_16.
_OTHER_LETTER = re.compile(r"vit_(?P<size>[blh])_(?P<patch>\d+)")
# timm: resnetv2_50x1_bitm. Hugging Face: google/bit-50.
_OTHER_BIT = re.compile(r"(?:.*/)?resnetv2_(?P<depth>\d+)x(?P<width>\d+)_?bit.*")


def list_models(pattern: str = "*") -> list[str]:
    """List the names of the zoo that match a shell pattern, sorted.

    The grammar has more: other patches, sizes and options can be named too.
    """
    return sorted(fnmatch.filter(NAMES, pattern))


def zoo_name(name: str) -> str:
    """Return the name here of a model that is written in other letters (vit-l/16), or named as timm, Hugging
    Face and torchvision do (vit_base_patch16_224, google/vit-base-patch16-224, vit_b_16).

    Any other name is returned as it is: a name of the grammar, one that may mean two models, and one that
    says more than an architecture: weights (.augreg_in21k) or another size of images than 224.
    """
    match = _VIT.fullmatch(name) if len(name) <= LONGEST_NAME else None
    is_here = match and (match["size"] in SIZES or _CUSTOM.fullmatch(match["size"]))
    if is_here or not 0 < len(name) <= LONGEST_NAME or _BIT.fullmatch(name):
        return name
    if len(meant := same_letters(name, NAMES)) == 1:
        return meant[0]
    says_more = re.search(r"\.|[_-](in\d+k|dino|mae|sam|(?!224$)\d{3})$", name)
    return (None if says_more else name_here(name)) or name


def model_config(name: str, num_classes: int = 1000, image_size: int | tuple[int, int] = 224) -> ModelConfig:
    """Give the configuration that a name stands for.

    Args:
        name: of the grammar above, or as `zoo_name` takes it.
        num_classes: K, the number of logits.
        image_size: pixels, one number or `(height, width)`.

    Raises:
        VitkitError: the name is not of the grammar; the error suggests another.
    """
    size, name = height_and_width(image_size), zoo_name(name)
    # Before any digits are read: Python refuses to make a number of thousands of them.
    if len(name) > 200:
        raise VitkitError(f"No model is named '{name[:50]}...' ({len(name):,} characters).")
    if name == "AxialResNet-50":
        return ResNetConfig(size, RESNETS["R50"], num_classes, mixing="axial")
    match = _BIT.fullmatch(name) if len(name) <= LONGEST_NAME else None
    layers = _units(match["trunk"]) if match else ()
    if match and layers and float(match["width"]) > 0:
        return ResNetConfig(size, layers, num_classes, width_factor=float(match["width"]))
    return vit_config(name, num_classes, size)


def vit_config(name: str, num_classes: int = 1000, image_size: int | tuple[int, int] = 224) -> ViTConfig:
    """Give the configuration that the name of a ViT, a hybrid or an Axial-ViT stands for.

    Raises:
        VitkitError: the name is not of the grammar; the error suggests another.
    """
    match = _VIT.fullmatch(name) if len(name) <= LONGEST_NAME else None
    custom = _CUSTOM.fullmatch(match["size"]) if match else None
    if match is None or (custom is None and match["size"] not in SIZES):
        raise VitkitError(_unknown_name(name[:LONGEST_NAME]))
    if custom:
        width, depth, num_heads = (int(number) for number in custom.groups()[:3])
        shape = Shape(width, depth, int(custom[4] or 4 * width), num_heads)
    else:
        shape = SIZES[match["size"]]
    sides = [int(side) for side in match["patch"].split("x")]
    patch, backbone = (sides[0], sides[-1]), None
    if match["trunk"]:
        backbone, patch = _hybrid(name, match["trunk"], float(match["width"] or 1), patch)
    config = ViTConfig(
        image_size=height_and_width(image_size),
        patch_size=patch,
        **shape._asdict(),
        num_classes=num_classes,
        backbone=backbone,
        pool="mean" if match["axial"] else "token",
        attention="axial" if match["axial"] else "full",
    )
    changes, options = dict(VIT5 if match["five"] else {}), match["options"].split("-")[1:]
    for option in options:
        if not (registers := re.fullmatch(r"reg(\d+)", option)) and option not in OPTIONS:
            near = nearest(option, [*OPTIONS, "reg4"])
            raise VitkitError(f"'{name}': no option is named '{option}'. {near}")
        changes |= {"register_tokens": int(registers[1])} if registers else OPTIONS[option]
    config = replace(config, **changes)
    if "conv" in options:
        config = replace(config, stem_channels=_stem_channels(name, config))
    return config


def _unknown_name(name: str) -> str:
    """Say that no model has this name, and which name was probably meant."""
    meant = same_letters(name, NAMES)
    translated = name_here(name)
    if meant:
        suggestion = f"Did you mean {' or '.join(map(repr, meant))}?"
    elif translated is not None:
        suggestion = (
            f"In vitkit that architecture is called '{translated}'. For trained weights, load their file or "
            "address with vitkit.load_model."
        )
    elif "_patch" in name:
        tag = "" if "." in name else ".TAG"
        suggestion = f"If it is timm's, vitkit.load_model reads its weights from hf:timm/{name}{tag}."
    else:
        close = difflib.get_close_matches(name, NAMES, n=1)
        suggestion = f"Did you mean '{close[0]}'?" if close else "vitkit models lists the names."
    return (
        f"No model is named '{name}'. {suggestion} Names look like ViT-B/16, R50+ViT-B/16, BiT-R50x1, or "
        "ViT-96x6x3/4 for width 96, 6 layers, 3 heads and patches of 4."
    )


def name_here(name: str) -> str | None:
    """Translate a name of timm, Hugging Face or torchvision; None where the zoo has no such architecture."""
    lower = name.lower()
    if match := _OTHER_PATCHES.fullmatch(lower) or _OTHER_LETTER.fullmatch(lower):
        size = OTHER_SIZES.get(match["size"])
        return size and f"ViT-{size}/{match['patch']}"
    if match := _OTHER_HYBRID.fullmatch(lower):
        size = OTHER_SIZES.get(match["size"])
        return size and f"{match['trunk'].upper()}+ViT-{size}/{match['stride']}"
    if match := _OTHER_BIT.fullmatch(lower):
        return f"BiT-R{match['depth']}x{match['width']}"
    return None


def same_letters(name: str, names: Sequence[str]) -> list[str]:
    """List the names of `names` that differ from `name` in case and punctuation alone."""
    meant, *others = (re.sub("[^a-z0-9+]", "", text.lower()) for text in (name, *names))
    return [other for other, letters in zip(names, others, strict=True) if letters == meant]


def name_of(config: ModelConfig) -> str:
    """Find the name of an architecture, whatever its numerics and head; empty if it has none."""
    for name in NAMES:
        try:
            named = model_config(name, config.num_classes, config.image_size)
        except VitkitError:  # images too small for this one
            continue
        if _shapes(named) == _shapes(config):
            return name
    # By its shape, as "ViT-64x4x4/4", if the grammar has options for the rest.
    height, width = getattr(config, "patch_size", (0, 0))
    if not height or getattr(config, "backbone", None) is not None:
        return ""
    return changed_name(f"ViT-S/{height}" + ("" if width == height else f"x{width}"), config)


def changed_name(name: str, config: ModelConfig) -> str:
    """Name the model that `config` has become by changes to the model called `name`.

    Returns:
        `name` itself where no shape differs; a name of the grammar, such as "ViT-B/16-gap"; or nothing, where
        the grammar has no options for the changes.
    """
    if _shapes(model_config(name, config.num_classes, config.image_size)) == _shapes(config):
        return name
    match = _VIT.fullmatch(name)
    shape: list[Any] = [getattr(config, field, None) for field in Shape._fields]
    if match is None or None in shape:
        return ""
    width, depth, mlp_dim, num_heads = shape
    named = [size for size, numbers in SIZES.items() if list(numbers) == shape]
    custom = f"{width}x{depth}x{num_heads}" + ("" if mlp_dim == 4 * width else f"x{mlp_dim}")
    size = match["size"] if match["size"] in named else (named or [custom])[0]
    plain = f"{name[: match.start('size')]}{size}/{match['patch']}"
    base = model_config(plain, config.num_classes, config.image_size)
    options = [
        option
        for option, changes in OPTIONS.items()
        if any(getattr(base, field) != value for field, value in changes.items())
        and all(getattr(config, field) == value for field, value in changes.items())
    ]
    registers = getattr(config, "register_tokens", 0)
    options += [f"reg{registers}"] if registers != getattr(base, "register_tokens", 0) else []
    changed = "-".join([plain, *options])
    same = _shapes(model_config(changed, config.num_classes, config.image_size)) == _shapes(config)
    return changed if same else ""


def _shapes(config: ModelConfig) -> dict[str, Any]:
    """Give the fields of a configuration that decide its architecture."""
    shapes: dict[str, Any] = to_json(config)
    for key in _NOT_SHAPES:
        shapes.pop(key, None)
    if shapes.get("backbone"):
        shapes["backbone"] = {key: shapes["backbone"][key] for key in ("layers", "width_factor")}
    return shapes


# Fields that do not make another architecture: numerics, dropout, the pre-training head, and conventions of a
# checkpoint format.
_NOT_SHAPES = (
    *("class_token_position", "representation_size", "dropout", "attention_dropout", "drop_path"),
    *("gelu", "norm_eps", "image_mean", "image_std", "in_channels"),
    *("standardization_eps", "max_pool_padding"),
)


def _units(trunk: str) -> tuple[int, ...]:
    """Give the units of the stages of "R50" or "R2-2-2"; none where no ResNet has this name."""
    if "-" in trunk:
        return tuple(int(units) for units in trunk[1:].split("-"))
    return RESNETS.get(trunk, ())


def _hybrid(
    name: str, trunk: str, width_factor: float, stride: tuple[int, int]
) -> tuple[BackboneConfig, tuple[int, int]]:
    """Make a hybrid's backbone and its patch on the feature map from a ResNet's name and the total stride."""
    if trunk == "R" and stride == (16, 16):
        # The release's R+Ti/16: the root block alone (stride 4), and patches of 8 on it. That makes a total
        # stride of 32, though the name says 16.
        return BackboneConfig(layers=(), width_factor=width_factor), (8, 8)
    layers = _units(trunk)
    if "-" in trunk:
        backbone = BackboneConfig(layers, width_factor)
        if any(side % backbone.stride or not side for side in stride):
            raise VitkitError(
                f"'{name}': a ResNet of {len(layers)} stages has a stride of {backbone.stride}, of which "
                f"the total stride is a multiple, found {format_size(stride)}. Write one after the slash."
            )
        return backbone, (stride[0] // backbone.stride, stride[1] // backbone.stride)
    if layers and stride == (32, 32):
        return BackboneConfig(layers, width_factor), (1, 1)
    if layers and stride == (16, 16):
        # Stage 4 removed, its units placed in stage 3 (paper 4.1).
        return BackboneConfig((*layers[:2], layers[2] + layers[3]), width_factor), (1, 1)
    raise VitkitError(
        f"No hybrid is named '{name}'. They have a ResNet of {', '.join(RESNETS)} and a total stride of 16 "
        "or 32 (R50+ViT-B/16), or the root block alone (R+ViT-Ti/16), or the units of each stage "
        "(R1-1-1x0.5+ViT-256x2x4/16)."
    )


def _stem_channels(name: str, config: ViTConfig) -> tuple[int, ...]:
    """Give the channels of a convolutional stem: doubled at each halving, up to the Transformer's width.

    For ViT-Ti/16 and ViT-S/16 they are as in Xiao et al. 2021: 24-48-96-192 and 48-96-192-384.
    """
    halvings = config.patch_size[0].bit_length() - 1
    channels = tuple(config.width >> number for number in reversed(range(halvings)))
    if not channels or channels[0] % configs.STEM_GROUP or config.width % channels[0]:
        raise VitkitError(
            f"'{name}': no convolutional stem fits a width of {config.width} and patches of "
            f"{format_size(config.patch_size)}. Choose patches of 2, 4, 8 or 16 pixels and a width whose "
            f"half, quarter and so on is a multiple of {configs.STEM_GROUP}; or give the channels "
            "(stem_channels)."
        )
    return channels


def with_image_size(config: ModelConfig, size: int | tuple[int, int]) -> ModelConfig:
    """Set the image size of a model's preprocessing, which owns it, on the model's configuration.

    No other function changes it: a size that is given to `load_model` comes here by way of `Preprocessing`.

    Raises:
        VitkitError: the model cannot read images of this size.
    """
    return replace(config, image_size=height_and_width(size))


def with_statistics(config: ModelConfig, mean: Statistics, std: Statistics) -> ModelConfig:
    """Give a configuration with the mean and standard deviation of pixels in [0, 1], where they are given.

    Raises:
        VitkitError: another number of values than channels, or such as no pixels have.
    """
    channels = config.in_channels
    if mean is not None:
        config = replace(config, image_mean=mean * channels if len(mean) == 1 else mean)
    if std is not None:
        config = replace(config, image_std=std * channels if len(std) == 1 else std)
    return config


def with_channels(config: ModelConfig, channels: int) -> ModelConfig:
    """Give a configuration for images of another number of channels.

    One channel gets the averages of its pixel statistics; several get them repeated in turn.

    Raises:
        VitkitError: there is no rule for these numbers.
    """
    before = config.in_channels
    if channels == before:
        return config
    if channels != 1 and before not in (1, 3):
        raise VitkitError(
            f"The weights are for images of {before} channels, and only weights for 1 or 3 fit images of "
            f"{channels}. Give --channels {before}, or choose another start."
        )
    mean, std = config.image_mean, config.image_std
    if channels == 1:
        mean, std = (sum(mean) / before,), (sum(std) / before,)
    else:
        mean, std = (tuple(values[channel % before] for channel in range(channels)) for values in (mean, std))
    return replace(config, in_channels=channels, image_mean=mean, image_std=std)


def describe_channels(before: int, channels: int) -> str:
    """Describe how the first filters were made to fit images of another number of channels."""
    change = "summed" if channels == 1 else f"repeated in turn, times {before}/{channels}"
    return f"channels: {channels} instead of {before}, the filters that see the pixels are {change}"

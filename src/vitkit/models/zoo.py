"""The grammar of model names.

ViT-B/16            Base with 16x16 patches; the official file name ViT-B_16 is the same
ViT-B/16-gap        mean pooling in place of the class token (paper D.3); ViT-B_16-gap-norep is the same
ViT-S/8x4           patches 8 pixels high and 4 wide
ViT-96x6x3/4        width 96, 6 layers, 3 heads, an MLP four times as wide, 4x4 patches
"""

import fnmatch
import re

import torch

from vitkit.config import nearest
from vitkit.errors import VitkitError
from vitkit.models.vit import ViT, ViTConfig

# width, depth, MLP width, heads. Base, Large, Huge: the paper's Table 1. b: Figure 4. Ti, S: the official
# releases. The others: big_vision models/vit.py.
SIZES = {
    "mu": (32, 1, 128, 2),
    "Ti": (192, 12, 768, 3),
    "b": (384, 12, 1536, 6),
    "S": (384, 12, 1536, 6),
    "M": (512, 12, 2048, 8),
    "B": (768, 12, 3072, 12),
    "L": (1024, 24, 4096, 16),
    "So400m": (1152, 27, 4304, 16),
    "H": (1280, 32, 5120, 16),
    "g": (1408, 40, 6144, 16),
    "G": (1664, 48, 8192, 16),
    "e": (1792, 56, 15360, 16),
}

NAMES = (
    "ViT-Ti/16",
    "ViT-S/16",
    "ViT-S/16-gap",
    "ViT-S/32",
    "ViT-S/32-gap",
    "ViT-b/32",
    "ViT-B/8",
    "ViT-B/16",
    "ViT-B/16-gap",
    "ViT-B/32",
    "ViT-B/32-gap",
    "ViT-L/16",
    "ViT-L/32",
    "ViT-H/14",
    "ViT-g/14",
    "ViT-G/14",
)

_NAME = re.compile(r"ViT-(?P<size>[A-Za-z0-9]+)[/_](?P<patch>\d+(x\d+)?)(?P<gap>-gap)?(-norep)?")
_CUSTOM = re.compile(r"(\d+)x(\d+)x(\d+)")


def list_models(pattern: str = "*") -> list[str]:
    """Names of the zoo that match a shell pattern, sorted. Any other patch or size can be named too."""
    return sorted(fnmatch.filter(NAMES, pattern))


def vit_config(name: str, num_classes: int = 1000, image_size: int | tuple[int, int] = 224) -> ViTConfig:
    """The configuration that a name stands for.

    Raises:
        VitkitError: the name is not of the grammar; the nearest known one is named.
    """
    match = _NAME.fullmatch(name)
    custom = _CUSTOM.fullmatch(match["size"]) if match else None
    if match is None or (custom is None and match["size"] not in SIZES):
        raise VitkitError(
            f"No model is named '{name}'. {nearest(name, NAMES)} Names look like ViT-B/16, or "
            "ViT-96x6x3/4 for width 96, 6 layers, 3 heads and patches of 4."
        )
    if custom:
        width, depth, num_heads = (int(number) for number in custom.groups())
        mlp_dim = 4 * width
    else:
        width, depth, mlp_dim, num_heads = SIZES[match["size"]]
    return ViTConfig(
        image_size=_pair(image_size),
        patch_size=_pair(tuple(int(side) for side in match["patch"].split("x"))),
        width=width,
        depth=depth,
        num_heads=num_heads,
        mlp_dim=mlp_dim,
        num_classes=num_classes,
        pool="mean" if match["gap"] else "token",
    )


def create_model(
    name: str,
    num_classes: int = 1000,
    image_size: int | tuple[int, int] = 224,
    *,
    generator: torch.Generator | None = None,
) -> ViT:
    """A model with new weights.

    Args:
        name: of the zoo's grammar, `ViT-B/16` say.
        num_classes: K, the number of logits.
        image_size: pixels, one number or `(height, width)`.
        generator: source of the initial weights; left out, PyTorch's default one.

    For another activation, pooling or dropout, change the configuration and build from that:
    `ViT(dataclasses.replace(vit_config("ViT-B/16"), pool="mean"))`.
    """
    return ViT(vit_config(name, num_classes, image_size), generator=generator)


def count_parameters(model: torch.nn.Module) -> int:
    """Trainable numbers of a model."""
    return sum(parameter.numel() for parameter in model.parameters())


def _pair(size: int | tuple[int, ...]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[-1])

"""The configurations of the ResNets: BiT's, and the one before a hybrid's Transformer. No torch here."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from vitkit.config import AtLeastOne, require_valid
from vitkit.errors import VitkitError
from vitkit.models.config.image_config import Classes, Deviation, Length, check_images

GROUPS = 32
"""Groups of every GroupNorm in both of the authors' code bases."""

MOST_STAGES, MOST_UNITS, WIDEST = 10, 1000, 1024
"""Several times as many stages, units and channels (over 64) as any ResNet that was published has."""


@dataclass(frozen=True)
class BackboneConfig:
    """The ResNet that makes a hybrid's feature map."""

    layers: tuple[int, ...] = (3, 4, 6, 3)
    """Units in each stage; none: the root block alone, whose stride is 4 (R+ViT-Ti/16)."""
    width_factor: float = 1.0
    norm_eps: float = 1e-6
    standardization: Literal["std", "variance"] = "std"
    """The place of epsilon: w / (std + eps), the original's, or w / sqrt(var + eps), timm's."""
    standardization_eps: float = 1e-5

    def __post_init__(self) -> None:
        require_valid(self)
        _check_stages(self.layers, self.width_factor, GROUPS)

    def feature_map(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """`(rows, columns)` of the feature map: every stride of 2 halves and rounds up (SAME padding)."""
        halvings = 2 + max(len(self.layers) - 1, 0)
        size = image_size
        for _ in range(halvings):
            size = halve(size)
        return size

    @property
    def stride(self) -> int:
        """Pixels of the image for each position of the feature map."""
        return 4 * int(2 ** max(len(self.layers) - 1, 0))

    @property
    def root_channels(self) -> int:
        return int(64 * self.width_factor)

    @property
    def stage_channels(self) -> tuple[int, ...]:
        """Channels that leave each stage."""
        return usual_stage_channels(self.layers, self.width_factor)

    @property
    def out_channels(self) -> int:
        """Channels of the feature map."""
        return self.stage_channels[-1] if self.layers else self.root_channels

    @property
    def arithmetic(self) -> tuple[str, ...]:
        """The numerics as phrases, in which two backbones with the same weights may differ."""
        eps = f"{self.standardization_eps:g}"
        rule = f"(std + {eps})" if self.standardization == "std" else f"sqrt(var + {eps})"
        return f"GroupNorm epsilon {self.norm_eps:g}", f"kernels standardised as w / {rule}"


@dataclass(frozen=True)
class ResNetConfig:
    """A BiT ResNet: shapes and numerics. Sizes are `(height, width)` in pixels."""

    family: ClassVar[str] = "ResNet"
    first_filters: ClassVar[tuple[str, ...]] = ("root.weight",)
    num_tokens: ClassVar[None] = None
    pools: ClassVar[bool] = True
    unmaskable: ClassVar[str] = (
        "has no patches that could be hidden: choose a Vision Transformer, such as ViT-Ti/16"
    )
    cut_off: ClassVar[str] = ""
    """The part of an image that no feature sees: none, since strides that do not divide it are padded."""
    image_size: tuple[Length, Length]
    layers: tuple[int, ...]
    """Bottleneck units in each stage."""
    num_classes: Classes
    width_factor: float = 1.0
    root_width: Length | None = None
    """Channels of the root; None: 64 times `width_factor`."""
    stage_widths: tuple[Length, ...] | None = None
    """Channels that leave each stage, four times as many as its bottlenecks have; None: 256, 512, ... times
    `width_factor`."""
    groups: AtLeastOne = GROUPS
    """Groups of every GroupNorm."""
    in_channels: Length = 3
    mixing: Literal["convolution", "axial"] = "convolution"
    """The middle of a bottleneck: a 3x3 convolution, or axial attention instead (paper D.6)."""
    num_heads: int = 8
    """Heads of the axial attention; without it the field counts for nothing."""
    norm_eps: float = 1e-5
    standardization_eps: float = 1e-10
    """In w / sqrt(var + eps)."""
    max_pool_padding: Literal["zeros", "lowest"] = "zeros"
    """The padding of the root's max-pooling: zeros in big_transfer, minus infinity in big_vision."""
    image_mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    image_std: tuple[Deviation, ...] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        require_valid(self)
        check_images(self)
        if not self.layers:
            raise VitkitError("A ResNet needs at least one stage, found none.")
        if self.stage_widths is not None and len(self.stage_widths) != len(self.layers):
            raise VitkitError(
                f"stage_widths has one number for each of the {len(self.layers)} stages, "
                f"found {self.stage_widths}."
            )
        by_factor = self.root_width is None or self.stage_widths is None
        _check_stages(self.layers, self.width_factor if by_factor else None, self.groups)
        normed = (self.root_channels, *(width // 4 for width in self.stage_channels))
        if any(width < self.groups or width % self.groups for width in normed) or any(
            width % 4 for width in self.stage_channels
        ):
            raise VitkitError(
                f"GroupNorm divides channels into {self.groups} groups, and a bottleneck has a quarter of "
                f"its stage's channels: a root of {self.root_channels} and stages of {self.stage_channels} "
                "do not fit."
            )
        channels = min(width // 4 for width in self.stage_channels)
        if self.mixing == "axial" and (self.num_heads < 1 or channels % (2 * self.num_heads)):
            raise VitkitError(
                f"Axial attention divides {channels} channels, and half as many for queries and keys, among "
                f"its heads equally: {self.num_heads} heads do not fit."
            )

    @property
    def root_channels(self) -> int:
        return int(64 * self.width_factor) if self.root_width is None else self.root_width

    @property
    def stage_channels(self) -> tuple[int, ...]:
        """Channels that leave each stage."""
        if self.stage_widths is not None:
            return self.stage_widths
        return usual_stage_channels(self.layers, self.width_factor)

    @property
    def width(self) -> int:
        """Channels of the last stage, which the head sees."""
        return self.stage_channels[-1]

    @property
    def num_layers(self) -> int:
        return sum(self.layers)

    @property
    def attention(self) -> Literal["axial", "none"]:
        return "axial" if self.mixing == "axial" else "none"

    @property
    def layer_summary(self) -> str:
        return "-".join(map(str, self.layers))

    @property
    def arithmetic(self) -> tuple[str, ...]:
        """The numerics as phrases, in which two models with the same weights may differ."""
        return (
            f"GroupNorm epsilon {self.norm_eps:g}",
            f"kernels standardised as w / sqrt(var + {self.standardization_eps:g})",
            f"root max-pooling padded with {self.max_pool_padding}",
        )

    @property
    def position_extent(self) -> tuple[str, tuple[int, int]]:
        """The images and their size, on which the positions of axial attention depend."""
        return "images", self.image_size

    def with_new_head(self, num_classes: int) -> "ResNetConfig":
        """Give the configuration with a head for other classes."""
        return replace(self, num_classes=num_classes)


def usual_stage_channels(layers: tuple[int, ...], width_factor: float) -> tuple[int, ...]:
    """Give the channels that leave each stage of a ResNet: 256, 512, 1024, 2048 at a width factor of 1."""
    return tuple(4 * int(64 * width_factor) * 2**stage for stage in range(len(layers)))


def _check_stages(layers: tuple[int, ...], width_factor: float | None, groups: int) -> None:
    if layers and min(layers) < 1:
        raise VitkitError(f"Every stage of a ResNet needs at least one unit, found {layers}.")
    if len(layers) > MOST_STAGES or sum(layers) > MOST_UNITS:
        raise VitkitError(
            f"A ResNet has at most {MOST_STAGES} stages and {MOST_UNITS:,} units, found {len(layers):,} "
            f"stages of {sum(layers):,} units."
        )
    if width_factor is None:
        return
    if not abs(width_factor) <= WIDEST:
        raise VitkitError(f"width_factor is at most {WIDEST:,}, found {width_factor}.")
    channels = int(64 * width_factor)
    if channels < groups or channels % groups:
        raise VitkitError(
            f"GroupNorm divides channels into {groups} groups: width_factor is 0.5, 1, 1.5 and so on, "
            f"found {width_factor}."
        )


def halve(size: tuple[int, int]) -> tuple[int, int]:
    """Give a feature map's size after a stride of 2: rounded up, in both of the authors' code bases."""
    return -(-size[0] // 2), -(-size[1] // 2)

"""The configurations of models: everything that decides their shapes and numerics; how one computes, and what
its logits mean.

No torch is imported here, because help texts must not wait for it.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, overload

from vitkit.config import FLOAT32_MOST, AtLeastOne, BelowOne, Fraction, Positive, Range, Valid, ZeroOrMore
from vitkit.errors import VitkitError
from vitkit.text import format_size

LARGEST = 2**20
"""Pixels of a side, or channels, or the width of a layer: far more than any image or model has."""

FLOAT32_LEAST = 2.0**-126
"""The smallest number above 0 that float32 holds in full, for pixels are divided by deviations."""

MOST_CLASSES = 2**24
"""Hundreds of times as many classes as ImageNet-21k has."""


Size: TypeAlias = int | tuple[int, int]
"""Height and width of images in pixels, or one number for both."""


Length = Annotated[int, Range(f"from 1 to {LARGEST:,}", 1, LARGEST)]
Classes = Annotated[int, Range(f"0 (no head) to {MOST_CLASSES:,}", 0, MOST_CLASSES)]
Deviation = Annotated[float, Range("a number above 0", FLOAT32_LEAST, FLOAT32_MOST)]


def check_images(config: Any) -> None:
    """Refuse pixel statistics of another number of channels than a model's.

    Raises:
        VitkitError: they are.
    """
    if len(config.image_mean) != config.in_channels or len(config.image_std) != config.in_channels:
        raise VitkitError(
            f"image_mean and image_std need one value per channel ({config.in_channels}), "
            f"found {config.image_mean} and {config.image_std}."
        )


@overload
def height_and_width(size: Size) -> tuple[int, int]: ...
@overload
def height_and_width(size: Size | None) -> tuple[int, int] | None: ...
def height_and_width(size: Size | None) -> tuple[int, int] | None:
    """Return a size as `(height, width)`: one number, alone or in a sequence, is both of them.

    Raises:
        VitkitError: they are no numbers, or more than two.
    """
    if size is None:
        return None
    sizes = (size,) if isinstance(size, int) else tuple(size)
    if not 1 <= len(sizes) <= 2:
        raise VitkitError(f"image_size must be (height, width), found {size}.")
    return sizes[0], sizes[-1]


GROUPS = 32
"""Groups of every GroupNorm in both of the authors' code bases."""

MOST_STAGES, MOST_UNITS, WIDEST = 10, 1000, 1024
"""More stages and units than any ResNet that was published has, and a larger width factor."""


@dataclass(frozen=True)
class BackboneConfig(Valid):
    """The ResNet that makes a hybrid's feature map."""

    layers: tuple[int, ...] = (3, 4, 6, 3)
    """Units in each stage; none: the root block alone, whose stride is 4 (R+ViT-Ti/16)."""
    width_factor: float = 1.0
    norm_eps: float = 1e-6
    standardization: Literal["std", "variance"] = "std"
    """The place of epsilon: w / (std + eps), the original's, or w / sqrt(var + eps), timm's."""
    standardization_eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_stages(self.layers, self.width_factor, GROUPS)

    def feature_map(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """`(rows, columns)` of the feature map: every stride of 2 halves and rounds up (SAME padding)."""
        return -(-image_size[0] // self.stride), -(-image_size[1] // self.stride)

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
class ResNetConfig(Valid):
    """A BiT ResNet: shapes and numerics. Sizes are `(height, width)` in pixels."""

    family: ClassVar[str] = "ResNet"
    first_filters: ClassVar[tuple[str, ...]] = ("root.weight",)
    num_tokens: ClassVar[None] = None
    pool: ClassVar[str] = "mean"
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
    """Heads of the axial attention; ignored without it."""
    norm_eps: float = 1e-5
    standardization_eps: float = 1e-10
    """In w / sqrt(var + eps)."""
    max_pool_padding: Literal["zeros", "lowest"] = "zeros"
    """The padding of the root's max-pooling: zeros in big_transfer, minus infinity in big_vision."""
    image_mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    image_std: tuple[Deviation, ...] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        super().__post_init__()
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

    @property
    def feature_width(self) -> int:
        """The number of features that the head sees."""
        return self.width

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
    if (channels := int(64 * width_factor)) < groups or channels % groups:
        raise VitkitError(
            f"GroupNorm divides channels into {groups} groups: width_factor is 0.5, 1, 1.5 and so on, "
            f"found {width_factor}."
        )


def halve(size: tuple[int, int]) -> tuple[int, int]:
    """Give a feature map's size after a stride of 2: rounded up, in both of the authors' code bases."""
    return -(-size[0] // 2), -(-size[1] // 2)


DEEPEST = 1000
"""Blocks of a model: far more than any ViT that was published has."""

MOST_TOKENS = 2**24
"""Tokens of an image, of 4096x4096 pixels each a patch of its own."""

MOST_FIXED_POSITIONS = 2**28
"""Numbers of sine-cosine positions, which are computed and in no file: 1 GiB of float32."""

STEM_GROUP = 8
"""Channels that a group norm of the convolutional stem takes together: the narrowest convolutions of Xiao et
al. have 24."""

PositionKind = Literal[
    "learned", "learned_2d", "relative", "relative_bias", "sincos_2d", "sincos_2d_mae", "none"
]
IN_ATTENTION: tuple[PositionKind, ...] = ("relative", "relative_bias")
"""The positions that are part of the attention and added to no token."""
PositionsAt = Literal["stem", "every_layer", "every_layer_shared"]
Interpolation = Literal["original", "timm", "flexivit", "huggingface", "dinov2", "torchvision"]
"""The library by whose rule position embeddings are resized, in `resize_grid` of `models/position.py`."""
INTERPOLATIONS: dict[Interpolation, str] = {
    "original": "the original's rule (bilinear, corners aligned)",
    "timm": "timm's rule (bicubic, antialiased)",
    "flexivit": "timm's rule for FlexiViT (bilinear)",
    "huggingface": "Hugging Face's rule (bicubic)",
    "dinov2": "DINOv2's rule (bicubic, scaled by a tenth of a patch more)",
    "torchvision": "torchvision's rule (bicubic, corners aligned)",
}
"""The rules in words, after "by"."""
ImagePoolKind = Literal["token", "mean", "max", "map", "token+mean"]
"""The poolings that make one vector of an image."""
PoolKind = Literal[ImagePoolKind, "none"]
NormKind = Literal["layer", "rms"]
"""LayerNorm (the original's); or RMSNorm, which subtracts no mean and adds no shift (Zhang and Sennrich 2019,
arXiv 1910.07467)."""
NORM_NAMES: dict[NormKind, str] = {"layer": "LayerNorm", "rms": "RMSNorm"}
"""The names of PyTorch's classes."""
MLPKind = Literal["gelu", "swiglu"]
"""Two dense layers with GELU between them (the original's); or SwiGLU, whose first layer makes gates, to
which SiLU is applied, and values that they are multiplied with (Shazeer 2020, arXiv 2002.05202)."""
Gelu = Literal["tanh", "erf", "quick"]
"""The tanh form (the original's), the exact one, or x times the logistic function of 1.702 x (CLIP)."""


@dataclass(frozen=True)
class RotaryConfig(Valid):
    """Rotary 2-D positions: pairs of a query's and a key's numbers are turned by angles of row and column.

    Half of the pairs turn with the row, half with the column; pair number i of n turns at a frequency of
    `temperature` to the power of -i/n.
    """

    pairs: Literal["interleaved", "halves"]
    """The numbers that make a pair: neighbours; or number i of the first half and number i of the second."""
    coordinates: Literal["patches", "centered"]
    """Positions counted in patches from 0; or centres of patches from -1 to 1, times 2 pi."""
    temperature: Positive
    """The base of the frequencies, as above."""
    reference_grid: tuple[AtLeastOne, AtLeastOne] | None = None
    """The grid that positions counted in patches are scaled to: all image sizes then see the same range."""
    offset: float = 0.0
    """Added to positions counted in patches, before they are scaled."""
    first: Literal["row", "column"] = "row"
    """The axis whose angle turns the first half of the pairs; the other axis turns the second."""
    register_temperature: Positive | None = None
    """The base of the frequencies of registers, which then stand in a square grid of their own; None: no
    register is turned."""


EVA02_ROTARY = RotaryConfig("interleaved", "patches", temperature=10_000.0, reference_grid=(16, 16))
"""Rotary positions of EVA-02 (Fang et al. 2023, arXiv 2303.11331), pre-trained on 16x16 patches."""

ROPE_VIT_ROTARY = RotaryConfig("interleaved", "patches", temperature=100.0, first="column")
"""Rotary positions of RoPE-ViT's axial models (Heo et al. 2024, arXiv 2403.13298)."""

DINOV3_ROTARY = RotaryConfig("halves", "centered", temperature=100.0)
"""Rotary positions of DINOv3 (Simeoni et al. 2025, arXiv 2508.10104)."""

PE_ROTARY = RotaryConfig("interleaved", "patches", temperature=10_000.0, offset=1.0, first="column")
"""Rotary positions of the Perception Encoder (Bolya et al. 2025, arXiv 2504.13181), without the grid of a
model's pre-training."""

VIT5_ROTARY = RotaryConfig("interleaved", "patches", temperature=10_000.0, register_temperature=100.0)
"""Rotary positions of ViT-5 (Wang et al. 2026, arXiv 2602.08071), beside learned ones; its `models_vit5.py`
and `rope.py` have the temperatures."""


@dataclass(frozen=True)
class ViTConfig(Valid):
    """Everything that decides the shapes and the arithmetic of a ViT.

    Sizes are `(height, width)` in pixels. Images that are no multiple of the patch are cropped at the right
    and bottom, as the original's VALID convolution does.
    """

    family: ClassVar[str] = "ViT"
    first_filters: ClassVar = ("stem.weight", "stem.root.weight", "stem.convolutions.0.weight")
    image_size: tuple[Length, Length]
    patch_size: tuple[int, int]
    """Pixels, or positions of the feature map where a backbone makes one."""
    width: Length
    depth: Annotated[int, Range(f"from 1 to {DEEPEST:,}", 1, DEEPEST)]
    num_heads: Length
    mlp_dim: Length
    num_classes: Classes
    in_channels: Length = 3
    backbone: BackboneConfig | None = None
    """A ResNet whose feature map is cut into patches in the image's place (hybrid, paper 3.1)."""
    stem_channels: tuple[int, ...] = ()
    """Channels of 3x3 convolutions before the projection (Xiao et al. 2021, arXiv 2106.14881): the last ones
    halve the map until a position stands for a patch. Empty: patches are projected linearly."""
    stem_strides: tuple[int, ...] = ()
    """Stride of each of these convolutions, 1 or 2, which multiply to the patch size. Empty: as above."""
    pool: PoolKind = "token"
    """The features that the head sees: the class token; the mean of the patch tokens (GAP, paper D.3); their
    maximum; attention pooling by a learned query (MAP, big_vision); the class token and behind it the mean
    of the patch tokens, twice as many numbers (DINOv2's linear heads); or every token."""
    pool_heads: Length | None = None
    """Heads of attention pooling; None: as many as the blocks have."""
    register_tokens: Annotated[int, Range(f"from 0 to {LARGEST:,}", 0, LARGEST)] = 0
    """Learned tokens between the class token and the patches, which no head sees."""
    class_token_position: bool = True
    """Whether the tokens before the patches have position embeddings (the original: yes; big_vision: no);
    registers have them where the class token does, as in timm."""
    position: PositionKind = "learned"
    """Kind of position embedding (paper D.4). `sincos_2d` has big_vision's sines and cosines, `sincos_2d_mae`
    those of MAE's authors. `relative` multiplies queries by a vector for each offset in the sequence;
    `relative_bias` adds a number for each head and offset in the grid to the attention logits (BEiT)."""
    rotary: RotaryConfig | None = None
    """Rotary positions in every attention, with added positions or without."""
    position_at: PositionsAt = "stem"
    """The layers at which it is added: the first, each with its own, or each with the same (paper D.4)."""
    attention: Literal["full", "axial"] = "full"
    """Between all tokens; or along rows, then along columns, with an MLP after each (paper D.6)."""
    extra_class_token: bool = False
    """Whether there is a class token although the pooling does not read it, as in MAE's fine-tuned models."""
    norm: NormKind = "layer"
    """Kind of all norms of the encoder and of the attention pooling."""
    qk_norm: bool = False
    """Whether queries and keys are normalised over the numbers of a head, by norms of this kind, before they
    are scaled and turned (Dehghani et al. 2023, arXiv 2302.05442)."""
    qkv_bias: bool = True
    """Whether queries, keys and values have biases in the blocks."""
    mlp: MLPKind = "gelu"
    """Kind of the MLP of every block; `mlp_dim` numbers leave its activation or its gates."""
    mlp_norm: bool = False
    """Whether what a SwiGLU's gates let through is normalised before the last layer (EVA-02)."""
    layer_scale: float | None = None
    """First value of a learned factor for each channel of every residual branch (DeiT III, DINOv2)."""
    norm_before_blocks: bool = False
    """Whether the tokens are normalised before the first block (CLIP)."""
    norm_after_pooling: bool = False
    """Whether the final norm follows the pooling instead of preceding it (timm's fc_norm; MAE, BEiT)."""
    final_norm: bool = True
    """Whether there is a final norm (Hugging Face's classifiers of CLIP have none)."""
    representation_size: Length | None = None
    """Width of the pre-training head's hidden layer with tanh (paper 3.1); None: a linear head alone."""
    dropout: BelowOne = 0.0
    """After the position embeddings and every dense layer but qkv (paper, Appendix B)."""
    attention_dropout: BelowOne = 0.0
    drop_path: BelowOne = 0.0
    """Stochastic depth: rate at which images skip a branch of the last block in training. The rates of the
    blocks rise to it evenly, from 0 in the first (after Huang et al. 2016, arXiv 1603.09382; DeiT: 0.1)."""
    gelu: Gelu = "tanh"
    norm_eps: ZeroOrMore = 1e-6
    image_mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    """Mean of pixels in [0, 1] by channel; it and `image_std` bring uint8 images to the weights' range."""
    image_std: tuple[Deviation, ...] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_images(self)
        if self.width % self.num_heads:
            raise VitkitError(f"width {self.width} cannot be divided among {self.num_heads} heads equally.")
        if self.stem_channels:
            self._check_stem()
        elif self.stem_strides:
            raise VitkitError(
                f"stem_strides belong to stem_channels, found {self.stem_strides} and no channels: give "
                "both or neither."
            )
        if self.rotary is not None:
            self._check_rotary(self.rotary)
        if min(self.patch_size) < 1 or self.grid[0] < 1 or self.grid[1] < 1:
            raise VitkitError(
                f"Images of {format_size(self.image_size)} hold no patch of "
                f"{format_size(self.token_size)} pixels: choose a smaller patch or larger images."
            )
        if self.num_tokens > MOST_TOKENS:
            raise VitkitError(
                f"Images of {format_size(self.image_size)} make {self.num_tokens:,} tokens; at most "
                f"{MOST_TOKENS:,} are possible: choose a larger patch or smaller images."
            )
        if self.position.startswith("sincos_2d") and self.num_tokens * self.width > MOST_FIXED_POSITIONS:
            raise VitkitError(
                f"Sine-cosine positions of {self.num_tokens:,} tokens and width {self.width:,} are too many "
                "numbers: choose a larger patch or smaller images."
            )
        if self.position_at != "stem" and self.position in (*IN_ATTENTION, "none"):
            raise VitkitError(
                f"'{self.position}' positions are not added to tokens: position_at says 'stem' for them, "
                f"found '{self.position_at}'."
            )
        if self.extra_class_token and self.pool in ("token", "token+mean"):
            raise VitkitError(f"pool '{self.pool}' has a class token already: leave out extra_class_token.")
        if self.norm_after_pooling and (self.pool == "token+mean" or not self.final_norm):
            raise VitkitError(
                "norm_after_pooling moves the final norm behind a pooling of as many numbers as a token has: "
                "it needs final_norm, and another pool than 'token+mean'."
            )
        if self.pool_heads is not None and (self.pool != "map" or self.width % self.pool_heads):
            raise VitkitError(
                f"pool_heads are of attention pooling (pool 'map'), and share its width of {self.width} "
                f"equally: found {self.pool_heads} with pool '{self.pool}'."
            )
        if self.mlp_norm and self.mlp != "swiglu":
            raise VitkitError("mlp_norm is a part of gated MLPs: choose mlp 'swiglu', or leave it out.")
        if self.attention == "axial" and self.drop_path:
            raise VitkitError(
                "Axial attention has no stochastic depth here, because rows of one image would be dropped "
                "apart: leave out drop_path."
            )
        if self.attention == "axial" and self.rotary is not None:
            raise VitkitError("Axial attention has no rotary positions here: its rows and columns are apart.")
        if self.attention == "axial" and (self.prefix_tokens or self.position in IN_ATTENTION):
            raise VitkitError(
                "Axial attention goes along rows and columns: no class or register token has a place there "
                "(choose pool 'mean' or 'map'), and no relative position."
            )

    def _check_stem(self) -> None:
        """Refuse convolutions that cannot make patches."""
        if self.backbone is not None:
            raise VitkitError("A hybrid's stem is its ResNet: leave out stem_channels.")
        if any(not 1 <= channels <= LARGEST or channels % STEM_GROUP for channels in self.stem_channels):
            raise VitkitError(
                f"stem_channels are multiples of {STEM_GROUP}, up to {LARGEST:,}, found {self.stem_channels}."
            )
        side = self.patch_size[0]
        if self.patch_size != (side, side) or side < 1 or side & (side - 1):
            raise VitkitError(
                "A convolutional stem halves the image until a position is a patch: the patch size is 1, 2, "
                f"4, 8 and so on, found {format_size(self.patch_size)}. Choose one of these, or leave out "
                "stem_channels."
            )
        halvings = side.bit_length() - 1
        if len(self.stem_channels) < halvings:
            raise VitkitError(
                f"Patches of {side} take {halvings} convolutions of stride 2: stem_channels is at least as "
                f"many numbers, found {self.stem_channels}."
            )
        if self.stem_strides and (
            len(self.stem_strides) != len(self.stem_channels)
            or set(self.stem_strides) - {1, 2}
            or math.prod(self.stem_strides) != side
        ):
            raise VitkitError(
                f"stem_strides has a 1 or a 2 for each of the {len(self.stem_channels)} stem_channels, with "
                f"{halvings} times a 2 for patches of {side}, found {self.stem_strides}."
            )

    def _check_rotary(self, rotary: RotaryConfig) -> None:
        """Refuse rotary positions that do not fit the heads, the registers or other positions."""
        if self.position in IN_ATTENTION:
            raise VitkitError(
                f"An attention has rotary or '{self.position}' positions, not both: choose one."
            )
        if self.head_dim % 4:
            raise VitkitError(
                f"Rotary positions divide a head's numbers among row and column in pairs: {self.head_dim} "
                "numbers are no multiple of 4."
            )
        registers = self.register_tokens
        if rotary.register_temperature is not None and math.isqrt(registers) ** 2 != registers:
            raise VitkitError(
                "Registers with rotary positions stand in a square grid: register_tokens is 0, 1, 4, 9 and "
                f"so on, found {self.register_tokens}."
            )

    @property
    def grid(self) -> tuple[int, int]:
        """Patches per column and per row."""
        height, width = self.backbone.feature_map(self.image_size) if self.backbone else self.image_size
        return height // self.patch_size[0], width // self.patch_size[1]

    @property
    def token_size(self) -> tuple[int, int]:
        """Pixels of the image for each token: the patch size, times the stride of a backbone."""
        stride = self.backbone.stride if self.backbone else 1
        return self.patch_size[0] * stride, self.patch_size[1] * stride

    @property
    def head_dim(self) -> int:
        """The number of a token's features that belong to each head."""
        return self.width // self.num_heads

    @property
    def class_token(self) -> bool:
        return self.pool in ("token", "token+mean") or self.extra_class_token

    @property
    def feature_width(self) -> int:
        """The number of features that the head sees, or the layer with tanh before it."""
        return 2 * self.width if self.pool == "token+mean" else self.width

    @property
    def prefix_tokens(self) -> int:
        """Tokens before the patches."""
        return self.class_token + self.register_tokens

    @property
    def prefix_positions(self) -> int:
        """Rows of the position embedding before the grid's."""
        positioned = self.class_token_position and self.position in ("learned", "learned_2d")
        return self.prefix_tokens if positioned else 0

    @property
    def num_tokens(self) -> int:
        """The number of tokens of an image; a family without tokens says None."""
        return self.grid[0] * self.grid[1] + self.prefix_tokens

    @property
    def num_layers(self) -> int:
        """The number of encoder blocks; a hybrid's backbone is not counted."""
        return self.depth

    @property
    def layer_summary(self) -> str:
        """The layers as text: "12", by stages "3-4-6-3", or both for a hybrid."""
        units = "-".join(map(str, self.backbone.layers)) if self.backbone else ""
        return f"{units} + {self.depth}" if units else str(self.depth)

    @property
    def arithmetic(self) -> tuple[str, ...]:
        """The numerics as phrases, in which two models with the same weights may differ."""
        forms = {"tanh": "tanh form, the original's", "erf": "exact", "quick": "quick form, CLIP's"}
        activation = "gated MLP: SwiGLU" if self.mlp == "swiglu" else f"GELU: {forms[self.gelu]}"
        lines = (activation, f"{NORM_NAMES[self.norm]} epsilon {self.norm_eps:g}")
        return lines + (self.backbone.arithmetic if self.backbone else ())

    @property
    def position_extent(self) -> tuple[str, tuple[int, int]]:
        """The grid of patches and its size, on which positions depend."""
        return "a grid", self.grid

    @property
    def cut_off(self) -> str:
        """The part of an image (or of a backbone's feature map) that no token sees, as a phrase."""
        rows, columns = self.backbone.feature_map(self.image_size) if self.backbone else self.image_size
        below, right = rows % self.patch_size[0], columns % self.patch_size[1]
        if not below and not right:
            return ""
        pixels = "the backbone's feature map" if self.backbone else "the images"
        return f"{below} rows below and {right} columns at the right of {pixels} fill no patch"

    @property
    def unmaskable(self) -> str:
        """The reason why patches cannot be hidden for self-supervision, as a phrase; empty where they can."""
        if self.backbone is not None or self.stem_channels:
            return (
                "sees its patches through convolutions, so that the neighbours of a hidden patch show its "
                "pixels: choose a model without them, such as ViT-Ti/16"
            )
        if self.grid == (1, 1):
            return "has a single patch, of which nothing would be left: choose a smaller patch"
        return ""

    def with_new_head(self, num_classes: int) -> "ViTConfig":
        """Give the configuration with a linear head for other classes; the layer with tanh is dropped."""
        return replace(self, num_classes=num_classes, representation_size=None)


ModelConfig = ViTConfig | ResNetConfig

Precision = Literal["auto", "float32", "bfloat16"]
"""The precision of matrix products and convolutions, by autocast; weights stay float32. auto: the rule of
`runs/machine.py` chooses by device, width and phase. Weights in bfloat16, beside float32 ones that are
updated, would need as many casts; that was not measured."""
Phase = Literal["training", "evaluation", "prediction"]
"""Training computes gradients too; an evaluation is long, and a prediction may be of one image."""


@dataclass(frozen=True)
class Compute:
    """The ways in which a model computes its result. The defaults are the plain way."""

    precision: Literal["float32", "bfloat16"] = "float32"
    """The type of matrix products, by autocast."""
    attention: Literal["fused", "explicit"] = "fused"
    """PyTorch's fused kernel, or products and softmax one after the other."""
    last_block: Literal["every_token", "class_token"] = "every_token"
    """The tokens that the last block computes, where only the class token is read."""
    gelu: Literal["pytorch", "compiled"] = "pytorch"
    """The kernel that computes it: PyTorch's, or `kernels/gelu.c`, handed to the model. The tanh form kept
    its name when its results for numbers beyond 10^10 were mended: all others have the same bits, and a run
    that comes so far has diverged."""
    pixels: Literal["normalized", "folded"] = "normalized"
    """Whether uint8 images are normalised, or the patch embedding's weights are instead."""
    block: Literal["modules", "compiled"] = "modules"
    """Whether a block is computed operation by operation, or by `kernels/block.c` between its products."""
    products: Literal["pytorch", "onednn"] = "pytorch"
    """The library of a compiled block's float32 products, forward and of the inputs' gradients: the one that
    PyTorch calls by itself, or oneDNN."""
    graph: Literal["eager", "compiled"] = "eager"
    """Whether operations run one by one, or as the kernels that torch.compile makes of a block: on a GPU."""


PLAIN = Compute()


LossFunction = Literal["softmax", "sigmoid"]
"""The loss of the training, which decides what logits mean: softmax cross entropy, or one binary cross
entropy for each class."""

TaskName = Literal["classification", "multi-label", "masked-patches", "simmim", "mae"]
"""The names of tasks; `vitkit.tasks` has a value for each of them."""


@dataclass(frozen=True)
class Task:
    """The task that a model was trained for, and its loss."""

    name: TaskName = "classification"
    loss: LossFunction | Literal["none"] = "softmax"
    """none where the model has no logits."""


@dataclass(frozen=True)
class Refusal:
    """The images by which it is decided what is none of a model's classes."""

    split: str
    """The images' split: test, or val where there was none; train for a head in closed form, whose images are
    each scored without itself."""
    scores: tuple[float, ...]
    """The scores of up to 1,000 of them by the model's `Novelty`, ascending."""

    def __post_init__(self) -> None:
        if (
            not self.scores
            or not all(map(math.isfinite, self.scores))
            or [*self.scores] != sorted(self.scores)
        ):
            raise VitkitError("scores: expected finite numbers in ascending order, at least one.")


@dataclass(frozen=True)
class Levels:
    """The levels of a model whose classes are a tree, by their names: birds/petrel is within birds."""

    thresholds: tuple[Fraction | None, ...]
    """For each level, from the top: the probability above which the model is sure; None: it never is."""
    split: str = ""
    """The split whose images they were chosen by: test, or val where there was none; empty without either."""
    images: int = 0
    """Its images that they were chosen by."""


@dataclass(frozen=True)
class Card:
    """A model's name and the meaning of its logits."""

    name: str = ""
    """A name of the zoo's grammar, such as "ViT-B/16"; empty where no name stands for the model's shapes."""
    class_names: tuple[str, ...] = ()
    """The name of each logit's class, in order; empty where they are not recorded."""
    task: Task | None = None
    """The task that the model was trained for; None where nothing records it."""
    position_interpolation: Interpolation = field(default="original", kw_only=True)
    """The rule by which the library that the weights come from resizes position embeddings."""
    refusal: Refusal | None = field(default=None, kw_only=True)
    """The images by which a model with a `Novelty` refuses others; None: it refuses none."""
    levels: Levels | None = field(default=None, kw_only=True)
    """The levels of its classes; None where their names are no paths in a tree."""

    @property
    def loss(self) -> LossFunction:
        """The loss that decides what the logits mean; softmax where no task or no loss is recorded."""
        return "softmax" if self.task is None or self.task.loss == "none" else self.task.loss

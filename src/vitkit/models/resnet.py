"""Two ResNets with GroupNorm and standardised convolutions, after the authors' two code bases.

`ResNet` is the paper's baseline (4.1): BiT's pre-activation v2. `ResNetStem` is what stands before the
Transformer in a hybrid (3.1): the post-activation v1 of vision_transformer `models_resnet.py`, with a weight
standardisation, an epsilon and a padding of its own.

Shapes: B images, C channels of a feature map of H rows and W columns, N tokens, D = width of the Transformer.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.models.axial_mixing import AxialMixing
from vitkit.models.image_model import ImageModel, Taps, check_images, lecun_normal, make_head

GROUPS = 32
"""Of every GroupNorm, in both code bases."""

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
    """Where epsilon stands: w / (std + eps), the original's, or w / sqrt(var + eps), timm's."""
    standardization_eps: float = 1e-5

    def __post_init__(self) -> None:
        _check_stages(self.layers, self.width_factor)

    def feature_map(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """`(rows, columns)` of the feature map: every stride of 2 halves and rounds up (SAME padding)."""
        halvings = 2 + max(len(self.layers) - 1, 0)
        size = image_size
        for _ in range(halvings):
            size = _halve(size)
        return size

    @property
    def stride(self) -> int:
        """Pixels of the image for each position of the feature map."""
        return 4 * int(2 ** max(len(self.layers) - 1, 0))

    @property
    def out_channels(self) -> int:
        width = int(64 * self.width_factor)
        return width * 4 * int(2 ** (len(self.layers) - 1)) if self.layers else width


@dataclass(frozen=True)
class ResNetConfig:
    """A BiT ResNet: shapes and arithmetic. Sizes are `(height, width)` in pixels."""

    image_size: tuple[int, int]
    layers: tuple[int, ...]
    """Bottleneck units in each stage."""
    num_classes: int
    width_factor: float = 1.0
    in_channels: int = 3
    mixing: Literal["convolution", "axial"] = "convolution"
    """What stands where a bottleneck has its 3x3 convolution: that, or axial attention (paper D.6)."""
    num_heads: int = 8
    """Of the axial attention."""
    norm_eps: float = 1e-5
    standardization_eps: float = 1e-10
    """In w / sqrt(var + eps)."""
    max_pool_padding: Literal["zeros", "lowest"] = "zeros"
    """Of the root's max-pooling: zeros in big_transfer, minus infinity in big_vision."""
    head_bias_init: float = 0.0
    image_mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    image_std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        check_images(self)
        if not self.layers:
            raise VitkitError("A ResNet needs at least one stage, found none.")
        _check_stages(self.layers, self.width_factor)
        channels = int(64 * self.width_factor)
        if self.mixing == "axial" and (self.num_heads < 1 or channels % (2 * self.num_heads)):
            raise VitkitError(
                f"Axial attention shares {channels} channels, and half as many for queries and keys, among "
                f"its heads equally: {self.num_heads} heads do not fit."
            )

    @property
    def width(self) -> int:
        """Channels of the last stage: what the head sees."""
        return int(64 * self.width_factor) * 4 * int(2 ** (len(self.layers) - 1))


def _check_stages(layers: tuple[int, ...], width_factor: float) -> None:
    if layers and min(layers) < 1:
        raise VitkitError(f"Every stage of a ResNet needs at least one unit, found {layers}.")
    if len(layers) > MOST_STAGES or sum(layers) > MOST_UNITS:
        raise VitkitError(
            f"A ResNet has at most {MOST_STAGES} stages and {MOST_UNITS:,} units, found {len(layers):,} "
            f"stages of {sum(layers):,} units."
        )
    if not abs(width_factor) <= WIDEST:  # NaN too
        raise VitkitError(f"width_factor is at most {WIDEST:,}, found {width_factor}.")
    channels = int(64 * width_factor)
    if channels < GROUPS or channels % GROUPS:
        raise VitkitError(
            f"GroupNorm shares channels among {GROUPS} groups: width_factor is 0.5, 1, 1.5 and so on, "
            f"found {width_factor}."
        )


def _halve(size: tuple[int, int]) -> tuple[int, int]:
    """A feature map's size after a stride of 2, of either code base: rounded up."""
    return -(-size[0] // 2), -(-size[1] // 2)


class StdConv2d(nn.Module):
    """A convolution without bias whose kernels are standardised: mean 0 and deviation 1 over (C, kh, kw).

    Mean and deviation are the population's, taken in float32 whatever the type of the weights. They are taken
    anew in every pass, so that no copy can be out of date; for R50 that costs a sixth ("variance") to a
    quarter ("std") of one image's time, whatever the batch.

    Args:
        in_channels, out_channels, kernel, stride: as in any convolution.
        padding: "symmetric", (kernel - 1) / 2 on each side, PyTorch's; or "same", TensorFlow's, which at
            stride 2 pads less at the top and left than at the bottom and right. The output has the same size.
        standardization: "std" divides by std + eps (vision_transformer `models_resnet.py:22-39`), "variance"
            by sqrt(var + eps) (big_vision `models/bit_paper.py`).
        eps: as above.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int = 1,
        *,
        padding: Literal["symmetric", "same"],
        standardization: Literal["std", "variance"],
        eps: float,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel, kernel))
        self.kernel, self.stride = kernel, stride
        self.padding = padding
        self.standardization, self.eps = standardization, eps

    def init_weights(self, generator: torch.Generator | None) -> None:
        lecun_normal(self.weight, self.weight[0].numel(), generator)

    def standardized(self) -> Tensor:
        """The kernels that are applied, shaped and typed as the weights."""
        weight = self.weight.float()
        size = weight[0].numel()
        if self.standardization == "variance":
            # A layer norm of each kernel is the same arithmetic, fused and so faster.
            result = F.layer_norm(weight, weight.shape[1:], eps=self.eps)
        else:
            centred = weight - weight.mean((1, 2, 3), keepdim=True)
            norm = torch.linalg.vector_norm(centred, dim=(1, 2, 3), keepdim=True)
            result = centred / (norm / math.sqrt(size) + self.eps)
        return result.to(self.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, C, H, W)` to `(B, C', H', W')`, sizes divided by the stride and rounded up."""
        if self.padding == "same" and self.stride > 1:  # at stride 1 the two are one
            x = _pad_same(x, self.kernel, self.stride, value=0.0)
            return F.conv2d(x, self.standardized(), stride=self.stride)
        return F.conv2d(x, self.standardized(), stride=self.stride, padding=self.kernel // 2)


def _pad_same(x: Tensor, kernel: int, stride: int, value: float) -> Tensor:
    """TensorFlow's SAME: as much as ceil(size / stride) windows need, an odd pixel at the bottom or right."""
    height, width = (
        max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in (x.shape[2], x.shape[3])
    )
    if not height and not width:
        return x
    return F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2), value=value)


def _norm(channels: int, eps: float) -> nn.GroupNorm:
    return nn.GroupNorm(GROUPS, channels, eps)


class PostActivationUnit(nn.Module):
    """Bottleneck of the hybrids (v1): norm and relu follow each convolution, the last relu the sum."""

    proj: StdConv2d | None
    proj_norm: nn.GroupNorm | None

    def __init__(self, config: BackboneConfig, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _same_conv(config, in_channels, channels, 1)
        self.norm1 = _norm(channels, config.norm_eps)
        self.conv2 = _same_conv(config, channels, channels, 3, stride)
        self.norm2 = _norm(channels, config.norm_eps)
        self.conv3 = _same_conv(config, channels, 4 * channels, 1)
        self.norm3 = _norm(4 * channels, config.norm_eps)
        self.proj = self.proj_norm = None
        if in_channels != 4 * channels or stride != 1:
            self.proj = _same_conv(config, in_channels, 4 * channels, 1, stride)
            self.proj_norm = _norm(4 * channels, config.norm_eps)

    def init_weights(self, generator: torch.Generator | None) -> None:
        """The last norm's scale is zero: a new unit passes its input on."""
        for conv in (self.conv1, self.conv2, self.conv3, self.proj):
            if conv is not None:
                conv.init_weights(generator)
        for norm in (self.norm1, self.norm2, self.norm3, self.proj_norm):
            if norm is not None:
                norm.reset_parameters()
        nn.init.zeros_(self.norm3.weight)

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        if self.proj is not None and self.proj_norm is not None:
            residual = self.proj_norm(self.proj(x))
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        x = self.norm3(self.conv3(x))
        return F.relu(residual + x)


class ResNetStem(nn.Module):
    """A hybrid's stem: a ResNet, whose feature map is cut into patches that are projected linearly.

    Follows vision_transformer `models_resnet.py` and `models_vit.py:213-274`.

    Args:
        backbone: shapes and arithmetic of the ResNet.
        patch_size: `(height, width)` of a patch, in positions of the feature map; 1x1 in most hybrids.
        width: D, the width of the Transformer.
        in_channels: of the images.
    """

    def __init__(
        self, backbone: BackboneConfig, patch_size: tuple[int, int], width: int, in_channels: int = 3
    ) -> None:
        super().__init__()
        channels = int(64 * backbone.width_factor)
        self.root = _same_conv(backbone, in_channels, channels, 7, stride=2)
        self.root_norm = _norm(channels, backbone.norm_eps)
        self.stages = nn.ModuleList()
        found = channels
        for s, units in enumerate(backbone.layers):
            stage = nn.Sequential()
            for u in range(units):
                stride = 2 if s > 0 and u == 0 else 1
                stage.append(PostActivationUnit(backbone, found, channels * 2**s, stride))
                found = 4 * channels * 2**s
            self.stages.append(stage)
        self.projection = nn.Conv2d(found, width, patch_size, patch_size)

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator | None) -> None:
        """Draw new weights as Flax does there: convolutions and projection from lecun_normal."""
        self.root.init_weights(generator)
        self.root_norm.reset_parameters()
        for unit in self.modules():
            if isinstance(unit, PostActivationUnit):
                unit.init_weights(generator)
        lecun_normal(self.projection.weight, self.projection.weight[0].numel(), generator)
        assert self.projection.bias is not None
        nn.init.zeros_(self.projection.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Images `(B, C, H, W)` to tokens `(B, N, D)`, row after row of the grid.

        A feature map that is no multiple of the patch is cropped at the right and bottom (VALID).
        """
        x = F.relu(self.root_norm(self.root(images)))
        x = F.max_pool2d(_pad_same(x, 3, 2, value=-math.inf), 3, 2)
        for stage in self.stages:
            x = stage(x)
        tokens: Tensor = self.projection(x)  # (B, D, rows, columns)
        return tokens.flatten(2).transpose(1, 2)


def _same_conv(
    config: BackboneConfig, in_channels: int, out_channels: int, kernel: int, stride: int = 1
) -> StdConv2d:
    return StdConv2d(
        in_channels,
        out_channels,
        kernel,
        stride,
        padding="same",
        standardization=config.standardization,
        eps=config.standardization_eps,
    )


class PreActivationUnit(nn.Module):
    """Bottleneck of BiT (v2): norm and relu precede each convolution, and nothing follows the sum.

    Args:
        config: shapes and arithmetic.
        in_channels, channels: of the input and of the bottleneck, whose output has four times as many.
        stride: of the spatial mixing and of the projection.
        size: `(height, width)` of the input.
    """

    conv2: StdConv2d | AxialMixing
    proj: StdConv2d | None

    def __init__(
        self, config: ResNetConfig, in_channels: int, channels: int, stride: int, size: tuple[int, int]
    ) -> None:
        super().__init__()
        self.norm1 = _norm(in_channels, config.norm_eps)
        self.conv1 = _symmetric_conv(config, in_channels, channels, 1)
        self.norm2 = _norm(channels, config.norm_eps)
        if config.mixing == "axial":
            self.conv2 = AxialMixing(channels, config.num_heads, size, stride, config.norm_eps)
        else:
            self.conv2 = _symmetric_conv(config, channels, channels, 3, stride)
        self.norm3 = _norm(channels, config.norm_eps)
        self.conv3 = _symmetric_conv(config, channels, 4 * channels, 1)
        self.proj = None
        if in_channels != 4 * channels or stride != 1:
            self.proj = _symmetric_conv(config, in_channels, 4 * channels, 1, stride)

    def init_weights(self, generator: torch.Generator | None) -> None:
        for conv in (self.conv1, self.conv2, self.conv3, self.proj):
            if conv is not None:
                conv.init_weights(generator)
        for norm in (self.norm1, self.norm2, self.norm3):
            norm.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        x = F.relu(self.norm1(x))
        if self.proj is not None:
            residual = self.proj(x)  # of the activated input: what v2 differs in
        x = self.conv1(x)
        x = self.conv2(F.relu(self.norm2(x)))
        x = self.conv3(F.relu(self.norm3(x)))
        return residual + x


class ResNet(ImageModel):
    """BiT's ResNet (paper 4.1), after big_vision `models/bit_paper.py` and big_transfer.

    Args:
        config: shapes and arithmetic; `mixing="axial"` makes an AxialResNet (paper D.6).
        generator: source of the initial weights; left out, PyTorch's default one.
    """

    config: ResNetConfig

    def __init__(self, config: ResNetConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        channels = int(64 * config.width_factor)
        self.root = _symmetric_conv(config, config.in_channels, channels, 7, stride=2)
        size = _halve(_halve(config.image_size))
        self.stages = nn.ModuleList()
        found = channels
        for s, units in enumerate(config.layers):
            stage = nn.Sequential()
            for u in range(units):
                stride = 2 if s > 0 and u == 0 else 1
                stage.append(PreActivationUnit(config, found, channels * 2**s, stride, size))
                found = 4 * channels * 2**s
                size = _halve(size) if stride == 2 else size
            self.stages.append(stage)
        self.norm = _norm(found, config.norm_eps)
        self.head = make_head(found, config.num_classes)
        self.draw_weights(generator)

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Draw new weights as big_vision does: convolutions by Flax's default, lecun_normal; a zero head."""
        self.root.init_weights(generator)
        for unit in self.modules():
            if isinstance(unit, PreActivationUnit):
                unit.init_weights(generator)
        self.norm.reset_parameters()
        self.init_head()

    def features(self, images: Tensor, taps: Taps | None = None) -> Tensor:
        """The mean of the last feature map, normed and activated: `(B, width)`.

        Args:
            images: `(B, C, H, W)`, uint8 pixels or floats normalised by the model's mean and std.
            taps: receives the feature maps `root` (after max-pooling) and `stage1`, `stage2`, ...,
                `(B, C, H, W)` each, and the result as `pooled` and `pre_logits`.

        Raises:
            VitkitError: images of another size or type than the model's.
        """
        # channels_last gained 6% of R50x1's time at 8 images and lost 3% at one (a CPU thread): left alone.
        x = self.root(self.normalize(images))
        if self.config.max_pool_padding == "zeros":
            # Not the same as minus infinity, which max_pool2d pads with: nothing has made x positive here.
            x = F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)
        else:
            x = F.max_pool2d(x, 3, 2, padding=1)
        if taps is not None:
            taps["root"] = x
        for number, stage in enumerate(self.stages, start=1):
            x = stage(x)
            if taps is not None:
                taps[f"stage{number}"] = x
        pooled = F.relu(self.norm(x)).mean((2, 3))
        if taps is not None:
            taps |= {"pooled": pooled, "pre_logits": pooled}
        return pooled


def _symmetric_conv(
    config: ResNetConfig, in_channels: int, out_channels: int, kernel: int, stride: int = 1
) -> StdConv2d:
    return StdConv2d(
        in_channels,
        out_channels,
        kernel,
        stride,
        padding="symmetric",
        standardization="variance",
        eps=config.standardization_eps,
    )

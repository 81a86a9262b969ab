"""Two ResNets with GroupNorm and standardised convolutions, after the authors' two code bases.

`ResNet` is the paper's baseline (4.1): BiT's pre-activation v2. `ResNetStem` comes before the Transformer in
a hybrid (3.1): the post-activation v1 of vision_transformer `models_resnet.py`, with a weight
standardisation, an epsilon and a padding of its own.

Shapes: B images, C channels of a feature map of H rows and W columns, N tokens, D = width of the Transformer.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.axial import AxialMixing
from vitkit.models.config import GROUPS, BackboneConfig, ResNetConfig, halve
from vitkit.models.image_model import ImageModel, Taps, lecun_normal


class StdConv2d(nn.Module):
    """A convolution without bias whose kernels are standardised: mean 0 and deviation 1 over (C, kh, kw).

    Mean and deviation are the population's, taken in float32 at least, whatever the type of the weights. They
    are taken anew in every pass, so that no copy can be out of date; for R50 that costs a sixth ("variance")
    to a quarter ("std") of one image's time, whatever the batch.

    Args:
        in_channels, out_channels, kernel, stride: as in any convolution.
        padding: "symmetric", (kernel - 1) / 2 on each side, PyTorch's; or "same", TensorFlow's, which at
            stride 2 pads less at the top and left than at the bottom and right. The output has the same size.
        standardization: "std" divides by std + eps (vision_transformer `models_resnet.py:22-39`), "variance"
            by sqrt(var + eps) (big_vision `models/bit_paper.py`); "done" is for kernels that are already
            standardised, in a graph that is not trained.
        eps: keeps a kernel of equal numbers from a division by zero; added as `standardization` says.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int = 1,
        *,
        padding: Literal["symmetric", "same"],
        standardization: Literal["std", "variance", "done"],
        eps: float,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel, kernel))
        self.kernel, self.stride = kernel, stride
        self.padding = padding
        self.standardization: Literal["std", "variance", "done"] = standardization
        self.eps = eps

    def init_weights(self, generator: torch.Generator | None) -> None:
        lecun_normal(self.weight, self.weight[0].numel(), generator)

    def standardized(self) -> Tensor:
        """Standardise the kernels, `(C', C, kh, kw)`, in the type of the weights."""
        if self.standardization == "done":
            return self.weight
        weight = self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))
        size = weight[0].numel()
        if self.standardization == "variance":
            # A layer norm of each kernel is the same arithmetic, fused and so faster.
            result = F.layer_norm(weight, weight.shape[1:], eps=self.eps)
        else:
            centred = weight - weight.mean((1, 2, 3), keepdim=True)
            norm = torch.linalg.vector_norm(centred, dim=(1, 2, 3), keepdim=True)  # (C', 1, 1, 1)
            # The norm over the root of the number of values is the standard deviation: one pass less.
            result = centred / (norm / math.sqrt(size) + self.eps)
        return result.to(self.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve `(B, C, H, W)` to `(B, C', H', W')`, sizes divided by the stride and rounded up."""
        # At stride 1 an odd kernel needs the same padding on all sides, so both kinds of padding are one.
        if self.padding == "same" and self.stride > 1:
            x = _pad_same(x, self.kernel, self.stride, value=0.0)
            return F.conv2d(x, self.standardized(), stride=self.stride)
        return F.conv2d(x, self.standardized(), stride=self.stride, padding=self.kernel // 2)


def _pad_same(x: Tensor, kernel: int, stride: int, value: float) -> Tensor:
    """Pad `(B, C, H, W)` by TensorFlow's SAME: as much as ceil(size / stride) windows need.

    An odd pixel of padding goes to the bottom or right.
    """
    # -(-size // stride) rounds up. The last window begins at (windows - 1) * stride.
    sizes = (x.shape[2], x.shape[3])
    height, width = (max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in sizes)
    if not height and not width:
        return x
    # In PyTorch's order: left, right, top, bottom.
    return F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2), value=value)


MakeConvolution = Callable[[int, int, int, int], StdConv2d]
"""A function of in_channels, out_channels, kernel and stride: a code base's padding and standardisation."""


class PostActivationUnit(nn.Module):
    """Bottleneck of the hybrids (ResNet v1): norm and relu follow each convolution, the last relu the sum.

    Three convolutions, 1x1, 3x3 and 1x1, of which the first makes the channels fewer and the last more.

    Args:
        in_channels, out_channels, stride: of the unit. Its bottleneck has a quarter of the output's channels.
        convolution: makes its convolutions.
        norm_eps: epsilon of its group norms.
    """

    proj: StdConv2d | None
    proj_norm: nn.GroupNorm | None

    def __init__(
        self, in_channels: int, out_channels: int, stride: int, convolution: MakeConvolution, norm_eps: float
    ) -> None:
        super().__init__()
        channels = out_channels // 4
        self.conv1 = convolution(in_channels, channels, 1, 1)
        self.norm1 = nn.GroupNorm(GROUPS, channels, norm_eps)
        self.conv2 = convolution(channels, channels, 3, stride)
        self.norm2 = nn.GroupNorm(GROUPS, channels, norm_eps)
        self.conv3 = convolution(channels, out_channels, 1, 1)
        self.norm3 = nn.GroupNorm(GROUPS, out_channels, norm_eps)
        self.proj = self.proj_norm = None
        if in_channels != out_channels or stride != 1:  # else the shortcut is the input itself
            self.proj = convolution(in_channels, out_channels, 1, stride)
            self.proj_norm = nn.GroupNorm(GROUPS, out_channels, norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        # Where the unit changes the number of channels or the size, the input has to change with it.
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
        backbone: shapes and numerics of the ResNet.
        patch_size: `(height, width)` of a patch, in positions of the feature map; 1x1 in most hybrids.
        width: D, the width of the Transformer.
        in_channels: of the images.
    """

    def __init__(
        self, backbone: BackboneConfig, patch_size: tuple[int, int], width: int, in_channels: int = 3
    ) -> None:
        super().__init__()
        rule, eps = backbone.standardization, backbone.standardization_eps
        convolution = partial(StdConv2d, padding="same", standardization=rule, eps=eps)
        channels = backbone.root_channels
        # The root of every ResNet (He et al. 2016): 7x7 at stride 2, then max-pooling at stride 2.
        self.root = convolution(in_channels, channels, 7, stride=2)
        self.root_norm = nn.GroupNorm(GROUPS, channels, backbone.norm_eps)
        make_unit = partial(PostActivationUnit, convolution=convolution, norm_eps=backbone.norm_eps)
        self.stages = _stages(backbone, lambda inputs, outputs, stride, _: make_unit(inputs, outputs, stride))
        self.projection = nn.Conv2d(backbone.out_channels, width, patch_size, patch_size)

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator | None) -> None:
        """Draw new weights as Flax does there: convolutions and projection from lecun_normal.

        The scale of a unit's last norm is zero, so that a new unit passes its input on.
        """
        _draw(self, generator)
        for unit in self.modules():
            if isinstance(unit, PostActivationUnit):
                nn.init.zeros_(unit.norm3.weight)
        lecun_normal(self.projection.weight, self.projection.weight[0].numel(), generator)
        assert self.projection.bias is not None
        nn.init.zeros_(self.projection.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Images `(B, C, H, W)` to tokens `(B, N, D)`, row after row of the grid.

        A feature map that is no multiple of the patch is cropped at the right and bottom (VALID).
        """
        x = F.relu(self.root_norm(self.root(images)))
        # Padded with minus infinity, which is never the maximum, as Flax's max_pool does.
        x = F.max_pool2d(_pad_same(x, 3, 2, value=-math.inf), 3, 2)
        for stage in self.stages:
            x = stage(x)
        tokens: Tensor = self.projection(x)  # (B, D, rows, columns)
        return tokens.flatten(2).transpose(1, 2)  # (B, N, D)


def _draw(model: nn.Module, generator: torch.Generator | None) -> None:
    """Draw new weights of all convolutions and attentions, first to last, and reset the norms."""
    for part in model.modules():
        if isinstance(part, StdConv2d | AxialMixing):
            part.init_weights(generator)
        elif isinstance(part, nn.GroupNorm):
            part.reset_parameters()


def _stages(
    config: BackboneConfig | ResNetConfig,
    unit: Callable[[int, int, int, tuple[int, int]], nn.Module],
    size: tuple[int, int] = (1, 1),
) -> nn.ModuleList:
    """Make the residual units of a ResNet, one `Sequential` for each stage. All but the first halve the size.

    Args:
        config: layers and channels.
        unit: makes a unit from the channels of its input and of its output, its stride, and
            `(rows, columns)` of its input.
        size: `(rows, columns)` after the root and its max-pooling; left out, sizes are ignored.
    """
    stages, in_channels = nn.ModuleList(), config.root_channels
    for layers, out_channels in zip(config.layers, config.stage_channels, strict=True):
        units = list[nn.Module]()
        for _ in range(layers):
            stride = 2 if len(stages) and not units else 1
            units.append(unit(in_channels, out_channels, stride, size))
            in_channels = out_channels
            size = halve(size) if stride == 2 else size
        stages.append(nn.Sequential(*units))
    return stages


class PreActivationUnit(nn.Module):
    """Bottleneck of BiT (ResNet v2): norm and relu precede each convolution, and nothing follows the sum.

    Args:
        in_channels, out_channels, stride: as for `PostActivationUnit`.
        convolution: makes its 1x1 convolutions.
        mixing: mixes positions, `(B, C, H, W) -> (B, C, H / stride, W / stride)`: a 3x3 convolution, or axial
            attention (paper D.6).
        groups, norm_eps: of its group norms.
    """

    proj: StdConv2d | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int,
        convolution: MakeConvolution,
        mixing: StdConv2d | AxialMixing,
        groups: int,
        norm_eps: float,
    ) -> None:
        super().__init__()
        channels = out_channels // 4
        self.norm1 = nn.GroupNorm(groups, in_channels, norm_eps)
        self.conv1 = convolution(in_channels, channels, 1, 1)
        self.norm2 = nn.GroupNorm(groups, channels, norm_eps)
        self.conv2 = mixing  # in axial models an attention, under the convolution's name in checkpoints
        self.norm3 = nn.GroupNorm(groups, channels, norm_eps)
        self.conv3 = convolution(channels, out_channels, 1, 1)
        self.proj = None
        if in_channels != out_channels or stride != 1:  # else the shortcut is the input itself
            self.proj = convolution(in_channels, out_channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        x = F.relu(self.norm1(x))
        if self.proj is not None:
            residual = self.proj(x)  # v2 projects the activated input, v1 the input itself
        x = self.conv1(x)
        x = self.conv2(F.relu(self.norm2(x)))
        x = self.conv3(F.relu(self.norm3(x)))
        return residual + x


class ZeroPaddedMaxPool(nn.Module):
    """Max-pooling of 3x3 at stride 2 that sees zeros around the map: BiT's.

    Three of the authors' four code bases pad so. It differs from minus infinity, which is never the maximum,
    because no relu has made the root's outputs positive.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Pool `(B, C, H, W)` to `(B, C, H / 2, W / 2)`, sizes rounded up."""
        return F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)


class ResNet(ImageModel):
    """BiT's ResNet (paper 4.1), after big_vision `models/bit_paper.py` and big_transfer.

    Args:
        config: shapes and numerics; `mixing="axial"` makes an AxialResNet (paper D.6).
        generator: source of the initial weights; left out, PyTorch's default one.
    """

    config: ResNetConfig

    def __init__(self, config: ResNetConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        eps = config.standardization_eps
        convolution = partial(StdConv2d, padding="symmetric", standardization="variance", eps=eps)
        # No norm follows the root: in v2 the first unit's does.
        self.root = convolution(config.in_channels, config.root_channels, 7, stride=2)
        # max_pool2d's own padding is minus infinity.
        lowest = config.max_pool_padding == "lowest"
        self.root_pool: nn.Module = nn.MaxPool2d(3, 2, padding=1) if lowest else ZeroPaddedMaxPool()

        def unit(inputs: int, outputs: int, stride: int, size: tuple[int, int]) -> PreActivationUnit:
            mixing: StdConv2d | AxialMixing
            if config.mixing == "axial":
                mixing = AxialMixing(outputs // 4, config.num_heads, size, stride, config.norm_eps)
            else:
                mixing = convolution(outputs // 4, outputs // 4, 3, stride)
            numerics = (config.groups, config.norm_eps)
            return PreActivationUnit(inputs, outputs, stride, convolution, mixing, *numerics)

        # The root and its max-pooling have a stride of 2 each.
        self.stages = _stages(config, unit, halve(halve(config.image_size)))
        self.norm = nn.GroupNorm(config.groups, config.width, config.norm_eps)
        self.head = nn.Linear(config.width, config.num_classes) if config.num_classes else nn.Identity()
        if not self.norm.weight.is_meta:  # see `ViT`
            self.init_weights(generator)

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Draw new weights as big_vision does: convolutions by Flax's default, lecun_normal; a zero head."""
        _draw(self, generator)
        self.init_head()

    def layers(self) -> list[nn.Module]:
        """List the residual units."""
        return [unit for stage in self.stages for unit in stage.children()]

    def features(self, images: Tensor, taps: Taps | None = None) -> Tensor:
        """Compute the mean of the last feature map, normed and activated: `(B, width)`.

        Args:
            images: `(B, C, H, W)`, uint8 pixels or floats normalised by the model's mean and std.
            taps: receives the feature maps `root` (after max-pooling) and `stage1`, `stage2`, ...,
                `(B, C, H, W)` each, and the result as `pooled` and `pre_logits`.

        Raises:
            VitkitError: images of another size or type than the model's.
        """
        # channels_last gained 6% of R50x1's time at 8 images and lost 3% at one (a CPU thread): left alone.
        x = self.root_pool(self.root(self.normalize(images)))
        if taps is not None:
            taps["root"] = x
        for number, stage in enumerate(self.stages, start=1):
            for unit in stage.children():
                x = self.through(unit, x)
            if taps is not None:
                taps[f"stage{number}"] = x
        pooled = F.relu(self.norm(x)).mean((2, 3))  # (B, width)
        if taps is not None:
            taps |= {"pooled": pooled, "pre_logits": pooled}
        return pooled

    def feature_maps(self, images: Tensor, layers: Sequence[int] = (-1,)) -> list[Tensor]:
        """Give the outputs of some stages, `(B, C, rows, columns)` each, in the order of `layers`."""
        taps: Taps = {}
        numbers = self._layer_numbers(layers, len(self.stages))
        self.features(images, taps)
        return [taps[f"stage{number + 1}"] for number in numbers]  # stages are numbered from 1 in taps

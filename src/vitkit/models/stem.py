"""The stems of a Vision Transformer, images to tokens: the original's linear projection of patches, and a few
convolutions in its place.

The convolutional stem follows Xiao et al. 2021 (arXiv 2106.14881, section 3): 3x3 convolutions, each with a
norm and ReLU, some of stride 2, which halve the map until a position stands for a patch, then a 1x1
convolution to the Transformer's width. Their norm is a batch norm; here it is a group norm, because the
patches of an image must not depend on the other images of its batch: unreadable ones are among them,
micro-batches have to add up, and there is no state to average.

Shapes: B images, C channels, N patches of p x q pixels, D = width.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.config import STEM_GROUP
from vitkit.models.image_model import lecun_normal


class PatchStem(nn.Module):
    """Cuts images into patches and projects each linearly: a convolution whose stride is its kernel.

    Written as one matrix product over flattened patches, which is faster than the convolution; the weights
    keep the convolution's shape, so that checkpoints of other libraries need no reshaping.
    """

    def __init__(self, patch_size: tuple[int, int], width: int, in_channels: int = 3) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.weight = nn.Parameter(torch.empty(width, in_channels, *patch_size))
        self.bias = nn.Parameter(torch.empty(width))

    def init_weights(self, generator: torch.Generator | None) -> None:
        # Flax's default for convolutions, which the original's projection is: fan-in C * p * q.
        lecun_normal(self.weight, self.weight[0].numel(), generator)
        nn.init.zeros_(self.bias)

    def forward(self, images: Tensor) -> Tensor:
        return F.linear(self.cut(images), self.weight.flatten(1), self.bias)  # (B, N, D)

    def cut(self, images: Tensor) -> Tensor:
        """Cut images into flattened patches, `(B, N, C*p*q)`."""
        batch, channels, height, width = images.shape
        p, q = self.patch_size
        rows, columns = height // p, width // q
        # The original's convolution is VALID: rows and columns that fill no patch are not seen.
        images = images[:, :, : rows * p, : columns * q]
        # (B, C, rows, p, columns, q) -> (B, rows, columns, C, p, q): a patch's numbers stand together, in the
        # order of the flattened kernel.
        patches = images.reshape(batch, channels, rows, p, columns, q).permute(0, 2, 4, 1, 3, 5)
        return patches.reshape(batch, rows * columns, channels * p * q)  # (B, N, C*p*q)


class ConvStem(nn.Module):
    """Makes patch embeddings by convolutions: images `(B, C, H, W)` to `(B, N, D)`.

    Args:
        channels: of each 3x3 convolution, multiples of `STEM_GROUP`.
        patch_size: `(height, width)` in pixels, the same power of two.
        width: D.
        in_channels: of the images.
        strides: of each convolution, 1 or 2. Left out, the last ones have stride 2, as many as it takes to
            reach the patch size.
    """

    def __init__(
        self,
        channels: Sequence[int],
        patch_size: tuple[int, int],
        width: int,
        in_channels: int = 3,
        strides: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.patch_size = patch_size
        halvings = patch_size[0].bit_length() - 1
        self.convolutions, self.norms = nn.ModuleList(), nn.ModuleList()
        before = in_channels
        strides = strides or (1,) * (len(channels) - halvings) + (2,) * halvings
        for after, stride in zip(channels, strides, strict=True):
            self.convolutions.append(nn.Conv2d(before, after, 3, stride, padding=1, bias=False))
            self.norms.append(nn.GroupNorm(after // STEM_GROUP, after))
            before = after
        self.projection = nn.Conv2d(before, width, 1)

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator | None) -> None:
        """Draw new weights: He's before ReLU (He et al. 2015), and a linear patch projection's at the end."""
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            assert isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.GroupNorm)
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu", generator=generator)
            norm.reset_parameters()
        lecun_normal(self.projection.weight, self.projection.in_channels, generator)
        assert self.projection.bias is not None
        nn.init.zeros_(self.projection.bias)

    def forward(self, images: Tensor) -> Tensor:
        """`(B, C, H, W) -> (B, N, D)`, row after row; pixels that fill no patch are not seen, as by
        `PatchStem`."""
        p, q = self.patch_size
        x = images[:, :, : images.shape[2] // p * p, : images.shape[3] // q * q]
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.relu(norm(convolution(x)))
        return self.projection(x).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]

"""The convolutional stem: a few convolutions in place of the linear projection of patches.

Follows Xiao et al. 2021 (arXiv 2106.14881, section 3): 3x3 convolutions, each with a norm and ReLU, some of
stride 2, which halve the map until a position stands for a patch, then a 1x1 convolution to the Transformer's
width.
Their norm is a batch norm; here it is a group norm, because the patches of an image must not depend on the
other images of its batch: unreadable ones are among them, micro-batches have to add up, and there is no state
to average.

Shapes: B images, N patches, D = width of the Transformer.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.config.vit_config import STEM_GROUP
from vitkit.models.image_model import lecun_normal


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

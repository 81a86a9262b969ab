"""The stem of the original Vision Transformer: images to patches, patches to tokens.

Shapes: B images, C channels, N patches of p x q pixels, D = width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.cost import FLOAT, PartCost, count_parameters
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

    def cost(self, image_size: tuple[int, int], product: int) -> PartCost:
        """Give the cost of the projection of images of a size, which keeps the flattened patches."""
        height, width = image_size
        cells = (height // self.patch_size[0]) * (width // self.patch_size[1])  # N
        patches = cells * self.weight[0].numel()  # numbers of the flattened patches
        pixels, made = self.weight.shape[1] * height * width, cells * len(self.weight)
        return PartCost(
            macs=cells * self.weight.numel(),
            kept=patches * product,
            live=FLOAT * pixels + max(patches * (product + FLOAT), FLOAT * (patches + made)),
            parameters=count_parameters(self),
        )

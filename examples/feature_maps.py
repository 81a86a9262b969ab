"""The feature maps of a model, for a detector or a segmentation of one's own.

python examples/feature_maps.py [MODEL]
"""

import sys

import torch
from torch import Tensor, nn

import vitkit


class Segmenter(nn.Module):
    """A linear layer on the feature maps of two layers, at the size of the images."""

    def __init__(self, name: str, num_classes: int) -> None:
        super().__init__()
        self.backbone = vitkit.create_model(name, num_classes=0, image_size=64)  # 0: no head
        self.classify = nn.LazyConv2d(num_classes, kernel_size=1)

    def forward(self, images: Tensor) -> Tensor:
        """Give the logits of each pixel, `(B, K, H, W)`."""
        middle, last = self.backbone.feature_maps(images, layers=(-2, -1))  # (B, D, rows, columns) each
        logits = self.classify(torch.cat([middle, last], dim=1))
        return nn.functional.interpolate(logits, size=images.shape[2:], mode="bilinear")


def main(name: str = "ViT-32x2x2/8") -> None:
    model = Segmenter(name, num_classes=5)
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    logits = model(images)
    loss = nn.functional.cross_entropy(logits, torch.zeros(2, 64, 64, dtype=torch.long))
    loss.backward()  # the backbone learns along
    maps = model.backbone.feature_maps(images)
    print(f"feature maps {tuple(maps[0].shape)}, logits {tuple(logits.shape)}")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A batch: images with their labels, as a loader makes them and everything that computes takes them.

It stands apart from the loader, so that predicting does not import how files are listed, checked and read.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Some images of a split with their labels."""

    images: Tensor
    """(B, C, H, W) uint8, C = 3 for RGB; zeros where the mask is False."""
    labels: Tensor
    """(B,) int64; (B, K) bool where an image has several labels, or none."""
    mask: Tensor
    """(B,) bool; False where the file could not be read, so that the image counts for nothing."""
    ids: Tensor
    """(B,) int64, index into the split."""

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Batch":
        """Copy the batch to a device; to a GPU without waiting for the copy to end."""
        device = torch.device(device)

        def move(tensor: Tensor) -> Tensor:
            if device.type == "cuda" and tensor.device.type == "cpu":
                # Only from pinned memory can the GPU copy while this process goes on.
                return tensor.pin_memory().to(device, non_blocking=True)
            return tensor.to(device)

        return Batch(move(self.images), move(self.labels), move(self.mask), move(self.ids))

    def slice(self, start: int, stop: int) -> "Batch":
        """Return samples start..stop-1 of the batch, as views of its memory."""
        part = slice(start, stop)
        return Batch(self.images[part], self.labels[part], self.mask[part], self.ids[part])

"""A batch of images with their targets, which loaders make and models and objectives compute on.

It stands apart from the loader, so that predicting does not import the code that lists, checks and reads
files.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitkit.data.listing import LABELS


@dataclass(frozen=True)
class Batch:
    """Some images of a split with their targets."""

    images: Tensor
    """(B, C, H, W) uint8, C = 3 for RGB; zeros where the mask is False."""
    targets: Mapping[str, Tensor]
    """(B, ...) each, by name: "labels" where images have some."""
    mask: Tensor
    """(B,) bool; False where the file could not be read, so that the image counts for nothing."""
    ids: Tensor
    """(B,) int64, index into the split."""
    before: "Batch | None" = None
    """The image before the first, where this is a part of a batch in which each image is mixed with the one
    before it; None: the first is mixed with the last."""

    def __len__(self) -> int:
        return len(self.images)

    @property
    def labels(self) -> Tensor:
        """The target "labels": (B,) int64; (B, K) bool where an image has several labels, or none."""
        return self.targets[LABELS]

    def tensors(self) -> tuple[Tensor, ...]:
        """List all tensors of the batch."""
        before = () if self.before is None else self.before.tensors()
        return (self.images, *self.targets.values(), self.mask, self.ids, *before)

    def to(self, device: torch.device | str) -> "Batch":
        """Copy the batch to a device; to a GPU without waiting for the copy to end."""
        device = torch.device(device)

        def move(tensor: Tensor) -> Tensor:
            if device.type == "cuda" and tensor.device.type == "cpu":
                # Only from pinned memory can the GPU copy while this process goes on.
                return tensor.pin_memory().to(device, non_blocking=True)
            return tensor.to(device)

        return self._each(move)

    def slice(self, start: int, stop: int, before: int | None = None) -> "Batch":
        """Return samples start..stop-1 of the batch, as views of its memory.

        Args:
            start, stop: of the samples.
            before: the sample with which the first is mixed; None: the last of the slice.
        """
        part = replace(self, before=None)._each(lambda tensor: tensor[start:stop])
        return part if before is None else replace(part, before=self.slice(before, before + 1))

    def blank(self) -> "Batch":
        """Return a batch of one black image that counts for nothing."""
        return replace(self, before=None)._each(lambda tensor: tensor.new_zeros(1, *tensor.shape[1:]))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        targets = {name: change(target) for name, target in self.targets.items()}
        before = None if self.before is None else self.before._each(change)
        return Batch(change(self.images), targets, change(self.mask), change(self.ids), before)

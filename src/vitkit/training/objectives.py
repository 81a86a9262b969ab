"""What a model is trained to do: `(model, batch) -> loss, metrics`.

An objective draws its randomness from PyTorch's default generator, which the trainer seeds for every step.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.data.loader import Batch
from vitkit.training.objectives_config import ClassificationConfig

Objective = Callable[[nn.Module, Batch], tuple[Tensor, Mapping[str, Tensor]]]


@dataclass(frozen=True)
class Classification:
    """Labels from images. The mean is over the images that could be read, those of the batch's mask."""

    config: ClassificationConfig
    num_classes: int

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The mean loss of a batch, and `accuracy` on its (unmixed) labels."""
        smoothing = self.config.label_smoothing
        targets = F.one_hot(batch.labels, self.num_classes).float()  # (B, K)
        targets = targets * (1 - smoothing) + smoothing / self.num_classes
        images = batch.images
        if self.config.mixup > 0 and model.training:
            images, targets = mixup(model.normalize(images), targets, batch.mask, self.config.mixup)  # type: ignore[operator]
        logits = model(images)
        if self.config.loss == "softmax":
            losses = F.cross_entropy(logits, targets, reduction="none")  # (B,)
        else:
            losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(1)
        correct = (logits.argmax(1) == batch.labels).float()
        count = batch.mask.sum().clamp(min=1)
        # `where`, not a product: what is masked must not count even if it is infinite.
        loss = torch.where(batch.mask, losses, 0.0).sum() / count
        return loss, {"accuracy": torch.where(batch.mask, correct, 0.0).sum() / count}


def mixup(images: Tensor, targets: Tensor, mask: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Mix every image with its neighbour in the batch by one share, its own always the larger.

    Args:
        images: `(B, C, H, W)`, floats.
        targets: `(B, K)`.
        mask: `(B,)`; an image is not mixed with one that could not be read.
        alpha: of the Beta distribution the share is drawn from.
    """
    share = torch.distributions.Beta(alpha, alpha).sample().to(images.device)
    share = torch.maximum(share, 1 - share)
    own = torch.where(mask.roll(1), share, 1.0)[:, None]  # (B, 1)
    targets = own * targets + (1 - own) * targets.roll(1, 0)
    own = own[:, :, None, None]
    return own * images + (1 - own) * images.roll(1, 0), targets

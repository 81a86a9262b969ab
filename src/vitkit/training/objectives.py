"""What a model is trained to do: `(model, batch) -> loss, metrics`.

An objective is a module. Its parameters are trained with those of the model; they and its buffers are kept in
checkpoints, but never in the `model.safetensors` that a run ends with. It returns the mean loss over the
images of the batch's mask, a scalar, and scalars to be logged. It draws its randomness from PyTorch's default
generator, which the trainer seeds for every step. It is called once for each micro-batch of an update.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.data.loader import Batch
from vitkit.training.objectives_config import ClassificationConfig


class Classification(nn.Module):
    """Labels from images. The mean is over the images that could be read, those of the batch's mask."""

    def __init__(self, config: ClassificationConfig, num_classes: int) -> None:
        super().__init__()
        self.config, self.num_classes = config, num_classes

    def forward(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
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
        return masked_mean(losses, batch.mask), {"accuracy": masked_mean(correct, batch.mask)}


class MultiLabel(nn.Module):
    """Several labels from images, or none: the binary cross entropies of all labels, summed.

    Label smoothing moves every target by half its share to the middle: yes is `1 - s / 2`, no is `s / 2`,
    which is big_vision's `onehot(on=1 - s / 2, off=s / 2)` of several labels (`pp/ops_general.py`). Spread
    over all labels instead, as of one class among many, a share would all but vanish."""

    def __init__(self, config: ClassificationConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The mean loss of a batch, and `hamming_loss`: the share of (unmixed) labels answered wrongly."""
        smoothing = self.config.label_smoothing
        targets = batch.labels.float() * (1 - smoothing) + smoothing / 2  # (B, K)
        images = batch.images
        if self.config.mixup > 0 and model.training:
            images, targets = mixup(model.normalize(images), targets, batch.mask, self.config.mixup)  # type: ignore[operator]
        logits = model(images)
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(1)
        wrong = ((logits >= 0) != batch.labels).float().mean(1)
        return masked_mean(losses, batch.mask), {"hamming_loss": masked_mean(wrong, batch.mask)}


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of the values `(B,)` of images that could be read; 0 where there is none."""
    # `where`, not a product: what is masked must not count even if it is infinite.
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)


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

"""The objectives of training: modules `(model, batch) -> loss, metrics`.

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
    """Learns one label of each image. Means are over the images that could be read: the batch's mask."""

    def __init__(self, config: ClassificationConfig, num_classes: int) -> None:
        super().__init__()
        self.config, self.num_classes = config, num_classes

    def forward(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Compute the mean loss of a batch, and `accuracy` on its (unmixed) labels; both are scalars."""
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
    """Learns several labels of each image, or none: the loss is the sum of all labels' binary cross
    entropies.

    Label smoothing moves every target by half its fraction to the middle: yes is `1 - s / 2`, no is `s / 2`,
    which is big_vision's `onehot(on=1 - s / 2, off=s / 2)` of several labels (`pp/ops_general.py`). Spread
    over all labels instead, as for one class among many, the fraction would all but vanish.
    """

    def __init__(self, config: ClassificationConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Compute the mean loss of a batch, and `hamming_loss`: the fraction of wrong (unmixed) labels."""
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
    """Average the values `(B,)` of images that could be read, `mask` `(B,)`; 0 where there is none."""
    # `where`, not a product: what is masked must not count even if it is infinite.
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)


def mixup(images: Tensor, targets: Tensor, mask: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Mix every image with its neighbour in the batch: one weight for all, that of the image itself the
    larger.

    Args:
        images: `(B, C, H, W)`, floats.
        targets: `(B, K)`.
        mask: `(B,)`; an image is not mixed with one that could not be read.
        alpha: parameter of the Beta distribution that the weight is drawn from.

    Returns:
        The mixed images and targets, shaped as before (big_vision `utils.py:1146`).
    """
    weight = torch.distributions.Beta(alpha, alpha).sample().to(images.device)
    weight = torch.maximum(weight, 1 - weight)
    # The neighbour is the image before, the last one's for the first; an unreadable one gets no weight.
    own = torch.where(mask.roll(1), weight, 1.0)[:, None]  # (B, 1)
    targets = own * targets + (1 - own) * targets.roll(1, 0)
    own = own[:, :, None, None]  # (B, 1, 1, 1)
    return own * images + (1 - own) * images.roll(1, 0), targets

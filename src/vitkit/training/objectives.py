"""The objectives of training: modules `(model, batch, step, total_steps) -> loss, metrics`.

An objective is a module. Its parameters are trained and averaged with the model's; they and its
buffers are in checkpoints, but never in the `model.safetensors` that a run ends with. It returns the
mean loss over the images of the batch's mask, a scalar, and scalars to be logged. It draws its randomness
from PyTorch's default generator, which the trainer seeds for every step. It is called once for each
micro-batch of an update, with the number of the update, from 0, and how many the run has. Where it has a
method `after_step()`, this is called once after the optimiser, without gradients: it may change parameters or
buffers of the objective, such as to move a teacher to its student.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitkit.data.stream.loader import Batch
from vitkit.errors import VitkitError
from vitkit.training.config import ClassificationConfig


class Classification(nn.Module):
    """Learns one label of each image. Means are over the images that could be read: the batch's mask.

    Args:
        config: its options.
        num_classes: K.
        labels: of the training images, `(N,)` in 0 to K - 1, whose class frequencies the options against
            imbalance need. Checkpoints hold the weights made from them, not the labels.
    """

    log_prior: Tensor | None
    class_weights: Tensor | None

    def __init__(
        self, config: ClassificationConfig, num_classes: int, labels: NDArray[np.int64] | None = None
    ) -> None:
        super().__init__()
        self.config, self.num_classes = config, num_classes
        prior = weights = None
        if config.logit_adjustment or config.class_weights == "balanced":
            if labels is None:
                raise VitkitError("Options against imbalance need the labels of the training images.")
            # A class without images counts as one image: the logarithm of its fraction would be infinite.
            counts = np.bincount(labels, minlength=num_classes).clip(min=1)
            fractions = torch.from_numpy(counts / counts.sum())
            if config.logit_adjustment:
                prior = fractions.log().float()
            else:
                weights = (1 / (num_classes * fractions)).float()
        self.register_buffer("log_prior", prior)
        self.register_buffer("class_weights", weights)

    def forward(
        self, model: nn.Module, batch: Batch, step: int, total_steps: int
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Compute the mean loss of a batch, and `accuracy` on its (unmixed) labels; both are scalars."""
        smoothing = self.config.label_smoothing

        def soften(labels: Tensor) -> Tensor:
            targets = F.one_hot(labels, self.num_classes).float()  # (B, K)
            return targets * (1 - smoothing) + smoothing / self.num_classes

        images, targets = mix(model, batch, soften, self.config)
        logits = model(images)
        if self.config.loss == "softmax":
            adjusted = logits
            if self.log_prior is not None and model.training:  # Menon et al. 2020, eq. 10
                adjusted = logits + self.config.logit_adjustment * self.log_prior
            losses = F.cross_entropy(adjusted, targets, reduction="none")  # (B,)
        else:  # sigmoid
            losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(1)
        if self.class_weights is not None:
            # A mixed image has the mean weight of its classes.
            losses = losses * (targets @ self.class_weights)
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

    def forward(
        self, model: nn.Module, batch: Batch, step: int, total_steps: int
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Compute the mean loss of a batch, and `hamming_loss`: the fraction of wrong (unmixed) labels."""
        smoothing = self.config.label_smoothing

        def soften(labels: Tensor) -> Tensor:
            return labels.float() * (1 - smoothing) + smoothing / 2  # (B, K)

        images, targets = mix(model, batch, soften, self.config)
        logits = model(images)
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(1)
        wrong = ((logits >= 0) != batch.labels).float().mean(1)
        return masked_mean(losses, batch.mask), {"hamming_loss": masked_mean(wrong, batch.mask)}


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Average the values `(B,)` of images that could be read, `mask` `(B,)`; 0 where there is none."""
    # `where`, not a product: infinity times 0 is not a number, and masked values must not count.
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)


CUTMIX_PROBABILITY = 0.5
"""The probability of CutMix for a batch where mixup is on too: timm's `switch_prob` (`data/mixup.py`), as in
DeiT."""


def mix(
    model: nn.Module, batch: Batch, soften: Callable[[Tensor], Tensor], config: ClassificationConfig
) -> tuple[Tensor, Tensor]:
    """Mix the images of a batch and their targets in training, by mixup or by CutMix.

    Every batch is mixed, as timm does by default and CutMix's authors do for ImageNet (half the batches for
    CIFAR). Without either option images and targets are as they are, and nothing is drawn.

    Args:
        model: normalises the pixels before mixup.
        batch: the images, and the one before them where they are a part of a batch.
        soften: makes targets `(B, K)` of labels.
        config: the strengths of mixup and CutMix.

    Returns:
        The images and targets.
    """
    if not model.training or not config.mixes:
        return batch.images, soften(batch.labels)
    images, labels, mask = batch.images, batch.labels, batch.mask
    if batch.before is not None:  # put first, mixed with the last one, and left out at the end
        images = torch.cat((batch.before.images, images))
        labels, mask = torch.cat((batch.before.labels, labels)), torch.cat((batch.before.mask, mask))
    targets = soften(labels)
    # One option alone draws nothing to choose: runs with mixup keep the bits that they had before CutMix.
    both = config.mixup > 0 and config.cutmix > 0
    if config.cutmix and (not both or torch.rand(()).item() < CUTMIX_PROBABILITY):
        images, targets = cutmix(images, targets, mask, config.cutmix)
    else:
        images, targets = mixup(model.normalize(images), targets, mask, config.mixup)  # type: ignore[operator]
    return images[len(images) - len(batch) :], targets[len(images) - len(batch) :]


def mixup(images: Tensor, targets: Tensor, mask: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Mix every image with its neighbour in the batch, by one weight for all; the image's own is the larger.

    Args:
        images: `(B, C, H, W)`, floats.
        targets: `(B, K)`.
        mask: `(B,)`; an image is not mixed with one that could not be read.
        alpha: both parameters of the Beta distribution that the weight is drawn from.

    Returns:
        The mixed images and targets, shaped as before (big_vision `utils.py:1146`).
    """
    # Drawn on the CPU, and a number: a copy of a tensor would wait for the GPU.
    drawn = torch.distributions.Beta(alpha, alpha).sample()
    weight = torch.maximum(drawn, 1 - drawn).item()
    # The neighbour is the image before, the last one's for the first; an unreadable one gets no weight.
    own = torch.where(mask.roll(1), weight, 1.0)[:, None]  # (B, 1)
    targets = own * targets + (1 - own) * targets.roll(1, 0)
    own = own[:, :, None, None]  # (B, 1, 1, 1)
    return own * images + (1 - own) * images.roll(1, 0), targets


def cutmix(images: Tensor, targets: Tensor, mask: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Replace a box of every image by its neighbour's pixels there (Yun et al. 2019, section 3.1).

    The box has the image's proportions; its fraction of the area is 1 minus the number drawn. Its centre is
    anywhere, so it may be cut off at a side. Targets are mixed by the area that is really replaced, as in the
    authors' code (`train.py`: "adjust lambda to exactly match pixel ratio") and by timm's `correct_lam`.

    Args:
        images: `(B, C, H, W)`, of any type.
        targets: `(B, K)`, floats.
        mask: `(B,)`; an image gets no box of one that could not be read.
        alpha: both parameters of the Beta distribution of the fraction of an image that stays.
    """
    height, width = images.shape[-2:]
    side = math.sqrt(1 - torch.distributions.Beta(alpha, alpha).sample().item())
    rows, columns = int(height * side), int(width * side)
    top = int(torch.randint(height, ()).item()) - rows // 2
    left = int(torch.randint(width, ()).item()) - columns // 2
    box = torch.zeros(height, width, dtype=torch.bool, device=images.device)
    box[max(top, 0) : max(top + rows, 0), max(left, 0) : max(left + columns, 0)] = True
    replaced = mask.roll(1)[:, None, None, None] & box  # (B, 1, H, W)
    fraction = box.float().mean() * mask.roll(1)[:, None]  # (B, 1)
    mixed = (1 - fraction) * targets + fraction * targets.roll(1, 0)
    return torch.where(replaced, images.roll(1, 0), images), mixed

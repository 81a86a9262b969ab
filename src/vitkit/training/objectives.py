"""The objectives of training: modules `(model, batch, step, total_steps) -> loss, metrics`.

An objective is a module. Its parameters are trained and averaged with the model's; they and its
buffers are in checkpoints, but never in the `model.safetensors` that a run ends with. It returns the
mean loss over the images of the batch's mask, a scalar, and scalars to be logged. It draws its randomness
from PyTorch's default generator, which the trainer seeds for every step. It is called once for each
micro-batch of an update, with the number of the update, from 0, and how many the run has. Where it has a
method `after_step()`, this is called once after the optimiser, without gradients: it may change parameters or
buffers of the objective, such as to move a teacher to its student.

From top to bottom: learning labels, and mixing images; learning from images whose patches are partly hidden,
by masked patch prediction, SimMIM and MAE. Labels of hidden patches are made of the images themselves, always
of their uint8 pixels, so that they do not depend on how a model normalises them. The loss is over hidden
patches alone. What the paper (B.1.2) leaves open of masked patch prediction is decided here and listed in
docs/decisions.md.

Shapes: B images of C channels, N patches of p x q pixels, M of them hidden, P tokens before the patches;
D = width of the model.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitkit.data.stream.loader import Batch
from vitkit.errors import VitkitError
from vitkit.models.config import ViTConfig
from vitkit.models.parts import MLP, Attention, Block, PatchStem
from vitkit.models.position import sincos_2d
from vitkit.models.vit import ViT
from vitkit.training import config as configs


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
        self, config: configs.ClassificationConfig, num_classes: int, labels: NDArray[np.int64] | None = None
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

    def __init__(self, config: configs.ClassificationConfig) -> None:
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
    model: nn.Module, batch: Batch, soften: Callable[[Tensor], Tensor], config: configs.ClassificationConfig
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


LEVELS = 8
"""Levels of a channel in 3 bits (B.1.2): 256 / 8 = 32 neighbouring pixel values make one."""
NORMALIZED_TOLERANCE = 0.05
"""The largest distance from a whole pixel value, in levels of 256, at which normalised pixels still count as
an image's: float32 is off by less than 1e-4, while mixed images are off by up to 0.5."""
MAE_EPS = 1e-6
"""Added to the variance of a patch by which its pixels are divided (MAE `models_mae.py`, `forward_loss`)."""


@dataclass(frozen=True)
class Hidden:
    """The predictions of the hidden patches of a batch."""

    index: Tensor
    """`(B, M)` int64, the numbers of the hidden patches, ascending."""
    shown: Tensor
    """`(B, M)` int64, the patch that the model sees in the place of each: itself, another, or -1 for none."""
    outputs: Tensor
    """`(B, M, O)`, the predictions: logits or pixels."""
    targets: Tensor
    """`(B, M, T)`, the right answers: int64 classes, or pixels (then T = O)."""


class Baseline:
    """Losses that need no model: of knowing nothing, and of the best prediction that is the same everywhere.

    They follow from counts of the targets of some images; counts of different images may be added. Here they
    are of a cross entropy: of equal probabilities, and of the frequencies of the classes. Its counts are of
    each class, for each of the T predictions of a patch.

    Args:
        shape: of the counts, in float64.
    """

    def __init__(self, *shape: int) -> None:
        self.counts = torch.zeros(shape, dtype=torch.float64)

    def add(self, targets: Tensor) -> None:
        """Count the targets `(n, T)` of hidden patches: whole numbers, each column by itself."""
        rows, columns = self.counts.shape
        places = targets.cpu() + torch.arange(rows) * columns
        self.counts += torch.bincount(places.flatten(), minlength=rows * columns).view_as(self.counts)

    def losses(self) -> tuple[float, float]:
        """Compute the loss of knowing nothing, and of the best constant prediction, from the counts."""
        entropy = torch.special.entr(self.counts / self.counts.sum(1, keepdim=True)).sum(1).mean()
        return math.log(self.counts.shape[1]), float(entropy)


class MaskedImages(nn.Module):
    """The base of the three objectives: hides patches, predicts them by a model, and averages the losses.

    Args:
        config: the options.
        model_config: the configuration of the model that it trains.
    """

    head: nn.Linear
    """Predicts the numbers of a patch."""

    def __init__(self, config: configs.MaskedImagesConfig, model_config: ViTConfig) -> None:
        super().__init__()
        self.config, self.model_config = config, model_config
        self.patch_shape = (model_config.in_channels, *model_config.patch_size)
        rows, columns = model_config.grid
        block = config.mask_block
        self.units = (rows // block, columns // block)  # squares of patches, each hidden whole or not at all
        # Minus 1e-9: a product that should be whole may lie a rounding error above, and would be rounded up.
        self.num_masked = math.ceil(self.units[0] * self.units[1] * config.mask_fraction - 1e-9) * block**2

    def forward(
        self, model: nn.Module, batch: Batch, step: int, total_steps: int
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Compute the mean loss of the hidden patches of a batch; there are no other metrics."""
        hidden = self.predict(cast("ViT", model), batch.images)
        return masked_mean(self.losses(hidden).mean(1), batch.mask), {}

    def predict(self, model: ViT, images: Tensor) -> Hidden:
        """Hide patches of images `(B, C, H, W)`, uint8 or normalised, and predict them.

        PyTorch's default generator decides which ones.
        """
        index = self.draw_hidden(model, images)
        shown, outputs = self.predict_hidden(model, images, index)
        stem = model.stem
        assert isinstance(stem, PatchStem)  # the task refuses models with another
        with torch.no_grad():
            patches = take_patches(stem.cut(pixel_values(model, images)), index)  # (B, M, C * p * q)
            targets = self.targets(model, patches.reshape(*index.shape, *self.patch_shape))
        return Hidden(index, shown, outputs, targets)

    def predict_hidden(self, model: ViT, images: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Predict the hidden patches; returns `shown` and `outputs` of `Hidden`."""
        raise NotImplementedError

    def targets(self, model: ViT, patches: Tensor) -> Tensor:
        """Make the right answers of hidden patches `(B, M, C, p, q)` uint8: their normalised pixels."""
        return normalized(model, patches).flatten(2)  # (B, M, C * p * q)

    def losses(self, hidden: Hidden) -> Tensor:
        """Compute the loss of each hidden patch, `(B, M)`; left as it is, the mean squared difference."""
        return ((hidden.outputs.float() - hidden.targets) ** 2).mean(2)

    def baseline(self, model: ViT) -> Baseline:
        """Make a counter of targets, for the losses that need no model."""
        return SquaredBaseline(self.head.out_features)

    def pixels(self, model: ViT, hidden: Hidden, patches: Tensor) -> Tensor:
        """Turn predictions into pixel values.

        Args:
            model: the model that made them.
            hidden: the predictions.
            patches: the true pixels of the hidden patches, `(B, M, C, p, q)` from 0 to 255.

        Returns:
            `(B, M, C, p, q)` from 0 to 255, in float32.
        """
        pixels = hidden.outputs.float().reshape(*hidden.index.shape, *self.patch_shape)
        values: Tensor = pixels * model.pixel_std + model.pixel_mean
        return values

    def draw_hidden(self, model: ViT, images: Tensor) -> Tensor:
        """Draw the patches to hide, `(B, M)`, ascending: equally many in every image."""
        rows, columns = self.units
        noise = draw(model, len(images), rows * columns, images.device)
        block = self.config.mask_block
        # The units with the lowest numbers; `stable`, as the order of equal ones would else depend on the
        # machine.
        unit = noise.argsort(dim=1, stable=True)[:, : self.num_masked // block**2]  # (B, units)
        within = torch.arange(block, device=images.device)
        row = (unit // columns * block)[:, :, None, None] + within[:, None]  # (B, units, block, 1)
        column = (unit % columns * block)[:, :, None, None] + within  # (B, units, 1, block)
        index = row * self.model_config.grid[1] + column  # (B, units, block, block)
        return index.flatten(1).sort(1).values

    @torch.no_grad()
    def picture(self, model: ViT, images: Tensor) -> tuple[Tensor, Tensor]:
        """Draw images as the model sees them, and with its predictions.

        Args:
            model: the model in training.
            images: `(B, C, H, W)` uint8.

        Returns:
            Two batches of such images, cut to whole patches. In place of each hidden patch the first has
            grey, or the patch that the model sees there; the second has the prediction.
        """
        hidden = self.predict(model, images)
        stem, config = model.stem, self.model_config
        assert isinstance(stem, PatchStem)
        patches = stem.cut(images).float()  # (B, N, C * p * q)
        true = take_patches(patches, hidden.index)
        shown = take_patches(patches, hidden.shown.clamp(min=0))
        seen = torch.where(hidden.shown[..., None] < 0, 128.0, shown)  # grey, the middle of 0 to 255
        predicted = self.pixels(model, hidden, true.reshape(*true.shape[:2], *self.patch_shape)).flatten(2)
        patch = config.patch_size
        size = tuple(count * side for count, side in zip(config.grid, patch, strict=True))
        pictures = (put_patches(patches, hidden.index, new).mT for new in (seen, predicted))
        drawn = (F.fold(picture, size, patch, stride=patch) for picture in pictures)
        first, second = (pixels.round().clamp(0, 255).to(torch.uint8) for pixels in drawn)
        return first, second


class MaskedPatches(MaskedImages):
    """Masked patch prediction as in the paper (B.1.2), with its three targets.

    Patches are hidden after their embedding and before positions are added: most by a learned mask token,
    some by the embedding of another patch of the same image, some not at all.
    """

    config: configs.MaskedPatchesConfig

    def __init__(self, config: configs.MaskedPatchesConfig, model_config: ViTConfig) -> None:
        super().__init__(config, model_config)
        # Colours that are predicted along each side of a patch; 0: its pixels are predicted.
        self.cells = {"mean-colour": 1, "4x4-colours": 4, "pixels": 0}[config.target]
        self.num_classes = LEVELS**model_config.in_channels
        outputs = self.cells**2 * self.num_classes if self.cells else math.prod(self.patch_shape)
        self.mask_token = nn.Parameter(torch.empty(1, 1, model_config.width))
        nn.init.normal_(self.mask_token, std=0.02)  # as position embeddings are initialised
        self.head = nn.Linear(model_config.width, outputs)
        # Zeros, as in the paper's classification heads: the first loss is that of knowing nothing.
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def predict_hidden(self, model: ViT, images: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        # The order of the draws decides the bits: patches, kinds, distances.
        config = self.config
        num_hidden, num_patches = index.shape[1], math.prod(self.model_config.grid)
        kind = draw(model, len(images), num_hidden, images.device)  # (B, M), from 0 to 1
        # Any other patch with the same probability: 1 to N - 1 places further on, where the first patch
        # follows the last. The clamp below is for an image of one patch, and for a product that is rounded up
        # to N - 1.
        distance = 1 + (draw(model, len(images), num_hidden, images.device) * (num_patches - 1)).long()
        is_mask = kind < config.token_fraction
        is_other = ~is_mask & (kind < config.token_fraction + config.other_fraction)
        shown = torch.where(is_other, (index + distance.clamp(max=num_patches - 1)) % num_patches, index)
        shown = torch.where(is_mask, -1, shown)
        embedded = model.patches(images)  # (B, N, D)
        corrupted = take_patches(embedded, shown.clamp(min=0))
        corrupted = torch.where(is_mask[..., None], self.mask_token.to(embedded.dtype), corrupted)
        tokens = encode(model, put_patches(embedded, index, corrupted))
        return shown, self.head(take_patches(tokens, index))

    def losses(self, hidden: Hidden) -> Tensor:
        if not self.cells:
            return super().losses(hidden)
        # Flattened to a row for each prediction: with the classes along another axis than the last, the cross
        # entropy is slower.
        logits = hidden.outputs.float().reshape(-1, self.num_classes)
        entropies = F.cross_entropy(logits, hidden.targets.flatten(), reduction="none")
        return entropies.view_as(hidden.targets).mean(2)  # of (B, M, cells**2)

    def baseline(self, model: ViT) -> Baseline:
        return Baseline(self.cells**2, self.num_classes) if self.cells else super().baseline(model)

    def pixels(self, model: ViT, hidden: Hidden, patches: Tensor) -> Tensor:
        config = self.model_config
        if not self.cells:
            return super().pixels(model, hidden, patches)
        logits = hidden.outputs.reshape(*hidden.index.shape, self.cells, self.cells, self.num_classes)
        colours = class_colours(logits.argmax(-1), config.in_channels)  # (B, M, cells, cells, C)
        height, width = config.patch_size
        row, column = (  # the part that each row and column of pixels lies in
            torch.arange(side, device=colours.device) * self.cells // side for side in (height, width)
        )
        return colours[:, :, row][:, :, :, column].movedim(4, 2).float()  # (B, M, C, p, q)

    def targets(self, model: ViT, patches: Tensor) -> Tensor:
        return colour_classes(patches, self.cells) if self.cells else super().targets(model, patches)


class SimMIM(MaskedImages):
    """SimMIM (Xie et al. 2022, arXiv 2111.09886): a mask token for hidden patches, and one linear layer that
    predicts their pixels, judged by the absolute difference.

    Positions are the model's own, and not the relative bias that all blocks of the authors' ViT share.
    """

    config: configs.SimMIMConfig

    def __init__(self, config: configs.SimMIMConfig, model_config: ViTConfig) -> None:
        super().__init__(config, model_config)
        self.mask_token = nn.Parameter(torch.empty(1, 1, model_config.width))
        # Cut at a single deviation, as the authors' `models/simmim.py` does.
        nn.init.trunc_normal_(self.mask_token, std=0.02, a=-0.02, b=0.02)
        self.head = nn.Linear(model_config.width, math.prod(self.patch_shape))
        # Zeros, as in `MaskedPatches`.
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def predict_hidden(self, model: ViT, images: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        embedded = model.patches(images)  # (B, N, D)
        token = self.mask_token.to(embedded.dtype).expand(*index.shape, -1)
        tokens = encode(model, put_patches(embedded, index, token))
        return torch.full_like(index, -1), self.head(take_patches(tokens, index))

    def losses(self, hidden: Hidden) -> Tensor:
        return (hidden.outputs.float() - hidden.targets).abs().mean(2)

    def baseline(self, model: ViT) -> Baseline:
        return AbsoluteBaseline(model)


class MAE(MaskedImages):
    """A masked autoencoder (He et al. 2022, arXiv 2111.06377): the model sees the visible patches alone, and
    a small decoder, with the model's GELU and epsilon, predicts the hidden ones from its tokens and a mask
    token."""

    config: configs.MAEConfig

    def __init__(self, config: configs.MAEConfig, model_config: ViTConfig) -> None:
        super().__init__(config, model_config)
        width = config.decoder_width
        self.project = nn.Linear(model_config.width, width)
        self.mask_token = nn.Parameter(torch.empty(1, 1, width))
        self.blocks = nn.ModuleList(
            Block(
                width,
                Attention(width, config.decoder_heads),
                MLP(width, 4 * width, gelu=model_config.gelu),  # `mlp_ratio` of MAE `models_mae.py`
                norm_eps=model_config.norm_eps,
            )
            for _ in range(config.decoder_depth)
        )
        self.norm = nn.LayerNorm(width, model_config.norm_eps)
        self.head = nn.Linear(width, math.prod(self.patch_shape))
        # Fixed sines and cosines, which follow from the sizes; tokens before the patches have none. They
        # have MAE's frequencies where the encoder's positions have them, and else big_vision's.
        position = sincos_2d(model_config.grid, width, model_config.position)
        self.register_buffer("position", position, persistent=False)
        nn.init.normal_(self.mask_token, std=0.02)  # this and Xavier's below: MAE `models_mae.py`
        for block in self.blocks:
            cast("Block", block).init_weights(None)
        for layer in (self.project, self.head):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def predict_hidden(self, model: ViT, images: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        prefix = self.model_config.prefix_tokens
        placed = model.place(model.patches(images))  # (B, T, D), with positions
        num_patches = math.prod(self.model_config.grid)
        is_hidden = torch.zeros(len(images), num_patches, dtype=torch.bool, device=images.device)
        is_hidden = is_hidden.scatter(1, index, torch.ones_like(index, dtype=torch.bool))
        # False sorts before True, and `stable` leaves the patches in raster order.
        visible = is_hidden.long().argsort(dim=1, stable=True)[:, : num_patches - index.shape[1]]
        tokens = torch.cat([placed[:, :prefix], take_patches(placed[:, prefix:], visible)], dim=1)
        encoded = self.project(normed(model, model.encode(tokens)))  # (B, P + N - M, width)
        positions = cast("Tensor", self.position).to(encoded.dtype)
        masks = self.mask_token.to(encoded.dtype).expand(len(images), num_patches, -1)
        decoded = put_patches(masks, visible, encoded[:, prefix:]) + positions  # (B, N, width)
        decoded = torch.cat([encoded[:, :prefix], decoded], dim=1)
        for block in self.blocks:
            decoded = block(decoded)
        return torch.full_like(index, -1), self.head(self.norm(take_patches(decoded[:, prefix:], index)))

    def pixels(self, model: ViT, hidden: Hidden, patches: Tensor) -> Tensor:
        if self.config.normalize_patches:
            # With the mean and deviation of the true patch, as the authors draw theirs: the prediction has
            # neither.
            mean, deviation = _patch_statistics(normalized(model, patches).flatten(2))
            hidden = replace(hidden, outputs=hidden.outputs.float() * deviation + mean)
        return super().pixels(model, hidden, patches)

    def targets(self, model: ViT, patches: Tensor) -> Tensor:
        pixels = super().targets(model, patches)
        if not self.config.normalize_patches:
            return pixels
        mean, deviation = _patch_statistics(pixels)
        return (pixels - mean) / deviation


OBJECTIVE_OF: Mapping[type[configs.MaskedImagesConfig], type[MaskedImages]] = {
    configs.MaskedPatchesConfig: MaskedPatches,
    configs.SimMIMConfig: SimMIM,
    configs.MAEConfig: MAE,
}
"""The objective that each configuration makes."""


class SquaredBaseline(Baseline):
    """Baseline of a squared difference: zeros, and the mean of each number of a patch.

    Args:
        outputs: T, the numbers of a patch. Their sums, the sums of their squares and their count are kept.
    """

    def __init__(self, outputs: int) -> None:
        super().__init__(3, outputs)

    def add(self, targets: Tensor) -> None:
        values = targets.double().cpu()
        self.counts += torch.stack([values.sum(0), (values**2).sum(0), torch.ones_like(values).sum(0)])

    def losses(self) -> tuple[float, float]:
        total, squares, count = self.counts
        mean, square = total / count, squares / count
        return float(square.mean()), float((square - mean**2).mean())


class AbsoluteBaseline(Baseline):
    """Baseline of an absolute difference: zeros, and the median of each number of a patch.

    The numbers are normalised pixel values, of which there are 256: a histogram of each gives its median.

    Args:
        model: whose mean and deviation normalise the pixels.
    """

    def __init__(self, model: ViT) -> None:
        shape = (model.config.in_channels, *model.config.patch_size)
        super().__init__(math.prod(shape), 256)
        statistics = (model.pixel_mean, model.pixel_std)
        self.mean, self.std = (value.double().cpu().expand(shape).reshape(-1, 1) for value in statistics)

    def add(self, targets: Tensor) -> None:
        values = targets.double().cpu().T * self.std + self.mean  # (T, n), from 0 to 255
        super().add(values.round().long().T)

    def losses(self) -> tuple[float, float]:
        fractions = self.counts / self.counts.sum(1, keepdim=True)  # (T, 256)
        median = (fractions.cumsum(1) < 0.5).sum(1, keepdim=True)  # the lowest value that reaches one half
        values = torch.arange(256, dtype=torch.float64)
        loss_of_zeros = (fractions * (values - self.mean).abs() / self.std).sum(1).mean()
        loss_of_median = (fractions * (values - median).abs() / self.std).sum(1).mean()
        return float(loss_of_zeros), float(loss_of_median)


def draw(model: ViT, images: int, count: int, device: torch.device) -> Tensor:
    """Draw numbers from 0 to 1 for each image of a batch, `(B, count)`.

    They are drawn for the whole micro-batch that the images are a part of, so that they do not depend on the
    number of processes, or of images at a time.
    """
    rows = model.batch_rows
    drawn = torch.rand(images if rows is None else rows.total, count, device=device)
    return drawn if rows is None else drawn[rows.start : rows.stop]


def encode(model: ViT, patches: Tensor) -> Tensor:
    """Pass embeddings of all patches `(B, N, D)` through the model, to their tokens `(B, N, D)`."""
    return normed(model, model.encode(model.place(patches)))[:, model.config.prefix_tokens :]


def normed(model: ViT, encoded: Tensor) -> Tensor:
    """Apply the model's final norm to encoded tokens, where `encode` leaves it to the pooling; nothing is
    pooled here."""
    return model.norm(encoded) if model.config.norm_after_pooling else encoded


def take_patches(patches: Tensor, index: Tensor) -> Tensor:
    """Take some patches of each image, `(B, M, D)` of `(B, N, D)`."""
    return patches.gather(1, index[..., None].expand(-1, -1, patches.shape[2]))


def put_patches(patches: Tensor, index: Tensor, new: Tensor) -> Tensor:
    """Put `new` `(B, M, D)` in the place of some patches of `(B, N, D)`."""
    return patches.scatter(1, index[..., None].expand_as(new), new.to(patches.dtype))


def pixel_values(model: ViT, images: Tensor) -> Tensor:
    """Give images `(B, C, H, W)` as uint8: as they are, or normalised pixels turned back.

    Raises:
        VitkitError: the pixels are no whole values, as in mixed images.
    """
    if images.dtype == torch.uint8:
        return images
    values = images.float() * model.pixel_std + model.pixel_mean
    whole = values.round()
    error = torch.maximum((values - whole).abs(), torch.maximum(-whole, whole - 255)).max()
    if not bool(error <= NORMALIZED_TOLERANCE):  # not `>`, which is false for pixels that are no numbers
        raise VitkitError(
            "The labels of hidden patches are made of pixels from 0 to 255, found values between them or "
            "beyond, as in mixed images: give uint8 images, or images normalised by the model's own mean and "
            "deviation, without mixup."
        )
    return whole.to(torch.uint8)


def normalized(model: ViT, patches: Tensor) -> Tensor:
    """Normalise the pixels of patches `(B, M, C, p, q)` as the model normalises its images."""
    return (patches.float() - model.pixel_mean) / model.pixel_std


def colour_classes(patches: Tensor, cells: int) -> Tensor:
    """Classify the mean colours of parts of patches, 3 bits a channel.

    A patch is cut into `cells` x `cells` parts of equal area, also where that is no whole number of pixels.
    The levels of a channel change at multiples of 32: a mean of exactly 32 belongs to the upper one. A class
    is a number with a digit for each channel, the first channel's the highest.

    Args:
        patches: `(B, M, C, p, q)` uint8.
        cells: parts along each side.

    Returns:
        `(B, M, cells**2)` int64, from 0 to 8**C - 1, in raster order.
    """
    height, width = patches.shape[-2:]
    # In float64, where sums of pixels times whole weights are exact, in any order and on any device; a GPU
    # may round products of float32.
    down, across = (_overlaps(cells, side).to(patches.device) for side in (height, width))
    sums = torch.einsum("ip,bmcpq,jq->bmijc", down, patches.double(), across)
    digits = (sums / (height * width)).div(256 // LEVELS).floor().long()  # (B, M, cells, cells, C)
    places = LEVELS ** torch.arange(digits.shape[-1] - 1, -1, -1, device=digits.device)
    return (digits * places).sum(-1).flatten(2)


def class_colours(classes: Tensor, channels: int) -> Tensor:
    """Give the middle of the colours of classes, `(..., C)` from 0 to 255."""
    places = LEVELS ** torch.arange(channels - 1, -1, -1, device=classes.device)
    step = 256 // LEVELS
    return classes[..., None] // places % LEVELS * step + step // 2


def _overlaps(cells: int, side: int) -> Tensor:
    """Measure how much of each pixel of a side lies in each of `cells` equal parts, `(cells, side)` float64.

    The unit is 1 / `cells` of a pixel, so that pixels (`cells`) and parts (`side`) are whole numbers.
    """
    part, pixel = torch.arange(cells)[:, None], torch.arange(side)[None]
    until = torch.minimum((part + 1) * side, (pixel + 1) * cells)
    return (until - torch.maximum(part * side, pixel * cells)).clamp(min=0).double()


def _patch_statistics(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute mean and deviation of the normalised pixels `(B, M, T)` of each patch, `(B, M, 1)` each."""
    variance, mean = torch.var_mean(pixels, dim=2, keepdim=True)  # divided by T - 1, as MAE does
    return mean, (variance + MAE_EPS).sqrt()

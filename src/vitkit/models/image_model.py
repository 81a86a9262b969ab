"""What every model of the family is: images in, logits out, with a head that fine-tuning replaces.

Float images are normalised already; uint8 images are normalised here, by the mean and std that travel with
the weights.
"""

import math
from collections.abc import Collection
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.models.card import ModelCard
from vitkit.models.position import SinCosPosition2D

Taps = dict[str, Tensor]
"""What a model writes its own intermediates into, by name."""

LARGEST = 2**20
"""Pixels of a side, or channels, or the width of a layer: far more than any image or model has."""

MOST_CLASSES = 2**24
"""A thousand times as many as the largest labelled set has."""


class ImageConfig(Protocol):
    """The part of a configuration that every model has. Sizes are `(height, width)` in pixels."""

    @property
    def image_size(self) -> tuple[int, int]: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def in_channels(self) -> int: ...
    @property
    def head_bias_init(self) -> float: ...
    @property
    def image_mean(self) -> tuple[float, ...]: ...
    @property
    def image_std(self) -> tuple[float, ...]: ...


def check_images(config: ImageConfig) -> None:
    """Refuse what no model can have.

    Raises:
        VitkitError: sizes below one or beyond all measure, pixel statistics of another number of channels,
            or such as no pixels have.
    """
    if config.in_channels < 1:
        raise VitkitError(f"A model needs in_channels of at least 1, found {config.in_channels}.")
    for name, number in (("in_channels", config.in_channels), ("image_size", max(config.image_size))):
        if number > LARGEST:
            raise VitkitError(f"{name} is at most {LARGEST}, found {number}.")
    if config.num_classes < 0:
        raise VitkitError(f"num_classes is 0 (no head) or more, found {config.num_classes}.")
    if config.num_classes > MOST_CLASSES:
        raise VitkitError(f"num_classes is at most {MOST_CLASSES:,}, found {config.num_classes:,}.")
    if not math.isfinite(config.head_bias_init):
        raise VitkitError(f"head_bias_init is a finite number, found {config.head_bias_init}.")
    if min(config.image_size) < 1:
        raise VitkitError(f"Images have at least one pixel a side, found {by(config.image_size)}.")
    if len(config.image_mean) != config.in_channels or len(config.image_std) != config.in_channels:
        raise VitkitError(
            f"image_mean and image_std need one value per channel ({config.in_channels}), "
            f"found {config.image_mean} and {config.image_std}."
        )
    if not all(map(math.isfinite, (*config.image_mean, *config.image_std))) or min(config.image_std) <= 0:
        raise VitkitError(
            "image_mean is of finite numbers and image_std of finite ones above 0, "
            f"found {config.image_mean} and {config.image_std}."
        )


class ImageModel(nn.Module):
    """Base of ViT and ResNet: configuration, card, pixels, head.

    A family adds `features`, and its own way to draw weights.
    """

    config: Any
    """The family's configuration, an `ImageConfig`."""
    head: nn.Linear | nn.Identity
    """Absent, an identity, with 0 classes: the logits are the features then."""
    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, config: ImageConfig) -> None:
        super().__init__()
        self.config = config
        self.card = ModelCard()
        self.compute_pixel_statistics()

    def compute_pixel_statistics(self) -> None:
        """Mean and std as buffers that follow the model to its device."""
        for name, values in (("pixel_mean", self.config.image_mean), ("pixel_std", self.config.image_std)):
            # No arithmetic on tensors: on the meta device it makes PyTorch import its compiler, for seconds.
            levels = torch.tensor([255 * value for value in values]).view(-1, 1, 1)
            self.register_buffer(name, levels, persistent=False)

    def draw_weights(self, generator: torch.Generator | None) -> None:
        """Draw new weights, unless the model is built without memory to take over those of a checkpoint.

        Not only to save time: arithmetic on the meta device makes PyTorch import its compiler.
        """
        if not next(self.parameters()).is_meta:
            self.init_weights(generator)

    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Draw new weights, as the original of the family does."""
        raise NotImplementedError

    def compute_buffers(self) -> None:
        """Everything that is computed and not learned, once more where the model was built without memory."""
        self.compute_pixel_statistics()
        for module in self.modules():
            if isinstance(module, SinCosPosition2D):
                module.compute()

    @torch.no_grad()
    def init_head(self) -> None:
        """The zero-initialised linear layer that fine-tuning starts from (paper 3.1)."""
        if isinstance(self.head, nn.Linear):
            nn.init.zeros_(self.head.weight)
            nn.init.constant_(self.head.bias, self.config.head_bias_init)

    def normalize(self, images: Tensor) -> Tensor:
        """uint8 images to the floats the weights know; floats are taken to be normalised already.

        Raises:
            VitkitError: images of another size or type than the model's.
        """
        expected = (self.config.in_channels, *self.config.image_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            raise VitkitError(
                f"This model takes images of shape (B, {expected[0]}, {expected[1]}, {expected[2]}), found "
                f"{tuple(images.shape)}. Resize them, or load the model with image_size=(height, width)."
            )
        if images.dtype == torch.uint8:
            pixels = images.to(self.pixel_mean.dtype)
            return (pixels - self.pixel_mean) / self.pixel_std
        if not images.is_floating_point():
            raise VitkitError(f"Images are uint8 (0 to 255) or normalised floats, found {images.dtype}.")
        return images

    def features(self, images: Tensor, taps: Taps | None = None) -> Tensor:
        """What the head sees, `(B, D)`: the representation few-shot evaluation and embeddings use."""
        raise NotImplementedError

    def forward(
        self,
        images: Tensor,
        taps: Taps | None = None,
        attention_weights: bool | Collection[int] = False,
    ) -> Tensor:
        """Logits `(B, K)` of images `(B, C, H, W)`, uint8 pixels or floats normalised by mean and std.

        Args:
            images: as above.
            taps: a dictionary that receives every intermediate.
            attention_weights: of Vision Transformers; no other model has any.

        Raises:
            VitkitError: images of another size or type than the model's; or attention weights were asked for.
        """
        if attention_weights:
            raise VitkitError(f"A {type(self).__name__} has no attention weights to give.")
        logits: Tensor = self.head(self.features(images, taps))
        if taps is not None:
            taps["logits"] = logits
        return logits


def make_head(width: int, num_classes: int) -> nn.Linear | nn.Identity:
    """A linear classifier, or none for 0 classes."""
    return nn.Linear(width, num_classes) if num_classes else nn.Identity()


def lecun_normal(weight: Tensor, fan_in: int, generator: torch.Generator | None) -> None:
    """Truncated at two standard deviations, rescaled to a variance of 1/fan_in (as in Flax)."""
    std = math.sqrt(1 / fan_in) / 0.87962566103423978
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std, generator=generator)


def by(size: tuple[int, int]) -> str:
    """A size as people write it: 224x224."""
    return f"{size[0]}x{size[1]}"

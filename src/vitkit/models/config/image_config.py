"""The fields that the configurations of all model families share.

This file imports no torch, because help texts must not wait for it.
"""

import math
from typing import ClassVar, Protocol, Self, TypeAlias, overload

from vitkit.errors import VitkitError
from vitkit.text import format_size

LARGEST = 2**20
"""Pixels of a side, or channels, or the width of a layer: far more than any image or model has."""

FLOAT32_LEAST = 2.0**-126
"""The smallest number above 0 that float32 holds in full, for pixels are divided by deviations."""

MOST_CLASSES = 2**24
"""A thousand times as many as the largest labelled set has."""


Size: TypeAlias = int | tuple[int, int]
"""Height and width of images in pixels, or one number for both."""


class ImageConfig(Protocol):
    """The protocol of every family's configuration. Sizes are `(height, width)` in pixels."""

    family: ClassVar[str]
    """The family's name, which `model.json` records."""
    first_filters: ClassVar[tuple[str, ...]]
    """Names of the parameter that reads the pixels: a model has one of them."""

    @property
    def image_size(self) -> tuple[int, int]: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def in_channels(self) -> int: ...
    @property
    def image_mean(self) -> tuple[float, ...]: ...
    @property
    def image_std(self) -> tuple[float, ...]: ...
    @property
    def width(self) -> int:
        """The number of features of an image or of a token: D."""

    @property
    def num_layers(self) -> int:
        """The number of encoder blocks or residual units; a hybrid's backbone is not counted."""

    @property
    def num_heads(self) -> int:
        """The number of attention heads; it counts for nothing in a model without attention."""

    @property
    def attention(self) -> str:
        """The kind of attention: "full" (every token sees all), "axial" (along rows and columns), "none"."""

    @property
    def num_tokens(self) -> int | None:
        """The number of tokens of an image; None for a model that makes none."""

    @property
    def layer_summary(self) -> str:
        """The layers as text: "12", by stages "3-4-6-3", or both for a hybrid."""

    @property
    def arithmetic(self) -> tuple[str, ...]:
        """The numerics as phrases, in which two models with the same weights may differ."""

    @property
    def pools(self) -> bool:
        """Whether there is one row of logits for an image; without pooling every token has one."""

    @property
    def position_extent(self) -> tuple[str, tuple[int, int]]:
        """The name and size of the extent on which positions depend: ("a grid", (14, 14)), or images'."""

    @property
    def cut_off(self) -> str:
        """The part of an image that no token sees, as a phrase; empty where every pixel counts."""

    @property
    def unmaskable(self) -> str:
        """The reason why its patches cannot be hidden for self-supervision, as a phrase after its name; empty
        where they can."""

    def with_new_head(self, num_classes: int) -> Self:
        """Give the configuration with a linear head for other classes."""


def check_images(config: ImageConfig) -> None:
    """Refuse image sizes, channels and pixel statistics that no model can have.

    Raises:
        VitkitError: sizes below one or beyond `LARGEST`, pixel statistics of another number of channels, not
            finite, or with a deviation that is not above zero.
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
    if min(config.image_size) < 1:
        raise VitkitError(f"Images have at least one pixel a side, found {format_size(config.image_size)}.")
    if len(config.image_mean) != config.in_channels or len(config.image_std) != config.in_channels:
        raise VitkitError(
            f"image_mean and image_std need one value per channel ({config.in_channels}), "
            f"found {config.image_mean} and {config.image_std}."
        )
    if (
        not all(map(math.isfinite, (*config.image_mean, *config.image_std)))
        or min(config.image_std) < FLOAT32_LEAST
    ):
        raise VitkitError(
            "image_mean holds finite numbers and image_std finite numbers above 0, "
            f"found {config.image_mean} and {config.image_std}."
        )


@overload
def height_and_width(size: Size) -> tuple[int, int]: ...
@overload
def height_and_width(size: None) -> None: ...
@overload
def height_and_width(size: Size | None) -> tuple[int, int] | None: ...
def height_and_width(size: Size | None) -> tuple[int, int] | None:
    """Return a size as `(height, width)`: one number is both of them, and None stays None."""
    return (size, size) if isinstance(size, int) else size

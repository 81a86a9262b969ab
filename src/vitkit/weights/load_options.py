"""The options of loading a checkpoint, in a file that imports no torch."""

from dataclasses import dataclass
from typing import Literal

from vitkit.models.config.vit_config import Interpolation


@dataclass(frozen=True)
class LoadOptions:
    """The options of loading a checkpoint; `vitkit.load_model` describes each field."""

    num_classes: int | None = None
    image_size: int | tuple[int, int] | None = None
    head: Literal["keep", "new"] | None = None
    num_heads: int | None = None
    position_interpolation: Interpolation | None = None
    image_mean: tuple[float, ...] | None = None
    image_std: tuple[float, ...] | None = None
    channels: int | None = None
    """Channels of the images; left out, the weights'. `vitkit.models.channels` fits the filters."""

    @property
    def size(self) -> tuple[int, int] | None:
        """`(height, width)`; None for the size of the weights."""
        side = self.image_size
        return (side, side) if isinstance(side, int) else side

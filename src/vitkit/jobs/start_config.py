"""Options of the start of a run, which takes the place of new weights. This file needs no torch."""

from dataclasses import dataclass
from typing import Literal

from vitkit.config import require_finite
from vitkit.models.vit_config import Interpolation


@dataclass(frozen=True)
class StartConfig:
    """The weights that a run begins from, and what of them it takes over."""

    start: str = ""
    """A run folder, a file or folder of weights, or an address (hf:org/name, https://...); left out, new
    weights are drawn."""
    start_from: Literal["end", "best", "last"] = "end"
    """The weights taken from a run folder: the model it ended with; or the best, or the last, of its
    checkpoints. Of a run that has not ended, "end" is its best checkpoint so far."""
    head: Literal["new", "ridge", "keep"] = "new"
    """new: a linear layer of zeros in place of the whole head (paper 3.1). ridge: the same, set to the ridge
    solution on the features of the training images. keep: the head as it is, which needs the same classes,
    matched by their names."""
    position_interpolation: Interpolation = "original"
    """How position embeddings are resized for another image size."""
    image_mean: tuple[float, ...] | None = None
    """Mean of pixels in [0, 1], a value for each channel or one for all; left out, that of the start, and 0.5
    for new weights."""
    image_std: tuple[float, ...] | None = None
    measure_pixels: bool = False
    """Measure image_mean and image_std on up to 500 training images, where they are not given."""
    num_heads: int | None = None
    """Heads of the attention, where a file does not record them."""

    def __post_init__(self) -> None:
        require_finite(self)

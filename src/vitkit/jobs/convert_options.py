"""The options of a conversion. They need no torch."""

from dataclasses import dataclass
from typing import Literal

from vitkit.models.vit_config import Interpolation
from vitkit.weights.format_names import Format, format_for

Library = Literal["timm", "huggingface"]


@dataclass(frozen=True)
class ConvertOptions:
    """Which checkpoint is converted, to which format, and what is changed on the way."""

    source: str
    """a run folder, a file or folder of any library, or an address (hf:..., https://...)."""
    out: str
    """file or folder to write."""
    to: Format | None = None
    """the format; left out, official for a name ending in .npz, torchvision for .pth, else vitkit."""
    num_classes: int | None = None
    """another number of classes: a new zero head, as the original fine-tunes."""
    image_size: tuple[int, int] | None = None
    """height and width; position embeddings are resized."""
    head: Literal["keep", "new"] | None = None
    """keep the whole head, or replace it by a new one of zeros."""
    num_heads: int | None = None
    """of the attention, where the file does not say it."""
    interpolation: Interpolation = "original"
    """how position embeddings are resized: the original's bilinear rule, or bicubic."""
    against: Library | None = None
    """run another library's own model beside it, timm or huggingface, if it is installed."""
    accept_change: bool = False
    """keep a result that differs because the format cannot say all of the arithmetic."""
    image_mean: tuple[float, ...] = ()
    """of pixels in 0..1, one for each channel or for all, where the file does not say it."""
    image_std: tuple[float, ...] = ()
    """the same of their standard deviation."""

    @property
    def format(self) -> Format:
        """The format that is written: the one named, or the one that the ending of `out` suggests."""
        return self.to or format_for(self.out)

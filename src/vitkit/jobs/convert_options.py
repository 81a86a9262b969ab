"""The options of a conversion. They need no torch."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from vitkit.jobs.options import CheckpointOptions, JobOptions, SourceOptions, StrPath
from vitkit.models.config.vit_config import Interpolation
from vitkit.weights.format_names import Format, Library, format_for


@dataclass(frozen=True)
class ConvertOptions(CheckpointOptions, JobOptions, SourceOptions):
    """The options of a conversion; the texts below the fields are their help."""

    out: StrPath
    """file or folder to write; it must not exist yet."""
    to: Format | None = None
    """format to write; left out, official for a name ending in .npz, torchvision for .pth, else vitkit."""
    _: KW_ONLY
    num_classes: int | None = None
    """number of classes of a new head of zeros, which replaces the old one, as the original code
    fine-tunes."""
    head: Literal["keep", "new"] | None = None
    """keep the whole head, or replace it by a new one of zeros."""
    interpolation: Interpolation = "original"
    """how position embeddings are resized: by the original code's bilinear rule, or bicubic."""
    against: Library | None = None
    """compare with the model of another library, timm or huggingface, if it is installed."""
    accept_change: bool = False
    """keep a result that differs because the format cannot store all of the model's numerics."""
    image_mean: tuple[float, ...] | None = None
    """mean of pixels in 0..1, one for each channel or one for all, where the file does not record it."""
    image_std: tuple[float, ...] | None = None
    """standard deviation of pixels in 0..1, given in the same way."""

    @property
    def format(self) -> Format:
        """Return the format to write: the one named, or the one that the ending of `out` suggests."""
        return self.to or format_for(self.out)

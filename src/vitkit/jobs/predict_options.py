"""The options of a prediction. They need no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitkit.errors import VitkitError
from vitkit.jobs.options import JobOptions, ModelOptions, StrPath


@dataclass(frozen=True)
class PredictorOptions(ModelOptions):
    """The options of `vitkit.Predictor`."""

    device: str = "auto"  # by position too


@dataclass(frozen=True, kw_only=True)
class PredictOptions(PredictorOptions, JobOptions):
    """The options of a prediction; the texts below the fields are their help."""

    images: Sequence[StrPath]
    """image files, folders, or - for a list of paths on standard input."""
    top: int = 5
    """number of classes to name for each image; a multi-label model always names all labels."""
    batch_size: int = 32
    """images that are read and computed at a time."""

    def __post_init__(self) -> None:
        if not self.images:
            raise VitkitError("Which images? Give files, folders, or - to read paths from standard input.")
        if self.top < 1 or self.batch_size < 1:
            raise VitkitError(f"top and batch_size are at least 1, found {self.top} and {self.batch_size}.")

"""The options of advice before training. They need no torch."""

from dataclasses import dataclass, field

from vitkit.config import require_finite
from vitkit.data.decode_config import DecodeRule
from vitkit.data.sources_config import Splits
from vitkit.errors import VitkitError


@dataclass(frozen=True)
class AdviseOptions:
    """The options of advice before training; the texts below the fields are their help."""

    data: str
    """images to train on: digits (built in), a folder of class folders, a .csv, or a folder of .parquet
    files."""
    starts: tuple[str, ...] = ()
    """run folders, files or addresses of weights to begin from; of several the best one is advised."""
    splits: Splits = field(default_factory=Splits)
    """how missing splits are made."""
    decode: DecodeRule = field(default_factory=DecodeRule)
    """how images are read where nothing is known of a start's own rule."""
    seconds: float = 60.0
    """seconds for the features of all starts together: with more, more images are looked at."""
    cache: bool = True
    """keep the features of images in the user's cache folder, and use those that are there."""
    device: str = "auto"
    """where to compute: auto (a GPU if there is one), cpu, cuda or cuda:1."""

    def __post_init__(self) -> None:
        require_finite(self)
        if not self.data:
            raise VitkitError(
                "Which images? Give a path, or digits for the built-in ones: vitkit advise DATA."
            )
        if self.seconds <= 0:
            raise VitkitError(f"seconds is a number above 0, found {self.seconds:g}.")

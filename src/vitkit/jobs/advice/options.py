"""The options of advice before training. They need no torch."""

from dataclasses import KW_ONLY, dataclass, field

from vitkit.config import require_finite
from vitkit.data.config import DecodeRule, Splits
from vitkit.errors import VitkitError
from vitkit.jobs.options import CacheOptions, DeviceOptions, JobOptions, StrPaths


@dataclass(frozen=True)
class AdviseOptions(CacheOptions, DeviceOptions, JobOptions):
    """The options of advice before training; the texts below the fields are their help."""

    data: str
    """images to train on: digits (built in), a folder of class folders or a .zip or .tar of one, a .csv,
    or a folder of .parquet files."""
    starts: StrPaths = ()
    """run folders, files or addresses of weights to begin from; the best of several is advised."""
    _: KW_ONLY
    splits: Splits | None = None
    """how missing splits are made."""
    decode: DecodeRule = field(default_factory=DecodeRule)
    """how images are read where a start records no rule of its own."""
    seconds: float = 60.0
    """seconds for the features of all starts together; with more seconds, more images are probed."""

    def __post_init__(self) -> None:
        require_finite(self)
        if not self.data:
            raise VitkitError(
                "Which images? Give a path, or digits for the built-in ones: vitkit advise DATA."
            )
        if self.seconds <= 0:
            raise VitkitError(f"seconds is a number above 0, found {self.seconds:g}.")

    @property
    def cut(self) -> Splits:
        """Return the rule by which missing splits are made."""
        return self.splits or Splits()

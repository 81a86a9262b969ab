"""The options of a look at a data set. They need no numpy."""

from dataclasses import dataclass, field

from vitkit.data.config import DecodeRule, Splits
from vitkit.jobs.options import JobOptions
from vitkit.models.config.card import TaskName


@dataclass(frozen=True)
class DataCheckOptions(JobOptions):
    """The options of a check of a data set; the texts below the fields are their help."""

    path: str
    """images to check: digits (built in), a folder of class folders, a .csv, or a folder of .parquet
    files."""
    splits: Splits = field(default_factory=Splits)
    """how missing splits would be made."""
    decode: DecodeRule = field(default_factory=DecodeRule)
    """how files are read."""
    task: TaskName = "classification"
    """what will be learned: classification, one class for each image; multi-label, any number of labels."""

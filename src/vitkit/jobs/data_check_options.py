"""The options of a look at a data set. They need no numpy."""

from dataclasses import dataclass, field

from vitkit.data.decode_config import DecodeRule
from vitkit.data.sources_config import Splits
from vitkit.models.card import TaskName


@dataclass(frozen=True)
class DataCheckOptions:
    """Which data set is checked, and how it is opened."""

    path: str
    """digits, a folder of class folders, a .csv, a folder of .parquet files."""
    splits: Splits = field(default_factory=Splits)
    """how missing splits would be made."""
    decode: DecodeRule = field(default_factory=DecodeRule)
    """how files are read."""
    task: TaskName = "classification"
    """what will be learned: multi-label, where an image has several labels, or none."""

"""A look at a data set: what is in it, before anyone spends an hour on it."""

from dataclasses import dataclass, field

from vitkit.data.check import DataCheck, check_data
from vitkit.data.decode_config import DecodeRule
from vitkit.data.sources import open_data
from vitkit.data.sources_config import Splits
from vitkit.jobs.listener import SILENT, Listener


@dataclass(frozen=True)
class DataCheckOptions:
    """Which data set is checked, and how it is opened."""

    path: str
    """digits, a folder of class folders, a .csv, a folder of .parquet files."""
    splits: Splits = field(default_factory=Splits)
    """how missing splits would be made."""
    decode: DecodeRule = field(default_factory=DecodeRule)
    """how files are read."""


def check(options: DataCheckOptions, listener: Listener = SILENT) -> DataCheck:
    """Read every image of a data set once and count what is there.

    Args:
        options: which data set.
        listener: hears how many images were read.

    Raises:
        VitkitError: there is no such data set, or it cannot be opened.
    """
    data = open_data(options.path, options.splits, options.decode)
    with listener.progress("reading images") as progress:
        return check_data(data, progress)

"""Check a data set before anyone spends an hour on it."""

from dataclasses import replace

from vitkit.data.check import DataCheck, check_data
from vitkit.data.config import NEWEST_RULE
from vitkit.jobs.options import DataCheckOptions
from vitkit.tasks import find_task


def check(options: DataCheckOptions) -> DataCheck:
    """Read every image of a data set once, and count images, sizes, copies and bad files.

    Raises:
        VitkitError: there is no such data set, or it cannot be opened.
    """
    with options.listener.progress("listing images"):
        splits = options.splits if options.splits.rule else replace(options.splits, rule=NEWEST_RULE)
        data = find_task(options.task).learning.open_data(options.path, splits, options.decode)
    with options.listener.progress("reading images") as progress:
        return check_data(data, progress)

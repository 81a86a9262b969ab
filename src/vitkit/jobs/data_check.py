"""Check a data set before anyone spends an hour on it."""

from dataclasses import replace

from vitkit.data.check import DataCheck, check_data
from vitkit.data.sources import UnfitDataError
from vitkit.jobs.options import DataCheckOptions
from vitkit.tasks import find_task


def check(options: DataCheckOptions) -> DataCheck:
    """Read every image of a data set once, and count images, sizes, copies and bad files.

    The findings include all that has to be mended before training.

    Raises:
        VitkitError: there is no such data set, or its images cannot be listed.
    """
    problems: tuple[str, ...] = ()
    with options.listener.progress("listing images"):
        try:
            data = find_task(options.task).learning.open_data(options.path, options.splits, options.decode)
        except UnfitDataError as error:
            data, problems = error.listed.cut(options.splits), error.problems
    with options.listener.progress("reading images") as progress:
        return replace(check_data(data, progress), problems=problems)

"""Check a data set before anyone spends an hour on it."""

from dataclasses import replace

from vitkit.data.check import DataCheck, check_data
from vitkit.data.config import DEFAULT_RULE, DecodeRule, Splits
from vitkit.data.sources import UnfitDataError
from vitkit.listener import Listener, hushed
from vitkit.models.config.card import TaskName
from vitkit.notebook import AUTOMATIC
from vitkit.tasks import find_task


def check(
    path: str,
    *,
    task: TaskName = "classification",
    splits: Splits = Splits(),  # noqa: B008 (it is frozen)
    decode: DecodeRule = DEFAULT_RULE,
    quiet: bool = False,
    listener: Listener = AUTOMATIC,
) -> DataCheck:
    """Read every image once and say what is there: counts, sizes, bad files, duplicates.

    Args:
        path: images to check: "digits" (built in), a folder of class folders or a .zip or .tar of one, a
            .csv, or a folder of .parquet files.
        task: what will be learned: classification, one class for each image; multi-label, any number of
            labels.
        splits: how missing splits would be made.
        decode: how files are read.
        quiet: print nothing but warnings.
        listener: hears the progress and remarks; left out, a notebook shows them and a script is silent.

    Returns:
        The findings, with all that has to be mended before training.

    Raises:
        VitkitError: there is no such data set, or its images cannot be listed.
    """
    problems: tuple[str, ...] = ()
    listener = hushed(listener, quiet)
    with listener.progress("listing images"):
        try:
            data = find_task(task).learning.open_data(path, splits, decode)
        except UnfitDataError as error:
            data, problems = error.listed.cut(splits), error.problems
    with listener.progress("reading images") as progress:
        return replace(check_data(data, progress), problems=problems)

"""The formats that are read and written, and how a file in none of them may be mended."""

from collections import Counter
from importlib import import_module

from vitkit.config import nearest
from vitkit.errors import VitkitError
from vitkit.weights.files.source import Source
from vitkit.weights.format_names import MODULES
from vitkit.weights.table import CheckpointFormat

FORMATS: tuple[CheckpointFormat, ...] = tuple(
    import_module(f"vitkit.weights.formats.{module}").CHECKPOINT_FORMAT for module in MODULES.values()
)
"""All formats; the first that recognises a file reads it."""

PREFIXES_TRIED = 8
"""Prefixes are tried in the order of how many names have them; a training script adds one or two."""


def find_format(format: str) -> CheckpointFormat:
    """Find the format of a name.

    Raises:
        VitkitError: none has it; the nearest known one is named.
    """
    found = next((one for one in FORMATS if one.name == format), None)
    if found is None:
        names = [one.name for one in FORMATS]
        raise VitkitError(f"No format is named '{format}'. {nearest(str(format), names)}")
    return found


def named_prefix(source: Source) -> str:
    """Name the prefix that hides a known format, as training scripts put before every name, in a sentence.

    Empty where no prefix does.
    """
    beginnings: Counter[str] = Counter()
    for key in source.shapes:
        first, dot, rest = key.partition(".")
        second, more, _ = rest.partition(".")
        beginnings.update([f"{first}."] * bool(dot) + [f"{first}.{second}."] * bool(more))
    for prefix, count in beginnings.most_common(PREFIXES_TRIED):
        names = {key.removeprefix(prefix): key for key in source.shapes if key.startswith(prefix)}
        bare = source.renamed(names)
        found = next((one.name for one in FORMATS if one.recognises(bare)), None)
        if found is not None:
            return (
                f" {count} of its names are those of {found} after the prefix '{prefix}': strip the prefix "
                f"'{prefix}' from them, leave the others out, and save the weights again."
            )
    return ""

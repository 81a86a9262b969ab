"""Recognise the format of a file, or find a format by its name; advise where a file has none of them."""

from collections import Counter
from importlib import import_module

from vitkit.config import nearest
from vitkit.errors import VitkitError
from vitkit.weights import table
from vitkit.weights.files.source import Source
from vitkit.weights.format_names import MODULES, Format

PREFIXES_TRIED = 8
"""Prefixes are tried in the order of how many names have them; a training script adds one or two."""


def recognise(source: Source) -> table.CheckpointFormat | None:
    """Return the first format that recognises a file, by which it is read; None where none does.

    The formats after it are not imported, so that a model of vitkit's own waits for no other library's names.
    """
    return next((candidate for candidate in map(find_format, MODULES) if candidate.recognises(source)), None)


def find_format(format: Format) -> table.CheckpointFormat:
    """Find the format of a name.

    Raises:
        VitkitError: no format has this name; the nearest name is suggested.
    """
    if format not in MODULES:
        raise VitkitError(f"No format is named '{format}'. {nearest(str(format), list(MODULES))}")
    module = import_module(f"vitkit.weights.formats.{MODULES[format]}")
    checkpoint_format: table.CheckpointFormat = module.CHECKPOINT_FORMAT
    return checkpoint_format


def named_prefix(source: Source) -> str:
    """Write a sentence about the prefix, put before every name by a training script, that hides a format.

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
        checkpoint_format = recognise(bare)
        if checkpoint_format is not None:
            return (
                f" {count} of its names are {checkpoint_format.name}'s after the prefix '{prefix}': strip "
                f"the prefix '{prefix}' from them, leave the others out, and save the weights again."
            )
    return ""

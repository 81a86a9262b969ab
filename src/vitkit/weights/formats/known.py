"""The layouts that are read and written, and how a file under none of them may be mended."""

from collections import Counter
from typing import Literal

from vitkit.config import nearest
from vitkit.errors import VitkitError
from vitkit.weights.files.source import Source
from vitkit.weights.formats import big_vision, native, official, torchvision
from vitkit.weights.formats.huggingface import read as huggingface
from vitkit.weights.formats.timm import read as timm
from vitkit.weights.table import Dialect

Format = Literal["vitkit", "official", "big_vision", "huggingface", "timm", "torchvision"]

# The first that recognises a file reads it.
DIALECTS = (
    native.DIALECT,
    big_vision.DIALECT,
    official.DIALECT,
    huggingface.DIALECT,
    timm.DIALECT,
    torchvision.DIALECT,
)

PREFIXES_TRIED = 8
"""The beginnings that most names have."""


def find_format(format: str) -> Dialect:
    """The layout of a name.

    Raises:
        VitkitError: none has it; the nearest known one is named.
    """
    dialect = next((dialect for dialect in DIALECTS if dialect.name == format), None)
    if dialect is None:
        names = [dialect.name for dialect in DIALECTS]
        raise VitkitError(f"No format is named '{format}'. {nearest(str(format), names)}")
    return dialect


def named_prefix(source: Source) -> str:
    """A sentence about the prefix that hides a known layout, as training scripts put before every name.

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
        found = next((dialect.name for dialect in DIALECTS if dialect.recognises(bare)), None)
        if found is not None:
            return (
                f" {count} of its names are those of {found} after the prefix '{prefix}': strip the prefix "
                f"'{prefix}' from them, leave the others out, and save the weights again."
            )
    return ""

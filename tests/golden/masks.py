"""Replace the parts of a printed text that differ between machines."""

import re
from collections.abc import Sequence
from pathlib import Path

_NUMBER = r"(?<![\w.])[\d.,]*\d"
VERSION = (r"\b\d+\.\d+\.\d+(?:\+[\w.]+)?(?=[\s,:;)]|\.?$)", "VERSION")
MASKS = (
    # The time left is shown once it is known to be a second, which a fast machine never reaches.
    (r"  [\d.,]+ (?:s|min|h) left", ""),
    (rf"{_NUMBER} images(?:/s| a second)", "SPEED"),
    (rf"{_NUMBER} (?:GFLOPS|[kMGTP]?FLOPs/s)", "SPEED"),
    (rf"{_NUMBER}(?: (?:B|kB|MB|GB|TB|[KMGT]iB)\b)", "SIZE"),
    (rf"{_NUMBER} (?:ms|s|min|h|d|seconds|minutes|hours)\b(?: {_NUMBER} (?:s|min|h)\b)?", "TIME"),
    (r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?Z?)?", "DATE"),
    (r"\b[0-9a-f]{64}\b", "HASH"),
    VERSION,
)
"""Regular expressions, and words."""


def mask(text: str, folder: Path | None = None, masks: Sequence[tuple[str, str]] = MASKS) -> str:
    """Replace what differs between machines, and write the blanks around a mask as one run of two.

    Args:
        text: what a command printed.
        folder: its working folder, which becomes FOLDER; None: none is replaced.
        masks: expressions and words.
    """
    text = text.replace(str(folder), "FOLDER") if folder else text
    for pattern, word in masks:
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    # A sentence breaks where what was masked left room.
    text = re.sub(r"^(?=.{95})(?!.*SPEED)(.*(?:TIME|SIZE).*)\n(?=[a-z])", r"\1 ", text, flags=re.MULTILINE)
    # A table's columns are as wide as what was masked, and so are the headings above them.
    beside = r" {2,}(?=SIZE|TIME|SPEED|DATE|(?:time|memory)(?:  |$))|(?<=SIZE|TIME|DATE|PEED) {2,}"
    return re.sub(beside, "  ", text, flags=re.MULTILINE)

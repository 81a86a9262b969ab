"""Snapshots: whole texts, one file for each test, with the parts that differ between machines masked.

`pytest tests/golden --snapshot-update` writes them anew; `git diff tests/golden` shows what changed.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from tests.helpers.guard import watch_files

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
"""What is masked in a text, as regular expressions, and the words that stand there instead."""


def mask(text: str, folder: Path, masks: Sequence[tuple[str, str]] = MASKS) -> str:
    """Replace what differs between machines, and write the blanks around a mask as one run of two.

    Args:
        text: what a command printed.
        folder: its working folder, which becomes FOLDER.
        masks: expressions and words.
    """
    text = text.replace(str(folder), "FOLDER")
    for pattern, word in masks:
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    # A table's columns are as wide as what was masked, and so are the headings above them.
    beside = r" {2,}(?=SIZE|TIME|SPEED|DATE|(?:time|memory)(?:  |$))|(?<=SIZE|TIME|DATE|PEED) {2,}"
    return re.sub(beside, "  ", text, flags=re.MULTILINE)


class _TextFile(SingleFileSnapshotExtension):
    """A file of text for each case of a test."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"


@pytest.fixture
def updating(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether snapshots are written anew; then a test may write into the checkout."""
    wanted = bool(pytestconfig.getoption("update_snapshots"))
    if wanted:
        monkeypatch.delenv(watch_files.OFFENCES)
    return wanted


@pytest.fixture
def text_file(snapshot: SnapshotAssertion, updating: bool) -> SnapshotAssertion:
    """Compare with the text file of the test's case."""
    return snapshot.use_extension(_TextFile)

"""Snapshots: whole texts, one file for each case of a test.

`pytest tests/golden --snapshot-update` writes them anew; `git diff tests/golden` shows what changed.
"""

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from tests.helpers.guard import watch_files


class _TextFile(SingleFileSnapshotExtension):
    """A file of text for each case of a test."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"


@pytest.fixture
def updating(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether snapshots are written anew; then a test may write into the checkout."""
    is_update = bool(pytestconfig.getoption("update_snapshots"))
    if is_update:
        monkeypatch.delenv(watch_files.OFFENCES)
    return is_update


@pytest.fixture
def text_file(snapshot: SnapshotAssertion, updating: bool) -> SnapshotAssertion:
    """Compare with the text file of the test's case."""
    return snapshot.use_extension(_TextFile)

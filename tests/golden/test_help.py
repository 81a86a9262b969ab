"""The layout of help in a terminal; all verbs with all options are in docs/commands.md."""

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.golden.masks import VERSION
from tests.golden.screen import screen

PAGES = {"vitkit": [[], ["--version"]], "card": [["card", "--help"]]}


@pytest.mark.parametrize("name", PAGES)
def test_help(name: str, capsys: pytest.CaptureFixture[str], text_file: SnapshotAssertion) -> None:
    assert screen(PAGES[name], capsys, [VERSION]) == text_file

"""The help of every verb, both pages, and of the program: the whole texts."""

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.golden.masks import VERSION
from tests.golden.screen import screen
from vitkit.cli.help import VERBS

PAGES = {"vitkit": [[], ["--version"]]} | {
    name: [[*name.split(), page] for page in ("--help", "--help-all")]
    for name in (*(verb for verb in VERBS if verb != "data"), "data check", "data show")
}
PAGES["train"].append(["train", "--recipe", "digits", "--help"])  # the defaults are the recipe's


@pytest.mark.parametrize("name", PAGES)
def test_help(name: str, capsys: pytest.CaptureFixture[str], text_file: SnapshotAssertion) -> None:
    assert screen(PAGES[name], capsys, [VERSION]) == text_file

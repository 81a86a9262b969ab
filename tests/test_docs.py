"""Pages that are written by the code say what it says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_catalogue_is_that_of_the_zoo() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "catalogue")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    page = (ROOT / "docs" / "catalogue.md").read_text(encoding="utf-8")
    assert page == printed, "run: scripts/catalogue > docs/catalogue.md"

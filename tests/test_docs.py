"""Pages that are written by the code say what it says."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_catalogue_is_that_of_the_zoo() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "catalogue")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    page = (ROOT / "docs" / "catalogue.md").read_text(encoding="utf-8")
    assert page == printed, "run: scripts/catalogue > docs/catalogue.md"


def test_the_page_on_extending_names_what_exists() -> None:
    """Every file that it names is there, and every name of the code occurs in the source."""
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```", "", page, flags=re.S)
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    quoted = re.findall(r"`([^`\n]+)`", prose)
    files = [word for word in quoted if word.startswith(("src/", "tests/"))]
    assert len(files) > 20
    assert [name for name in files if not (ROOT / name).exists()] == []
    names = [word for word in quoted if re.fullmatch(r"_?[A-Z][A-Za-z0-9_]+", word)]
    assert len(names) > 20
    missing = [name for name in names if not re.search(rf"\b{name}\b", source)]
    assert missing == []

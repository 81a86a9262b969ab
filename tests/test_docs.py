"""Pages that are written by the code say what it says."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

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


def test_the_tutorial_names_options_that_exist() -> None:
    """Every option that it names is a field or a parameter of that name."""
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    # pip's --index-url is no option of vitkit.
    words = set(re.findall(r"--([a-z][a-z.-]*[a-z])", page)) - {"help", "index-url"}
    options = {word.rpartition(".")[2] or word for word in words}
    assert len(options) > 10
    fields = [option.replace("-", "_") for option in sorted(options)]
    other_names = {"json": "json_output", "csv": "csv_output"}
    assert [name for name in fields if not re.search(rf"\b{other_names.get(name, name)}: ", source)] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_no_heading_of_a_page_stands_twice(page: Path) -> None:
    """A merge once left half a page there twice, with other figures."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = Counter(line for line in text.splitlines() if line.startswith("#"))
    assert {heading for heading, count in headings.items() if count > 1} == set()

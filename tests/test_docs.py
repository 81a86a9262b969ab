"""Pages that are written by the code say what it says."""

import json
import re
import runpy
import sys
from collections import Counter
from pathlib import Path

import pytest

import vitkit
from tests.helpers.rooms import MAY_IMPORT

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


WRITTEN = {
    "commands.md": "commands",
    "catalogue.md": "catalogue",
    "images/source.svg": "source-map",
    "images/gallery/sources.txt": "pictures",  # of which scripts/pictures --make draws the pictures too
}
"""Files of the documentation, and the scripts that print them."""


@pytest.mark.parametrize("name", WRITTEN)
def test_a_page_that_a_script_prints_is_what_it_prints(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # a script may go there, and this way back
    monkeypatch.setattr(sys, "argv", [WRITTEN[name]])
    runpy.run_path(str(ROOT / "scripts" / WRITTEN[name]), run_name="__main__")
    printed = capsys.readouterr().out
    assert (DOCS / name).read_text(encoding="utf-8") == printed, f"run scripts/{WRITTEN[name]}"


def test_the_page_on_extending_names_what_exists() -> None:
    """Every file is there, and a file that the item or section names has each name of the code.

    Constants, functions and fields are defined there: an import would not do.
    """
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    absent, checked = [], 0
    for section in page.split("\n## ")[1:]:
        prose = re.sub(r"```.*?```", "", section, flags=re.S)
        items = re.split(r"\n\n|\n(?=\d\. )", prose)
        for item in items:
            paths = files_named(item) or files_named(prose)
            for name in names_of_code(item):
                checked += 1
                is_class = re.match("_?[A-Z]+[a-z]", name)
                pattern = rf"\b{name}\b" if is_class else rf"^ *(def |class )?{name}\b( =|:|\()"
                if not any(re.search(pattern, text, re.M) for path in paths for text in texts_of(path)):
                    absent.append((section.partition("\n")[0], name))
    assert checked > 60 and absent == []


def files_named(text: str) -> list[Path]:
    """Return the files and folders that a text names, which have to exist."""
    names = re.findall(r"`((?:src|tests|docs)/[^`\n]+|pyproject\.toml)`", text)
    assert [name for name in names if not (ROOT / name).exists()] == []
    return [ROOT / name for name in names]


def names_of_code(text: str) -> list[str]:
    """Return the classes, constants, functions and fields that a text names."""
    quoted = re.findall(r"`([^`\n]+)`", text)
    return [word for word in quoted if re.fullmatch(r"_?[A-Z]\w+|_?[a-z]+_\w+|_[a-z]\w+", word)]


def texts_of(path: Path) -> list[str]:
    return [file.read_text() for file in ([path] if path.is_file() else path.rglob("*.py"))]


def test_the_page_on_extending_has_the_rooms_of_the_architecture() -> None:
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    written = dict(re.findall(r"^\| `(\w+)/` \|.*\| ([^|]+) \|$", page, flags=re.M))
    assert written == {room: describe_imports(room) for room in MAY_IMPORT}


def describe_imports(room: str) -> str:
    """Say which rooms a room may import, by those above it in the table where they are many."""
    above = list(MAY_IMPORT)[: list(MAY_IMPORT).index(room)]
    assert MAY_IMPORT[room] <= set(above)
    if len(MAY_IMPORT[room]) <= 4:
        return ", ".join(other for other in above if other in MAY_IMPORT[room]) or "nothing"
    others = ", ".join(other for other in above if other not in MAY_IMPORT[room])
    return f"all above but {others}" if others else "all above"


def test_the_tutorial_names_options_that_exist() -> None:
    """Every option that it names is a field, a parameter or an `Option` of that name."""
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    # pip's --index-url, Python's --version and hf's --repo-type and --local-dir are no options of vitkit.
    others = {"help", "version", "index-url", "repo-type", "local-dir"}
    names = set(re.findall(r"--([a-z][a-z.-]*[a-z])", page)) - others
    options = {word.rpartition(".")[2] or word for word in names}
    assert len(options) > 10
    fields = [option.replace("-", "_") for option in sorted(options)]
    assert [name for name in fields if not re.search(rf'\b{name}: |"--{name}"', source)] == []


def test_no_heading_of_a_page_stands_twice() -> None:
    """A merge once left half a page there twice, with other figures."""
    for page in sorted(DOCS.rglob("*.md")):
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        headings = Counter(line for line in text.splitlines() if line.startswith("#"))
        assert {heading for heading, count in headings.items() if count > 1} == set(), page


def test_every_page_is_in_the_contents_of_the_site() -> None:
    front = (DOCS / "index.md").read_text(encoding="utf-8")
    patterns = " ".join(re.findall(r"<!-- pages: .*? = (.*?) -->", front)).split()
    listed = {path.resolve() for pattern in patterns for path in DOCS.glob(f"{pattern}.md")}
    assert {*DOCS.rglob("*.md"), *ROOT.glob("*.md")} - listed == {DOCS / "index.md"}


def test_the_reference_lists_every_public_name_once() -> None:
    names = re.findall(r"^- `vitkit\.(\w+)`$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(names) == sorted({*vitkit.__all__} - {"__version__"})


def test_every_image_of_a_page_is_there_and_small() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        images = re.findall(r"!\[[^\]]+\]\(([^)\s]+)\)", text)
        assert text.count("![") == len(images), f"{page}: an image has no words in its place"
        assert [image for image in images if not (page.parent / image).is_file()] == [], page
    pictures = [path for path in (DOCS / "images").rglob("*") if path.suffix in (".png", ".svg", ".jpg")]
    assert [path.name for path in pictures if path.stat().st_size > 150_000] == []
    assert sum(path.stat().st_size for path in pictures) < 1_500_000


def test_every_block_of_code_is_run_or_says_why_not() -> None:
    read_blocks = runpy.run_path(str(ROOT / "scripts" / "test-docs"))["read_blocks"]
    for page in PAGES:
        blocks = list(read_blocks(page))
        assert [block.place for block in blocks if block.kind == "unmarked"] == []
        assert [block.place for block in blocks if block.kind == "not run" and not block.mark] == []
        marks = len(re.findall(r"<!--\s*(?:not run|run with)\b", page.read_text(encoding="utf-8")))
        marked = sum(bool(block.mark) for block in blocks)
        assert marks == marked, f"{page}: a mark stands before no block, or has no reason"


def test_notebooks_are_kept_without_outputs() -> None:
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert len(cells) > 3 and not any(cell.get("outputs") for cell in cells), path

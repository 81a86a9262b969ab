"""The page on extending, followed to the letter.

Its diffs are applied to a copy of the package, and what they add is used from the command line.
`test_docs.py` checks that the files and names of all sections exist.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vitkit.cli.help import VERBS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
DIFFS = {title: text.split("```")[1] for title, text in SECTIONS.items() if "```diff\n" in text}

USES = {
    "recipes": "quick-digits",
    "count digits": "Next: vitkit data check digits",
    "count --help": "vitkit count digits",
    "cost ViT-16x2x2/4-gem": "ViT-16x2x2/4-gem",
    "data show digits --grey 0.5 --images 2 --out views.png": "without colours, 50% of the images",
    "train --recipe quick-digits --pool gem --grey 0.5 --steps 2 --threads 1 --out run": "Next: open run",
    "evaluate run --json": '"error_rate"',
    "compare run run --speed-seconds 0 --out compared": "error rate",
    "convert run other --to timm": "pool gem",
    "train --recipe quick-digits --grey 2": "--grey is from 0 to 1",
}
"""Commands, given one after the other in the changed package, and what they print."""

PROGRAM = """
import json, sys
import vitkit.jobs.train_run
from vitkit.cli.main import run

def write_report(folder, **_):
    (folder / "report.html").write_text("a report")  # its pictures take seconds
    return folder / "report.html"

vitkit.jobs.train_run.write_report, sys.stderr = write_report, sys.stdout
for command in json.loads(sys.argv[1]):
    print("\\n$ " + command, flush=True)
    run(command.split())
"""


def hunks_of(diff: str) -> dict[str, list[str]]:
    """Return the hunks of each file that a diff changes."""
    _, *parts = re.split(r"^\+\+\+ (.+)\n", diff, flags=re.M)
    return {name: text.split("@@\n") for name, text in zip(parts[::2], parts[1::2], strict=True)}


def apply(diff: str, source: Path) -> None:
    """Make the changes of a diff, each at the one place where its old lines stand; or a new file."""
    for name, hunks in hunks_of(diff).items():
        path = source / Path(name).relative_to("src")
        text = path.read_text() if path.exists() else ""
        for hunk in hunks:
            lines = hunk.splitlines(keepends=True)
            old, new = ("".join(line[1:] for line in lines if line[0] in signs) for signs in (" -", " +"))
            assert text.count(old) == 1 or not text, (name, old)
            text = text.replace(old, new, 1)
        path.write_text(text)


@pytest.fixture(scope="module")
def screens(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Apply every diff of the page, and return what each command prints."""
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "src", folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    for diff in DIFFS.values():
        apply(diff, folder / "source")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([*USES])],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "source")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(screen.split("\n", 1) for screen in done.stdout.split("\n$ ")[1:])


@pytest.mark.parametrize("command", USES)
def test_what_the_diffs_add_is_there(command: str, screens: dict[str, str]) -> None:
    assert USES[command] in screens[command], screens[command]


def test_a_heading_counts_the_files_that_its_diff_changes_and_its_steps_name_them() -> None:
    assert len(DIFFS) >= 5
    for title, diff in DIFFS.items():
        assert f": {len(hunks_of(diff))} file" in title
        steps = SECTIONS[title].partition("```diff")[0]
        assert {
            name for name in hunks_of(diff) if (ROOT / name).exists() and f"`{name}`" not in steps
        } == set()


def test_the_commands_of_the_page_are_verbs() -> None:
    assert {*re.findall(r"`vitkit ([a-z]+)\b", PAGE)} <= {*VERBS}


def test_the_nouns_of_the_page_on_style_are_classes_of_the_files_beside_them() -> None:
    rows = re.findall(r"^\| (`[A-Z].*?) \| (`.*?) \|", (ROOT / "docs" / "style.md").read_text(), re.M)
    assert len(rows) > 10
    for classes, files in rows:
        text = "\n".join((ROOT / "src/vitkit" / name).read_text() for name in re.findall(r"`(.+?)`", files))
        for name in re.findall(r"`(.+?)`", classes):
            assert re.search(rf"^(class {name}\b|{name}(:| =))", text, re.M), name

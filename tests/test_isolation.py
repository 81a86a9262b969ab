"""The watch over the files that tests touch (tests/helpers/guard) notices what it is there for."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.guard.watch_files import CHECKOUT, OFFENCES, TEMPORARY, offence, temporary_folders


def judge(event: str, *arguments: object) -> str:
    return offence(event, arguments, temporary_folders(os.environ[TEMPORARY]))


@pytest.mark.parametrize(
    ("event", "arguments", "text"),
    [
        ("open", (str(CHECKOUT / "README.md"), "a", 0), "writes"),
        ("open", (str(CHECKOUT / "README.md"), None, os.O_RDWR), "writes"),
        ("open", (b"/etc/new", "w", 0), "writes /etc/new"),
        ("os.mkdir", (str(CHECKOUT / "runs"), 0o777, -1), "writes"),
        ("os.remove", (str(CHECKOUT / "README.md"), -1), "writes"),
        ("os.rename", ("/etc/one", str(CHECKOUT / "two"), -1, -1), "writes /etc/one"),
        ("open", (str(CHECKOUT.parent), None, os.O_RDONLY), "reads"),
        ("os.scandir", (str(Path(CHECKOUT).parent),), "reads"),
        *(("open", (path, "r", 0), "") for path in (str(CHECKOUT / "docs/style.md"), sys.executable)),
        *(("open", (path, "r", 0), "") for path in ("/proc/self/status", 3)),
    ],
)
def test_a_file_outside_is_noticed(event: str, arguments: tuple[object, ...], text: str) -> None:
    said = judge(event, *arguments)
    assert said.startswith(text) if text else not said


def test_neither_a_link_nor_an_open_folder_hides_where_a_path_leads(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    assert judge("open", str(tmp_path / "link" / "new"), "w", 0).startswith("writes /etc/new")
    assert not judge("open", str(tmp_path / "new"), "w", 0)
    for folder, text in ((tmp_path, ""), (CHECKOUT, "writes")):
        descriptor = os.open(folder, os.O_RDONLY)
        assert judge("os.remove", "README.md", descriptor)[:6] == text
        os.close(descriptor)


def test_the_watch_sees_this_process_and_those_it_starts(offences: Path) -> None:
    """The record is emptied here, so that this test does not fail by its own doing."""
    (Path.cwd() / "in-the-working-folder").write_text("one file")
    subprocess.run([sys.executable, "-c", "open('of-a-child', 'w')"], check=True)
    lines = offences.read_text(encoding="utf-8").splitlines()
    for path in (Path("in-the-working-folder"), Path("of-a-child"), offences):
        path.unlink()
    assert len(lines) == 2
    assert "in-the-working-folder" in lines[0] and "of-a-child" in lines[1]


def test_no_test_sees_the_home_of_the_caller() -> None:
    session = Path(os.environ["VITKIT_TEST_SESSION"])
    assert Path.home().is_relative_to(session) and Path.cwd().is_relative_to(session)
    assert os.environ[OFFENCES] and CHECKOUT not in (Path.cwd(), *Path.cwd().parents)


def test_no_test_file_is_imported_by_another() -> None:
    """Find no import of a test file: shared code stands in `tests/helpers` or in a `conftest.py`."""
    tests = Path(__file__).parent
    imported = re.compile(r"^(?:from|import) (tests\.(?:\w+\.)*test_\w+)", re.MULTILINE)
    assert imported.findall("from tests.cli.test_options import COMMANDS\n") == ["tests.cli.test_options"]
    assert {
        str(path): names for path in tests.rglob("*.py") if (names := imported.findall(path.read_text()))
    } == {}

"""Mutants of a small tree: noticed, survived, stale, and what is remembered of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.__main__ import Result, Runner, is_settled, main, read_results, tree_digest

SCRIPT = """
import json, sys
from pathlib import Path
from tests.mutants.__main__ import Runner, try_all
from tests.mutants.listed import Mutant

folder = Path(sys.argv[1])
mutants = [
    Mutant("room", "double", "room/maths.py", "", "return 2 * x", "return 3 * x"),
    Mutant("room", "half", "room/maths.py", "", "return x / 2", "return x / 3"),
    Mutant("room", "elsewhere", "room/maths.py", "", "return x - 1", "return x - 2"),
    Mutant("room", "gone", "room/maths.py", "", "return 4 * x", "return 3 * x"),
    Mutant("room", "needing", "room/maths.py", "", "return 2 * x", "return 3 * x", ("nowhere_installed",)),
]
(folder / "work").mkdir()
(folder / "copy").mkdir()
runner = Runner(folder / "tree", folder / "work", folder / "copy", Path("src/toy"))
results = try_all(runner, mutants, folder / "work/results.jsonl", "tree", "far", 1e9)
(folder / "found.json").write_text(json.dumps([(one.name, one.verdict, one.detail) for one in results]))
"""


def test_what_commands_made_is_not_copied_and_rooms_of_that_name_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITKIT_CACHE", "")  # it is set for the tests of mutants
    for folder in ("runs/digits", "src/vitkit/runs", "tests/runs", ".venv", "src/vitkit/__pycache__"):
        (tmp_path / "tree" / folder).mkdir(parents=True)
    (tmp_path / "copy").mkdir()
    copy = Runner(tmp_path / "tree", tmp_path / "work", tmp_path / "copy").copy
    assert sorted(str(path.relative_to(copy)) for path in copy.rglob("*")) == [
        "src",
        "src/vitkit",
        "src/vitkit/runs",
        "tests",
        "tests/runs",
    ]


@pytest.mark.slow  # tests/mutants/test_list.py holds the list against the source
def test_mutants_are_tried_on_a_copy_with_the_tests_that_run_their_lines(tmp_path: Path) -> None:
    """In an interpreter of its own: it forks, which a process with threads must not."""
    source, tests = tmp_path / "tree/src/toy/room/maths.py", tmp_path / "tree/tests"
    source.parent.mkdir(parents=True)
    text = (
        "def double(x):\n    return 2 * x\ndef half(x):\n    return x / 2\ndef less(x):\n    return x - 1\n"
    )
    source.write_text(text)
    (tests / "room").mkdir(parents=True)
    (tests / "room/test_maths.py").write_text(
        "from toy.room.maths import double\ndef test_double():\n    assert double(2) == 4\n"
        "def test_always_fails():\n    assert double(2) == 5\n"
    )
    (tests / "cli").mkdir()
    (tests / "cli/test_commands.py").write_text(
        "import toy.room.maths as made\n"
        "def test_half_of_nothing():\n    assert made.half(0) == 0\n"
        "def test_less():\n    assert made.less(1) == 0\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert result.returncode == 0, result.stdout + result.stderr
    verdicts = {
        name: (verdict, detail) for name, verdict, detail in json.loads((tmp_path / "found.json").read_text())
    }
    assert verdicts["double"] == ("noticed", "by tests/room/test_maths.py::test_double")
    assert verdicts["half"][0] == "survived"
    assert verdicts["elsewhere"] == ("noticed", "by tests/cli/test_commands.py::test_less")
    assert verdicts["gone"][0] == "stale"
    assert verdicts["needing"] == ("not tried", "needs nowhere_installed")
    assert source.read_text() == text
    assert len(read_results(tmp_path / "work/results.jsonl", "tree")) == 4  # two are one change
    assert not read_results(tmp_path / "work/results.jsonl", "another tree")


@pytest.mark.parametrize(
    ("verdict", "reach", "settled"),
    [
        ("noticed", "near", True),
        ("survived", "near", False),
        ("survived", "far", True),
        ("stale", "far", False),
    ],
)
def test_a_survivor_is_tried_again_where_tests_are_looked_for_further_away(
    verdict: str, reach: str, settled: bool
) -> None:
    assert is_settled(Result("key", "name", verdict, "", 0.0, reach), "far") == settled


def test_the_list_of_mutants_does_not_change_the_tree(tmp_path: Path) -> None:
    for name in ("src/a.py", "tests/test_a.py", "tests/mutants/a.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    before = tree_digest(tmp_path)
    (tmp_path / "tests/mutants/a.toml").write_text("x")
    assert tree_digest(tmp_path) == before
    (tmp_path / "tests/test_a.py").write_text("x")
    assert tree_digest(tmp_path) != before


def test_a_draw_is_the_same_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listings = []
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["mutants", "--draw", "5", "--list", "--work", str(tmp_path)])
        assert main() == 0
        listings.append(capsys.readouterr().out)
    assert listings[0] == listings[1] and listings[0].endswith("\n5 mutants\n")

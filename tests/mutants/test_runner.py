"""Mutants of a small tree: which are made, noticed, survive, and what is remembered of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.__main__ import Result, Runner, is_settled, read_results, tree_digest
from tests.mutants.generated import draw, list_places

SCRIPT = """
import json, sys
from pathlib import Path
from tests.mutants.__main__ import Runner, try_all
from tests.mutants.generated import list_places

folder = Path(sys.argv[1])
file = "room/maths.py"
places = list_places(file, (folder / "tree/src/toy" / file).read_text())
operators = ("NumberReplacer", "ReplaceBinaryOperator_Sub_Add", "ReplaceBinaryOperator_Div_Mul")
mutants = [one for place in places for one in place if one.operator in operators and one.occurrence == 0]
(folder / "work").mkdir()
(folder / "copy").mkdir()
runner = Runner(folder / "tree", folder / "work", folder / "copy", Path("src/toy"))
results = try_all(runner, mutants, folder / "work/results.jsonl", "tree", "far", 1e9)
ended = [(one.name.split(":")[2], one.verdict, one.detail) for one in results]
(folder / "ended.json").write_text(json.dumps(ended))
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


@pytest.mark.slow
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
    ended = json.loads((tmp_path / "ended.json").read_text())
    verdicts = {operator: (verdict, detail) for operator, verdict, detail in ended}
    assert verdicts == {
        "NumberReplacer": ("noticed", "by tests/room/test_maths.py::test_double"),
        "ReplaceBinaryOperator_Div_Mul": ("survived", "2 tests passed"),
        "ReplaceBinaryOperator_Sub_Add": ("noticed", "by tests/cli/test_commands.py::test_less"),
    }
    assert source.read_text() == text
    assert len(read_results(tmp_path / "work/results.jsonl", "tree")) == 3
    assert not read_results(tmp_path / "work/results.jsonl", "another tree")


@pytest.mark.parametrize(
    ("verdict", "reach", "settled"),
    [
        ("noticed", "near", True),
        ("survived", "near", False),
        ("survived", "far", True),
        ("undecided", "far", False),
    ],
)
def test_a_survivor_is_tried_again_where_tests_are_looked_for_further_away(
    verdict: str, reach: str, settled: bool
) -> None:
    assert is_settled(Result("name", verdict, "", 0.0, reach), "far") == settled


def test_what_makes_the_mutants_does_not_change_the_tree(tmp_path: Path) -> None:
    for name in ("src/a.py", "tests/test_a.py", "tests/mutants/a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    before = tree_digest(tmp_path)
    (tmp_path / "tests/mutants/a.py").write_text("x")
    assert tree_digest(tmp_path) == before
    (tmp_path / "tests/test_a.py").write_text("x")
    assert tree_digest(tmp_path) != before


def test_a_draw_is_the_same_every_time_and_compiles_to_something_else(tmp_path: Path) -> None:
    pytest.importorskip("cosmic_ray", reason="the extra `mutants` is not installed")
    source = """def smaller(a: "int | None", b):
    \"\"\"Return 1 of 2.\"\"\"
    if a < 3 and not b:
        return a * 2
    return -b
"""
    for file in ("room/maths.py", "alone.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(source)
    mutants = list(draw(tmp_path, ["room", "leaves"], 4, seed=0))
    assert mutants == list(draw(tmp_path, ["leaves", "room"], 4, seed=0))
    assert mutants != list(draw(tmp_path, ["leaves", "room"], 4, seed=1))
    assert [mutant.file for mutant in mutants] == ["alone.py"] * 4 + ["room/maths.py"] * 4
    assert len({mutant.name for mutant in draw(tmp_path, ["room"], 1000, seed=0)}) == len(
        list_places("room/maths.py", source)
    )
    for mutant in mutants:
        before, after = source.splitlines(), mutant.apply(source).splitlines()
        changed = [
            number for number, pair in enumerate(zip(before, after, strict=True), 1) if pair[0] != pair[1]
        ]
        assert changed == [mutant.line] and mutant.line >= 3
        compile("\n".join(after), mutant.file, "exec")

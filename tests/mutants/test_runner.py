"""Mutants of a small tree: which are made, noticed, survive, and what is remembered of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.__main__ import Runner, read_results, tree_digest
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
runner = Runner(folder / "tree", folder / "work", folder / "copy", Path("src/toy"))
results = try_all(runner, mutants, folder / "work/results.jsonl", "tree", 1e9, False)
(folder / "ended.json").write_text(json.dumps({one.name.split(":")[2]: one.detail for one in results}))
"""
MATHS = "def double(x):\n    return 2 * x\ndef half(x):\n    return x / 2\ndef less(x):\n    return x - 1\n"
TESTS = {
    "room/test_maths.py": "from toy.room.maths import double\n"
    "def test_double():\n    assert double(2) == 4\ndef test_always_fails():\n    assert double(2) == 5\n",
    "cli/test_commands.py": "import toy.room.maths as made\n"
    "def test_half():\n    assert made.half(0) == 0\ndef test_less():\n    assert made.less(1) == 0\n",
}


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.slow
def test_mutants_are_tried_on_a_copy_with_the_tests_that_run_their_lines(tmp_path: Path) -> None:
    """In an interpreter of its own: it forks, which a process with threads must not."""
    for name in ("cosmic_ray", "coverage"):
        pytest.importorskip(name, reason="the extra `mutants` is not installed")
    write(tmp_path / "tree/tests", **TESTS)
    write(tmp_path / "tree/src/toy/room", **{"maths.py": MATHS})
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert result.returncode == 0, result.stdout + result.stderr
    assert json.loads((tmp_path / "ended.json").read_text()) == {
        "NumberReplacer": "by tests/room/test_maths.py::test_double",
        "ReplaceBinaryOperator_Div_Mul": "2 tests passed",
        "ReplaceBinaryOperator_Sub_Add": "by tests/cli/test_commands.py::test_less",
    }
    assert (tmp_path / "tree/src/toy/room/maths.py").read_text() == MATHS
    results = read_results(tmp_path / "work/results.jsonl", "tree").values()
    assert sorted(result.verdict for result in results) == ["noticed", "noticed", "survived"]
    assert not read_results(tmp_path / "work/results.jsonl", "another tree")


def test_what_commands_made_is_not_copied_and_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does what makes the mutants."""
    monkeypatch.setenv("VITKIT_CACHE", "")  # it is set for the tests of mutants
    names = ("src/a.py", "src/vitkit/runs/b.py", "tests/test_a.py", "tests/mutants/a.py")
    write(tmp_path / "tree", **dict.fromkeys((*names, "runs/digits/c", ".venv/c", "src/__pycache__/c"), ""))
    copy = Runner(tmp_path / "tree", tmp_path / "work", tmp_path / "copy").copy
    assert {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()} == {*names}
    before = tree_digest(copy)
    write(copy, **{"tests/mutants/a.py": "x"})
    assert tree_digest(copy) == before
    write(copy, **{"tests/test_a.py": "x"})
    assert tree_digest(copy) != before


def test_a_draw_is_the_same_every_time_and_compiles_to_something_else(tmp_path: Path) -> None:
    pytest.importorskip("cosmic_ray", reason="the extra `mutants` is not installed")
    source = """def smaller(a: "int | None", b):
    \"\"\"Return 1 of 2.\"\"\"
    if a < 3 and not b:
        return a * 2
    return -b
"""
    write(tmp_path, **{"room/maths.py": source, "alone.py": source})
    mutants = list(draw(tmp_path, ["room", "leaves"], 4, seed=0))
    assert mutants == list(draw(tmp_path, ["leaves", "room"], 4, seed=0))
    assert mutants != list(draw(tmp_path, ["leaves", "room"], 4, seed=1))
    assert [mutant.file for mutant in mutants] == ["alone.py"] * 4 + ["room/maths.py"] * 4
    drawn = {mutant.name for mutant in draw(tmp_path, ["room"], 1000, seed=0)}
    assert len(drawn) == len(list_places("room/maths.py", source))
    before = source.splitlines()
    for mutant in mutants:
        text = mutant.apply(source)
        compile(text, mutant.file, "exec")
        pairs = enumerate(zip(before, text.splitlines(), strict=True), 1)
        assert [number for number, (old, new) in pairs if old != new] == [mutant.line]
        assert mutant.line >= 3

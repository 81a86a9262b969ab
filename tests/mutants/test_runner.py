"""Mutants of a small tree: which are made, noticed, survive, and what is remembered of them."""

import subprocess
from pathlib import Path

import pytest

from tests.mutants.__main__ import Runner, read_results, try_all
from tests.mutants.generated import draw, list_places

OPERATORS = ("NumberReplacer", "ReplaceBinaryOperator_Sub_Add", "ReplaceBinaryOperator_Div_Mul")
FILES = {
    "src/toy/room/maths.py": "def double(x):\n    return 2 * x\n"
    "def half(x):\n    return x / 2\ndef less(x):\n    return x - 1\n",
    "tests/room/test_maths.py": "from toy.room.maths import double\n"
    "def test_double():\n    assert double(2) == 4\ndef test_always_fails():\n    assert double(2) == 5\n",
    "tests/cli/test_commands.py": "import subprocess, sys\nimport toy.room.maths as made\n"
    "def test_half():\n    assert made.half(0) == 0\ndef test_less():\n"
    "    subprocess.run([sys.executable, '-c', 'import toy.room.maths as m; assert m.less(1) == 0'],"
    " check=True)\n",
    "tests/mutants/a.py": "",
    ".gitignore": "/runs/\n",
    "runs/digits/model.json": "",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(text)
    subprocess.run(["git", "init", "--quiet", tmp_path / "tree"], check=True)
    return tmp_path / "tree"


@pytest.mark.slow
def test_mutants_are_tried_on_a_copy_with_the_tests_that_run_their_lines(tree: Path, tmp_path: Path) -> None:
    for name in ("cosmic_ray", "coverage"):
        pytest.importorskip(name, reason="the extra `mutants` is not installed")
    work, maths = tmp_path / "work", "src/toy/room/maths.py"
    work.mkdir()
    mutants = [mutant for place in list_places("room/maths.py", FILES[maths]) for mutant in place]
    mutants = [mutant for mutant in mutants if mutant.operator in OPERATORS and mutant.occurrence == 0]
    runner = Runner(tree, work, tmp_path / "copy", Path("src/toy"))
    copied = {str(path.relative_to(runner.tree)) for path in runner.tree.rglob("*") if path.is_file()}
    assert copied == {*FILES} - {"runs/digits/model.json"}  # which git ignores
    results = try_all(runner, mutants, 1e9, False)
    assert {result.name.split(":")[2]: (result.verdict, result.detail) for result in results} == {
        "NumberReplacer": ("noticed", "by tests/room/test_maths.py::test_double"),
        "ReplaceBinaryOperator_Div_Mul": ("survived", "2 tests passed"),
        "ReplaceBinaryOperator_Sub_Add": ("noticed", "by tests/cli/test_commands.py::test_less"),
    }
    assert (runner.tree / maths).read_text() == (tree / maths).read_text() == FILES[maths]
    assert try_all(runner, mutants, 0, False) == results  # those that were recorded
    assert not read_results(work / "results.jsonl", "another tree")


def test_a_draw_is_the_same_every_time_and_compiles_to_something_else(tree: Path) -> None:
    pytest.importorskip("cosmic_ray", reason="the extra `mutants` is not installed")
    first, again, other = (list(draw(tree / "src/toy", ["room"], 2, seed)) for seed in (0, 0, 1))
    assert first == again != other and len(first) == 2
    assert all(mutant.differs(FILES["src/toy/room/maths.py"]) for mutant in first)

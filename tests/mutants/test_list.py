"""Every mutant still fits the source; whether tests notice them: `scripts/test-mutants`."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.listed import Mutant, StaleError, mutated, read_mutants

SOURCE = Path(__file__).parents[2] / "src" / "vitkit"
ROOMS = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
MUTANTS = read_mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_source_and_changes_what_it_does(mutant: Mutant) -> None:
    """At one place, to something that compiles, and not in a comment or a docstring alone."""
    source = _source(mutant.file)
    text, _ = mutated(mutant, source)
    if mutant.file.endswith(".py"):
        assert _without_docstrings(source) != _without_docstrings(text)
    else:
        assert text.count("{") == text.count("}") and text.split() != source.split()
    first = mutant.file.partition("/")[0]
    assert mutant.room == (first if first in ROOMS else "leaves")
    assert mutant.breaks.endswith(".")


@cache
def _source(file: str) -> str:
    return (SOURCE / file).read_text()


@cache
def _without_docstrings(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
    return ast.dump(tree)


def test_every_room_has_mutants_of_different_names() -> None:
    assert {mutant.room for mutant in MUTANTS} == {*ROOMS, "leaves"}
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 100


def test_a_text_that_is_gone_or_there_twice_is_stale() -> None:
    mutant = Mutant("data", "x", "data/x.py", "Nothing.", "a = 1\nb", "a = 2\nb")
    assert mutated(mutant, "c\na = 1\nb = 2\n") == ("c\na = 2\nb = 2\n", range(2, 4))
    for source in ("a = 2\n", "a = 1\nb\na = 1\nb\n"):
        with pytest.raises(StaleError):
            mutated(mutant, source)

"""Mutants of the source: an operator of cosmic-ray changed a comparison, a condition, a number or a sign."""

import ast
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

LEFT_OUT = (
    "BitOr",  # "|" stands in types, where nothing runs
    "RemoveDecorator",  # a dataclass without its decorator ends at the import
    "VariableReplacer",  # these two need the name of a variable
    "VariableInserter",
)
"""Parts of the names of operators that are not used."""


@dataclass(frozen=True)
class Mutant:
    """One change of the source that a test should notice."""

    file: str
    """Below the source folder."""
    line: int
    operator: str
    """Its name at cosmic-ray."""
    occurrence: int
    """The number of the place among those of the file to which the operator applies."""

    @property
    def name(self) -> str:
        """The name by which it is chosen and recorded."""
        return f"{self.file}:{self.line}:{self.operator}:{self.occurrence}"

    def apply(self, source: str) -> str:
        """Return the text of its file with the change."""
        from cosmic_ray.mutating import mutate_code

        text = mutate_code(source, _operators()[self.operator], self.occurrence)
        assert isinstance(text, str), f"{self.name} is not of this source"
        return text


def room_of(file: str) -> str:
    """Return the folder of a file below the source folder; leaves: it is in none."""
    return file.partition("/")[0] if "/" in file else "leaves"


def draw(package: Path, rooms: Iterable[str], count: int, seed: int) -> Iterator[Mutant]:
    """Yield mutants of so many places in each room, of fewer where there are no more.

    Args:
        package: the source folder.
        rooms: of them.
        count: places in each room.
        seed: the same one draws the same mutants of the same source.
    """
    places: dict[str, list[list[Mutant]]] = {room: [] for room in sorted({*rooms})}
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package).as_posix()
        if room_of(file) in places:
            places[room_of(file)] += list_places(file, path.read_text())
    for room, listed in places.items():
        generator, drawn = random.Random(f"{seed} {room}"), 0
        for place in generator.sample(listed, len(listed)):
            mutant = generator.choice(place)
            if drawn < count and _differs(mutant, (package / mutant.file).read_text()):
                drawn += 1
                yield mutant


def list_places(file: str, source: str) -> list[list[Mutant]]:
    """List the places of a file that operators change, each with its mutants."""
    import parso
    from cosmic_ray.ast import ast_nodes

    nodes = list(ast_nodes(parso.parse(source)))  # type: ignore[no-untyped-call]
    places: dict[tuple[int, int], list[Mutant]] = {}
    for name, operator in _operators().items():
        positions = (position for node in nodes for position in operator.mutation_positions(node))
        for occurrence, (start, _) in enumerate(positions):
            places.setdefault(start, []).append(Mutant(file, start[0], name, occurrence))
    return [places[start] for start in sorted(places)]


@cache
def _operators() -> dict[str, Any]:
    from cosmic_ray.operators.provider import OperatorProvider

    provider = OperatorProvider()
    return {name: provider[name]() for name in provider if not any(part in name for part in LEFT_OUT)}


def _differs(mutant: Mutant, source: str) -> bool:
    """Whether a mutant compiles, and to something else than its source."""
    try:
        return ast.dump(ast.parse(mutant.apply(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False

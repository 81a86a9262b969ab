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

    @property
    def room(self) -> str:
        """The folder of its file below the source folder; leaves: it is in none."""
        return self.file.partition("/")[0] if "/" in self.file else "leaves"

    def differs(self, source: str) -> bool:
        """Whether its file compiles with the change, and to something else than without it."""
        from cosmic_ray.mutating import mutate_code

        text = mutate_code(source, _operators()[self.operator], self.occurrence)
        try:
            return ast.dump(ast.parse(text)) != ast.dump(ast.parse(source))
        except SyntaxError:
            return False


def draw(package: Path, rooms: Iterable[str], count: int, seed: int) -> Iterator[Mutant]:
    """Yield mutants of so many places in each room, of fewer where there are no more.

    Args:
        package: the source folder.
        rooms: of them.
        count: places in each room.
        seed: the same one draws the same mutants of the same source.
    """
    sources = {path.relative_to(package).as_posix(): path.read_text() for path in package.rglob("*.py")}
    places = [place for file in sorted(sources) for place in list_places(file, sources[file])]
    for room in sorted({*rooms}):
        generator, drawn = random.Random(f"{seed} {room}"), 0
        listed = [place for place in places if place[0].room == room]
        for place in generator.sample(listed, len(listed)):
            mutant = generator.choice(place)
            if drawn < count and mutant.differs(sources[mutant.file]):
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

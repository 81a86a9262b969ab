"""The list of mutants, a TOML file for each room: what is written where, and which behaviour that breaks.

[[mutant]]
name = "..."            unlike any other
file = "data/stream/order.py"  below src/vitkit
breaks = "..."          what a user would notice, in a sentence
old = '''...'''         stands at exactly one place of the file
new = '''...'''
needs = ["openvino"]    packages without which no test runs it; may be left out
"""

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path

LISTS = Path(__file__).parent


@dataclass(frozen=True)
class Mutant:
    """One change of the source that a test should notice."""

    room: str
    name: str
    file: str
    breaks: str
    old: str
    new: str
    needs: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """A hash of the change itself, so that a mutant that is rewritten is tried again."""
        return hashlib.sha256("\0".join((self.file, self.old, self.new)).encode()).hexdigest()[:16]


class StaleError(Exception):
    """The text that a mutant replaces is not at exactly one place of its file any more."""


def read_mutants(lists: Path = LISTS) -> tuple[Mutant, ...]:
    """Read all mutants, room by room."""
    return tuple(
        Mutant(path.stem, **{**fields, "needs": tuple(fields.get("needs", ()))})
        for path in sorted(lists.glob("*.toml"))
        for fields in tomllib.loads(path.read_text())["mutant"]
    )


def mutated(mutant: Mutant, source: str) -> tuple[str, range]:
    """Apply a mutant to the text of its file.

    Returns:
        The text, and the numbers of the lines of the source that it changes.

    Raises:
        StaleError: it does not apply.
    """
    places = source.count(mutant.old)
    if places != 1:
        raise StaleError(f"{mutant.file}: the old text is at {places} places, expected 1")
    start = source.index(mutant.old)
    first = source.count("\n", 0, start) + 1
    lines = range(first, first + mutant.old.rstrip("\n").count("\n") + 1)
    return source[:start] + mutant.new + source[start + len(mutant.old) :], lines

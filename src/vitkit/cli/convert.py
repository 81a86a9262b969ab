"""`vitkit convert`: a checkpoint in another library's format, read back and compared."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from vitkit.cli import console
from vitkit.cli.options import Verb
from vitkit.runs.destination import refuse_taken
from vitkit.weights.format_names import Library

if TYPE_CHECKING:
    from vitkit.jobs.convert import Converted
    from vitkit.weights.loading import Identity

NAMES_SHOWN = 5
"""Class names of the old head that are printed."""

VERB = Verb("convert", "vitkit.jobs.convert", "convert")


def main(arguments: list[str]) -> None:
    """Parse the command line, convert a checkpoint, and print how the result compares with it."""
    given = VERB.parse(arguments)
    refuse_taken(Path(given["out"]))
    converted = VERB.call(given)
    from vitkit.jobs.card import described

    source, to = converted.source, converted.format
    console.print_fact("from", f"{given['source']}: {described(source)}")
    for reason, keys in source.left_out.items():
        console.print_fact("left out", f"{', '.join(keys)} ({reason})")
    for note in converted.notes:
        console.print_fact("note", note)
    head = _describe_new_head(given.get("head"), given.get("num_classes"), source)
    if head:
        console.print_fact("head", head)
    console.print_fact("to", f"{converted.path} ({to})")
    evidence = _evidence(converted, given.get("against"))
    console.print_fact("parity", f"read back by vitkit: {converted.parity}; {evidence}")
    if converted.lost:
        console.print_fact("lost", f"{to} has no place for {'; '.join(converted.lost)}")
    console.print_next(f"vitkit card {shlex.quote(str(converted.path))}")


def _describe_new_head(head: str | None, num_classes: int | None, source: "Identity") -> str:
    """Say that the head is a new one and which head it replaces; empty where the head stays."""
    before = source.config.num_classes
    if head != "new" and (head is not None or num_classes in (None, before)):
        return ""
    names = source.card.class_names
    shown = f", {', '.join(names[:NAMES_SHOWN])}{', ...' * (len(names) > NAMES_SHOWN)}," if names else ""
    dropped = f"; the old one of {before} classes{shown} is dropped" if before else ""
    return (
        f"new, of zeros, for {num_classes or before} classes: it says nothing until it is "
        f"trained (vitkit finetune){dropped}"
    )


def _evidence(converted: "Converted", against: str | None) -> str:
    """Compare with another library's model, or name one: reading back compares vitkit with itself."""
    if converted.beside_library is not None:
        return f"{against}'s own model beside vitkit's: {converted.beside_library}"
    libraries = [name for name in get_args(Library) if name in (converted.format, converted.source.format)]
    if libraries:
        return f"this is vitkit beside itself, --against {libraries[0]} runs {libraries[0]}'s own model"
    return "this is vitkit beside itself, as --against knows no library of these formats"

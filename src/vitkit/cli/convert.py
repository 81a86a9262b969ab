"""`vitkit convert`: a checkpoint in another library's format, read back and compared."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints
from vitkit.cli.help import HelpPage
from vitkit.cli.options import importing, parse
from vitkit.jobs.options import ConvertOptions
from vitkit.runs.destination import refuse_taken
from vitkit.weights.format_names import Library

if TYPE_CHECKING:
    from vitkit.jobs.convert import Converted
    from vitkit.weights import Identity, Loaded

NAMES_SHOWN = 5
"""Class names of the old head that are printed."""


@dataclass(frozen=True)
class Command(ConvertOptions):
    """Write a checkpoint in another library's format, read it back and compare the two."""


HELP = HelpPage(
    "CHECKPOINT OUT [OPTIONS]",
    (
        "--to",
        "--against",
        "--num-classes",
        "--head",
        "--image-size",
        "--interpolation",
        "--image-mean",
        "--image-std",
        "--accept-change",
        "--num-heads",
    ),
    (
        "vitkit convert runs/digits-ViT-96x6x3-4 digits_hf --to huggingface",
        "vitkit convert ViT-B_16.npz vit_b16 --num-classes 10",
    ),
)


def main(arguments: list[str]) -> None:
    """Parse the command line, convert a checkpoint and print what came of it."""
    options: Command = parse(Command, arguments, "convert", HELP)
    require_checkpoints(options.source)
    refuse_taken(Path(options.out))
    with importing():
        from vitkit.cli.console import download
        from vitkit.jobs.convert import convert_loaded, read_source

    download(options.source)
    loaded = read_source(options)
    print_source(str(options.source), loaded)
    converted = convert_loaded(loaded, options)
    print_converted(converted, options, loaded.identity)


def print_source(source: str, loaded: "Loaded") -> None:
    """Print what is converted, before the work begins."""
    from vitkit.jobs.card import described

    _print("from", f"{source}: {described(loaded.identity)}")
    for reason, keys in loaded.identity.left_out.items():
        _print("left out", f"{', '.join(keys)} ({reason})")
    for note in loaded.notes:
        _print("note", note)


def print_converted(converted: "Converted", options: ConvertOptions, found: "Identity") -> None:
    """Print what was written, how it was compared and what was lost.

    Args:
        converted: the result.
        options: what was asked for.
        found: what the source is.
    """
    head = _about_head(options, found)
    if head:
        _print("head", head)
    _print("to", f"{converted.path} ({options.format})")
    evidence = _evidence(converted, options, found)
    _print("parity", f"read back by vitkit: {converted.parity}; {evidence}")
    if converted.lost:
        _print("lost", f"{options.format} has no place for {'; '.join(converted.lost)}")
    console.out.print(f"Next: vitkit card {shlex.quote(str(converted.path))}", markup=False, soft_wrap=True)


def _print(heading: str, line: str) -> None:
    console.out.print(f"{heading:8} {line}", markup=False, soft_wrap=True)


def _about_head(options: ConvertOptions, found: "Identity") -> str:
    """Say that the head is a new one and which one it replaces; empty where the head was kept."""
    before = found.config.num_classes
    if options.head != "new" and (options.head is not None or options.num_classes in (None, before)):
        return ""
    names = found.card.class_names
    known = f", {', '.join(names[:NAMES_SHOWN])}{', ...' * (len(names) > NAMES_SHOWN)}," if names else ""
    dropped = f"; the old one of {before} classes{known} is dropped" if before else ""
    return (
        f"new, of zeros, for {options.num_classes or before} classes: it says nothing until it is "
        f"trained (vitkit finetune){dropped}"
    )


def _evidence(converted: "Converted", options: ConvertOptions, found: "Identity") -> str:
    """Say what another library computes, or how to ask one: reading back compares vitkit with itself."""
    if converted.beside_library is not None:
        return f"{options.against}'s own model beside vitkit's: {converted.beside_library}"
    libraries = [name for name in get_args(Library) if name in (options.format, found.format)]
    if libraries:
        return f"this is vitkit beside itself, --against {libraries[0]} runs {libraries[0]}'s own model"
    return "this is vitkit beside itself, as --against knows no library of these formats"

"""Describe the options of a verb, as the dataclass that its command line becomes says them.

The parser reads a command line by the same dataclass. Help, messages about mistakes and completion need to
know what options there are, of what kind and why; they read it here, in the words of whoever types.
"""

import re
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from vitkit.jobs.functions import read_field_texts
from vitkit.listener import Listener

ANY_NUMBER = 10**6
"""More values than any list has."""
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
_ARG: Any = type(tyro.conf.arg(name=""))

VALUES = {
    "against": "LIBRARY",
    "budget": "TIME",
    "calibration": "DATA",
    "checkpoints": "CHECKPOINT",
    "data": "DATA",
    "device": "DEVICE",
    "first": "FIRST",
    "folder": "FOLDER",
    "group": "PATTERN",
    "images": "IMAGE",
    "item": "ITEM",
    "model": "MODEL",
    "models": "MODEL",
    "only": "ARM",
    "out": "PATH",
    "patterns": "PATTERN",
    "path": "MODEL",
    "recipe": "RECIPE",
    "resume": "RUN",
    "root": "FOLDER",
    "run": "RUN",
    "second": "SECOND",
    "shell": "SHELL",
    "sizes": "SIZES",
    "source": "CHECKPOINT",
    "split": "SPLIT",
    "start": "START",
    "starts": "START",
    "subset": "SUBSET",
    "sweep_data": "DATA",
    "then": "DATA",
    "vary": "OPTION=VALUE,...",
}
"""The words that stand in the help for a text, by the name of the field."""


@dataclass(frozen=True)
class Option:
    """An option of a verb, or a word that stands on its command line without one."""

    name: str
    """The name as it is written, "--batch-size"; "MODEL" for a word that stands without an option."""
    field: str
    """The name of the field, in Python: "batch_size"."""
    value: str = ""
    """The word for its value in the help: NUMBER; empty for a switch, which has none."""
    text: str = ""
    default: Any = None
    group: str = ""
    """A sentence on it and the options beside it."""
    choices: tuple[str, ...] = ()
    """The words that it may be, where they are known."""
    number: type | None = None
    """int or float, where it is a number or a list of them."""
    most: int = 1
    """Numbers or names that it takes at most."""
    is_positional: bool = False
    is_required: bool = False

    @property
    def is_switch(self) -> bool:
        """Whether it has no value, and a form that begins with --no-."""
        return not self.value

    @property
    def names(self) -> tuple[str, ...]:
        """Return all forms in which it is written."""
        if not self.is_switch:
            return (self.name,)
        before, dot, last = self.name.rpartition(".")
        opposite = f"{before}.no-{last}" if dot else f"--no-{self.name[2:]}"
        return (self.name, opposite)

    @property
    def is_list(self) -> bool:
        """Whether several numbers or names belong together, with commas between them."""
        return self.most > 1 and not self.is_positional and (self.number is not None or bool(self.choices))

    @property
    def default_text(self) -> str:
        """Return the default as it would be given; "" where nothing would be, or where the text says it."""
        value = self.default
        if value in (None, "", (), MISSING) or isinstance(value, bool) or self.is_positional:
            return ""
        if isinstance(value, tuple | list):
            return ",".join(f"{item:g}" if isinstance(item, float) else str(item) for item in value)
        return f"{value:g}" if isinstance(value, float) else str(value)


def describe(command: Any, default: Any = MISSING) -> tuple[Option, ...]:
    """Describe all options of a command, in the order of its fields, those of the command itself first.

    Args:
        command: a dataclass, as `vitkit.cli.options.parse` takes it.
        default: one of it, whose values are the defaults; those of the fields where it is left out.
    """
    options = list(_walk(command, default, "", "", False))
    return (*(one for one in options if not one.group), *(one for one in options if one.group))


def _walk(command: Any, default: Any, prefix: str, group: str, bare_names: bool) -> Iterator[Option]:
    """Yield the options of a dataclass and of the dataclasses that are its fields."""
    hints, texts = typing.get_type_hints(command, include_extras=True), read_field_texts(command)
    for one in fields(command):
        hint, marks = _without_marks(hints[one.name])
        given = next((mark for mark in marks if isinstance(mark, _ARG)), None)
        name = one.name if given is None or given.name is None else given.name
        if not one.init or hint is Listener or tyro.conf.Suppress in marks:
            continue
        value = _default(one) if default is MISSING else getattr(default, one.name)
        nested = type(value) if tyro.conf.AvoidSubcommands in marks else hint
        if is_dataclass(nested):
            bare = bare_names or tyro.conf.OmitArgPrefixes in marks
            within = prefix if bare or not name else f"{prefix}{name}."
            # A part without a name of its own is the command's.
            words = texts.get(one.name) or _first_sentence(nested)
            words = group if given is not None and not name else words
            yield from _walk(nested, value, within, words, bare)
            continue
        required = value is MISSING
        words = (given.help if given is not None else None) or texts.get(one.name, "")
        yield _option(
            one.name,
            hint,
            name=f"--{prefix}{name.replace('_', '-')}",
            text=" ".join(words.split()),
            default=value,
            group=group,
            is_positional=required or tyro.conf.Positional in marks,
            is_required=required,
        )


def _option(field: str, hint: Any, *, name: str, is_positional: bool, **known: Any) -> Option:
    """Make an option, whose kind follows from its type."""
    item, most = value_type(hint)
    choices = tuple(str(choice) for choice in typing.get_args(item)) if _is_literal(item) else ()
    number = item if item in (int, float) else None
    if item is bool and most == 1:
        optional = type(None) in typing.get_args(hint)
        choices, value = (("True", "False"), "True|False") if optional else ((), "")
    elif choices:
        value = "|".join(choices) if most == 1 else "NAME,..."
    elif number is not None:
        value = "SIZE" if field == "image_size" else "NUMBER" if most == 1 else "NUMBER,..."
    else:
        # The images of `vitkit data check` are a path too, and no model.
        word = VALUES.get(field) if (field, item) != ("path", str) else "PATH"
        value = word or ("PATH" if item == str | Path else "TEXT")
    if is_positional:
        name = "OUT" if field == "out" else VALUES.get(field, value) if choices else value
    return Option(
        name, field, value, choices=choices, number=number, most=most, is_positional=is_positional, **known
    )


def value_type(hint: Any) -> tuple[Any, int]:
    """Return the type of a single value of an option, and how many of them there are at most.

    Args:
        hint: the type of the field, without what the parser is told about it.
    """
    members = [member for member in typing.get_args(hint) if member is not type(None)]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        several = [member for member in members if _is_sequence(member)]
        if not several:
            return (members[0], 1) if len(members) == 1 else (str | Path, 1)
        return value_type(several[0])
    if not _is_sequence(hint):
        return hint, 1
    if typing.get_origin(hint) is tuple and members[-1] is not Ellipsis:
        return members[0], len(members)
    return value_type(members[0])[0], ANY_NUMBER


def _is_sequence(hint: Any) -> bool:
    return typing.get_origin(hint) in (tuple, Sequence)


def _is_literal(hint: Any) -> bool:
    return typing.get_origin(hint) is Literal


def _without_marks(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Separate a type from what the parser is told about it."""
    if typing.get_origin(hint) is Annotated:
        inner, marks = _without_marks(hint.__origin__)
        return inner, (*marks, *hint.__metadata__)
    return hint, ()


def _default(one: Any) -> Any:
    """Return what a field is where it is left out; MISSING where it may not be."""
    if one.default_factory is not MISSING:
        return one.default_factory()
    return one.default


def _first_sentence(options: type) -> str:
    """Return the first sentence of a docstring."""
    text = " ".join((options.__doc__ or "").split())
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0]

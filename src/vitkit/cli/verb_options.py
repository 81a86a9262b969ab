"""Describe the options of a verb by the dataclass that its command line is parsed into.

Help, messages about mistakes and completion read here which options there are, their types and their texts.
"""

import re
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from vitkit.config import IN_PYTHON_ALONE
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
"""The placeholder in the help for a text, by the name of the field."""


@dataclass(frozen=True)
class Option:
    """An option of a verb, or a positional argument."""

    name: str
    """The name as it is written, "--batch-size"; "MODEL" for a positional argument."""
    field: str
    """The name of the field, in Python: "batch_size"."""
    value: str = ""
    """The placeholder of its value in the help: NUMBER; empty for a switch, which has none."""
    text: str = ""
    default: Any = None
    group: str = ""
    """The heading of its group in the help, a sentence."""
    choices: tuple[str, ...] = ()
    """Its allowed values; empty where any text is."""
    number: type | None = None
    """int or float for a number or a list of numbers."""
    most: int = 1
    """The largest number of values that it takes."""
    is_positional: bool = False
    is_required: bool = False

    @property
    def is_switch(self) -> bool:
        """Whether it has no value, and a form that begins with --no-."""
        return not self.value

    @property
    def names(self) -> tuple[str, ...]:
        """Return the name, and for a switch also the name that turns it off."""
        if not self.is_switch:
            return (self.name,)
        before, dot, last = self.name.rpartition(".")
        opposite = f"{before}.no-{last}" if dot else f"--no-{self.name[2:]}"
        return (self.name, opposite)

    @property
    def is_list(self) -> bool:
        """Whether it takes several numbers or names, with commas between them."""
        return self.most > 1 and not self.is_positional and (self.number is not None or bool(self.choices))

    @property
    def default_text(self) -> str:
        """Return the default as it is typed; "" for a switch and for a default that is empty."""
        value = self.default
        if value in (None, "", (), MISSING) or isinstance(value, bool) or self.is_positional:
            return ""
        if isinstance(value, tuple | list):
            return ",".join(f"{item:g}" if isinstance(item, float) else str(item) for item in value)
        return f"{value:g}" if isinstance(value, float) else str(value)


def describe(command: Any, default: Any = MISSING) -> tuple[Option, ...]:
    """Describe all options of a command: first its own, then the options of the dataclasses in its fields.

    Args:
        command: a dataclass, as `vitkit.cli.options.parse` takes it.
        default: an instance that holds the defaults; left out, the fields' own defaults.
    """
    return tuple(sorted(_walk(command, default, "", "", False), key=lambda option: bool(option.group)))


def _walk(command: Any, default: Any, prefix: str, group: str, bare_names: bool) -> Iterator[Option]:
    """Yield the options of a dataclass and of the dataclasses that are its fields."""
    hints, texts = typing.get_type_hints(command, include_extras=True), read_field_texts(command)
    for field in fields(command):
        hint, marks = _without_marks(hints[field.name])
        arg = next((mark for mark in marks if isinstance(mark, _ARG)), None)
        name = field.name if arg is None or arg.name is None else arg.name
        if (
            not field.init
            or hint is Listener
            or tyro.conf.Suppress in marks
            or field.metadata == IN_PYTHON_ALONE
        ):
            continue
        value = _default(field) if default is MISSING else getattr(default, field.name)
        text = texts.get(field.name, "")
        nested = type(value) if tyro.conf.AvoidSubcommands in marks else hint
        if is_dataclass(nested):
            bare = bare_names or tyro.conf.OmitArgPrefixes in marks
            # The options of a part without a name belong to the command itself.
            heading = group if arg is not None and not name else text or _first_sentence(nested)
            yield from _walk(nested, value, prefix if bare or not name else f"{prefix}{name}.", heading, bare)
            continue
        yield _option(
            field.name,
            hint,
            f"--{prefix}{name.replace('_', '-')}",
            (arg.help if arg is not None else None) or text,
            value,
            group,
            is_positional=tyro.conf.Positional in marks,
        )


def _option(
    field: str, hint: Any, name: str, text: str, default: Any, group: str, is_positional: bool
) -> Option:
    """Make the option of a field; one without a default is positional, and required."""
    is_required = default is MISSING
    is_positional = is_positional or is_required
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
        # The field `path` is a model, but for the images of `vitkit data`, the only ones of type str.
        placeholder = VALUES.get(field) if (field, item) != ("path", str) else "PATH"
        value = placeholder or ("PATH" if item == str | Path else "TEXT")
    if is_positional:
        name = "OUT" if field == "out" else VALUES.get(field, value) if choices else value
    text = " ".join(text.split())
    return Option(name, field, value, text, default, group, choices, number, most, is_positional, is_required)


def value_type(hint: Any) -> tuple[Any, int]:
    """Return the type of a single value of an option, and how many of them there are at most.

    Args:
        hint: the type of the field, without marks for the parser.
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
    """Separate a type from the marks that it has for the parser."""
    if typing.get_origin(hint) is Annotated:
        inner, marks = _without_marks(hint.__origin__)
        return inner, (*marks, *hint.__metadata__)
    return hint, ()


def _default(field: Any) -> Any:
    """Return the default of a field; MISSING where it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def _first_sentence(options: type) -> str:
    """Return the first sentence of a docstring."""
    text = " ".join((options.__doc__ or "").split())
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0]

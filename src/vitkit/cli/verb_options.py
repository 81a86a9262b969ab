"""The options of a verb: one table, which the parser, help, messages on mistakes and completion read.

`describe` makes it of the signature of a function, or of a dataclass. A module with a job computes, and so
imports torch, for which help must not wait: `read_signature` reads the function from its source.
"""

import ast
import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, is_typeddict

from vitkit.config import IN_PYTHON_ALONE, PREFIXED
from vitkit.listener import Listener


def read_field_texts(options: type) -> dict[str, str]:
    """Read the text below each field of a dataclass or TypedDict and of its base classes, from their source.

    Returns:
        The texts by the names of the fields; none where the source is missing.
    """
    texts = {}
    owners = [owner for owner in reversed(options.__mro__) if is_dataclass(owner)]
    if is_typeddict(options):  # it does not know its bases: they are those of its file whose keys it has
        named = vars(sys.modules[options.__module__]).values()
        keys = options.__annotations__.keys()
        owners = [kind for kind in named if is_typeddict(kind) and kind.__annotations__.keys() <= keys]
    for owner in owners:
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
        except OSError:
            return {}
        for statement, below in pairwise(getattr(tree.body[0], "body", [])):
            if isinstance(statement, ast.AnnAssign) and isinstance(below, ast.Expr):
                texts[ast.unparse(statement.target)] = " ".join(ast.literal_eval(below.value).split())
    return texts


def read_signature(module: str, name: str) -> Callable[..., Any]:
    """Make a function that has the parameters and the docstring of another, and does nothing.

    It imports only what the types and defaults of the parameters name, and so no torch; a type in quotes, of
    a parameter that is no option, is not looked at.

    Args:
        module: the module of the function.
        name: the function.
    """
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    function.body, function.decorator_list, function.returns = function.body[:1], [], None  # the docstring
    needed = {node.id for node in ast.walk(function.args) if isinstance(node, ast.Name)}
    before: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            node.names = [alias for alias in node.names if (alias.asname or alias.name) in needed]
            before += [node] if node.names else []
        elif isinstance(node, ast.Assign) and {ast.unparse(target) for target in node.targets} & needed:
            before.append(node)
    namespace: dict[str, Any] = {}
    exec(compile(ast.Module([*before, function], []), spec.origin, "exec"), namespace)
    made: Callable[..., Any] = namespace[name]
    return made


def read_argument_texts(function: Callable[..., Any]) -> dict[str, str]:
    """Read the texts of the parameters from the Args of a docstring, by their names.

    A TypedDict of further options by name explains its keys itself.
    """
    _, _, below = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", below, maxsplit=1)[0]
    entries = re.split(r"^ {4}(?=\S)", section, flags=re.MULTILINE)[1:]
    texts: dict[str, str] = {}
    for names, text in (entry.split(": ", 1) for entry in entries):
        texts |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            texts |= read_field_texts(get_args(parameter.annotation)[0])
    return texts


def summary_of(function: object) -> str:
    """Return what a docstring says before its sections, without the marks of code."""
    text = re.split(r"\n\n(?=Args:|Returns:|Raises:|>>> )", inspect.getdoc(function) or "", maxsplit=1)[0]
    return text.replace("`", "")


WEIGHTS = ("CHECKPOINT", "FIRST", "MODEL", "SECOND", "START")
"""Placeholders of a path to weights; a `str` in such a place is a name."""
REQUIRED = inspect.Parameter.empty
"""The default of an option that has none."""
ANY_NUMBER = 10**6
"""More values than any list has."""

FIELDS = {
    "ARM": ("only",),
    "CHECKPOINT": ("checkpoints", "source"),
    "DATA": ("calibration", "data", "sweep_data", "then"),
    "DEVICE": ("device",),
    "FIRST": ("first",),
    "FOLDER": ("folder", "root"),
    "IMAGE": ("images",),
    "ITEM": ("item",),
    "LIBRARY": ("against",),
    "MODEL": ("model", "models", "path"),
    "OPTION=VALUE,...": ("vary",),
    "PATH": ("out",),
    "PATTERN": ("group", "patterns"),
    "RECIPE": ("recipe",),
    "RUN": ("resume", "run"),
    "SECOND": ("second",),
    "SHELL": ("shell",),
    "SPLIT": ("split",),
    "START": ("start", "starts"),
    "SUBSET": ("subset",),
    "TIME": ("budget",),
}
"""Each placeholder of the help with the fields whose text it stands for."""
VALUES = {field: value for value, names in FIELDS.items() for field in names}


@dataclass(frozen=True)
class Option:
    """An option of a verb, or a positional argument."""

    name: str
    """The name as it is written, "--batch-size"; "MODEL" for a positional argument."""
    path: str
    """The name of the field that it fills, behind the names of its sections: "splits.seed"."""
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
    is_list: bool = False
    """Whether it takes several numbers or names in one argument, with commas between them."""
    is_optional: bool = False
    """Whether None is a value."""
    names_weights: bool = False
    """Whether its values name weights: a run folder, a checkpoint, an address or a published name."""
    names_images: bool = False
    """Whether its value names images with or without labels."""

    @property
    def field(self) -> str:
        """Return the name of the field that it fills: "seed"."""
        return self.path.rpartition(".")[2]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the name; for a switch, which has no value, also the name that turns it off."""
        if self.value:
            return (self.name,)
        before, dot, last = self.name.rpartition(".")
        opposite = f"{before}.no-{last}" if dot else f"--no-{self.name[2:]}"
        return (self.name, opposite)

    @property
    def default_text(self) -> str:
        """Return the default as it is typed; "" for a switch and for a default that is empty."""
        value = self.default
        if value in (None, "", (), {}, REQUIRED) or isinstance(value, bool) or self.is_positional:
            return ""
        items = value if isinstance(value, tuple | list) else [value]
        return ",".join(f"{item:g}" if isinstance(item, float) else str(item) for item in items)


CSV = Option("--csv", "csv", "", "print all numbers as CSV, in one table.", False)
JSON = Option("--json", "json", "", "print everything as JSON.", False)
"""The options of a verb whose result programs can read."""
SEVERAL = (
    "processes that compute together on this machine, one for each GPU or some for its processors; the "
    "result is the same, in training but for rounding. On several machines: torchrun ... -m vitkit."
)
PROCESSES = Option("--processes", "processes", "NUMBER", SEVERAL, 1, number=int)
"""The option of a verb that several processes can compute."""


def describe(
    command: Any, default: Any = None, without: Sequence[str] = (), *, path: str = "", group: str = ""
) -> tuple[Option, ...]:
    """Describe all options of a function, or a dataclass: first its own, then its dataclasses'.

    A parameter that may be given by position in Python is an argument by position here. Images, a protocol
    and one with a default may also be given by name.

    Args:
        command: the function, as `read_signature` makes it, or the dataclass.
        default: an instance that holds the defaults; left out, the dataclass's own.
        without: parameters or fields that are no options.
        path: stands before the names of the fields.
        group: the heading of the options.
    """
    parameters: list[tuple[str, Any, Any, bool]] = []  # name, type, default, whether it has a place
    if isinstance(command, type):
        default = command() if default is None else default
        texts, hints = read_field_texts(command), typing.get_type_hints(command)
        parameters += (
            (field.name, hints[field.name], getattr(default, field.name), False)
            for field in fields(command)
            if field.metadata != IN_PYTHON_ALONE
        )
    else:
        texts = in_shell(read_argument_texts(command))
        for name, parameter in inspect.signature(command).parameters.items():
            hint = parameter.annotation
            if parameter.kind is parameter.VAR_POSITIONAL:
                parameters.append((name, types.GenericAlias(tuple, (hint, ...)), REQUIRED, True))
            elif parameter.kind is parameter.VAR_KEYWORD:
                (kind,) = typing.get_args(hint)  # of Unpack; the function itself has the defaults
                hints = typing.get_type_hints(kind)
                parameters += ((key, hints[key], None, False) for key in read_field_texts(kind))
            else:
                # `vary` is a mapping in Python, and is given by its name here.
                has_place = parameter.kind is parameter.POSITIONAL_OR_KEYWORD and name != "vary"
                parameters.append((name, hint, parameter.default, has_place))
    options: list[Option] = []
    for name, hint, value, has_place in parameters:
        # What has its type in quotes is given in Python alone, and the line itself is the command.
        if hint is Listener or isinstance(hint, str) or name in (*without, "command"):
            continue
        text, place = texts.get(name, ""), f"{path}{name}"
        nested = type(value) if is_dataclass(value) else dataclass_in(hint)
        if nested is not None:
            whole = " ".join((nested.__doc__ or "").split())
            heading = text or re.split(r"(?<=\.)\s", whole, maxsplit=1)[0]
            options += describe(nested, value, path=f"{place}.", group=heading)
            continue
        if has_place:
            options.append(_option(place, hint, text, value, group, is_positional=True))
        if not has_place or value is not REQUIRED or name in ("data", "protocol"):
            options.append(_option(place, hint, text, value, group, is_positional=False))
    return tuple(sorted(options, key=lambda option: bool(option.group)))


def in_shell(texts: Mapping[str, str]) -> dict[str, str]:
    """Write the texts of parameters for the command line, where a word has no quotes, and an option hyphens.

    Args:
        texts: from a docstring, where another parameter stands between backticks.
    """

    def in_hyphens(word: re.Match[str]) -> str:
        return f"--{word[1].replace('_', '-')}" if word[1] in texts else word[1]

    bare = {name: re.sub(r'"(\w+(?::\d+)?)"', r"\1", text) for name, text in texts.items()}
    return {name: re.sub("`([^`]+)`", in_hyphens, text) for name, text in bare.items()}


def _option(path: str, hint: Any, text: str, default: Any, group: str, is_positional: bool) -> Option:
    """Make the option of a field."""
    section, _, field = path.rpartition(".")
    item, most = value_type(hint)
    is_optional = type(None) in typing.get_args(hint)
    is_literal = typing.get_origin(item) is Literal
    choices = tuple(map(str, typing.get_args(item))) if is_literal else ()
    number = item if item in (int, float) else None
    if item is bool and most == 1:
        choices, value = (("True", "False"), "True|False") if is_optional else ((), "")
    elif choices:
        value = "|".join(choices) if most == 1 else "NAME,..."
    elif number is not None:
        value = "SIZE" if (field, most) == ("image_size", 2) else "NUMBER" if most == 1 else "NUMBER,..."
    else:
        # The field `path` is a model, but for the images of `vitkit data`, the only ones of type str.
        placeholder = VALUES.get(field) if (field, item) != ("path", str) else "PATH"
        value = placeholder or ("PATH" if item == str | Path else "TEXT")
    if is_positional:
        name = "OUT" if field == "out" else VALUES.get(field, value) if choices else value
    else:
        name = "--" + (f"{section}.{field}" if section in PREFIXED else field).replace("_", "-")
    return Option(
        name,
        path,
        value,
        " ".join(text.split()),
        default,
        group,
        choices,
        number,
        most,
        is_positional,
        is_required=default is REQUIRED,
        # Files are several arguments: a comma may be a part of a name.
        is_list=most > 1
        and not is_positional
        and (bool(choices or number) or (item is str and typing.get_origin(hint) is Sequence)),
        is_optional=is_optional,
        names_weights=item == str | Path and value in WEIGHTS,
        names_images=value == "DATA" or field == "root" or (field, item) == ("path", str),
    )


def dataclass_in(hint: Any) -> Any:
    """Return the dataclass that a type is, or is beside None; None for another type."""
    parts = [part for part in typing.get_args(hint) or (hint,) if part is not type(None)]
    return parts[0] if len(parts) == 1 and is_dataclass(parts[0]) else None


def value_type(hint: Any) -> tuple[Any, int]:
    """Return the type of a single value of an option, and how many of them there are at most."""
    members = [member for member in typing.get_args(hint) if member is not type(None)]
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        several = [member for member in members if typing.get_origin(member) in (tuple, Sequence)]
        if several:
            return value_type(several[0])
        return (members[0], 1) if len(members) == 1 else (str | Path, 1)
    if origin not in (tuple, Sequence):
        return hint, 1
    if origin is tuple and members[-1] is not Ellipsis:
        return members[0], len(members)
    return value_type(members[0])[0], ANY_NUMBER

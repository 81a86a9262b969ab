"""The options of a verb: one table, which the parser, help, messages on mistakes and completion read.

It is read against a command line by `read` and `parse_words`, which tell all that is wrong with it at once.

`describe` makes it of the signature of a function, or of a dataclass. A module with a job computes, and so
imports torch, for which help must not wait: `read_signature` reads the function from its source.
"""

import ast
import difflib
import inspect
import re
import shlex
import sys
import types
import typing
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, is_typeddict

from vitkit.config import IN_PYTHON_ALONE, PREFIXED
from vitkit.errors import WrongCommandLine
from vitkit.listener import Listener
from vitkit.other_names import MEANT, OTHER_NAMES


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
        body = _parsed(owner.__module__).get(owner.__name__, [])
        for statement, below in pairwise(body):
            if isinstance(statement, ast.AnnAssign) and isinstance(below, ast.Expr):
                texts[ast.unparse(statement.target)] = " ".join(ast.literal_eval(below.value).split())
    return texts


@cache  # `inspect` parses a file again for each of its classes
def _parsed(module: str) -> dict[str, list[ast.stmt]]:
    """Parse a module's source, if there is one; returns the statements of its classes by their names."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except OSError:
        return {}
    return {node.name: node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


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
    "BUNDLE": ("bundle",),
    "CHECKPOINT": ("checkpoints", "source"),
    "DATA": ("calibration", "data", "sweep_data", "then"),
    "DEVICE": ("device",),
    "FILE": ("key",),
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
        return (self.name, f"{before}.no-{last}" if dot else f"--no-{self.name[2:]}")

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
        names = (field.name for field in fields(command) if field.metadata != IN_PYTHON_ALONE)
        parameters += ((name, hints[name], getattr(default, name), False) for name in names)
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
        nested = type(value) if is_dataclass(value) else value_type(hint)[0]
        if is_dataclass(nested):
            heading = text or re.split(r"(?<=\.)\s", " ".join((nested.__doc__ or "").split()), maxsplit=1)[0]
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
    choices = tuple(map(str, typing.get_args(item))) if typing.get_origin(item) is Literal else ()
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
    # Files are several arguments: a comma may be a part of a name.
    may_be_list = bool(choices or number) or (item is str and typing.get_origin(hint) is Sequence)
    whole = " ".join(text.split())
    described = name, path, value, whole, default, group, choices, number, most, is_positional
    return Option(
        *described,
        is_required=default is REQUIRED,
        is_list=most > 1 and not is_positional and may_be_list,
        is_optional=is_optional,
        names_weights=item == str | Path and value in WEIGHTS,
        names_images=value == "DATA" or field == "root" or (field, item) == ("path", str),
    )


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


NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
VALUE = re.compile(rf"[^-].*|-?|{NUMBER.pattern}", re.IGNORECASE | re.DOTALL)
"""An argument that is no option: a hyphen may begin a negative number, or be standard input."""
OTHER_SPELLING = {"--subset": "--splits.subset", "--levels": "--splits.levels"}
"""Short forms of our own options."""


@dataclass
class Reading:
    """A command line, read by a table of options."""

    given: dict[str, Any] = field(default_factory=dict)
    """The values of the options that are given, by the path of their field."""
    rest: list[str] = field(default_factory=list)
    """The arguments that are none of the options or of their values, in their order."""
    wrong: list[str] = field(default_factory=list)
    """A sentence on each option that lacks its value or has a wrong one."""


def read(arguments: Sequence[str], options: Sequence[Option]) -> Reading:
    """Read the options by name among arguments; other options and words are left in the rest."""
    by_name = {name: option for option in reversed(options) for name in option.names}
    reading, waiting = Reading(), deque(arguments)  # a shell may name thousands of files
    while waiting:
        argument = waiting.popleft()
        written, equals, value = argument.partition("=")
        name = written.replace("_", "-")
        name = OTHER_SPELLING.get(name, name)
        option = by_name.get(name) if written.startswith("-") else None
        if argument == "--":
            reading.rest += [argument, *waiting]
            break
        if option is None:
            reading.rest.append(argument)
            continue
        if not option.value:
            reading.given[option.path] = name == option.name
            if equals:
                said = f"{written} is a switch: give {' or '.join(option.names)}, without a value."
                reading.wrong.append(said)
            continue
        values = [value] if equals else []
        while not equals and waiting and len(values) < option.most and VALUE.fullmatch(waiting[0]):
            # The numbers of a list may stand behind one another; so may the values of an option with several.
            are_numbers = values and NUMBER.fullmatch(values[0]) and NUMBER.fullmatch(waiting[0])
            if values and option.is_list and not (option.number and are_numbers):
                break
            values.append(waiting.popleft())
        if not values:
            reading.wrong.append(f"{written} needs a value: {written} {option.value}.")
            continue
        try:
            parsed = _read_values(option, written, values)
        except WrongCommandLine as error:
            reading.wrong.append(str(error))
            continue
        is_repeated = option.most > 1 and not option.is_list
        reading.given[option.path] = (*reading.given.get(option.path, ()), *parsed) if is_repeated else parsed
    return reading


def parse_words(
    verb: str, reading: Reading, options: Sequence[Option], usage: Callable[[], str]
) -> dict[str, Any]:
    """Put the words that stand without an option in their places; return all values that are given.

    Args:
        verb: as it follows vitkit.
        reading: the options by name, and the rest.
        options: all options of the verb. An argument by position that is given by its name has no place.
        usage: writes the form of its command line.

    Raises:
        WrongCommandLine: there are options that are none of the verb's, wrong values, or words that are
            missing or too many. One message tells all of them.
    """
    positional: list[str] = []
    unknown: list[str] = []
    waiting = deque(reading.rest)
    while waiting:
        argument = waiting.popleft()
        if argument == "--":
            positional += waiting
            break
        if VALUE.fullmatch(argument):
            positional.append(argument)
            continue
        unknown.append(argument.partition("=")[0])
        if "=" not in argument and waiting and VALUE.fullmatch(waiting[0]):
            waiting.popleft()  # its value, probably
    given, wrong = dict(reading.given), reading.wrong
    if unknown:  # whose values may be among the words
        said = (f"vitkit {verb} has no option {name}. {_meant(verb, name, options)}" for name in unknown)
        wrong = [*dict.fromkeys(said), *wrong]
    else:
        try:
            _fill(verb, positional, options, given, usage)
        except WrongCommandLine as error:
            wrong = [*wrong, str(error)]
    if wrong:
        raise WrongCommandLine(" ".join(wrong))
    return given


def _fill(
    verb: str, rest: list[str], options: Sequence[Option], given: dict[str, Any], usage: Callable[[], str]
) -> None:
    """Put words in their places.

    Raises:
        WrongCommandLine: a word is missing, is too many, or has the wrong type.
    """
    places = [option for option in options if option.is_positional and option.path not in given]
    waiting = list(rest)
    for number, place in enumerate(places):
        after = sum(other.is_required and other.most == 1 for other in places[number + 1 :])
        if place.most > 1:
            count = max(min(1, len(waiting)), len(waiting) - after)
            given[place.path], waiting = tuple(waiting[:count]), waiting[count:]
        elif place.is_required and waiting[:1] in ([], [""]):
            text = re.split(r"(?<=\.)\s+(?=[A-Z])|[.;]$", place.text, maxsplit=1)[0].rstrip(".")
            raise WrongCommandLine(f"{place.name} is missing: {text}. Usage: {usage()}")
        elif len(waiting) > (0 if place.is_required else after):
            if not place.is_required and not Path(waiting[0]).exists():
                _refuse_assignment(waiting[0])
            given[place.path] = _read_values(place, place.name, [waiting.pop(0)])
    if not waiting:
        return
    _refuse_assignment(waiting[0])
    if Path(spaced := " ".join(rest)).exists():
        raise WrongCommandLine(f"A path with blanks is put into quotes: {shlex.quote(spaced)}")
    raise WrongCommandLine(
        f"vitkit {verb} takes no further argument, found {_shown(waiting[0])}. Usage: {usage()}"
    )


def _refuse_assignment(word: str) -> None:
    """Refuse a word that looks like an option without its hyphens: "epochs=3"."""
    if assigned := re.fullmatch(r"([A-Za-z][\w.-]*)=(.*)", word):
        name = assigned[1].replace("_", "-")
        raise WrongCommandLine(f"Options are written with two hyphens: --{name} {assigned[2]}")


def _meant(verb: str, written: str, options: Sequence[Option]) -> str:
    """Say in a sentence which option does what an unknown one does elsewhere, or has a similar name.

    Args:
        verb: as it follows vitkit.
        written: the unknown option, as it was written.
        options: all options of the verb.
    """
    names = [name for option in options if not option.is_positional for name in option.names]
    places = (option for option in options if option.is_positional)
    positional = {f"--{label}": place.name for place in places for label in (place.field, place.name.lower())}
    name = written.lstrip("-").replace("_", "-").lower()
    for ours, others in OTHER_NAMES.items():
        if name in (ours[2:], *others) and ours in names:
            return f"Here it is {ours}."
        if name in (ours[2:], *others) and ours in positional:
            return f"{positional[ours]} is given without an option."
    if name in MEANT:
        return MEANT[name]
    bare = {long.removeprefix("--").rpartition(".")[2]: long for long in reversed(names)}
    near = difflib.get_close_matches(name, bare, n=1, cutoff=0.7)
    return f"Did you mean {bare[near[0]]}?" if near else f"vitkit {verb} --help-all lists all."


def _read_values(option: Option, written: str, values: Sequence[str]) -> Any:
    """Read the values of an option, or a word in its place.

    Raises:
        WrongCommandLine: a value is of another type, or none of the choices.
    """
    whole, is_size, items = ",".join(values), option.value == "SIZE", list[Any]()
    if option.is_optional and whole == "None":
        return None
    parts = [part.strip() for part in re.split("[x,]" if is_size else ",", whole)]
    for text in [part for part in parts if part or is_size] if option.is_list else values:
        if option.choices and text not in option.choices:
            near = difflib.get_close_matches(text, option.choices, n=1, cutoff=0.6)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise WrongCommandLine(
                f"{written} is one of {', '.join(option.choices)}, found {_shown(text)}.{hint}"
            )
        try:
            items.append(text if option.choices or option.number is None else option.number(text))
        except ValueError:
            kind = "a whole number" if option.number is int else "a number"
            several = " or several with commas between them" if option.is_list else ""
            several = ", or height and width such as 224,320" if is_size else several
            raise WrongCommandLine(f"{written} is {kind}{several}, found {_shown(whole)}.") from None
    if option.choices == ("True", "False"):
        items = [item == "True" for item in items]
    if not option.is_list:
        return tuple(items) if option.most > 1 else items[0]
    if is_size and len(items) == 1:
        items *= 2  # a square
    if len(items) != option.most < ANY_NUMBER:
        raise WrongCommandLine(
            f"{written} takes {option.most} numbers, found {len(items)} in {_shown(whole)}."
        )
    return tuple(items)


def _shown(text: str) -> str:
    return shlex.quote(text if len(text) <= 80 else f"{text[:77]}...")

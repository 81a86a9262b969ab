"""Convert frozen dataclasses to JSON and back, with errors that name the nearest valid key."""

import dataclasses
import difflib
import math
import re
import reprlib
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from vitkit.durable import json_bytes, read_json, replace_file
from vitkit.errors import VitkitError

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Range:
    """The smallest and the largest value of a number in a record, and its name in an error."""

    name: str
    low: float
    high: float


COUNT = 2**53  # above it float64 lacks some integers
Count = Annotated[int, Range("a count", 0, COUNT)]
Positive = Annotated[float, Range("a number above 0", math.ulp(0.0), sys.float_info.max)]
AtLeastOne = Annotated[int, Range("at least 1", 1, math.inf)]
Seed = Annotated[int, Range("0 or more, and below 2 to the 63", 0, 2**63 - 1)]
Folds = Annotated[int, Range("2 or more", 2, math.inf)]
ZeroOrMore = Annotated[float, Range("0 or more", 0, math.inf)]
BelowOne = Annotated[float, Range("a number from 0 to below 1", 0, math.nextafter(1, 0))]
WithinOne = Annotated[float, Range("a number above 0 and below 1", math.ulp(0.0), math.nextafter(1, 0))]
# A sum of numbers near 0 may be rounded to a little below it.
NotNegative = Annotated[float, Range("a number of 0 or more", -1e-9, sys.float_info.max)]
# A mean of ones may be rounded to a little above 1.
Fraction = Annotated[float, Range("a fraction from 0 to 1", 0, 1 + 1e-9)]


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80  # characters: a value takes one line of a message
describe_value = _SHORT.repr
"""A function that writes a value for an error message, cut short where it is long or deeply nested."""


def to_json(value: Any) -> Any:
    """Return a configuration as plain data, which `json.dumps` writes and `from_json` reads back."""
    if dataclasses.is_dataclass(value):
        written = (part.name for part in dataclasses.fields(value) if part.metadata.get("is_written", True))
        return {name: to_json(getattr(value, name)) for name in written}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    return value


def from_json(cls: type[T], data: Mapping[str, Any], where: str) -> T:
    """Build the dataclass `cls` from plain data.

    Args:
        cls: a dataclass of numbers, strings, literals, tuples, optional values and other dataclasses. Its
            class method `field_types`, if any, gives the types of fields whose type the data decides.
        data: its fields by name; fields left out take their defaults.
        where: the name of the data in error messages ("config.json", say).

    Raises:
        VitkitError: an unknown key (the nearest right one is named), a missing one, or a value of the
            wrong type; or values that the dataclass itself refuses.
    """
    if not isinstance(data, Mapping):
        raise VitkitError(
            f"{where}: expected an object with the fields of {cls.__name__}, found {describe_value(data)}."
        )
    hints = typing.get_type_hints(cls, include_extras=True)
    hints |= getattr(cls, "field_types", lambda data: {})(data)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            raise VitkitError(f"{where}: unknown key '{key}'. {nearest(key, fields)}")
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in data:
            raise VitkitError(f"{where}: the key '{name}' of {cls.__name__} is missing.")
    values = {key: _typed(hints[key], value, f"{where}: {key}") for key, value in data.items()}
    try:
        return cls(**values)
    except VitkitError as error:
        # A value of the right type that makes no sense is refused by the dataclass, which knows no file.
        raise VitkitError(f"{where}: {error}") from None


def read(cls: type[T], path: Path) -> T | None:
    """Read a record, the dataclass `cls` in a JSON file; None where there is no such file.

    Anybody may have edited the file and a disk may have damaged it, so all of it is checked: the kind and the
    size of the file, its JSON, the names and types of fields, and what the dataclass asks of its values.

    Raises:
        VitkitError: the file is damaged or cannot be read.
    """
    try:
        return from_json(cls, read_json(path), str(path))
    except FileNotFoundError:
        return None


def write(path: Path, record: Any) -> None:
    """Write a record, a dataclass or plain data, as readable JSON in place of an older one at one instant."""
    replace_file(path, [json_bytes(to_json(record))])


FLOAT32_MOST = 2.0**128 - 2.0**104
"""The largest number in float32, which models compute in."""


IN_PYTHON_ALONE: Mapping[str, Any] = {"is_option": False}
"""The metadata of a field that recipes and Python set, and no option of the command line."""
IN_MEMORY_ALONE: Mapping[str, Any] = {"is_written": False}
"""The metadata of a field of a result that `to_json` leaves out, such as its images."""
PREFIXED = ("splits", "fewshot")
"""Parts of a run whose options carry their name, which would not say without it what is cut or measured."""


def require_valid(config: Any) -> None:
    """Refuse a dataclass with a value that its type does not allow, or a number that is not finite in
    float32; for its `__post_init__`.

    Raises:
        VitkitError: a field, or an item of a tuple, is of another type, out of the `Range` of its type or not
            among its texts; or is not a number, or is infinite in float32.
    """
    hints = typing.get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(config):
        given = getattr(config, field.name)
        items = given if isinstance(given, tuple) else (given,)
        for number in items:
            is_fraction = isinstance(number, Real) and not isinstance(number, Integral)  # of numpy too
            if is_fraction and not abs(float(number)) <= FLOAT32_MOST:
                limit = f", of at most {FLOAT32_MOST:.3g}" if math.isfinite(number) else ""
                raise VitkitError(f"{field.name}: expected a finite number{limit}, found {given}.")
        try:
            value = _typed(hints[field.name], given, field.name)
        except VitkitError as error:
            raise VitkitError(str(error).replace(": expected ", " is ", 1)) from None
        if not all(isinstance(item, int | float) for item in items):  # 100 epochs stay 100, and no 100.0
            object.__setattr__(config, field.name, value)  # no record could be written of a number of numpy


class Valid:
    """A configuration whose values are those of their types, and which is refused otherwise."""

    __post_init__ = require_valid


def read_value(hint: Any, value: Any, where: str) -> Any:
    """Read the value of an option as its type.

    Args:
        hint: the annotated type: a number, a truth value, a string, a literal, or a tuple, and None.
        value: of that type; or text: "0.1", "true", "learned"; "none" for None; the items of a tuple with
            spaces or an x between them, as in 32x64. One number stands for a tuple of two.
        where: the name of the option, for error messages.

    Raises:
        VitkitError: the value is of another type.
    """
    items, plain = [value], value
    if isinstance(value, str):
        items = []
        for text in [*re.split(r"[x\s]+", value.strip()), value]:
            number: Any = text
            for kind in (float, int):  # the last one that fits
                with suppress(ValueError):
                    number = kind(text)
            items.append(number)
        plain = {"none": None, "true": True, "false": False}.get(value.lower(), items.pop())
    errors = []
    # The text itself is tried first: `none` is also a kind of position, and then not a missing value.
    for reading in (value, plain, items, items * 2):
        try:
            return _typed(hint, reading, where)
        except VitkitError as error:
            errors.append(error)
    raise errors[0]  # which shows the value as it was typed


def nearest(wrong: str, right: typing.Iterable[str]) -> str:
    """Return a sentence with the valid name nearest to a wrong one; with all of them where none is near."""
    names = list(right)
    close = difflib.get_close_matches(wrong, names, n=1)
    return f"Did you mean '{close[0]}'?" if close else f"Known: {', '.join(names)}."


def difference(before: Any, after: Any, prefix: str = "") -> list[str]:
    """List the fields in which two configurations differ, as lines "field: before -> after".

    Args:
        before, after: configurations as plain data, as `to_json` gives them.
        prefix: the path of the fields in the whole configuration, such as "training.".
    """
    lines: list[str] = []
    for key, value in before.items():
        if isinstance(value, dict) and isinstance(after.get(key), dict):
            lines += difference(value, after[key], f"{prefix}{key}.")
        elif after.get(key) != value:
            lines.append(f"{prefix}{key}: {_shown(value)} -> {_shown(after.get(key))}")
    return lines + [f"{prefix}{key}: nothing -> {_shown(after[key])}" for key in after if key not in before]


def _shown(value: Any) -> str:
    """Write an option whole, unless it has more than 500 characters, which nobody types."""
    whole = "left out" if value is None else repr(value)
    return whole if len(whole) <= 500 else describe_value(value)


def _typed(hint: Any, value: Any, where: str) -> Any:
    """Convert `value` from JSON to the annotated type `hint`: lists become tuples, objects dataclasses."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        errors = []
        for option in (option for option in arguments if option is not type(None)):
            try:
                return _typed(option, value, where)
            except VitkitError as error:
                errors.append(error)
        raise errors[0]
    if origin is Annotated:
        number, allowed = _typed(arguments[0], value, where), arguments[1]
        if not allowed.low <= number <= allowed.high:
            raise VitkitError(f"{where}: expected {allowed.name}, found {describe_value(number)}.")
        return number
    if origin is Literal:
        if value not in arguments:
            choices = ", ".join(repr(choice) for choice in arguments)
            raise VitkitError(f"{where}: expected one of {choices}, found {describe_value(value)}.")
        return value
    if origin in (tuple, Sequence):
        if isinstance(value, list | tuple):
            kinds = arguments[:1] * len(value) if Ellipsis in arguments or origin is Sequence else arguments
            if len(kinds) == len(value):
                return tuple(_typed(kind, item, where) for kind, item in zip(kinds, value, strict=True))
        raise VitkitError(f"{where}: expected {_name(hint)}, found {describe_value(value)}.")
    if dataclasses.is_dataclass(hint):
        kind = typing.cast("type[Any]", hint)
        return value if isinstance(value, kind) else from_json(kind, value, where)
    if hint is float and not isinstance(value, bool) and isinstance(value, Real):  # numpy's numbers too
        try:
            return float(value)
        except OverflowError:
            raise VitkitError(f"{where}: the number {describe_value(value)} is too large.") from None
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if isinstance(value, Mapping):
            kind, names = arguments[1], {key: f"{where}: {describe_value(key)}" for key in value}
            return {key: _typed(kind, item, names[key]) for key, item in value.items()}
        raise VitkitError(f"{where}: expected an object, found {describe_value(value)}.")
    # In Python a truth value is a whole number, in a configuration it is not.
    if hint is int and not isinstance(value, bool) and isinstance(value, Integral):  # numpy's numbers too
        if abs(int(value)) >= 2**63:
            raise VitkitError(f"{where}: the number {describe_value(value)} is too large.")
        return int(value)
    if hint is Any or (hint is not int and isinstance(value, hint)):
        return value
    raise VitkitError(f"{where}: expected {_name(hint)}, found {describe_value(value)}.")


def _name(hint: Any) -> str:
    """Name a type for an error message: "int", or "tuple[int, int]" with its arguments."""
    if isinstance(hint, type) and typing.get_origin(hint) is None:
        return hint.__name__
    return re.sub(r"typing\.Annotated\[(\w+), .*?\)\]", r"\1", str(hint)).replace("typing.", "")

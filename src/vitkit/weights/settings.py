"""Fields of other libraries' JSON files, checked as they are read."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from vitkit.config import from_json
from vitkit.errors import VitkitError

LARGEST = 2**20
"""The largest number that a settings file may hold; the sizes of real models stay far below it."""

T = TypeVar("T")


def read_fields(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Read the fields of the dataclass `kind` from a JSON object; null is the same as absent.

    Raises:
        VitkitError: a value of another type, or a number above `LARGEST`.
    """
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    present = {key: value for key, value in values.items() if key in names and value is not None}
    for key, value in present.items():
        _check_numbers(value, f"{where}: {key}")
    return from_json(kind, present, where)


def _check_numbers(value: Any, where: str) -> None:
    """Refuse numbers that are too large, alone or in lists; objects are checked where they are read."""
    rest = [value]
    while rest:
        part = rest.pop()
        if isinstance(part, list):
            rest += part
        elif (isinstance(part, int) and abs(part) > LARGEST) or (
            isinstance(part, float) and not math.isfinite(part)
        ):
            raise VitkitError(f"{where}: a number of at most {LARGEST} was expected, found {str(part)[:40]}.")

"""Fields of other libraries' JSON files, checked as they are read."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from vitkit.config import from_json
from vitkit.errors import VitkitError

LARGEST = 2**20
"""The largest number in a settings file that is taken for a size; real models stay far below it."""

T = TypeVar("T")


def read_fields(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Read the fields of the dataclass `kind` from a JSON object; null is the same as absent.

    Raises:
        VitkitError: a value of another type, or a number that none can be.
    """
    asked = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    known = {key: value for key, value in values.items() if key in asked and value is not None}
    for key, value in known.items():
        _check_numbers(value, f"{where}: {key}")
    return from_json(kind, known, where)


def _check_numbers(value: Any, where: str) -> None:
    """Refuse what is too large in a number or a list of them; an object's are left to whoever reads it."""
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, list):
            rest += one
        elif (isinstance(one, int) and abs(one) > LARGEST) or (
            isinstance(one, float) and not math.isfinite(one)
        ):
            raise VitkitError(f"{where}: a number of at most {LARGEST} was expected, found {str(one)[:40]}.")

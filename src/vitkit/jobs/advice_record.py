"""The forecast for a run before it began, kept in its folder and compared with what came out.

advice.json   the forecast, and the advice in words
"""

import math
from dataclasses import dataclass
from pathlib import Path

from vitkit.config import read_if_there, to_json
from vitkit.durable import read_json, replace_json
from vitkit.errors import VitkitError
from vitkit.jobs.forecast import Forecast

RECORD = "advice.json"


@dataclass(frozen=True)
class AdviceRecord:
    """The contents of `advice.json`."""

    expected: Forecast
    """The forecast of the accuracy on the test images."""
    seconds: float
    """The seconds that the run was expected to take."""
    sentences: tuple[str, ...]
    """The advice in words."""

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < math.inf:
            raise VitkitError(f"seconds: expected a time, found {self.seconds:g}.")


def keep_advice(folder: Path, advice: AdviceRecord | None) -> None:
    """Write down what is expected of a run, unless something is written there already."""
    if advice is not None and not (folder / RECORD).exists():
        replace_json(folder / RECORD, to_json(advice))


def read_advice(folder: Path) -> AdviceRecord | None:
    """Read what was expected of a run; None where nobody asked before it began.

    Raises:
        VitkitError: the record is damaged.
    """
    return read_if_there(AdviceRecord, folder / RECORD)


def compare_with_advice(folder: Path) -> str:
    """Say what was expected of a run and what came out; "" where nothing was, or it was not measured.

    Raises:
        VitkitError: the record is damaged.
    """
    record = read_advice(folder)
    if record is None:
        return ""
    try:
        numbers = read_json(folder / "evaluation" / "test.json")
    except FileNotFoundError:
        return ""
    accuracy = numbers.get("accuracy") if isinstance(numbers, dict) else None
    if not isinstance(accuracy, int | float) or not 0 <= accuracy <= 1:
        return ""
    return f"Accuracy on the test images: {record.expected.compare(accuracy)}."

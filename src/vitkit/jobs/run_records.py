"""Read the records of a run, which anybody may have edited or a disk may have damaged."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from vitkit.config import from_json
from vitkit.data.listing import pluralize
from vitkit.durable import read_json, read_regular_file
from vitkit.errors import VitkitError
from vitkit.jobs.data_record import require_counts

LOG_BYTES = 256 << 20
"""The largest log that is read: some million lines."""
LINE_BYTES = 1 << 16
LARGEST = 2**53
"""Counts above it are no counts of anything; below it every integer is a float64 too."""

METRICS = ("step", "epoch", "loss")
SPEED = ("step", "images_per_second", "seconds")


@dataclass(frozen=True)
class Log:
    """The lines of a log that can be used."""

    lines: list[dict[str, Any]]
    left_out: str = ""
    """A sentence that says what could not be used; empty if all could."""


def read_metrics(run: Path) -> Log:
    """Read the lines of metrics.jsonl: `kind` "train" or "validation", the numbers `step`, `epoch` and
    `loss`.

    Lines of other evaluators, and those that say where the log was begun again, are passed over.
    """
    return _read_log(run / "metrics.jsonl", METRICS, ("train", "validation"), ("evaluation", "restart"))


def read_followed(run: Path) -> Log:
    """Read the lines of metrics.jsonl of evaluators other than the validation, with the number `step`."""
    return _read_log(run / "metrics.jsonl", ("step",), ("evaluation",), ("train", "validation", "restart"))


def read_speed(run: Path) -> Log:
    """Read the lines of speed.jsonl, with the numbers `step`, `images_per_second` and `seconds`."""
    return _read_log(run / "speed.jsonl", SPEED)


def _read_log(
    path: Path, numbers: tuple[str, ...], kinds: tuple[str, ...] = (), others: tuple[str, ...] = ()
) -> Log:
    """Read a log; a line that is damaged, or was cut short by a crash, is left out and counted.

    Args:
        path: the log.
        numbers: what every line must have.
        kinds: the kinds of lines that are returned; none: there are no kinds.
        others: the kinds that are passed over; they must have `step` alone.
    """
    try:
        content = read_regular_file(path, LOG_BYTES)
    except FileNotFoundError:
        return Log([])
    except VitkitError as error:
        return Log([], f"{path.name} is left out: {error}")
    except OSError as error:
        return Log([], f"{path.name} is left out: it cannot be read ({error.strerror}).")
    written = [line for line in content.split(b"\n") if line.strip()]
    lines, wrong = [], []
    for number, line in enumerate(written, start=1):
        found = _parsed(line, numbers, kinds)
        if found is not None:
            lines.append(found)
        elif not others or _parsed(line, ("step",), others) is None:
            wrong.append(number)
    if not wrong:
        return Log(lines)
    return Log(
        lines,
        f"{path.name}: {pluralize(len(wrong), 'line')} of {len(written):,} cannot be read and "
        f"{'is' if len(wrong) == 1 else 'are'} left out; the first is line {wrong[0]:,}.",
    )


def _parsed(content: bytes, numbers: tuple[str, ...], kinds: tuple[str, ...]) -> dict[str, Any] | None:
    """Parse one line of a log; None where it is not what the program writes."""
    if len(content) > LINE_BYTES:
        return None
    try:
        line = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or (kinds and line.get("kind") not in kinds):
        return None
    if any(name not in line for name in numbers) or not isinstance(line["step"], int):
        return None
    values = [value for name, value in line.items() if name != "kind" and not isinstance(value, str)]
    return line if all(_is_number(value) for value in values + [line[name] for name in numbers]) else None


def _is_number(value: Any) -> bool:
    """Whether it is a finite number that can be drawn."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= LARGEST if isinstance(value, int) else math.isfinite(value)


@dataclass(frozen=True)
class _DataRecord:
    """The fields of data.json that the report shows."""

    name: str = ""
    spec: str = ""
    kind: str = ""
    class_names: tuple[str, ...] = ()
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    rejects: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    fingerprint: str = ""
    images: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_counts(self.counts, self.images)


def read_data_record(run: Path) -> dict[str, Any]:
    """Read what data.json says of the images; empty if there is none.

    Raises:
        VitkitError: it is damaged.
    """
    path = run / "data.json"
    try:
        record = read_json(path)
    except FileNotFoundError:
        return {}
    if not isinstance(record, dict):
        raise VitkitError(
            f"{path} is damaged: expected an object that describes the data, found {type(record).__name__}. "
            "Put the original file back."
        )
    known = {one.name for one in fields(_DataRecord)}
    from_json(_DataRecord, {key: record[key] for key in record if key in known}, str(path))
    return record

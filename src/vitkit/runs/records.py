"""Read the records of a run, which anybody may have edited and a disk may have damaged."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitkit.config import COUNT, from_json
from vitkit.durable import read_regular_file
from vitkit.errors import VitkitError
from vitkit.models.config import Interpolation
from vitkit.models.zoo import FAMILIES, ModelConfig
from vitkit.text import pluralize

LOG_BYTES = 256 << 20
"""The largest log that is read: some million lines."""
LINE_BYTES = 1 << 16
"""The longest line that is parsed, far longer than any that vitkit writes."""
LOGS = {
    "metrics.jsonl": (("step", "epoch", "loss"), ("train", "validation")),
    "speed.jsonl": (("step", "images_per_second", "seconds"), ()),
}
"""The logs of a run folder: the numbers that each line has, and the kinds of these lines, if they have kinds;
lines of other kinds need no number but `step`."""


@dataclass(frozen=True)
class Log:
    """The readable lines of a log."""

    lines: list[dict[str, Any]]
    evaluated: list[dict[str, Any]] = field(default_factory=list)
    """In metrics.jsonl, the lines of evaluators other than the validation, each with its `step`."""
    left_out: str = ""
    """A sentence about lines that cannot be read; empty if all can."""


def read_log(path: Path) -> Log:
    """Read a log of a run folder; lines that are damaged or cut short by a crash are left out and counted.

    Lines that mark where metrics.jsonl was begun again are skipped.
    """
    numbers, kinds = LOGS[path.name]
    try:
        content = read_regular_file(path, LOG_BYTES)
    except FileNotFoundError:
        return Log([])
    except VitkitError as error:
        return Log([], left_out=f"{path.name} is left out: {error}")
    except OSError as error:
        return Log([], left_out=f"{path.name} is left out: it cannot be read ({error.strerror}).")
    written = [line for line in content.split(b"\n") if line.strip()]
    lines, evaluated, wrong = [], [], []
    for number, line in enumerate(written, start=1):
        if (entry := _parse_line(line, numbers, kinds)) is not None:
            lines.append(entry)
        elif not kinds or (entry := _parse_line(line, ("step",), ("evaluation", "restart"))) is None:
            wrong.append(number)
        elif entry["kind"] == "evaluation":
            evaluated.append(entry)
    if not wrong:
        return Log(lines, evaluated)
    return Log(
        lines,
        evaluated,
        f"{path.name}: {pluralize(len(wrong), 'line')} of {len(written):,} cannot be read and "
        f"{'is' if len(wrong) == 1 else 'are'} left out; the first is line {wrong[0]:,}.",
    )


def _parse_line(content: bytes, numbers: tuple[str, ...], kinds: tuple[str, ...]) -> dict[str, Any] | None:
    """Parse a line of a log; None where vitkit would not have written it."""
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
    """Whether a value is a finite number, and small enough to draw."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= COUNT if isinstance(value, int) else math.isfinite(value)


DIVERGED = "diverged.json"


@dataclass(frozen=True)
class Divergence:
    """The contents of `diverged.json`, written when loss, gradients or weights are not finite.

    The checkpoints stay, and a run that is continued removes it.
    """

    reason: str
    """The error."""


START_FILE = "start.json"


@dataclass(frozen=True)
class StartRecord:
    """The contents of `start.json`, which a run has that began from other weights."""

    start: str
    """The absolute path of the start, or its address."""
    model: str
    """The name of the start's model."""
    family: str
    architecture: Mapping[str, Any]
    """The configuration of the run's own model: the start's, with another head and image size."""
    lines: tuple[str, ...]
    """Sentences on the start, and on what in the run's model is new."""
    origin: Mapping[str, Any]
    """The origin of the start, for the card of the model."""
    files: Mapping[str, str]
    """SHA-256 of the files of weights by name."""
    position_interpolation: Interpolation = "original"
    """The rule by which the start's positions are resized, for the card of the model."""

    @property
    def config(self) -> ModelConfig:
        """The configuration of the run's own model."""
        if self.family not in FAMILIES:
            raise VitkitError(f"{START_FILE}: no family of models is named '{self.family}'.")
        config: ModelConfig = from_json(FAMILIES[self.family], self.architecture, START_FILE)
        return config

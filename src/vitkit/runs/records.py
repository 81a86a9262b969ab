"""Read the records of a run, which anybody may have edited or a disk may have damaged."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from vitkit.config import from_json, read_if_there, to_json
from vitkit.durable import read_json, read_regular_file, replace_json
from vitkit.errors import NonFiniteError, VitkitError
from vitkit.models.zoo import FAMILIES, ModelConfig, changed_name
from vitkit.runs.config import Run, new_model_config
from vitkit.runs.data_record import require_counts
from vitkit.text import pluralize
from vitkit.weights.model_card import ModelCard

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


ADVICE_FILE = "advice.json"
HELD, FORETOLD = 25, 32
"""Runs of `benchmarks/advice_outcomes.jsonl` whose accuracy came out inside the interval, and all of them:
each data set was predicted by a relation that was fitted to the others (docs/results/accuracy.md, The
advisor)."""


@dataclass(frozen=True)
class Forecast:
    """An accuracy that is expected, from 0 to 1, and its interval."""

    accuracy: float
    low: float
    high: float
    measured: bool = True
    """Whether runs like this one were measured, so that 8 of 10 lie in the interval; else it is a guess."""

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.accuracy <= self.high <= 1:
            raise VitkitError(
                f"expected an accuracy within its interval, from 0 to 1, found {self.accuracy:g} and "
                f"{self.low:g} to {self.high:g}."
            )

    @property
    def words(self) -> str:
        """The interval in words: "71 to 83 %"."""
        return f"{100 * self.low:.0f} to {100 * self.high:.0f} %"

    def compare(self, accuracy: float) -> str:
        """Say what was expected and what came out, in a sentence without a full stop.

        Args:
            accuracy: that was measured, from 0 to 1.
        """
        where = "" if self.low <= accuracy <= self.high else self._outside(accuracy)
        return f"expected {self.words}, came out {100 * accuracy:.0f} %{where}"

    def _outside(self, accuracy: float) -> str:
        side = "above" if accuracy > self.high else "below"
        allowed = "2 of 10 runs should lie outside" if self.measured else "which was a guess for such a run"
        return f": {side} the interval{';' if self.measured else ','} {allowed}"


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
    if advice is not None and not (folder / ADVICE_FILE).exists():
        replace_json(folder / ADVICE_FILE, to_json(advice))


def read_advice(folder: Path) -> AdviceRecord | None:
    """Read what was expected of a run; None where nobody asked before it began.

    Raises:
        VitkitError: the record is damaged.
    """
    return read_if_there(AdviceRecord, folder / ADVICE_FILE)


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
    held = f" Of {FORETOLD} runs that were foretold so, {HELD} came out inside." * record.expected.measured
    return f"Accuracy on the test images: {record.expected.compare(accuracy)}.{held}"


DIVERGED = "diverged.json"


@dataclass(frozen=True)
class Divergence:
    """The contents of `diverged.json`, which a run has whose loss, gradients or weights became infinite."""

    reason: str
    """The error, a sentence or two."""


def keep_divergence(folder: Path, error: NonFiniteError) -> None:
    """Write down why a run ended before its last step; its checkpoints stay, and it can be continued."""
    replace_json(folder / DIVERGED, to_json(Divergence(str(error))))


def read_divergence(folder: Path) -> Divergence | None:
    """Read why a run diverged; None where it has not, or is continued since.

    Raises:
        VitkitError: the record is damaged.
    """
    return read_if_there(Divergence, folder / DIVERGED)


START_FILE = "start.json"


@dataclass(frozen=True)
class StartRecord:
    """The contents of `start.json`."""

    start: str
    """The start as it was given, with an absolute path."""
    model: str
    """The name of the model."""
    family: str
    architecture: Mapping[str, Any]
    """The configuration of the run's own model: the start's, with another head and image size."""
    lines: tuple[str, ...]
    """Sentences on what was taken over and what is new."""
    origin: Mapping[str, Any]
    """The origin of the start, for the card of the model."""
    files: Mapping[str, str]
    """SHA-256 of the files of weights by name."""

    @property
    def config(self) -> ModelConfig:
        """The configuration of the run's own model."""
        if self.family not in FAMILIES:
            raise VitkitError(f"{START_FILE}: no family of models is named '{self.family}'.")
        config: ModelConfig = from_json(FAMILIES[self.family], self.architecture, START_FILE)
        return config


def with_start(card: ModelCard, record: StartRecord) -> ModelCard:
    """Write the origin of a start into the card of the model that began from it."""
    return replace(card, origin={**card.origin, "start": dict(record.origin)})


def read_start_record(folder: Path) -> StartRecord | None:
    """Read what a run was started from; None where it has not begun, or began with new weights.

    Raises:
        VitkitError: the record is damaged.
    """
    return read_if_there(StartRecord, folder / START_FILE)


def run_model(run: Run, num_classes: int, folder: Path) -> tuple[str, ModelConfig]:
    """Return the name and the configuration of the model that is trained in a run folder.

    Raises:
        VitkitError: it was started from weights, and the record of them is missing or damaged.
    """
    if not run.start.start:
        config = new_model_config(run, num_classes)
        return changed_name(run.model, config), config  # options may have made it another architecture
    record = read_start_record(folder)
    if record is None:
        raise VitkitError(
            f"{folder / START_FILE}, which says what the run was started from, is missing. Put it back."
        )
    return record.model, record.config

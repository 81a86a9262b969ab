"""Compare what two revisions wrote: a key that has gone is named, any other difference is an error."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.golden.masks import mask

CLOCKED = re.compile(
    r"seconds|minutes|time|changed|speed|images_per_second|per_step|memory_bytes|peak_bytes|load|vitkit_version"
)
"""Keys whose values tell of the clock, of the machine at that moment, or of the version."""


@dataclass
class Difference:
    """The differences of a second value from the first."""

    deleted: set[str] = field(default_factory=set)
    """Keys that the first one alone has, as a.b; an index is written as []."""
    changed: list[str] = field(default_factory=list)
    """All other differences, in words."""


def leaves(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the numbers and texts of JSON with their places, and how many values a list has."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(inner, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list):
        yield f"{where}[]", len(value)
        for number, inner in enumerate(value):
            yield from leaves(inner, f"{where}[{number}]")
    else:
        yield where, value


def compare(old: Any, new: Any, keys_alone: bool = False, prefix: str = "") -> Difference:
    """Compare two values of JSON.

    Args:
        old: the other revision's.
        new: this one's.
        keys_alone: whether the values may differ, as those of a key that tells of the clock.
        prefix: stands before each key.
    """
    before, after = dict(leaves(old)), dict(leaves(new))
    gone = before.keys() - after.keys()
    difference = Difference({prefix + re.sub(r"\[\d+\]", "[]", place) for place in gone})
    for place, value in after.items():
        if place not in before:
            difference.changed.append(f"{prefix}{place}: is new, {_short(value)}")
        elif keys_alone or CLOCKED.search(place):
            continue
        elif _masked(before[place]) != _masked(value):  # NaN is NaN, and 1 is neither 1.0 nor true
            change = f"{_short(before[place])} -> {_short(value)}"
            difference.changed.append(f"{prefix}{place or 'the whole'}: {change}")
    return difference


def compare_runs(old: Path, new: Path) -> Difference:
    """Compare the folders of two finished runs: weights, metrics, configuration."""
    whole = Difference()
    for name in ("model.safetensors", "metrics.jsonl", "config.json"):
        missing = [str(folder) for folder in (old, new) if not (folder / name).exists()]
        if missing:
            whole.changed.append(f"{name}: absent in {' and '.join(missing)}")
        elif name == "model.safetensors":
            if (old / name).read_bytes() != (new / name).read_bytes():
                whole.changed.append(f"{name}: other bytes")
        else:
            read = [read_values((folder / name).read_text(), folder.parent) for folder in (old, new)]
            difference = compare(read[0], read[1], prefix=f"{name}: ")
            whole.deleted |= difference.deleted
            whole.changed += difference.changed
    return whole


def read_values(text: str, folder: Path) -> Any:
    """Read JSON, or lines of it as a list; the paths of a folder become relative to it.

    Lines of text before a value that begins on a line of its own are left out.

    Raises:
        ValueError: it is no JSON.
    """
    text = text.replace(f"{folder}/", "").replace(str(folder), ".")
    began = re.search(r"^[{\[]$", text, re.MULTILINE)
    text = text[began.start() :] if began else text
    try:
        return json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]


def describe(parts: Iterable[tuple[str, Difference]]) -> tuple[str, bool]:
    """Make a table of what was compared, and say whether nothing but deleted keys differs."""
    lines, same = ["| what | difference |", "| --- | --- |"], True
    for name, difference in parts:
        texts = [f"deleted keys: {', '.join(sorted(difference.deleted))}"] if difference.deleted else []
        texts += [f"DIFFERS: {text}" for text in difference.changed[:5]]
        texts += [f"DIFFERS: {len(difference.changed) - 5} more"] if len(difference.changed) > 5 else []
        lines += [f"| {name} | {text} |" for text in texts or ["none"]]
        same = same and not difference.changed
    return "\n".join(lines), same


def _masked(value: Any) -> str:
    """Write a value as JSON, in which a sentence's times and sizes are masked."""
    return json.dumps(mask(value) if isinstance(value, str) and " " in value else value)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

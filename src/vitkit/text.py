"""Write text and numbers for people, with text from others (names, servers) made harmless for a terminal.

A terminal obeys control characters: a class name could clear the screen, set the window's title or write
backwards. Here they become escapes that can be read, such as `\\x1b`.
"""

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

_OBEYED = re.compile(
    r"[\x00-\x1f\x7f-\x9f"  # C0, DEL and C1
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # the direction of writing
    r"\u2028\u2029"  # separators of lines and paragraphs
    r"\ud800-\udfff]"  # halves of characters: bytes of a file name that are not UTF-8
)
# Halves alone: JSON escapes control characters itself, but these would make it invalid UTF-8.
_HALVES = re.compile(r"[\ud800-\udfff]")


def visible(text: str, keep: str = "") -> str:
    """Replace characters that a terminal obeys, or that no encoding can write, by escapes.

    A byte of a file name that is not UTF-8 is shown as that byte (`\\xff`).

    Args:
        text: from anywhere.
        keep: control characters that stay, such as line ends in a text of several lines.
    """
    return _OBEYED.sub(lambda match: match[0] if match[0] in keep else _escape(match[0]), text)


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # how Python keeps a byte that it cannot decode (PEP 383)
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


# Text that a spreadsheet takes for a formula, which can run programs: it begins with one of four signs and is
# no number. An apostrophe before the sign may be the text's own: it gets another, and one can be taken off.
_FORMULA = re.compile(r"(?![+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?\Z)'*[=+\-@]")
_MARKED = re.compile(r"'+[=+\-@]")


def csv_line(cells: Iterable[str]) -> str:
    """Write a line of CSV, without its end.

    Control characters are shown, and text that a spreadsheet would take for a formula begins with an
    apostrophe, which spreadsheets and `read_csv_cell` take off again. Numbers stay as they are.
    """
    shown = [visible(cell) for cell in cells]
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow([f"'{c}" if _FORMULA.match(c) else c for c in shown])
    return line.getvalue()


def read_csv_cell(cell: str) -> str:
    """Remove the apostrophe that `csv_line` puts before text that would be a formula."""
    return cell[1:] if _MARKED.match(cell) else cell


def json_text(value: Any, *, ascii_only: bool = False, indent: int | None = None) -> str:
    """Write JSON that any parser reads and any terminal shows.

    NaN and infinity, which JSON lacks, become null, and the object at the top lists their places in
    `not_finite`. Control characters and directions of writing are written as `\\uXXXX`. A byte that is not
    UTF-8 becomes the four characters `\\xff`.

    Args:
        value: numbers, strings, booleans, None, lists, tuples and mappings of these.
        ascii_only: write everything beyond ASCII as `\\uXXXX` too.
        indent: spaces to indent by; left out, one line.
    """
    plain = [*map(_with_note, value)] if isinstance(value, list | tuple) else _with_note(value)
    text = json.dumps(plain, indent=indent, ensure_ascii=ascii_only, allow_nan=False)
    # Only the ends of lines stand outside of strings, and inside they are escaped already.
    return _OBEYED.sub(lambda match: "\n" if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)


def _with_note(value: Any) -> Any:
    """Make an object plain, with a field `not_finite` that lists the numbers that became null."""
    lost: list[str] = []
    plain = _plain(value, "", lost)
    return {**plain, "not_finite": lost} if lost and isinstance(plain, dict) else plain


def _plain(value: Any, where: str, lost: list[str]) -> Any:
    """Replace values that JSON cannot hold; the paths of numbers that are not finite are added to `lost`."""
    if isinstance(value, float) and not math.isfinite(value):
        lost.append(where)
        return None
    if isinstance(value, str):
        return _HALVES.sub(lambda match: _escape(match[0]), value)
    if isinstance(value, Mapping):
        dot = "." if where else ""
        parts = ((_plain(str(key), "", []), part) for key, part in value.items())
        return {key: _plain(part, f"{where}{dot}{key}", lost) for key, part in parts}
    if isinstance(value, list | tuple):
        return [_plain(part, f"{where}[{i}]", lost) for i, part in enumerate(value)]
    return value


def format_duration(seconds: float) -> str:
    """Write a time as people do: '45 s', '3 min 20 s', '2 h 05 min', '3 days 4 h'."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} days {whole % 86400 // 3600} h"


def format_bytes(count: float) -> str:
    """Write a number of bytes: '512 bytes', '8.2 MB', '1.3 GB'."""
    return f"{count:.0f} bytes" if count < 1000 else format_count(count, "B")


def format_count(count: float, unit: str = "") -> str:
    """Write a large number with a prefix: '950', '86.6 M', '35.1 G'."""
    for prefix in ("", "k", "M", "G", "T"):
        if count < 1000:
            return f"{count:.0f}{unit and ' ' + unit}" if not prefix else f"{count:.1f} {prefix}{unit}"
        count /= 1000
    return f"{count:.1f} P{unit}"


def without_places(value: Any) -> Any:
    """Replace every absolute path in plain data by its last name."""
    if isinstance(value, str):
        return PurePath(value).name or value if PurePath(value).is_absolute() else value
    if isinstance(value, Mapping):
        return {key: without_places(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_places(part) for part in value]
    return value


def first_line(error: object) -> str:
    """Return the first line of a server's or library's message, cut short, without control characters."""
    # A library's reason fits into 200 characters; longer text is a web page, or the content of a file.
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return visible(lines[0][:200]).rstrip(".")


def pluralize(count: int, singular: str, plural: str | None = None) -> str:
    """Write a count with its noun: `pluralize(3, "image")` is "3 images"."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def join_names(names: Sequence[str], limit: int = 10) -> str:
    """Join names with commas; beyond the first `limit` only their number is written."""
    shown = ", ".join(map(str, names[:limit]))
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit:,} more"


def distinct_ends(names: Sequence[str]) -> list[str]:
    """Shorten paths and addresses to their last parts, as many as tell each apart from all others."""
    parts, ends = [name.rstrip("/").split("/") for name in names], []
    for own in parts:
        others = [other for other in parts if other != own]
        counts = (n for n in range(1, len(own)) if all(other[-n:] != own[-n:] for other in others))
        ends.append("/".join(own[-next(counts, len(own)) :]))
    return ends


def format_size(size: tuple[int, int]) -> str:
    """Write a size `(height, width)` as people do: 224x224."""
    return f"{size[0]}x{size[1]}"


def say_continued(parts: int) -> str:
    """Write the end of a sentence on parts of a table that were on the disk before; "" for none."""
    return f"; {pluralize(parts, 'part was', 'parts were')} there already" if parts else ""


def tree_levels(names: Sequence[str]) -> list[list[str]]:
    """Return the names of classes cut at each level of their tree, from the top: birds/petrel is birds at the
    first level and itself at the second. A class that ends above a level is itself there too."""
    parts = [name.split("/") for name in names]
    depth = max(map(len, parts), default=0)
    return [["/".join(each[:level]) for each in parts] for level in range(1, depth + 1)]

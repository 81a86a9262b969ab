"""Damage to bytes, to JSON and to files, drawn at random."""

import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

ODD_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def mutant(data: bytes | bytearray, draw: Random) -> bytes:
    """The same bytes with one to four places damaged, half of the time near the beginning."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        size = len(changed)
        if not size:
            break
        at = draw.randrange(min(size, 80) if draw.random() < 0.5 else size)
        length = min(draw.choice((1, 2, 4, 16, 64, 1000)), size - at)
        match draw.randrange(8):
            case 0:
                changed[at] ^= 1 << draw.randrange(8)
            case 1:
                changed[at : at + length] = draw.randbytes(length)
            case 2:
                del changed[at:]
            case 3:
                del changed[at : at + length]
            case 4:
                changed[at:at] = changed[at : at + length] * draw.choice((1, 2, 50))
            case 5:
                changed[at:at] = draw.randbytes(length)
            case 6:
                number = struct.pack(draw.choice("<>") + "I", draw.choice(ODD_NUMBERS))
                changed[at : at + 4] = number
            case 7:
                other = draw.randrange(size)
                changed[at : at + length] = changed[other : other + length]
    return bytes(changed)


def with_right_crcs(png: bytes) -> bytes:
    """Give the chunks of a damaged PNG right check sums, so that the damage is read and not refused."""
    fixed, at = bytearray(png[:8]), 8
    while at + 12 <= len(png):
        (length,) = struct.unpack_from(">I", png, at)
        if at + 12 + length > len(png):
            break
        body = png[at + 4 : at + 8 + length]
        fixed += png[at : at + 4] + body + struct.pack(">I", zlib.crc32(body))
        at += 12 + length
    return bytes(fixed + png[at:])


DEEP = object()
"""Stands for 100,000 lists in each other."""
REMOVED = object()
"""Stands for no such key."""

REPLACEMENTS: tuple[Any, ...] = (
    None, True, -1, 0, 10**30, 1e308, float("nan"), "", "x", "\x00", [], [[]], {}, {"x": 1}, "../other",
    "/etc/hostname", DEEP, REMOVED,
)  # fmt: skip


def leaves(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The way to every value of parsed JSON, the inner objects and lists too."""
    if path:
        yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        if isinstance(key, str) or key < 3:  # the fourth of a list teaches nothing new
            yield from leaves(value, (*path, key))


def replaced(data: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """Parsed JSON with the value at a path replaced."""
    if not path:
        return value
    first, *rest = path
    copy: Any = dict(data) if isinstance(data, dict) else list(data)
    if value is REMOVED and not rest:
        del copy[first]
    else:
        copy[first] = replaced(copy[first], tuple(rest), value)
    return copy


def edit(path: Path, draw: Random) -> str:
    """Replace one value of a JSON file, or of the last line of several; returns what was done."""
    *before, last = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    data = json.loads(last)
    field, value = draw.choice(list(leaves(data))), draw.choice(REPLACEMENTS)
    # Numbers that are none are written as Python writes them.
    text = json.dumps(replaced(data, field, value), default=lambda value: "@deep@")
    text = text.replace('"@deep@"', "[" * 100_000 + "]" * 100_000)
    path.write_text("\n".join([*before, text]) + "\n")
    return f"{path.name}, {'.'.join(map(str, field))} = {value!r:.40}"


def _swap(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[len(data) // 2] ^= 4
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "removed": lambda path: path.unlink(),
    "emptied": lambda path: path.write_bytes(b""),
    "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "no UTF-8": lambda path: path.write_bytes(b"\xff\xfe" + path.read_bytes()),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "one flipped bit": _flip,
    "other lines": lambda path: path.write_text('[]\n3\n"x"\n{"step": {}}\n'),
    "null": lambda path: path.write_text("null"),
    "100,000 deep": lambda path: path.write_text("[" * 100_000),
    "doubled": lambda path: path.write_bytes(path.read_bytes() * 2),
    "a pipe": partial(_swap, make=os.mkfifo),
    "a folder": partial(_swap, make=Path.mkdir),
    "a link to itself": lambda path: _swap(path, lambda p: p.symlink_to(p)),
    "a link to /dev/zero": lambda path: _swap(path, lambda p: p.symlink_to("/dev/zero")),
    "a link out": lambda path: path.symlink_to(path.rename(path.parents[1] / "out")),
    "not to be read": lambda path: path.chmod(0),
    "not to be written": lambda path: path.chmod(0o444),
}


def damage(path: Path, draw: Random) -> str:
    """Damage a file: a field if it is JSON, its bytes, or what it is; returns what was done."""
    if path.suffix in (".json", ".jsonl") and draw.random() < 0.5:
        return edit(path, draw)
    if draw.random() < 0.5:
        path.write_bytes(mutant(path.read_bytes(), draw))
        return f"{path.name}, other bytes"
    name = draw.choice(list(DAMAGES))
    DAMAGES[name](path)
    return f"{path.name} {name}"

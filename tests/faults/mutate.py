"""Damage to bytes and to JSON, drawn at random."""

import struct
import zlib
from collections.abc import Iterator
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


REMOVED = object()
"""Stands for no such key."""


def leaves(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The way to every value of parsed JSON, the inner objects and lists too."""
    if path:
        yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        if isinstance(key, str) or key < 3:  # the fourth of a list teaches nothing new
            yield from leaves(value, (*path, key))


def replaced(data: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """Parsed JSON with the value at a path replaced; the last key may be new."""
    if not path:
        return value
    first, *rest = path
    copy: Any = dict(data) if isinstance(data, dict) else list(data)
    if value is REMOVED and not rest:
        del copy[first]
    else:
        copy[first] = replaced(copy[first], tuple(rest), value) if rest else value
    return copy

"""Read the heads of the pages of a Parquet file, to learn their sizes before anything is unpacked.

Arrow unpacks a page into as many bytes as its head promises, up to 2 GiB from a few kilobytes, and the sums
in the file's metadata need not be true. A head is a structure of Thrift's compact protocol, a format of its
own; its fields are the fields of `PageHeader` in parquet.thrift.
"""

import os
from collections.abc import Iterator
from typing import BinaryIO

_DEEPEST = 8  # nested structures; a head has two levels

_UNPACKED, _PACKED, _DATA, _DICTIONARY, _DATA_2 = 2, 3, 5, 7, 8  # fields of a head
_LARGEST_HEAD = 16 << 20  # bytes, as in Arrow
_VALUES = 1  # the first field of each of the last three

_Head = dict[int, "int | _Head"]


def page_sizes(stream: BinaryIO, start: int, length: int, rows: int) -> Iterator[tuple[int, int]]:
    """Yield the bytes of each page of a column of a row group, unpacked and in the file.

    Args:
        stream: the file.
        start: where the pages begin.
        length: their bytes together.
        rows: of the row group, each with one value of the column.

    Raises:
        ValueError: the heads contradict each other, the file or the number of rows.
    """
    end = start + length
    while start < end:
        stream.seek(start)
        head = _structure(stream, _DEEPEST, min(end, start + _LARGEST_HEAD))
        size = stream.tell() - start
        unpacked, packed = head.get(_UNPACKED), head.get(_PACKED)
        if not isinstance(unpacked, int) or not isinstance(packed, int) or min(unpacked, packed) < 0:
            raise ValueError(f"the head of the page at byte {start:,} has no lengths")
        # A dictionary's values take four bytes each; a data page's, one a row, may take none.
        for field, most in ((_DATA, rows), (_DATA_2, rows), (_DICTIONARY, unpacked)):
            part = head.get(field)
            values = part.get(_VALUES, 0) if isinstance(part, dict) else 0
            if not isinstance(values, int) or not 0 <= values <= most:
                raise ValueError(f"the page at byte {start:,} promises {values} values of at most {most:,}")
        yield unpacked, packed
        start += size + packed
    if start != end:
        raise ValueError(f"the pages end at byte {start:,}, expected {end:,}")


def _structure(stream: BinaryIO, deepest: int, end: int) -> _Head:
    """Read a structure that ends before byte `end`: its numbers and structures, by the fields' numbers."""
    if not deepest:
        raise ValueError("structures within structures")
    fields, number = _Head(), 0
    while head := _byte(stream):
        if stream.tell() > end:
            raise ValueError("the head of a page does not end")
        kind, step = head & 15, head >> 4  # by how much the number of the field grows; 0: it follows
        number = number + step if step else _signed(stream)
        match kind:
            case 1 | 2:  # true and false have no bytes
                pass
            case 3:
                _byte(stream)
            case 4 | 5 | 6:
                fields[number] = _signed(stream)
            case 7:
                stream.seek(8, os.SEEK_CUR)
            case 8:
                length = _unsigned(stream)
                if length > end - stream.tell():
                    raise ValueError("the head of a page is cut short")
                stream.seek(length, os.SEEK_CUR)
            case 12:
                fields[number] = _structure(stream, deepest - 1, end)
            case _:
                raise ValueError(f"a value of kind {kind} in the head of a page")
    return fields


def _byte(stream: BinaryIO) -> int:
    data = stream.read(1)
    if not data:
        raise ValueError("the head of a page is cut short")
    return data[0]


def _unsigned(stream: BinaryIO) -> int:
    """Read a number of seven bits a byte, the lowest first."""
    number = 0
    for shift in range(0, 70, 7):  # 64 bits are ten bytes
        byte = _byte(stream)
        number |= (byte & 127) << shift
        if byte < 128:
            return number
    raise ValueError("a number of more than 64 bits in the head of a page")


def _signed(stream: BinaryIO) -> int:
    number = _unsigned(stream)
    return number >> 1 ^ -(number & 1)

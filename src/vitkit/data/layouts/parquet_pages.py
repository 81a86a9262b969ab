"""Read the heads of the pages of a Parquet file, to learn their sizes before anything is unpacked.

Arrow unpacks a page into as many bytes as its head promises, up to 2 GiB from a few kilobytes, and the sums
in the file's metadata need not be true. A head is a structure of Thrift's compact protocol, a format of its
own; its fields are the fields of `PageHeader` in parquet.thrift.
"""

from collections.abc import Iterator
from typing import BinaryIO

_HEAD_BYTES = 512  # nearly every head; one with statistics of long values is read again
_LARGEST_HEAD = 16 << 20  # bytes, as in Arrow
_DEEPEST = 8  # nested structures; a head has two levels

_UNPACKED, _PACKED, _DATA, _DICTIONARY, _DATA_2 = 2, 3, 5, 7, 8  # fields of a head
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
        head, size = _read_head(stream, start)
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


def _read_head(stream: BinaryIO, start: int) -> tuple[_Head, int]:
    """Return the head of the page at a byte, and its length."""
    for most in (_HEAD_BYTES, _LARGEST_HEAD):
        stream.seek(start)
        data = _Bytes(stream.read(most))
        try:
            return data.structure(_DEEPEST), data.at
        except IndexError:  # it goes on
            continue
    raise ValueError(f"the head of the page at byte {start:,} is cut short")


class _Bytes:
    """Bytes in Thrift's compact protocol, read one field after the other. Raises IndexError at their end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def structure(self, deepest: int) -> _Head:
        """Read a structure: its whole numbers and structures, by the numbers of their fields."""
        if not deepest:
            raise ValueError("structures within structures")
        fields, number = _Head(), 0
        for kind, step in self._fields():
            number = number + step if step else self._signed()
            value = self._value(kind, deepest)
            if value is not None:
                fields[number] = value
        return fields

    def _fields(self) -> Iterator[tuple[int, int]]:
        """Yield the kind of each field, and by how much its number grows; 0: the number follows."""
        while head := self._byte():
            yield head & 15, head >> 4

    def _value(self, kind: int, deepest: int) -> "int | _Head | None":
        """Read a whole number or a structure, and step over any other value."""
        match kind:
            case 1 | 2:  # true and false have no bytes
                return None
            case 3:
                self._step(1)
            case 4 | 5 | 6:
                return self._signed()
            case 7:
                self._step(8)
            case 8:
                self._step(self._unsigned())
            case 12:
                return self.structure(deepest - 1)
            case _:
                raise ValueError(f"a value of kind {kind} in the head of a page")
        return None

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _step(self, count: int) -> None:
        if self.at + count > len(self.data):
            raise IndexError
        self.at += count

    def _unsigned(self) -> int:
        """Read a number of seven bits a byte, the lowest first."""
        number = 0
        for shift in range(0, 70, 7):  # 64 bits are ten bytes
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
        raise ValueError("a number of more than 64 bits in the head of a page")

    def _signed(self) -> int:
        number = self._unsigned()
        return number >> 1 ^ -(number & 1)

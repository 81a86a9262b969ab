"""Damaged and odd tables of labels: every image with a right label, or one clean refusal."""

import csv
import ctypes
import io
import zlib
from abc import abstractmethod
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.faults.entry import Refusal, read_labels
from tests.faults.harness import Kind, Outcome, forget_peak
from tests.faults.mutate import REPLACEMENTS, json_text, mutant

IMAGES = 12

ODD_TEXTS = (
    "", " ", '"', '"x', 'x"', '""', "\0", "a\0b", "\x1b[2J", "\x85", "a\x0bb", "a\u2028b", "\ufeff", "a\rb",
    "a\nb", "9" * 5000, "-" + "1" * 5000, "x" * 2000, "x" * 200_000, "=1+1", "'=1", "../../x", "/etc/passwd",
    "..\\x", "C:\\x", "a\\b", "é\u202e", "٣", "²", ";", "|", ",", "\t", "NaN", "1e400", "None", "-1", "007",
    "a;b", "a;;b", ";;;", "test", "TRAIN", "holdout", "~", "~x", "http://x/y", "x" * 300 + ".png", "a/../b",
)  # fmt: skip
ODD_HEADERS = (
    "path,label", "label,path", "path,path,label", "path,label,label", "PATH;Label", "path\tlabel", "path",
    "", ",", "path,label,", "path,label,split", "path,labels", "file name,class-name", '"path","label', "\0",
)  # fmt: skip


def png(number: int) -> bytes:
    """A small image, made without a library: grey of 8 x 8 pixels."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return len(body).to_bytes(4) + name + body + zlib.crc32(name + body).to_bytes(4)

    head = (8).to_bytes(4) + (8).to_bytes(4) + bytes((8, 0, 0, 0, 0))
    rows = b"".join(b"\0" + bytes([number * 20 % 256] * 8) for _ in range(8))
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


class Labels(Kind):
    """A data set whose labels are odd or damaged, opened and read image by image."""

    limit = 60.0
    # Twelve images of 8 x 8 pixels take next to nothing; Arrow and its pools some 50 MiB.
    most_memory = 256 << 20
    ever_several = always_several = False
    """Whether images have several labels, at times or always."""

    def prepare(self, folder: Path) -> None:
        """Nothing is shared: the data sets are small."""

    @abstractmethod
    def write(self, number: int, draw: Random, folder: Path, several: bool) -> tuple[Path, str]:
        """Write a data set of one label an image, or of several; returns its path and what is odd."""

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        for image in range(IMAGES):
            (folder / f"{image}.png").write_bytes(png(image))
        several = self.always_several or (self.ever_several and draw.random() < 0.5)
        path, odd = self.write(number, draw, folder, several)
        # Freed memory goes back to the system, so that making a bomb does not count as reading it.
        pa.default_memory_pool().release_unused()
        ctypes.CDLL(None).malloc_trim(0)
        forget_peak()
        outcome = tried(path, several)
        return Outcome(outcome.verdict, f"{odd}: {outcome.detail}")


def tried(path: Path, several: bool) -> Outcome:
    """Class names that are names, labels that are theirs, and nothing read from elsewhere."""
    try:
        names, labels, files = read_labels(path, several)
    except Refusal as refusal:
        said = str(refusal)
        if "\n" in said or len(said) > 2000:
            return Outcome("wrong", f"no sentence: {said[:300]!r}")
        return Outcome("words", said)
    root = path if path.is_dir() else path.parent
    outside = [file for file in files if not file.resolve().is_relative_to(root.resolve())]
    if outside:
        return Outcome("wrong", f"{outside[0]} is not in the data set")
    odd = [
        name
        for name in names
        if len(name) > 1000 or any(ord(sign) < 32 or 127 <= ord(sign) < 160 for sign in name)
    ]
    if odd or len(set(names)) != len(names):
        return Outcome("wrong", f"classes of the names {[name[:40] for name in odd or names]}")
    if labels.ndim == 1 and len(labels) and not 0 <= labels.min() <= labels.max() < len(names):
        return Outcome("wrong", f"labels from {labels.min()} to {labels.max()} of {len(names)} classes")
    if labels.ndim == 2 and labels.shape[1] != len(names):
        return Outcome("wrong", f"labels of shape {labels.shape} of {len(names)} classes")
    return Outcome("right")


class Csv(Labels):
    """A CSV with an odd cell, header or delimiter, or with damaged bytes."""

    name, count = "csv", 3_000
    ever_several = True
    sample = tuple(range(60))

    def write(self, number: int, draw: Random, folder: Path, several: bool) -> tuple[Path, str]:
        path = folder / "x.csv"
        usual = ("cat", "dog;cat", "") if several else ("cat", "dog", "bird")
        rows = [[f"{image}.png", usual[image % 3]] for image in range(IMAGES)]
        header, odd = "path,label", ""
        match number % 3:
            case 0:  # a cell as a program writes it
                odd = draw.choice(ODD_TEXTS)
                rows[draw.randrange(IMAGES)][draw.randrange(2)] = odd
                stream = io.StringIO()
                csv.writer(stream, lineterminator=draw.choice(("\n", "\r\n", "\r"))).writerows(rows)
                data = f"{header}\n{stream.getvalue()}".encode()
            case 1:  # and as a person types it
                odd, header = draw.choice(ODD_TEXTS), draw.choice(ODD_HEADERS)
                rows[draw.randrange(IMAGES)][draw.randrange(2)] = odd
                delimiter = draw.choice((",", ",", ";", "\t"))
                data = "\n".join([header, *(delimiter.join(row) for row in rows)]).encode()
                odd = f"{header!r}, {odd}"
            case _:
                data = mutant("\n".join([header, *(",".join(row) for row in rows)]).encode(), draw)
                odd = "damaged"
        path.write_bytes(draw.choice((b"", b"", b"", b"\xef\xbb\xbf", b"\xff\xfe")) + data)
        return path, odd[:40]


class LabelFiles(Labels):
    """Text files of labels beside their images, one or some of which are odd or damaged."""

    name, count = "label_files", 3_000
    always_several = True
    sample = tuple(range(40))

    def write(self, number: int, draw: Random, folder: Path, several: bool) -> tuple[Path, str]:
        for image in range(IMAGES):
            (folder / f"{image}.txt").write_bytes(draw.choice((b"", b"cat\n", b"cat\ndog", b"1\r\n2")))
        odd, path = draw.choice(ODD_TEXTS), folder / f"{draw.randrange(IMAGES)}.txt"
        text = draw.choice((odd, f"cat\n{odd}\n", f"{odd}\r{odd}", f"0 {odd} 0.5 0.5 0.5")).encode()
        path.write_bytes(mutant(text or b"cat", draw) if number % 3 == 0 else text)
        return folder, odd[:40]


def _types() -> dict[str, Callable[[Random], Any]]:
    """Columns of twelve labels of every type that Arrow has, whole and odd."""
    whole = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
    third = [number % 3 for number in range(IMAGES)]
    odd_numbers = (0.9, -1.0, float("nan"), float("inf"), 1e30, 3.0, -0.0, None)

    def numbers(kind: Any) -> Callable[[Random], Any]:
        return lambda draw: pa.array(third, kind)

    def floats(kind: Any) -> Callable[[Random], Any]:
        return lambda draw: _replaced(list(map(float, third)), draw.choice(odd_numbers), draw, kind)

    columns = {str(kind): numbers(kind) for kind in whole}
    columns |= {str(kind): floats(kind) for kind in (pa.float32(), pa.float64())}
    columns |= {
        "halves": lambda draw: pa.array(np.array(third, np.float16)),
        "a large number": lambda draw: _replaced(
            list(third), draw.choice((2**63 - 1, -(2**63), 3, -1, -2)), draw
        ),
        "a larger number": lambda draw: _replaced(list(third), 2**64 - 1, draw, pa.uint64()),
        "truth": lambda draw: pa.array([draw.choice((True, False, None)) for _ in third]),
        "text": lambda draw: _replaced(list(map(str, third)), draw.choice((*ODD_TEXTS, None)), draw),
        "numbered text": lambda draw: pa.array(list(map(str, third))).dictionary_encode(),
        "bytes": lambda draw: pa.array([b"a", b"\xff", b""] * 4),
        "lists": lambda draw: pa.array([[1], [], [1, 2], None] * 3),
        "text in lists": lambda draw: pa.array([["a"], [], ["b", "c"], None] * 3),
        "structs": lambda draw: pa.array([{"x": 1, "y": [1]}, None] * 6),
        "maps": lambda draw: pa.array([[("a", 1)], None] * 6, pa.map_(pa.string(), pa.int64())),
        "decimals": lambda draw: pa.array([Decimal("1.5"), None] * 6),
        "dates": lambda draw: pa.array([date(2026, 1, 1), None] * 6),
        "times": lambda draw: pa.array([time(1), None] * 6),
        "moments": lambda draw: pa.array([datetime(2026, 1, 1), None] * 6),
        "moments far away": lambda draw: pa.array([2**62, 1] * 6, pa.timestamp("ns")),
        "durations": lambda draw: pa.array([timedelta(1), None] * 6),
        "nothing": lambda draw: pa.nulls(IMAGES),
    }
    return columns


def _replaced(values: list[Any], odd: object, draw: Random, kind: Any = None) -> Any:
    values[draw.randrange(IMAGES)] = odd
    return pa.array(values, kind)


TYPES = _types()


class ParquetTables(Labels):
    """Parquet files with labels of every type, with odd metadata, with damaged bytes, and that grow."""

    name, count = "parquet", 3_000
    sample = tuple(range(60))
    most_memory = 512 << 20  # a page of 128 MiB is let in, and Arrow copies it twice

    def write(self, number: int, draw: Random, folder: Path, several: bool) -> tuple[Path, str]:
        path = folder / "train.parquet"
        images: Any = pa.array([{"bytes": png(image), "path": None} for image in range(IMAGES)])
        kind = list(TYPES)[number // 4 % len(TYPES)] if number % 4 == 0 else draw.choice(("int64", "text"))
        labels, metadata, odd = TYPES[kind](draw), None, kind
        if draw.random() < 0.5 or number % 4 == 1:
            features: Any = {"label": {"names": ["a", "b", "c"]}}
            if number % 4 == 1:
                value = draw.choice(
                    (*REPLACEMENTS, "abc", ["a", "a", "b"], ["a", 1, "c"], ["a", "\x1b", "c"])
                )
                odd = f"names {str(value)[:30]}"
                place = draw.choice(("names", "label", "all", "raw"))
                shapes: dict[str, Any] = {"names": {"label": {"names": value}}, "label": {"label": value}}
                features = shapes.get(place, value)
                if place == "raw":
                    metadata = draw.choice(("", "{", "[]", '"x"', "\0", "[" * 100_000, "1" * 10_000))
            metadata = metadata or json_text({"info": {"features": features}})
        if number % 20 == 2:  # seldom, as it takes seconds to make one
            odd = draw.choice(list(BOMBS))
            images, labels = BOMBS[odd](draw)
        table = pa.table({"image": images, "label": labels})
        if metadata is not None:
            table = table.replace_schema_metadata({"huggingface": metadata})
        pq.write_table(
            table,
            path,
            # A bomb that is not packed is as large a file as what it becomes.
            compression=draw.choice(
                ("snappy", "zstd", "gzip") if odd in BOMBS else ("none", "snappy", "zstd")
            ),
            use_dictionary=draw.random() < 0.5 or "rows" in odd,  # in which they take next to nothing
            row_group_size=1 << 20 if "rows" in odd else draw.choice((5, 1 << 20)),
            data_page_version=draw.choice(("1.0", "2.0")),
            store_schema=draw.random() < 0.5,
        )
        if number % 4 > 1 and number % 20 != 2:
            path.write_bytes(_damaged(path.read_bytes(), draw))
            odd = "damaged"
        return path, odd


def _damaged(data: bytes, draw: Random) -> bytes:
    """Damage a Parquet file: anywhere, in its pages, or in its metadata, whose length stays right."""
    length = int.from_bytes(data[-8:-4], "little")
    pages, metadata = data[: -8 - length], data[-8 - length : -8]
    match draw.randrange(3):
        case 0:
            return mutant(data, draw)
        case 1:
            return mutant(pages, draw)[: len(pages)].ljust(len(pages), b"\0") + data[len(pages) :]
        case _:
            metadata = mutant(metadata, draw)
            return pages + metadata + len(metadata).to_bytes(4, "little") + b"PAR1"


def _many(value: Any, count: int) -> Any:
    """A column with a single value in all rows."""
    return pa.array([value]).take(pa.array(np.zeros(count, np.int32)))


BOMBS: dict[str, Callable[[Random], tuple[Any, Any]]] = {
    "images of 10 MB of zeros": lambda draw: (pa.array([bytes(10_000_000)] * 12), pa.array([0, 1, 2] * 4)),
    "an image of 200 MB of zeros": lambda draw: (
        pa.array([bytes(200_000_000), *[png(1)] * 11]),
        pa.array([0, 1, 2] * 4),
    ),
    "labels of 10 MB": lambda draw: (_many(png(0), 12), _many("x" * 10_000_000, 12)),
    "two million rows": lambda draw: (_many(b"", 2_000_000), pa.array(np.arange(2_000_000) % 3)),
    "50,000 rows of the same": lambda draw: (_many(b"", 50_000), pa.array(np.arange(50_000) % 3)),
    "no rows": lambda draw: (pa.array([], pa.binary()), pa.array([], pa.int64())),
}

"""Parquet files with labels of every type, damage, and a few bytes that become many."""

import datetime
import json
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.image_folders import WHOLE, image_bytes
from tests.helpers.refusals import refused, undecodable
from vitkit.data.config import DecodeRule, Splits
from vitkit.data.decode.image import decode
from vitkit.data.layouts import parquet
from vitkit.data.sources import ImageData, open_data
from vitkit.errors import VitkitError

NAMES, CATS = ["a", "b", "c"], ["cat", "dog"]


def write(
    folder: Path,
    labels: Any,
    names: Any = None,
    images: Any = None,
    metadata: str | None = None,
    name: str = "train.parquet",
    columns: tuple[str, str] = ("image", "label"),
    first: int = 0,
    more: Mapping[str, Any] | None = None,
    **options: Any,
) -> Path:
    """Write a Parquet file into a folder, whose images have each another grey, from the `first` on."""
    if images is None:
        images = [{"bytes": image_bytes(first + number), "path": None} for number in range(len(labels))]
    table = pa.table({columns[0]: images, columns[1]: labels, **(more or {})})
    if names is not None:
        metadata = json.dumps({"info": {"features": {columns[1]: {"names": names}}}})
    if metadata is not None:
        table = table.replace_schema_metadata({"huggingface": metadata})
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / name, **options)
    return folder


def read(folder: Path) -> ImageData:
    return open_data(str(folder), WHOLE)


def features(value: object) -> str:
    return json.dumps({"info": {"features": {"label": value}}})


REFUSED: list[tuple[dict[str, Any], str]] = [
    # Labels that are none:
    ({"labels": [0.0, 0.9, 1.8]}, r"train\.parquet row 1: .* label is 0\.9 \(double\), expected a"),
    ({"labels": pa.array([0.0, float("nan"), 1.0])}, r"row 1: .* is nan \(double\)"),
    ({"labels": pa.array([0.0, 1.0, float("inf")], pa.float32())}, r"row 2: .* is inf \(float\)"),
    ({"labels": [[0, 1], [1], [2]]}, r"column label holds list<.*int64>.* give task multi-label"),
    ({"labels": pa.array([[0, 1]] * 3, pa.list_(pa.int64(), 2))}, "give task multi-label"),
    ({"labels": pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int64()))}, "holds map<"),
    ({"labels": [{"x": 1}, {"x": 2}, {"x": 1}]}, r"holds struct<x: int64>, expected .* Write the labels"),
    ({"labels": [datetime.date(2026, 1, 1)] * 3}, r"holds date32\[day\], expected whole numbers or text"),
    ({"labels": [b"a", b"b", b"a"]}, "holds binary, expected whole numbers or text"),
    ({"labels": pa.array([2**63, 0, 1], pa.uint64())}, "found 0 to 9223372036854775808"),
    ({"labels": [-2, 0, 1]}, "labels from 0 to 2 .*found -2 to 1"),
    ({"labels": pa.nulls(3)}, "expected labels in the column label, found none"),
    ({"labels": ["a", "b\x1b", "c"]}, r"row 1, column label: the label 'b\\x1b' holds a control character"),
    ({"labels": ["a", "b" * 5000, "c"]}, "row 1, column label: a label of 5,000 characters"),
    # Names that are none:
    ({"metadata": features({"names": "abc"})}, r"names the classes of label 'abc', expected a list"),
    ({"metadata": features({"names": [0, 1, 2]})}, r"label \[0, 1, 2\], expected a list of texts"),
    ({"metadata": features({"names": {"0": "a"}})}, "expected a list of texts"),
    ({"names": ["a", "b", "a"]}, "several classes of the same name: a"),
    ({"names": ["a", "b\x1b", "c"]}, "in its metadata: the label .* a control char"),
    ({"metadata": "[" * 100_000 + "]" * 100_000}, "is nested too deeply"),
    ({"names": ["a", "b"]}, "labels from 0 to 1 .*found 0 to 2"),
    # Images that are none:
    *(
        ({"images": pa.array([image] * 3, kind)}, "image holds .*, expected the bytes of an image file")
        for image, kind in (("x", None), ([1], None), (1, None), ({"path": "x"}, None), (b"xy", pa.binary(2)))
    ),
]


@pytest.mark.parametrize(("columns", "message"), REFUSED)
def test_columns_and_names_that_are_none_are_refused(
    columns: dict[str, Any], message: str, tmp_path: Path
) -> None:
    names = None if "metadata" in columns else NAMES
    write(tmp_path, **{"labels": [0, 1, 2], "names": names, **columns})
    assert "\n" not in refused(message, read, tmp_path)


def test_labels_of_every_width_are_read(tmp_path: Path) -> None:
    kinds = (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
    numbers, halves = pa.array([2, 0, 1, 1]), pa.array(np.array([2, 0, 1, 1], np.float16))
    for labels in (*map(numbers.cast, kinds), [2.0, 0.0, 1.0, 1.0], halves, numbers.dictionary_encode()):
        data = read(write(tmp_path, labels, NAMES))
        assert data.class_names == ("a", "b", "c") and data.splits["train"].labels.tolist() == [2, 0, 1, 1]
    assert read(write(tmp_path, [True, False, True], NAMES)).splits["train"].labels.tolist() == [1, 0, 1]
    text = pa.array(["z", "y", "z", "y"])
    for labels in (text, text.cast(pa.large_string()), text.dictionary_encode()):
        data = read(write(tmp_path, labels, NAMES))
        assert data.class_names == ("y", "z") and data.splits["train"].labels.tolist() == [1, 0, 1, 0]


def test_whole_floats_name_the_classes_as_whole_numbers(tmp_path: Path) -> None:
    assert read(write(tmp_path, [10.0, 9.0, 10.0, -1.0])).class_names == ("9", "10")
    assert read(write(tmp_path, pa.array([2**63, 7, 7], pa.uint64()))).class_names == ("7", str(2**63))
    assert read(write(tmp_path, [True, False, True])).class_names == ("False", "True")
    for metadata in ("", "{", "null", "[1]", '{"info": 3}', features([]), features({"names": None})):
        assert read(write(tmp_path, [0, 1, 2], metadata=metadata)).class_names == ("0", "1", "2")


def test_files_that_disagree_are_refused(tmp_path: Path) -> None:
    write(tmp_path, [0, 1], name="train-0.parquet")
    write(tmp_path, ["0", "cat"], name="train-1.parquet")
    refused("column label holds numbers, text in different Parquet files", read, tmp_path)
    for number, names in enumerate((["a", "b"], ["b", "a"])):
        write(tmp_path, [0, 1], names, name=f"train-{number}.parquet")
    refused(r"other classes in their metadata \((a, b; b, a|b, a; a, b)\)", read, tmp_path)
    (tmp_path / "README.md").write_text("  - name: label\n          '0': a\n          '2': b\n")
    for number in range(2):
        write(tmp_path, [0, 1], name=f"train-{number}.parquet")
    refused(r"README\.md: the names .* are not numbered from 0 without a gap", read, tmp_path)


# --- damage ---------------------------------------------------------------------------------------


def test_every_damage_is_one_sentence(tmp_path: Path) -> None:
    """Cut, or with bytes of another value at many places: pages, heads of pages and metadata."""
    write(tmp_path, [0, 1, 2] * 5, NAMES, row_group_size=5)
    path = tmp_path / "train.parquet"
    whole = path.read_bytes()
    messages = set()
    draw = np.random.default_rng(0)
    for place in range(4, len(whole), 41):
        for data in (whole[:place], whole[:place] + draw.bytes(4) + whole[place + 4 :]):
            path.write_bytes(data)
            try:
                samples = read(tmp_path).splits["train"]
                for index in range(len(samples)):
                    samples.file(index)
            except VitkitError as error:
                assert "\n" not in str(error)
                messages.add(str(error).partition(": ")[0])
    assert f"{path} cannot be read as Parquet" in messages


def test_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    write(tmp_path, ["aaaa", "bbbb"], compression="none", use_dictionary=False, write_statistics=False)
    path = tmp_path / "train.parquet"
    path.write_bytes(path.read_bytes().replace(b"bbbb", b"\xff\xfe\xff\xfe"))
    refused(r"train\.parquet cannot be read as Parquet: .*utf-8", read, tmp_path)


# --- a few bytes that become many -----------------------------------------------------------------


COUNTED = pa.proxy_memory_pool(pa.system_memory_pool())
"""Counts the memory of the tests below. It outlives what was read, which is given back to it."""


@contextmanager
def counted() -> Iterator[pa.MemoryPool]:
    """Let Arrow take its memory from a pool that knows the most it ever gave."""
    before = pa.default_memory_pool()
    pa.set_memory_pool(COUNTED)
    try:
        yield COUNTED
    finally:
        pa.set_memory_pool(before)


@pytest.mark.parametrize("dictionary", [False, True])
def test_a_small_file_does_not_fill_the_memory(
    dictionary: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 MB are in the file, and the limits, smaller than the real ones, let a fraction of it in.

    With a dictionary the metadata promise 200 kB.
    """
    images = pa.array([bytes(100_000)] * 400, pa.binary())  # in pages of one
    pages: dict[str, Any] = {"data_page_size": 1, "write_batch_size": 1, "row_group_size": 200}
    write(tmp_path, [0, 1] * 200, images=images, compression="zstd", use_dictionary=dictionary, **pages)
    assert (tmp_path / "train.parquet").stat().st_size < 200_000
    monkeypatch.setattr(parquet, "_PARQUET_IN_MEMORY", 4 << 20)
    monkeypatch.setattr(parquet, "_GROUP_BYTES", 2 << 20)
    monkeypatch.setattr(parquet, "_BATCH_BYTES", 1 << 20)
    with counted() as pool:
        data = read(tmp_path)
        samples = data.splits["train"]
        for index in (0, 150, 399, 5):
            undecodable("not an image of a format that is read here", samples.decode, index)
        assert 1 << 20 < pool.max_memory() < 10 << 20
    assert data.notes == ("The Parquet files are read by row group: in shuffled order that is slow.",)


def test_a_column_that_becomes_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [0, 1] * 5, images=pa.array([bytes(100_000)] * 10), use_dictionary=False)
    monkeypatch.setattr(parquet, "_LARGEST_COLUMN", 900_000)
    refused(r"kB of the column image become 1\.0 MB, more than is read", read, tmp_path)
    noise = np.random.default_rng(0)  # which is as large in the file, and can only be honest
    images = pa.array([noise.bytes(100_000) for _ in range(10)])
    write(tmp_path, [0, 1] * 5, images=images, use_dictionary=False)
    assert len(read(tmp_path).splits["train"]) == 10


def test_a_long_label_in_every_row_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, pa.array(["x" * 10_000] * 2_000), images=pa.array([b"x"] * 2_000))
    monkeypatch.setattr(parquet, "_BATCH_BYTES", 1 << 20)
    with counted() as pool:
        refused("row 0, column label: a label of 10,000", read, tmp_path)
    assert pool.max_memory() < 10 << 20


def test_rows_without_end_are_refused(tmp_path: Path) -> None:
    count = 3_000_000  # of one value each, which take no bytes
    images = pa.array([b"x"]).take(pa.array(np.zeros(count, np.int32)))
    write(tmp_path, pa.array(np.zeros(count, np.int8)), images=images)
    assert (tmp_path / "train.parquet").stat().st_size < 100_000
    refused("promises 3,000,000 rows in", read, tmp_path)
    said = "has 150,000,000 bytes, more than the 144,000,000 allowed"
    undecodable(said, decode, bytes(150_000_000), DecodeRule(max_pixels=1))


# --- order and processes --------------------------------------------------------------------------


def levels(samples: Any, order: Sequence[int]) -> list[int]:
    return [int(samples.decode(index)[0, 0, 0]) for index in order]


def test_rows_are_read_in_any_order_when_little_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 60
    write(tmp_path, [0, 1] * 30, row_group_size=25, data_page_size=1)
    monkeypatch.setattr(parquet, "_PARQUET_IN_MEMORY", 10)
    monkeypatch.setattr(parquet, "_GROUP_BYTES", 200)
    monkeypatch.setattr(parquet, "_BATCH_BYTES", 150)
    samples = read(tmp_path).splits["train"]
    order = np.random.default_rng(0).integers(0, count, 200).tolist()
    assert levels(samples, order) == order
    assert levels(pickle.loads(pickle.dumps(samples)), order) == order
    samples.decode(26)  # leaves a row group half read
    process = os.fork()
    if not process:
        os._exit(levels(samples, order) != order)
    assert os.waitpid(process, 0)[1] == 0
    assert levels(samples, range(27, count)) == list(range(27, count))
    # A fork shares the open file with its parent, and the place in it where a system keeps one.
    monkeypatch.setattr(parquet, "_GROUP_BYTES", 1 << 20)
    write(tmp_path, [0, 1] * 30, data_page_size=1)
    samples = read(tmp_path).splits["train"]
    opened = Mock(side_effect=parquet._ParquetRows._open)
    monkeypatch.setattr(parquet._ParquetRows, "_open", lambda *given: opened(*given))
    assert levels(samples, [0, 1, 2, 1]) == [0, 1, 2, 1] and not opened.called
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert levels(samples, [2, 30, 31]) == [2, 30, 31] and opened.call_count == 1


# Data sets as Hugging Face lays them out: class names, splits, groups, missing labels


def test_parquet_with_class_names_in_its_metadata(tmp_path: Path) -> None:
    root = tmp_path / "set"
    write(root, [1, 0, 1, 1, 0], CATS, name="data/train-00000-of-00002.parquet", row_group_size=2)
    write(root, [0, 0, 1], CATS, name="data/train-00001-of-00002.parquet", first=5, row_group_size=2)
    write(root, [1, 0], CATS, name="data/test-00000-of-00001.parquet", first=8)
    data = open_data(str(root), WHOLE)
    assert (data.name, data.kind, data.class_names) == ("set", "Parquet", ("cat", "dog"))
    assert data.splits["train"].labels.tolist() == [1, 0, 1, 1, 0, 0, 0, 1]
    assert [int(data.splits["train"].decode(index)[0, 0, 0]) for index in range(8)] == list(range(8))
    assert data.splits["train"].key(6) == "data/train-00001-of-00002.parquet row 1"
    assert int(data.splits["test"].decode(1)[0, 0, 0]) == 9
    assert data.notes == ()
    copy = pickle.loads(pickle.dumps(data.splits["train"]))  # what a spawned worker gets
    np.testing.assert_array_equal(copy.decode(7), data.splits["train"].decode(7))


def test_a_parquet_without_the_column_of_groups_is_one_sentence(tmp_path: Path) -> None:
    write(tmp_path, [0, 1, 0, 1], name="a.parquet", more={"scene": ["x", None, "y", "y"]})
    path = str(tmp_path / "a.parquet")
    refused(r"no column 'patient' .*image, label, scene", open_data, path, Splits(group="patient"))
    refused(r"a\.parquet row 1: scene is empty", open_data, path, Splits(group="scene"))


def test_parquet_names_from_the_card(tmp_path: Path) -> None:
    images = [image_bytes(number) for number in range(3)]
    write(tmp_path, [0, 1, 1], images=images, name="data/train-0.parquet", columns=("img", "fine_label"))
    (tmp_path / "README.md").write_text(
        "---\ndataset_info:\n  features:\n  - name: img\n    dtype: image\n  - name: fine_label\n    dtype:\n"
        "      class_label:\n        names:\n          '0': apple tree\n          '1': \"bear\"\n"
        "  - name: coarse_label\n    dtype:\n      class_label:\n        names:\n          '0': plant\n---\n"
    )
    data = open_data(str(tmp_path), WHOLE)
    assert data.class_names == ("apple tree", "bear")
    assert data.splits["train"].labels.tolist() == [0, 1, 1]


def test_parquet_splits_by_folder_and_a_single_file(tmp_path: Path) -> None:
    for split in ("train", "validation", "test"):
        write(tmp_path / split, ["a", "b"], name="0000.parquet", columns=("img", "labels"))
    assert list(open_data(str(tmp_path)).splits) == ["train", "val", "test"]
    write(tmp_path, [10, 9, 10], name="numbers.parquet")
    data = open_data(str(tmp_path / "numbers.parquet"), WHOLE)
    assert (data.name, data.class_names) == ("numbers", ("9", "10"))


def test_parquet_rows_without_label_or_bytes(tmp_path: Path) -> None:
    names = ["x", "y", "z"]
    write(tmp_path, [0, 1], names, name="train-0.parquet")
    write(tmp_path, [-1, -1], names, name="test-0.parquet")
    data = open_data(str(tmp_path), WHOLE)
    assert list(data.splits) == ["train"]
    assert data.notes == ("2 rows without a label ignored.", "1 class without images: z.")
    pq.write_table(pa.table({"image": [None, b""], "label": ["a", "b"]}), tmp_path / "train-0.parquet")
    (tmp_path / "test-0.parquet").unlink()
    train = open_data(str(tmp_path), WHOLE).splits["train"]
    for index in range(2):
        undecodable("empty", train.decode, index)


def test_parquet_columns_and_damage(tmp_path: Path) -> None:
    write(tmp_path, [0, 1], name="train-0.parquet")
    write(tmp_path, [0, 1], name="train-1.parquet", columns=("image", "kind"))
    refused("lacks the columns image and label", open_data, str(tmp_path))
    (tmp_path / "train-1.parquet").write_bytes(b"no parquet")
    refused("cannot be read", open_data, str(tmp_path))
    write(tmp_path, [0, 1], name="train-0.parquet", columns=("audio", "label"))
    refused("no image column", open_data, str(tmp_path / "train-0.parquet"))
    write(tmp_path, [0, 1], name="train-0.parquet")
    write(tmp_path, [0, 1], name="train-1.parquet")
    write(tmp_path, [0, 1], name="oddity.parquet")
    refused("no split in the name of oddity", open_data, str(tmp_path))

"""Every layout of data, whole and with each of the faults that must not pass silently."""

import io
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vitkit.data.config import DecodeRule, Splits
from vitkit.data.layouts import parquet
from vitkit.data.layouts.stratify import stratify
from vitkit.data.sources import ImageData, open_data
from vitkit.errors import DecodeError, VitkitError

WHOLE = Splits(0, 0)


def image_bytes(level: int = 0, size: tuple[int, int] = (4, 3)) -> bytes:
    stream = io.BytesIO()
    Image.new("L", size, level).save(stream, "PNG")
    return stream.getvalue()


def plant(root: Path, files: Mapping[str, int]) -> Path:
    """Class folders with so many images: {"train/cats": 3}."""
    for folder, count in files.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (root / folder / f"{number:03d}.png").write_bytes(image_bytes(number))
    return root


def keys(data: ImageData, split: str) -> list[str]:
    samples = data.splits[split]
    return [samples.key(index) for index in range(len(samples))]


def test_digits() -> None:
    data = open_data("digits")
    assert (data.name, data.kind) == ("digits", "built-in digits")
    assert data.class_names == tuple("0123456789")
    assert {split: len(samples) for split, samples in data.splits.items()} == {
        "train": 1257,
        "val": 180,
        "test": 360,
    }
    assert list(data.splits) == ["train", "val", "test"]
    assert "test: 360 images cut from train, stratified, seed 0 (20 %)." in data.notes
    every = sorted(key for split in data.splits for key in keys(data, split))
    assert every == [f"digit {number:04d}" for number in range(1797)]
    whole = open_data("digits", WHOLE)
    assert list(whole.splits) == ["train"] and whole.notes == ()
    from sklearn.datasets import load_digits

    images, targets = load_digits(return_X_y=True)
    train = whole.splits["train"]
    np.testing.assert_array_equal(train.labels, targets)
    for index in (0, 1, 1796):
        expected = np.round(images[index].reshape(8, 8, 1) * 255 / 16).repeat(3, axis=2)
        np.testing.assert_array_equal(train.decode(index), expected)
        assert train.size(index) == (8, 8)


def test_folder_of_class_folders(tmp_path: Path) -> None:
    root = plant(tmp_path / "pets", {"dogs": 5, "cats": 4, "cats/deeper/still": 2})
    (root / "cats" / "UPPER.JPG").write_bytes(image_bytes())
    data = open_data(str(root), WHOLE)
    assert (data.name, data.kind, data.class_names) == ("pets", "folder of class folders", ("cats", "dogs"))
    train = data.splits["train"]
    assert train.labels.tolist() == [0] * 7 + [1] * 5
    assert train.labels.dtype == np.int64
    assert train.key(6) == "cats/deeper/still/001.png"
    assert train.file(6) == root / "cats/deeper/still/001.png"
    assert train.decode(6).shape == (3, 4, 3)
    assert train.header(6).format == "PNG"
    assert data.notes == ()


def test_folder_with_splits(tmp_path: Path) -> None:
    root = plant(
        tmp_path, {f"{split}/{name}": 2 for split in ("train", "Valid", "test") for name in ("a", "b")}
    )
    data = open_data(str(root))
    assert {split: len(samples) for split, samples in data.splits.items()} == {
        "train": 4,
        "val": 4,
        "test": 4,
    }
    assert keys(data, "val")[0] == "Valid/a/000.png"
    assert data.notes == ()


def test_missing_splits_are_cut_from_train(tmp_path: Path) -> None:
    root = plant(tmp_path, {"train/a": 20, "train/b": 20, "validation/a": 1, "validation/b": 1})
    data = open_data(str(root))
    assert {split: len(samples) for split, samples in data.splits.items()} == {
        "train": 32,
        "val": 2,
        "test": 8,
    }
    assert data.notes == ("test: 8 images cut from train, stratified, seed 0 (20 %).",)
    assert list(open_data(str(root), Splits(test_fraction=0)).splits) == ["train", "val"]


def test_hidden_and_foreign_files_are_passed_over(tmp_path: Path) -> None:
    root = plant(tmp_path, {"a": 2, "b": 2, ".ipynb_checkpoints": 3, "__MACOSX": 1, "a/.cache": 2})
    (root / "a" / "Thumbs.db").write_bytes(b"x")
    (root / "a" / "._000.png").write_bytes(b"x")
    (root / "b" / "notes.txt").write_text("x")
    (root / "loose.png").write_bytes(image_bytes())
    data = open_data(str(root), WHOLE)
    assert data.class_names == ("a", "b")
    assert len(data.splits["train"]) == 4
    assert data.notes == (
        "5 hidden files or folders ignored.",
        "1 file in class folders ignored: not images by their names.",
        "1 image outside any class folder ignored.",
    )


def test_folders_beside_train_are_named(tmp_path: Path) -> None:
    root = plant(tmp_path, {"train/a": 1, "train/b": 1, "extra": 4})
    assert open_data(str(root), WHOLE).notes == ("1 folder beside train/ ignored: extra.",)


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    plant(tmp_path / "elsewhere", {"x": 2})
    root = plant(tmp_path / "data", {"a": 1, "b": 1})
    (root / "a" / "more").symlink_to(tmp_path / "elsewhere" / "x")
    (root / "b" / "circle").symlink_to(root / "b")
    data = open_data(str(root), WHOLE)
    assert data.splits["train"].labels.tolist() == [0, 0, 0, 1]
    assert data.notes == ("1 link to a folder above not followed: b/circle.",)


def test_links_to_folders_above_are_not_followed(tmp_path: Path) -> None:
    """Followed, they would put the images of every class into one, or make a class of all."""
    root = plant(tmp_path / "data", {"a": 2, "a/deeper": 1, "b": 2})
    before = keys(open_data(str(root), WHOLE), "train")
    (root / "a" / "deeper" / "up").symlink_to(root)
    (root / "b" / "far").symlink_to(tmp_path)
    (root / "all").symlink_to(root)
    data = open_data(str(root), WHOLE)
    assert keys(data, "train") == before and data.class_names == ("a", "b")
    assert data.notes == ("3 links to a folder above not followed: a/deeper/up, all, b/far.",)


def test_a_link_to_itself_is_one_bad_file(tmp_path: Path) -> None:
    root = plant(tmp_path / "data", {"a": 2, "b": 2})
    (root / "a" / "loop.png").symlink_to(root / "a" / "loop.png")
    (root / "a" / "loop").symlink_to(root / "a" / "loop")
    (root / "loop").symlink_to(root / "loop")
    data = open_data(str(root), WHOLE)
    train = data.splits["train"]
    assert len(train) == 5 and train.key(2) == "a/loop.png"
    with pytest.raises(DecodeError, match=r"cannot be read: .*symbolic links"):
        train.decode(2)
    assert data.notes == ("1 file in class folders ignored: not images by their names.",)


@pytest.mark.timeout(600)
def test_a_pipe_is_one_bad_file(tmp_path: Path) -> None:
    root = plant(tmp_path / "data", {"a": 2, "b": 2})
    os.mkfifo(root / "a" / "x.png")
    train = open_data(str(root), WHOLE).splits["train"]
    with pytest.raises(DecodeError, match="a named pipe, not a regular file"):
        train.header(2)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
def test_tables_that_are_no_regular_files(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / name).symlink_to("/dev/zero")
    for path, kind in ((tmp_path / name, "a named pipe"), (tmp_path / "link" / name, "a device")):
        with pytest.raises(VitkitError, match=f"{kind}, not a regular file"):
            open_data(str(path))
    with pytest.raises(VitkitError, match="a folder, not a regular file" if name == "x.csv" else "folder"):
        (tmp_path / "folder" / name).mkdir(parents=True)
        open_data(str(tmp_path / "folder" / name))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
        (lambda path: path.with_name("x" * 300), "File name too long"),
        (lambda path: path.with_name("a\0b"), "null byte"),
        (lambda path: Path(f"{path}/a/b"), "no such file or folder"),
        (lambda path: "https://example.org/images", "is an address: download the images"),
    ],
)
def test_paths_that_cannot_be_opened(make: Any, reason: str, tmp_path: Path) -> None:
    spec = str(make(tmp_path / "data") or tmp_path / "data")
    with pytest.raises(VitkitError, match=reason):
        open_data(spec)


def test_names_that_are_not_unicode(tmp_path: Path) -> None:
    root = plant(tmp_path, {"a": 1, "b": 1})
    try:
        with open(os.fsencode(root / "a") + b"/\xff.png", "wb") as stream:  # noqa: PTH123
            stream.write(image_bytes())
    except OSError:
        pytest.skip("this file system wants Unicode")
    train = open_data(str(root), WHOLE).splits["train"]
    assert train.key(1) == "a/\\xff.png"
    assert train.decode(1).shape == (3, 4, 3)


def test_unreadable_images_are_listed_and_fail_when_decoded(tmp_path: Path) -> None:
    root = plant(tmp_path, {"a": 1, "b": 1})
    (root / "a" / "empty.jpg").touch()
    train = open_data(str(root), WHOLE).splits["train"]
    with pytest.raises(DecodeError, match="empty"):
        train.decode(1)
    with pytest.raises(DecodeError, match="empty"):
        train.size(1)


def test_the_rule_is_obeyed(tmp_path: Path) -> None:
    root = plant(tmp_path, {"a": 1, "b": 1})
    with pytest.raises(DecodeError, match="limit of 5"):
        open_data(str(root), WHOLE, DecodeRule(max_pixels=5)).splits["train"].decode(0)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"a": 2, "b": 0}, "no images in the class folder b"),
        (
            {"train/a": 2, "train/b": 2, "test/a": 1, "test/b": 0},
            r"\(test\): no images in the class folder b",
        ),
        ({"a": 3}, "one class, 'a'"),
        ({"train/a": 1, "train/b": 1, "val/a": 1}, "only in train: b"),
        ({"train/a": 1, "train/b": 1, "val/a": 1, "val/b": 1, "val/c": 1}, "only in val: c"),
        ({"train/a": 1, "train/b": 1, "val/a": 1, "val/c": 1}, "only in train: b; only in val: c"),
        ({"a": 0, "b": 0}, "No images in"),
        ({}, "No images in"),
        ({"test/a": 1, "test/b": 1}, "no train/"),
        ({"train/a": 1, "train/b": 1, "test": 2}, "no class folders"),
        ({".": 3}, "no class folders"),
    ],
)
def test_folders_that_cannot_be_meant(files: dict[str, int], words: str, tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match=words):
        open_data(str(plant(tmp_path, files)))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(tmp_path: Path) -> None:
    root = plant(tmp_path, {"a": 1, "b": 1})
    (root / "a").chmod(0)
    with pytest.raises(VitkitError, match="cannot be listed"):
        open_data(str(root))
    (root / "a").chmod(0o700)


def test_data_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match=r'no such file or folder. Data is "digits", a folder'):
        open_data(str(tmp_path / "gone"))
    (tmp_path / "one.png").write_bytes(image_bytes())
    with pytest.raises(VitkitError, match="single file"):
        open_data(str(tmp_path / "one.png"))


# --- a trained model's classes --------------------------------------------------------------------


def test_labels_are_mapped_by_name(tmp_path: Path) -> None:
    root = plant(tmp_path, {"a": 1, "b": 2, "c": 0})
    data = open_data(str(root), WHOLE, class_names=["c", "b", "x", "a"])
    assert data.class_names == ("c", "b", "x", "a")
    assert data.splits["train"].labels.tolist() == [3, 1, 1]
    assert data.notes == ("2 classes of the model have no images here: c, x.",)


def test_one_known_class_and_a_lone_test_folder_can_be_evaluated(tmp_path: Path) -> None:
    root = plant(tmp_path, {"test/b": 2})
    data = open_data(str(root), class_names=["a", "b"])
    assert list(data.splits) == ["test"]
    assert data.splits["test"].labels.tolist() == [1, 1]


def test_names_the_model_does_not_know(tmp_path: Path) -> None:
    root = plant(tmp_path, {"a": 1, "B": 2, "c": 1})
    with pytest.raises(VitkitError, match=r"2 classes that the model does not know: B, c. It knows a, b"):
        open_data(str(root), WHOLE, class_names=["a", "b"])
    with pytest.raises(VitkitError, match=r"8 classes that the model does not know"):
        open_data("digits", class_names=["1", "2"])


# --- CSV ------------------------------------------------------------------------------------------


def write_csv(path: Path, text: str, encoding: str = "utf-8") -> str:
    path.write_text(text, encoding=encoding)
    return str(path)


def test_csv(tmp_path: Path) -> None:
    plant(tmp_path, {"images": 3})
    spec = write_csv(
        tmp_path / "birds.csv",
        "\ufeffFileName, Label ,set\nimages/000.png,wren,train\n\nimages/001.png,owl,train\n"
        "images/gone.png,owl,Valid\n"
        '"images/002.png",wren,TEST\n',
    )
    data = open_data(spec)
    assert (data.name, data.kind, data.class_names) == ("birds", "CSV", ("owl", "wren"))
    assert keys(data, "train") == ["birds.csv line 2: images/000.png", "birds.csv line 4: images/001.png"]
    assert data.splits["train"].labels.tolist() == [1, 0]
    assert data.splits["train"].decode(1)[0, 0, 0] == 1
    assert data.splits["val"].key(0) == "birds.csv line 5: images/gone.png"
    with pytest.raises(DecodeError, match="no such file"):
        data.splits["val"].decode(0)
    assert len(data.splits["test"]) == 1


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_labels_that_are_numbers_are_in_the_order_of_numbers(delimiter: str, tmp_path: Path) -> None:
    lines = ["path,class", "a,10", "b,9", "c,-1", "d,10"]
    spec = write_csv(tmp_path / "x.csv", "\n".join(lines).replace(",", delimiter))
    data = open_data(spec, WHOLE)
    assert data.class_names == ("-1", "9", "10")
    assert data.splits["train"].labels.tolist() == [2, 1, 0, 2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("picture,label\na,b\n", "no path column. Expected one of path, image"),
        ("path,kind\na,b\n", "no label column"),
        ("", "found nothing"),
        ("path,label\n", "no images"),
        ("path,label\na,b\nc,\n", "line 3: path or label is empty"),
        ("path,label\na,b\nc\n", "line 3: path or label is empty"),
        ("path,label,split\na,x,train\nb,y,holdout\n", "unknown split holdout"),
        ("path,label,split\na,x,train\nb,y,train\nc,z,test\n", "test has labels that train lacks: z"),
        ("path,label\na,x\nb,x\n", "one class, 'x'"),
    ],
)
def test_csv_that_cannot_be_meant(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match=words):
        open_data(write_csv(tmp_path / "x.csv", text))


def test_csv_in_another_encoding(tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match="UTF-8"):
        open_data(write_csv(tmp_path / "x.csv", "path,label\nä,b\n", "latin-1"))


# --- Parquet --------------------------------------------------------------------------------------


def write_parquet(
    path: Path,
    labels: Sequence[Any],
    names: Sequence[str] | None = None,
    *,
    image: str = "image",
    label: str = "label",
    binary: bool = False,
    first: int = 0,
    more: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [image_bytes(first + number) for number in range(len(labels))]
    cells: list[Any] = list(files) if binary else [{"bytes": file, "path": None} for file in files]
    table = pa.table({image: cells, label: list(labels), **(more or {})})
    if names is not None:
        info = {"info": {"features": {label: {"names": list(names), "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, path, row_group_size=2)


def test_parquet_with_class_names_in_its_metadata(tmp_path: Path) -> None:
    root = tmp_path / "set"
    write_parquet(root / "data/train-00000-of-00002.parquet", [1, 0, 1, 1, 0], ["cat", "dog"])
    write_parquet(root / "data/train-00001-of-00002.parquet", [0, 0, 1], ["cat", "dog"], first=5)
    write_parquet(root / "data/test-00000-of-00001.parquet", [1, 0], ["cat", "dog"], first=8)
    data = open_data(str(root), WHOLE)
    assert (data.name, data.kind, data.class_names) == ("set", "Parquet", ("cat", "dog"))
    assert data.splits["train"].labels.tolist() == [1, 0, 1, 1, 0, 0, 0, 1]
    assert [int(data.splits["train"].decode(index)[0, 0, 0]) for index in range(8)] == list(range(8))
    assert data.splits["train"].key(6) == "data/train-00001-of-00002.parquet row 1"
    assert int(data.splits["test"].decode(1)[0, 0, 0]) == 9
    assert data.notes == ()
    copy = pickle.loads(pickle.dumps(data.splits["train"]))  # what a spawned worker gets
    np.testing.assert_array_equal(copy.decode(7), data.splits["train"].decode(7))


def test_a_column_of_groups_in_parquet_is_never_torn(tmp_path: Path) -> None:
    patients = [number // 3 for number in range(60)]
    labels = [patient % 2 for patient in patients]
    write_parquet(tmp_path / "0.parquet", labels[:31], more={"Patient": patients[:31]})
    write_parquet(tmp_path / "1.parquet", labels[31:], first=31, more={"Patient": patients[31:]})
    data = open_data(str(tmp_path), Splits(group="patient", rule=2))
    place = {f"0.parquet row {row}": patients[row] for row in range(31)}
    place |= {f"1.parquet row {row}": patients[31 + row] for row in range(29)}
    found = {
        name: {place[samples.key(i)] for i in range(len(samples))} for name, samples in data.splits.items()
    }
    every = [patient for patients in found.values() for patient in patients]
    assert sorted(every) == list(range(20))  # each patient is in one split
    assert {*found} == {"train", "val", "test"}
    assert "Splits keep groups together: 20 groups by patient." in data.notes
    kept = open_data(str(tmp_path), Splits(rule=2))
    torn = {name: {place[s.key(i)] for i in range(len(s))} for name, s in kept.splits.items()}
    assert torn["train"] & torn["test"]  # without the column they are torn


def test_a_parquet_without_the_column_of_groups_is_one_sentence(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", [0, 1, 0, 1], more={"scene": ["x", None, "y", "y"]})
    with pytest.raises(VitkitError, match=r"no column 'patient' .*image, label, scene"):
        open_data(str(tmp_path / "a.parquet"), Splits(group="patient"))
    with pytest.raises(VitkitError, match=r"a\.parquet row 1: scene is empty"):
        open_data(str(tmp_path / "a.parquet"), Splits(group="scene"))


def test_parquet_larger_than_memory_is_read_by_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "train.parquet", ["x", "y"] * 5)
    monkeypatch.setattr(parquet, "_PARQUET_IN_MEMORY", 10)
    data = open_data(str(tmp_path), WHOLE)
    assert data.notes == ("The Parquet files are read by row group: in shuffled order that is slow.",)
    train = data.splits["train"]
    assert [int(train.decode(index)[0, 0, 0]) for index in (9, 0, 5, 1)] == [9, 0, 5, 1]
    copy = pickle.loads(pickle.dumps(train))
    assert int(copy.decode(3)[0, 0, 0]) == 3


def test_parquet_names_from_the_card(tmp_path: Path) -> None:
    write_parquet(tmp_path / "data/train-0.parquet", [0, 1, 1], image="img", label="fine_label", binary=True)
    (tmp_path / "README.md").write_text(
        "---\ndataset_info:\n  features:\n  - name: img\n    dtype: image\n  - name: fine_label\n    dtype:\n"
        "      class_label:\n        names:\n          '0': apple tree\n          '1': \"bear\"\n"
        "  - name: coarse_label\n    dtype:\n      class_label:\n        names:\n          '0': plant\n---\n"
    )
    data = open_data(str(tmp_path), WHOLE)
    assert data.class_names == ("apple tree", "bear")
    assert data.splits["train"].labels.tolist() == [0, 1, 1]


def test_parquet_labels_as_words_or_bare_numbers(tmp_path: Path) -> None:
    write_parquet(tmp_path / "words/train.parquet", ["b", "a", "b"], label="labels")
    assert open_data(str(tmp_path / "words"), WHOLE).class_names == ("a", "b")
    write_parquet(tmp_path / "numbers.parquet", [10, 9, 10])
    data = open_data(str(tmp_path / "numbers.parquet"), WHOLE)
    assert (data.name, data.class_names) == ("numbers", ("9", "10"))


def test_parquet_splits_by_folder(tmp_path: Path) -> None:
    for split in ("train", "validation", "test"):
        write_parquet(tmp_path / split / "0000.parquet", ["a", "b"])
    assert list(open_data(str(tmp_path)).splits) == ["train", "val", "test"]


def test_parquet_rows_without_label_or_bytes(tmp_path: Path) -> None:
    names = ["x", "y", "z"]
    write_parquet(tmp_path / "train-0.parquet", [0, 1], names)
    write_parquet(tmp_path / "test-0.parquet", [-1, -1], names)
    data = open_data(str(tmp_path), WHOLE)
    assert list(data.splits) == ["train"]
    assert data.notes == ("2 rows without a label ignored.", "1 class without images: z.")
    pq.write_table(
        pa.table({"image": [None, b"", {}][:2], "label": ["a", "b"]}), tmp_path / "train-0.parquet"
    )
    (tmp_path / "test-0.parquet").unlink()
    train = open_data(str(tmp_path), WHOLE).splits["train"]
    for index in range(2):
        with pytest.raises(DecodeError, match="empty"):
            train.decode(index)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"train-0": ([0, 5], ["a", "b"])}, "labels from 0 to 5, but 2 class names"),
        ({"train-0": ([0, 1], ["a", "b"]), "oddity": ([0, 1], ["a", "b"])}, "no split in the name of oddity"),
        ({"train-0": (["a", "b"], None), "test-0": (["c"], None)}, "test has labels that train lacks: c"),
        ({"train-0": ([-1, -1], ["a", "b"])}, "no labelled images"),
        ({"test-0": ([0, 1], ["a", "b"])}, "only test, no images to train on"),
        ({"train-0": (["a", "a"], None)}, "one class, 'a'"),
    ],
)
def test_parquet_that_cannot_be_meant(files: dict[str, Any], words: str, tmp_path: Path) -> None:
    for name, (labels, names) in files.items():
        write_parquet(tmp_path / f"{name}.parquet", labels, names)
    with pytest.raises(VitkitError, match=words):
        open_data(str(tmp_path), WHOLE)


def test_parquet_columns_and_damage(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-0.parquet", [0, 1])
    write_parquet(tmp_path / "train-1.parquet", [0, 1], label="kind")
    with pytest.raises(VitkitError, match="lacks the columns image and label"):
        open_data(str(tmp_path))
    (tmp_path / "train-1.parquet").write_bytes(b"no parquet")
    with pytest.raises(VitkitError, match="cannot be read"):
        open_data(str(tmp_path))
    write_parquet(tmp_path / "train-0.parquet", [0, 1], image="audio")
    with pytest.raises(VitkitError, match="no image column"):
        open_data(str(tmp_path / "train-0.parquet"))


# --- splits and fingerprint -----------------------------------------------------------------------


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.floats(0.01, 0.9), st.integers(0, 2**62))
@settings(deadline=None)
def test_stratified_cut(sizes: list[int], fraction: float, seed: int) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    count = int(np.ceil(fraction * len(labels)))
    cut = stratify(labels, count, seed, 2)
    taken = np.bincount(labels[cut], minlength=len(sizes))
    assert taken.sum() == min(count, len(labels) - len(sizes))
    assert (taken < sizes).all()
    if taken.sum() == count and (taken < np.array(sizes) - 1).all():
        assert np.abs(taken - count * np.array(sizes) / len(labels)).max() < 1
    np.testing.assert_array_equal(cut, stratify(labels, count, seed, 2))


def test_the_cut_of_released_versions() -> None:
    """A change here moves images between the splits of everybody's data."""
    labels = np.arange(20) % 2
    assert np.flatnonzero(stratify(labels, 6, 3, 2)).tolist() == GOLDEN_CUT
    assert open_data("digits").fingerprint() == GOLDEN_DIGITS


GOLDEN_CUT = [8, 11, 14, 17, 18, 19]
GOLDEN_DIGITS = "1ff020ce47c21c4674205dc447444a75fe40b3d5fcda576db344a9e3a1c25d02"


def test_other_seeds_cut_other_images() -> None:
    first, second = open_data("digits"), open_data("digits", Splits(seed=1))
    assert set(keys(first, "test")) != set(keys(second, "test"))
    assert "seed 1" in second.notes[0]


def test_small_data_keeps_one_image_of_each_class(tmp_path: Path) -> None:
    data = open_data(str(plant(tmp_path, {"a": 1, "b": 1})))
    assert list(data.splits) == ["train"]
    assert data.notes[0] == "test: none; every class has a single training image left."


def test_fingerprint_changes_with_the_listing(tmp_path: Path) -> None:
    root = plant(tmp_path, {"a": 3, "b": 3})
    prints = {open_data(str(root), WHOLE).fingerprint(), open_data(str(root), Splits(0, 0, 9)).fingerprint()}
    assert len(prints) == 1
    prints.add(open_data(str(root), Splits(0.5, 0)).fingerprint())
    (root / "a" / "000.png").rename(root / "a" / "new.png")
    prints.add(open_data(str(root), WHOLE).fingerprint())
    (root / "a" / "new.png").rename(root / "b" / "new.png")
    prints.add(open_data(str(root), WHOLE).fingerprint())
    (root / "a").rename(root / "A")
    prints.add(open_data(str(root), WHOLE).fingerprint())
    assert len(prints) == 5


def test_splits_that_make_no_sense() -> None:
    for fractions in ((-0.1, 0.2), (0.5, 0.5)):
        with pytest.raises(VitkitError, match="leave something to train on"):
            Splits(*fractions)
    with pytest.raises(VitkitError, match="seed"):
        Splits(seed=-1)


def test_two_classes_of_one_name_are_refused(tmp_path: Path) -> None:
    """Labels are matched by name: ImageNet's two kinds of crane would become one."""
    info = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["crane", "dog", "crane"]}}}}
    table = pa.table({"image": [{"bytes": b"x", "path": None}] * 3, "label": [0, 1, 2]})
    table = table.replace_schema_metadata({b"huggingface": json.dumps(info).encode()})
    pq.write_table(table, tmp_path / "train-0.parquet")
    with pytest.raises(VitkitError, match="several classes of the same name: crane"):
        open_data(str(tmp_path))


def test_a_class_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    for name in (b"caf\xe9", b"tea"):
        folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
        folder.mkdir()
        (folder / "1.png").write_bytes(b"x")
    with pytest.raises(VitkitError, match="is no valid UTF-8"):
        open_data(str(tmp_path))


def test_a_class_name_in_utf_8_under_another_locale(tmp_path: Path) -> None:
    """The name is right then, and the locale is what must change."""
    plant(tmp_path, {"café": 1, "b": 1})
    program = f"""
from vitkit.data.sources import open_data
from vitkit.errors import VitkitError
try:
    open_data({str(tmp_path)!r})
except VitkitError as error:
    print(error)
"""
    settings = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ | settings
    )
    assert "'caf\\xe9' is UTF-8, but the locale of this process" in done.stdout
    assert "LC_ALL=C.UTF-8" in done.stdout


def test_images_without_labels_open_where_none_are_needed(tmp_path: Path) -> None:
    """A flat folder, or folders whose names mean nothing; train/, val/ and test/ are splits all the same."""
    for name in ("1.png", "2.png", "deep/3.png", "4.png"):
        for root in ("flat", "cut/train", "cut/val"):
            path = tmp_path / root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (2, 2), tuple(os.urandom(3))).save(path)
    with pytest.raises(VitkitError, match="there are no labels"):
        open_data(str(tmp_path / "flat" / "deep"))
    found = open_data(str(tmp_path / "flat"), Splits(val_fraction=0.25, test_fraction=0), labelled=False)
    assert {split: len(samples) for split, samples in found.splits.items()} == {"train": 3, "val": 1}
    keys = sorted(samples.key(i) for samples in found.splits.values() for i in range(len(samples)))
    assert keys == ["1.png", "2.png", "4.png", "deep/3.png"] and found.class_names == ()
    assert not found.splits["train"].targets and "stratified" not in " ".join(found.notes)
    cut = open_data(str(tmp_path / "cut"), Splits(val_fraction=0, test_fraction=0), labelled=False)
    assert [cut.splits["val"].key(i) for i in (0, 3)] == ["val/1.png", "val/deep/3.png"]
    digits = open_data("digits", labelled=False)
    assert digits.class_names == () and not digits.splits["train"].targets
    assert open_data("digits").splits["train"].targets.keys() == {"labels"}


def test_tables_need_no_labels_where_none_are_learned(tmp_path: Path) -> None:
    """Rows that have a label and rows that have none count alike; class folders are folders."""
    encoded = []
    for number in range(6):
        place = tmp_path / "images" / ("a" if number % 2 else "b/c") / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4, 3), 40 * number, np.uint8)).save(place)
        encoded.append({"bytes": place.read_bytes(), "path": place.name})
    names = [str(path.relative_to(tmp_path)) for path in sorted((tmp_path / "images").rglob("*.png"))]
    (tmp_path / "plain.csv").write_text("path\n" + "\n".join(names) + "\n")
    (tmp_path / "other.csv").write_text("path,label\n" + "\n".join(f"{name}," for name in names) + "\n")
    pq.write_table(pa.table({"image": encoded}), tmp_path / "plain.parquet")
    pq.write_table(pa.table({"image": encoded, "label": [0, -1, 1, -1, None, 0]}), tmp_path / "other.parquet")
    for spec in ("images", "plain.csv", "other.csv", "plain.parquet", "other.parquet"):
        data = open_data(str(tmp_path / spec), Splits(val_fraction=0, test_fraction=0), labelled=False)
        assert len(data.splits["train"]) == 6 and not data.class_names, spec
        assert data.splits["train"].targets == {}, spec
        shades = {int(data.splits["train"].decode(index)[0, 0, 0]) for index in range(6)}
        assert shades == {0, 40, 80, 120, 160, 200}, spec
    with pytest.raises(VitkitError, match="no label column"):
        open_data(str(tmp_path / "plain.csv"))

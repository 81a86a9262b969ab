"""Data sets by their names: digits, splits, a trained model's classes, images that need no labels."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.helpers.image_folders import WHOLE, image_bytes, keys, plant
from vitkit.data.config import Splits
from vitkit.data.sources import open_data
from vitkit.errors import VitkitError


def test_digits() -> None:
    data = open_data("digits")
    assert (data.name, data.kind) == ("digits", "built-in digits")
    assert data.class_names == tuple("0123456789")
    assert [*data.splits] == ["train", "val", "test"]
    assert [len(samples) for samples in data.splits.values()] == [1257, 180, 360]
    other = open_data("digits", Splits(seed=1))
    assert set(keys(data, "test")) != set(keys(other, "test")) and "seed 1" in other.notes[0]
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
        assert train.header(index).size == (8, 8)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
def test_tables_that_are_no_regular_files(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / name).symlink_to("/dev/zero")
    for path, kind in (
        (tmp_path / name, "a pipe, a socket or a device"),
        (tmp_path / "link" / name, "a device"),
    ):
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
        (lambda path: Path(f"{path}/a/b"), r'no such file or folder. Data is "digits", a folder'),
        (lambda path: path.write_bytes(image_bytes()) and None, "single file"),
        (lambda path: "https://example.org/images", "is an address: download the images"),
    ],
)
def test_paths_that_cannot_be_opened(make: Any, reason: str, tmp_path: Path) -> None:
    spec = str(make(tmp_path / "data") or tmp_path / "data")
    with pytest.raises(VitkitError, match=reason):
        open_data(spec)


def test_labels_are_mapped_by_name(tmp_path: Path) -> None:
    root = plant(tmp_path / "known", {"a": 1, "b": 2, "c": 0})
    data = open_data(str(root), WHOLE, class_names=["c", "b", "x", "a"])
    assert data.class_names == ("c", "b", "x", "a")
    assert data.splits["train"].labels.tolist() == [3, 1, 1]
    assert data.notes == ("2 classes of the model have no images here: c, x.",)
    # One known class and a lone test folder can be evaluated.
    lone = open_data(str(plant(tmp_path / "lone", {"test/b": 2})), class_names=["a", "b"])
    assert list(lone.splits) == ["test"] and lone.splits["test"].labels.tolist() == [1, 1]
    root = plant(tmp_path / "unknown", {"a": 1, "B": 2, "c": 1})
    with pytest.raises(VitkitError, match=r"2 classes that the model does not know: B, c. It knows a, b"):
        open_data(str(root), WHOLE, class_names=["a", "b"])
    with pytest.raises(VitkitError, match=r"8 classes that the model does not know"):
        open_data("digits", class_names=["1", "2"])


def test_fingerprint_changes_with_the_listing(tmp_path: Path) -> None:
    root = plant(tmp_path, {"a": 3, "b": 3})
    ways = (WHOLE, Splits(0, 0, 9), Splits(0.5, 0))
    prints = [open_data(str(root), splits).fingerprint() for splits in ways]
    assert prints[0] == prints[1]
    for old, new in (("a/000.png", "a/new.png"), ("a/new.png", "b/new.png"), ("a", "A")):
        (root / old).rename(root / new)
        prints.append(open_data(str(root), WHOLE).fingerprint())
    assert len({*prints}) == 5


def test_splits_that_make_no_sense_or_leave_nothing(tmp_path: Path) -> None:
    data = open_data(str(plant(tmp_path, {"a": 1, "b": 1})))
    assert list(data.splits) == ["train"]
    assert data.notes[0] == "test: none; every class has a single training image left."
    for fractions in ((-0.1, 0.2), (0.5, 0.5)):
        with pytest.raises(VitkitError, match="leave something to train on"):
            Splits(*fractions)
    with pytest.raises(VitkitError, match="seed"):
        Splits(seed=-1)


def test_a_class_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    for name in (b"caf\xe9", b"tea"):
        folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
        folder.mkdir()
        (folder / "1.png").write_bytes(b"x")
    with pytest.raises(VitkitError, match=r"'caf\\udce9' is no valid UTF-8.* set LC_ALL=C.UTF-8"):
        open_data(str(tmp_path))


def test_images_without_labels_open_where_none_are_needed(tmp_path: Path) -> None:
    """A flat folder, or folders whose names mean nothing; train/, val/ and test/ are splits all the same."""
    for name in ("1.png", "2.png", "deep/3.png", "4.png"):
        for root in ("flat", "cut/train", "cut/val"):
            path = tmp_path / root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (2, 2), tuple(os.urandom(3))).save(path)
    with pytest.raises(VitkitError, match="there are no labels"):
        open_data(str(tmp_path / "flat" / "deep"))
    data = open_data(str(tmp_path / "flat"), Splits(val_fraction=0.25, test_fraction=0), labelled=False)
    assert {split: len(samples) for split, samples in data.splits.items()} == {"train": 3, "val": 1}
    every = sorted(keys(data, "train") + keys(data, "val"))
    assert every == ["1.png", "2.png", "4.png", "deep/3.png"] and data.class_names == ()
    assert not data.splits["train"].targets and "stratified" not in " ".join(data.notes)
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

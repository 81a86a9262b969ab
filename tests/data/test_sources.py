"""Data sets by their names: digits, splits, a trained model's classes, images that need no labels."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.helpers.image_folders import WHOLE, image_bytes, keys, plant
from tests.helpers.refusals import refused
from vitkit.data.config import Slice, Splits, parse_slice, parse_split
from vitkit.data.layouts.cutting import spread_order
from vitkit.data.paths import absolute_spec
from vitkit.data.sources import open_data
from vitkit.errors import VitkitError


def test_digits() -> None:
    data = open_data("digits")
    assert (data.name, data.kind) == ("digits", "built-in digits")
    assert data.class_names == tuple("0123456789")
    assert [*data.splits] == ["train", "val", "test"]
    assert [len(samples) for samples in data.splits.values()] == [1257, 180, 360]
    assert set(keys(data, "test")) != set(keys(open_data("digits", Splits(seed=1)), "test"))
    assert "test: 360 images cut from train, stratified, seed 0 (20 %)." in data.notes
    every = sorted(key for split in data.splits for key in keys(data, split))
    assert every == [f"digit {number:04d}" for number in range(1797)]
    whole = open_data("digits", WHOLE)
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
        refused(f"{kind}, not a regular file", open_data, str(path))
    (tmp_path / "folder" / name).mkdir(parents=True)
    said = "a folder, not a regular file" if name == "x.csv" else "folder"
    refused(said, open_data, str(tmp_path / "folder" / name))


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
    refused(reason, open_data, spec)


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
    said = r"2 classes that the model does not know: B, c. It knows a, b"
    refused(said, open_data, str(root), WHOLE, class_names=["a", "b"])
    refused(r"8 classes that the model does not know", open_data, "digits", class_names=["1", "2"])


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
        refused("leave something to train on", Splits, *fractions)
    refused("seed", Splits, seed=-1)


def test_a_class_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    for name in (b"caf\xe9", b"tea"):
        folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
        folder.mkdir()
        (folder / "1.png").write_bytes(b"x")
    refused(r"'caf\\udce9' is no valid UTF-8.* set LC_ALL=C.UTF-8", open_data, str(tmp_path))


def test_images_without_labels_open_where_none_are_needed(tmp_path: Path) -> None:
    """A flat folder, or folders whose names mean nothing; train/, val/ and test/ are splits all the same."""
    for name in ("1.png", "2.png", "deep/3.png", "4.png"):
        for root in ("flat", "cut/train", "cut/val"):
            path = tmp_path / root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (2, 2), tuple(os.urandom(3))).save(path)
    refused("there are no labels", open_data, str(tmp_path / "flat" / "deep"))
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
    refused("no label column", open_data, str(tmp_path / "plain.csv"))


# Parts of splits: which images they hold, that parts share none, and what is refused


def test_slices() -> None:
    for text, count, expected in (
        ("10%:", 1000, (100, 1000)),
        ("[-500:]", 1797, (1297, 1797)),
        ("[100:200]", 200, (100, 200)),
        ("[-10%:]", 95, (85, 95)),
        ("[ 12.5% : 50% ]", 8, (1, 4)),
        ("[:]", 3, (0, 3)),
    ):
        assert parse_slice(text).of(count) == expected


def test_a_subset_is_written_in_one_way() -> None:
    for text, expected in {
        "0.1": "[:10%]", ".333": "[:33.3%]", "0.07": "[:7%]", "0.000000001": "[:0.0000001%]", "1": None,
        "0:010.0%": "[:10%]", "[10%:100%]": "[10%:]", "[-100%:0200]": "[:200]", "[0%:]": None,
    }.items():  # fmt: skip
        splits = Splits(subset=text)
        assert splits.subset == expected and replace(splits) == splits


def test_what_is_no_subset_or_has_no_image_is_refused() -> None:
    for text in ("0", "1.5", "500", "0.1.2", "", "[10]", "a:b", "1:2:3", "[:1e3]", "-0.1", "[:-]"):
        refused(r"\[:10%\]|above 0", Splits, subset=text)
    for text, count in (("[:5000]", 1000), ("[5:5]", 10), ("[7:3]", 10), ("[:1%]", 3), ("[-9:]", 5)):
        refused(f"of {count:,}: expected at least one image", parse_slice(text).of, count)


def test_names_of_splits() -> None:
    assert parse_split("test") == ("test", None)
    assert parse_split("train[:10%]") == ("train", Slice("", "10%"))
    assert parse_split(" train [ : 10.0% ] ") == ("train", Slice("", "10%"))
    assert parse_split(" test ") == parse_split("test[:]") == ("test", None)
    refused("Expected a part of a split", parse_split, "train[0.1]")
    for name in ("test[:10%", "test:10%]", "[:10%]", "test[:10%]x"):
        refused("with both brackets at its end, found", parse_split, name)


@given(st.integers(1, 5000), st.integers(0, 100), st.integers(0, 100))
def test_neighbouring_parts_share_no_image_and_leave_none_out(count: int, cut: int, other: int) -> None:
    low, high = sorted((cut, other))
    ends = [0]
    for text in (f":{low}%", f"{low}%:{high}%", f"{high}%:"):
        try:
            first, last = parse_slice(text).of(count)
        except VitkitError:  # a part without images
            continue
        assert first == ends[-1]
        ends.append(last)
    assert ends[-1] == count


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(0, 5))
def test_every_part_of_the_order_has_the_fractions_of_the_whole(sizes: list[int], seed: int) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    order = spread_order(labels, seed, 7)
    assert sorted(order.tolist()) == list(range(len(labels)))
    assert set(labels[order[: len(sizes)]].tolist()) == set(range(len(sizes)))  # one of each comes first
    for stop in range(1, len(labels) + 1):
        counts = np.bincount(labels[order[:stop]], minlength=len(sizes))
        # The images of each class that come first move the others back by as many places.
        most = len(sizes) / len(labels) * np.array(sizes) + 1
        assert (np.abs(counts - stop * np.array(sizes) / len(labels)) <= most).all()


@given(st.integers(0, 20))
def test_images_of_several_labels_are_spread_by_their_rarest(seed: int) -> None:
    labels = np.random.default_rng(seed).random((200, 4)) < (0.6, 0.3, 0.1, 0.02)
    order = spread_order(labels, seed, 7)
    assert sorted(order.tolist()) == list(range(200))
    rarest = np.argsort(labels.sum(0))
    present = [label for label in rarest[:2] if labels[:, label].any()]
    assert all(labels[order[:50], label].any() for label in present)
    assert len(spread_order(np.zeros((9, 0), bool), seed, 7)) == 9  # nobody labelled them


def test_a_subset_is_of_the_training_images_alone_and_within_every_larger_one(tmp_path: Path) -> None:
    root = plant(tmp_path / "all", {"cats": 60, "dogs": 30, "emus": 10})
    whole = open_data(str(root), Splits(seed=3))
    larger, smaller = (open_data(str(root), Splits(seed=3, subset=part)) for part in ("0.5", "[:20%]"))
    for data, count in ((larger, 35), (smaller, 14)):
        assert len(data.splits["train"]) == count
        assert keys(data, "val") == keys(whole, "val") and keys(data, "test") == keys(whole, "test")
        assert data.fingerprint() != whole.fingerprint()
    assert set(keys(smaller, "train")) < set(keys(larger, "train")) < set(keys(whole, "train"))
    sizes = np.bincount(whole.splits["train"].labels)
    assert (np.abs(np.bincount(smaller.splits["train"].labels) - sizes / 5) < 1).all()
    assert "train: 14 of 70 images, of each class the same fraction, seed 3 (subset [:20%])." in smaller.notes
    other = open_data(str(root), Splits(seed=3, subset="[20%:]"))
    assert sorted(keys(other, "train") + keys(smaller, "train")) == sorted(keys(whole, "train"))
    few = open_data(str(plant(tmp_path / "few", {"cats": 9, "dogs": 1})), Splits(0, 0, subset="[-5:]"))
    assert few.class_names == ("cats", "dogs") and "1 class has no image in it: dogs." in few.notes


def test_a_part_of_a_split_is_a_split(tmp_path: Path) -> None:
    data = open_data(str(plant(tmp_path, {"cats": 20, "dogs": 10})), Splits(0.1, 0.2))
    both = data.with_part("train[:50%]").with_part("train[50%:]")
    parts = [keys(both, "train[:50%]"), keys(both, "train[50%:]")]
    assert sorted(parts[0] + parts[1]) == keys(data, "train")
    assert [len(both.same[name]) for name in ("train[:50%]", "train[50%:]")] == [len(part) for part in parts]
    assert data.with_part("test") is data and data.with_part("other[:1]") is data
    refused("goes from image 0 to 50", data.with_part, "test[:50]")


def test_a_link_to_itself_keeps_its_name(tmp_path: Path) -> None:
    link = tmp_path / "loop"
    link.symlink_to(link)
    assert absolute_spec(str(link)) == str(link)

"""Folders of class folders, whole and with each of the faults that must not pass silently."""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.image_folders import WHOLE, image_bytes, keys, plant
from vitkit.data.config import Splits
from vitkit.data.paths import LAYOUTS
from vitkit.data.sources import UnfitDataError, open_data
from vitkit.errors import DecodeError, VitkitError


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
        train.header(1)


def test_all_problems_are_said_at_once(tmp_path: Path) -> None:
    files = {"train/a": 2, "train/b": 0, "train/c": 1, "val/a": 0, "val/c": 0, "test/a": 1, "test/d": 0}
    root = plant(tmp_path, files)
    with pytest.raises(UnfitDataError) as caught:
        open_data(str(root))
    assert [problem.removeprefix(f"{root}") for problem in caught.value.problems] == [
        f"No images in {root / 'val'}. {LAYOUTS}",
        " (train): no images in the class folder b. Add images, or remove the folder.",
        " (test): no images in the class folder d. Add images, or remove the folder.",
        ": the classes of train and test differ (only in train: b, c; only in test: d). The class folders of "
        "all splits must have the same names: rename or remove the odd ones.",
    ]
    assert str(caught.value).split("\n") == list(caught.value.problems)
    data = caught.value.listed.cut(WHOLE)
    assert data.class_names == ("a", "b", "c", "d")
    assert {split: samples.labels.tolist() for split, samples in data.splits.items()} == {
        "train": [0, 0, 2],
        "test": [0],
    }


@pytest.mark.parametrize(
    ("files", "message"),
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
        ({"test/a": 1, "test/b": 1}, "has only test, no images to train on"),
        ({"train/a": 1, "train/b": 1, "test": 2}, "no class folders"),
        ({".": 3}, "no class folders"),
    ],
)
def test_folders_that_cannot_be_meant(files: dict[str, int], message: str, tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match=message):
        open_data(str(plant(tmp_path, files)))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(tmp_path: Path) -> None:
    root = plant(tmp_path, {"a": 1, "b": 1})
    (root / "a").chmod(0)
    with pytest.raises(VitkitError, match="cannot be listed"):
        open_data(str(root))
    (root / "a").chmod(0o700)

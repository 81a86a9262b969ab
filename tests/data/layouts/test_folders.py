"""Folders of class folders, whole and with each of the faults that must not pass silently."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.image_folders import WHOLE, image_bytes, keys, plant
from tests.helpers.refusals import refused, undecodable
from vitkit.data.config import Splits
from vitkit.data.paths import LAYOUTS
from vitkit.data.sources import UnfitDataError, open_data


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


def test_missing_splits_are_cut_from_train(tmp_path: Path) -> None:
    root = plant(tmp_path, {"train/a": 20, "train/b": 20, "Valid/a": 1, "Valid/b": 1})
    data = open_data(str(root))
    assert {split: len(keys(data, split)) for split in data.splits} == {"train": 32, "val": 2, "test": 8}
    assert data.notes == ("test: 8 images cut from train, stratified, seed 0 (20 %).",)
    assert list(open_data(str(root), Splits(test_fraction=0)).splits) == ["train", "val"]
    plant(root, {"test/a": 2, "test/b": 2, "extra": 4})
    whole = open_data(str(root))
    assert {split: len(keys(whole, split)) for split in data.splits} == {"train": 40, "val": 2, "test": 4}
    assert keys(whole, "val")[0] == "Valid/a/000.png"
    assert whole.notes == ("1 folder beside train/ ignored: extra.",)


def test_hidden_and_foreign_files_are_passed_over(tmp_path: Path) -> None:
    root = plant(tmp_path, {"a": 2, "b": 2, ".ipynb_checkpoints": 3, "__MACOSX": 1, "a/.cache": 2})
    (root / "a" / "Thumbs.db").write_bytes(b"x")
    (root / "a" / "._000.png").write_bytes(b"x")
    (root / "b" / "notes.txt").write_text("x")
    (root / "loose.png").write_bytes(image_bytes())
    (root / "metadata.csv").write_text("file_name,label\n")
    data = open_data(str(root), WHOLE)
    assert data.class_names == ("a", "b")
    assert len(data.splits["train"]) == 4
    assert data.notes == (
        "5 hidden files or folders ignored.",
        "1 file in class folders ignored: not images by their names.",
        "1 image outside any class folder ignored.",
        "The folders' names are the classes; not read: metadata.csv.",
    )


def test_links_to_folders_are_followed_but_not_to_those_above(tmp_path: Path) -> None:
    """Followed, these would put the images of every class into one, or make a class of all."""
    plant(tmp_path / "elsewhere", {"x": 2})
    root = plant(tmp_path / "data", {"a": 2, "a/deeper": 1, "b": 2})
    for link, target in (
        ("a/more", tmp_path / "elsewhere/x"),
        ("b/circle", root / "b"),
        ("a/deeper/up", root),
        ("b/far", tmp_path),
        ("all", root),
    ):
        (root / link).symlink_to(target)
    data = open_data(str(root), WHOLE)
    assert data.class_names == ("a", "b") and data.splits["train"].labels.tolist() == [0] * 5 + [1] * 2
    assert "4 links to a folder above not followed: a/deeper/up, all, b/circle, b/far." in data.notes


@pytest.mark.timeout(600)
def test_a_link_to_itself_a_pipe_or_an_empty_file_is_one_bad_file(tmp_path: Path) -> None:
    root = plant(tmp_path / "data", {"a": 2, "b": 2})
    for link in ("a/loop.png", "a/loop", "loop"):
        (root / link).symlink_to(root / link)
    os.mkfifo(root / "a" / "x.png")
    (root / "b" / "empty.jpg").touch()
    data = open_data(str(root), WHOLE)
    assert keys(data, "train")[2:4] == ["a/loop.png", "a/x.png"] and len(data.splits["train"]) == 7
    for index, reason in ((2, "symbolic links"), (3, "a device, not a regular file"), (6, "empty")):
        for look in (data.splits["train"].decode, data.splits["train"].header):
            undecodable(reason, look, index)
    assert data.notes == ("1 file in class folders ignored: not images by their names.",)


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
    labels = {split: samples.labels.tolist() for split, samples in data.splits.items()}
    assert labels == {"train": [0, 0, 2], "test": [0]}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a": 2, "b": 0}, "no images in the class folder b"),
        ({"a": 3}, "one class, 'a'"),
        ({"train/a": 1, "train/b": 1, "val/a": 1, "val/c": 1}, "only in train: b; only in val: c"),
        ({}, "No images in"),
        ({"test/a": 1, "test/b": 1}, "has only test, no images to train on"),
        ({"train/a": 1, "train/b": 1, "test": 2}, "no class folders"),
        ({".": 3}, "no class folders"),
    ],
)
def test_folders_that_cannot_be_meant(files: dict[str, int], message: str, tmp_path: Path) -> None:
    refused(message, open_data, str(plant(tmp_path, files)))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(tmp_path: Path) -> None:
    root = plant(tmp_path, {"a": 1, "b": 1})
    (root / "a").chmod(0)
    refused("cannot be listed", open_data, str(root))
    (root / "a").chmod(0o700)


LEVELS = Splits(0, 0, levels=True)


def test_folders_in_folders_are_a_tree_of_classes(tmp_path: Path) -> None:
    tree = {"birds/gull/herring": 2, "birds/petrel": 3, "stones": 2}
    root = plant(tmp_path / "photos", tree)
    (root / "birds" / "notes.txt").write_text("x")
    data = open_data(str(root), LEVELS)
    assert data.class_names == ("birds/gull/herring", "birds/petrel", "stones")
    assert data.splits["train"].labels.tolist() == [0] * 2 + [1] * 3 + [2] * 2
    assert data.splits["train"].key(2) == "birds/petrel/000.png"
    assert data.notes == (
        "1 file in class folders ignored: not images by their names.",
        "Levels: 2 classes, then 3 classes, then 3 classes.",
    )
    assert open_data(str(root), WHOLE).class_names == ("birds", "stones")
    split = plant(tmp_path / "split", {f"{part}/{name}": 2 for part in ("train", "test") for name in tree})
    parts = open_data(str(split), LEVELS)
    assert parts.class_names == data.class_names and list(parts.splits) == ["train", "test"]
    assert keys(parts, "test")[2] == "test/birds/petrel/000.png"
    # A model of these classes reads folders of some of them.
    some = plant(tmp_path / "some", {"birds/petrel": 1})
    assert open_data(str(some), LEVELS, class_names=data.class_names).splits["train"].labels.tolist() == [1]


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (
            {"cats": 1, "dogs": 1},
            "has no classes within classes, such as birds/petrel/1.jpg, found cats, dogs",
        ),
        ({"birds/gull": 1, "birds/petrel": 1}, "are within one, birds: give its folder as the data"),
        (
            {"birds": 1, "birds/gull": 1, "birds/a/b": 1, "stones": 1},
            "has images of birds itself beside classes within it: a tree has images at its ends alone. Move "
            "them into classes of their own, such as birds/other.",
        ),
        ({"birds/gull": 1, "birds/petrel": 0, "stones": 1}, "no images in the class folder birds/petrel"),
        (
            {"train/a/b": 1, "train/c/d": 1, "test/a/b": 1, "test/c/e": 1},
            "classes of train and test differ (only in train: c/d; only in test: c/e)",
        ),
    ],
)
def test_folders_that_are_no_tree_are_refused(tmp_path: Path, tree: dict[str, int], said: str) -> None:
    root = plant(tmp_path / "photos", tree)
    refused(re.escape(said), open_data, str(root), LEVELS)


def test_levels_are_for_images_of_one_class_each(tmp_path: Path) -> None:
    root = plant(tmp_path, {"birds/gull": 1, "stones": 1})
    for options in ({"multi_label": True}, {"labelled": False}):
        refused("of images that have one class each", open_data, str(root), LEVELS, **options)
    refused("digits has no classes within classes", open_data, "digits", LEVELS)


def test_classes_of_a_table_have_their_levels_between_slashes(tmp_path: Path) -> None:
    plant(tmp_path, {"images": 3})
    lines = ("birds/gull", "birds/petrel", "stones")
    text = "\n".join(f"images/{number:03d}.png,{name}" for number, name in enumerate(lines))
    (tmp_path / "list.csv").write_text(f"path,label\n{text}\n")
    data = open_data(str(tmp_path / "list.csv"), LEVELS)
    assert data.class_names == lines and data.notes == ("Levels: 2 classes, then 3 classes.",)

"""Lists of images with class numbers, the layout of VTAB-1k."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.refusals import refused
from tests.vtab_layout import small_task, write_parquet
from vitkit.data.config import Splits
from vitkit.data.layouts.vtab_tasks import GROUPS, VTAB_TASKS, task_of_folder
from vitkit.data.sources import ImageData, open_data

UNCUT = Splits(val_fraction=0.0, test_fraction=0.0)


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A folder that is none of the 19 tasks, with 4 classes."""
    return small_task(tmp_path / "own")


def counts(data: ImageData) -> dict[str, int]:
    return {name: len(samples) for name, samples in data.splits.items()}


def edit(path: Path, number: int, line: str) -> None:
    """Replace a line, numbered from 1."""
    lines = path.read_text().splitlines()
    lines[number - 1] = line
    path.write_text("\n".join(lines) + "\n")


def refusal(spec: Path) -> str:
    return refused(".", open_data, str(spec), UNCUT)


def test_a_folder_stands_for_three_splits(task: Path) -> None:
    data = open_data(str(task))
    assert (data.kind, data.class_names) == ("lists of images", ("0", "1", "2", "3"))
    assert counts(data) == {"train": 40, "val": 10, "test": 50}
    lines = [line.split() for line in (task / "val200.txt").read_text().splitlines()]
    val = data.splits["val"]
    assert [val.key(i) for i in range(10)] == [path for path, _ in lines]
    assert val.labels.tolist() == [int(label) for _, label in lines]
    assert val.decode(3).shape == (8, 8, 3)


def test_the_path_of_a_list_stands_for_a_stage(task: Path) -> None:
    """All training images are tested; a search for options sees no test image."""
    assert counts(open_data(str(task / "train800val200.txt"), UNCUT)) == {"train": 50, "test": 50}
    assert counts(open_data(str(task / "train800.txt"), UNCUT)) == {"train": 40, "val": 10}
    assert open_data(str(task / "train800.txt"), UNCUT).name == task.name
    names = ("3", "2", "1", "0", "other")
    alone = open_data(str(task / "test.txt"), UNCUT, class_names=names)
    assert counts(alone) == {"test": 50}
    assert alone.splits["test"].labels[0] == 3 - int((task / "test.txt").read_text().split()[1])


def test_spaces_blank_lines_and_lists_from_windows_are_read(task: Path) -> None:
    (task / "images/a photo.jpg").write_bytes((task / "images/test/000000.jpg").read_bytes())
    with (task / "test.txt").open("a") as stream:
        stream.write("\n  images/a photo.jpg   2 \n\n")
    for name in ("train800", "test"):
        lines = (task / f"{name}.txt").read_bytes()
        (task / f"{name}.txt").write_bytes(b"\xef\xbb\xbf" + lines.replace(b"\n", b"\r\n"))
    data = open_data(str(task))
    assert counts(data) == {"train": 40, "val": 10, "test": 51}
    assert (data.splits["test"].key(50), data.splits["test"].labels[50]) == ("images/a photo.jpg", 2)
    assert data.splits["train"].key(0) == "images/train800/000000.jpg"
    # Some copies of the data do not store the images of both lists twice; both in one are enough.
    both = (task / "train800.txt").read_text() + (task / "val200.txt").read_text()
    (task / "train800val200.txt").write_text(both)
    assert counts(open_data(str(task / "train800val200.txt"), UNCUT)) == {"train": 50, "test": 51}
    for name in ("train800", "val200"):
        (task / f"{name}.txt").unlink()
    assert counts(open_data(str(task), UNCUT)) == {"train": 50, "test": 51}


def test_a_folder_of_class_folders_beside_a_test_list_is_what_it_was(tmp_path: Path, task: Path) -> None:
    for name in ("cats", "dogs"):
        shutil.copytree(task / "images/val200", tmp_path / "pets" / name)
    (tmp_path / "pets/test.txt").write_text("cats/000000.jpg 0\n")
    assert open_data(str(tmp_path / "pets")).kind == "folder of class folders"


BAD_LINES = {
    "images/train800/000001.jpg": "line 2: expected a path and a class number",
    "images/\0train800/000001.jpg 1": "line 2: expected a path and a class number",
    "images/train800/000001.jpg cat": "line 2: expected a class number, .* found 'cat'",
    "images/train800/000001.jpg 1.5": "line 2: expected a class number, .* found '1.5'",
    "images/train800/000001.jpg -1": "line 2: expected a class number, .* found '-1'",
    "images/train800/000001.jpg 5": "line 2: the class number is 5, but no line of the lists has 4",
    "images/train800/000000.jpg 1": "line 2: images/train800/000000.jpg is in line 1 already",
    "./images/train800/000000.jpg 1": "line 2: images/train800/000000.jpg is in line 1 already",
    "images/train800/cat.jpg 1": "line 2: there is no image .*/images/train800/cat.jpg",
    "pictures/000001.jpg 1": "line 2: there is no image .*/pictures/000001.jpg",
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_malformed_line_is_named(task: Path, line: str) -> None:
    edit(task / "train800.txt", 2, line)
    for spec in ("train800.txt", "train800val200.txt"):
        assert refusal(task / spec).startswith(f"{task / 'train800.txt'} line 2")
    refused(BAD_LINES[line], open_data, str(task))


def test_images_in_two_lists_are_named(task: Path) -> None:
    edit(task / "test.txt", 7, "images/train800/000004.jpg 1")
    said = f"{task / 'test.txt'} line 7: images/train800/000004.jpg is in train800.txt line 5"
    assert said in refusal(task)
    small_task(task)
    edit(task / "val200.txt", 1, "images/train800/000000.jpg 1")
    assert "val200.txt line 1: images/train800/000000.jpg is in train800.txt line 1 too" in refusal(task)


def test_lists_that_are_no_text_are_refused(task: Path) -> None:
    (task / "test.txt").write_bytes(b"images/test/000000.jpg 1\nimages/\xff.jpg 1\n")
    assert f"{task / 'test.txt'} line 2 is no text in UTF-8" in refusal(task)
    (task / "test.txt").write_text("\n\n")
    assert f"{task / 'test.txt'} is empty" in refusal(task)
    (task / "test.txt").unlink()
    (task / "test.txt").mkdir()
    assert f"{task / 'test.txt'} cannot be read as a list of images" in refusal(task)


def test_the_classes_of_a_known_task_are_all_there(tmp_path: Path) -> None:
    """SUN397's 1,000 images show 325 of its classes; the head has one output for each all the same."""
    data = open_data(str(small_task(tmp_path / "vtab-1k_clevr_count")))
    assert len(data.class_names) == 8
    assert data.notes == ("train800.txt has images of 4 of 8 classes.",)
    assert {group: sum(task.group == group for task in VTAB_TASKS) for group in GROUPS} == {
        "natural": 7, "specialized": 4, "structured": 8
    }  # fmt: skip
    names = [name for task in VTAB_TASKS for name in (task.folder, *task.aliases)]
    assert len(names) == len(set(names)) and all(task_of_folder(name) for name in names)
    assert task_of_folder("photos") is None
    edit(tmp_path / "vtab-1k_clevr_count/val200.txt", 3, "images/val200/000002.jpg 8")
    said = refusal(tmp_path / "vtab-1k_clevr_count")
    assert "val200.txt line 3: the class number is 8, but Clevr-Count has 8 classes, from 0 to 7" in said


def test_a_text_file_that_begins_like_a_list_is_none(task: Path) -> None:
    """Beside the lists it would be passed over for one of them, without a word."""
    lines = (task / "train800.txt").read_text()
    (task / "train800_a.txt").write_text(lines)
    (task / "train800.old.txt").write_text(lines)
    for name in ("train800_a.txt", "train800.old.txt"):
        assert "is a single file of another kind" in refusal(task / name)
    assert counts(open_data(str(task / "train800.txt"), UNCUT)) == {"train": 40, "val": 10}
    for name in ("train800", "train800val200"):
        (task / f"{name}.txt").unlink()
    for name in ("train800_a.txt", "test.txt"):
        assert "is a single file of another kind" in refusal(task / name)


@pytest.mark.parametrize("below", ["", "data"])
def test_parquet_files_of_these_names_are_the_same(tmp_path: Path, task: Path, below: str) -> None:
    folder = tmp_path / "kitti"
    for name in ("train800", "val200", "train800val200", "test"):
        write_parquet(task, name, folder / below / f"{name}-00000-of-00001.parquet")
    whole = open_data(str(folder))
    assert counts(whole) == {"train": 40, "val": 10, "test": 50} and len(whole.class_names) == 4
    stage = folder / below / "train800val200-00000-of-00001.parquet"
    data = open_data(str(stage), UNCUT)
    listed = open_data(str(task / "train800val200.txt"), UNCUT)
    assert counts(data) == {"train": 50, "test": 50}
    assert np.array_equal(data.splits["test"].labels, listed.splits["test"].labels)
    assert np.array_equal(data.splits["train"].decode(7), listed.splits["train"].decode(7))
    first = stage.with_name("train800-00000-of-00001.parquet")
    assert counts(open_data(str(first), UNCUT)) == {"train": 40, "val": 10}


def test_parquet_files_are_of_the_task_that_the_folder_is(
    tmp_path: Path, task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "clevr_count"
    for name in ("train800", "val200"):
        write_parquet(task, name, folder / f"{name}-00000-of-00001.parquet")
    monkeypatch.chdir(folder)
    for spec in (".", "train800-00000-of-00001.parquet", str(folder)):
        assert len(open_data(spec, UNCUT).class_names) == 8


def test_parquet_files_of_lists_may_have_groups(tmp_path: Path, task: Path) -> None:
    path = tmp_path / "scenes" / "train800-00000-of-00001.parquet"
    write_parquet(task, "train800", path)
    scenes = pa.array([f"scene {row // 4}" for row in range(40)])
    pq.write_table(pq.read_table(path).append_column("scene", scenes), path)
    for spec in (path.parent, path):
        data = open_data(str(spec), Splits(test_fraction=0.0, val_fraction=0.3, group="scene"))
        rows = {split: {int(row) // 4 for row in samples.numbers} for split, samples in data.splits.items()}
        assert len(rows["val"]) > 1 and not rows["train"] & rows["val"]

"""The tasks in a folder: what is missing or malformed is refused before any is trained."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.vtab import SMALL, refusal
from tests.vtab_layout import small_task
from vitkit.data.sources import open_data
from vitkit.errors import VitkitError
from vitkit.jobs.vtab import (
    UNCUT,
    find_tasks,
)


def test_what_is_missing_is_named(start: Path, root: Path, tmp_path: Path) -> None:
    said = refusal(start, tmp_path / "nowhere")
    assert "nowhere cannot be listed: No such file" in said
    (tmp_path / "photos/cats").mkdir(parents=True)
    said = refusal(start, tmp_path / "photos")
    assert "holds no task of VTAB-1k. Expected a folder for each task" in said and "found cats" in said
    assert "has no folder for dtd, only for clevr_count, oxford_iiit_pet" in refusal(
        start, root, tasks=["dtd"]
    )
    small_task(tmp_path / "twice/pets", classes=3)
    small_task(tmp_path / "twice/oxford_iiit_pet", classes=3)
    assert "are both Pets" in refusal(start, tmp_path / "twice")
    small_task(tmp_path / "part/pets", classes=3)
    (tmp_path / "part/pets/val200.txt").unlink()
    assert "pets has no val200.txt." in refusal(start, tmp_path / "part", sweep=True)
    (tmp_path / "part/pets/test.txt").unlink()
    assert "pets has no test.txt." in refusal(start, tmp_path / "part")
    assert "No checkpoint at" in refusal(tmp_path / "no start", root)
    assert "Which weights to begin from?" in refusal("", root)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.txt").write_text("do not lose me")
    assert "holds no study" in refusal(start, root, out=tmp_path / "full")


def test_options_are_refused_before_lists_and_weights_are_read(tmp_path: Path) -> None:
    nowhere = (tmp_path / "start", tmp_path / "root")
    assert refusal(*nowhere, protocol="papper") == "protocol is paper or finetune, found 'papper'."
    for sweep in (True, False):
        assert "rates is a number above 0" in refusal(*nowhere, sweep=sweep, rates=(0.1, -1.0))
        assert refusal(*nowhere, sweep=sweep, rates=[]) == "rates are numbers above 0, found none."


def test_a_malformed_list_is_refused_before_any_task_is_trained(start: Path, tmp_path: Path) -> None:
    small_task(tmp_path / "root/clevr_count", classes=8)
    small_task(tmp_path / "root/smallnorb_ele", classes=8)  # comes last
    last = tmp_path / "root/smallnorb_ele/test.txt"
    last.write_text(last.read_text() + "images/test/000000.jpg nine\n")
    out = tmp_path / "out"
    said = refusal(start, tmp_path / "root", out=out, **SMALL)
    assert said.startswith(f"{last} line 51: expected a class number")
    assert not out.exists()


def test_parquet_files_named_train_and_test_are_a_task(tmp_path: Path) -> None:
    """The layout of copies on the Hugging Face Hub that do not cut the 1,000 training images."""
    task = small_task(tmp_path / "lists", classes=3)
    folder = tmp_path / "root/vtab-1k_cifar"
    write_parquet(task, "train800val200", folder / "data/train-00000-of-00001.parquet")
    write_parquet(task, "test", folder / "data/test-00000-of-00001.parquet")
    tasks = find_tasks(folder.parent, (), sweep=False)
    assert [task.folder for task in tasks] == ["cifar"]
    data = open_data(str(*next(iter(tasks.values()))), UNCUT)
    assert {split: len(samples) for split, samples in data.splits.items()} == {"train": 50, "test": 50}
    with pytest.raises(VitkitError, match=r"vtab-1k_cifar has Parquet files named train-, test-. Expected"):
        find_tasks(folder.parent, (), sweep=True)
    write_parquet(task, "val200", folder / "data/validation-00000-of-00001.parquet")
    with pytest.raises(
        VitkitError, match=r"files named train-, val-, test-. Expected train- and test- alone"
    ):
        find_tasks(folder.parent, (), sweep=False)
    (folder / "data/test-00000-of-00001.parquet").unlink()
    with pytest.raises(VitkitError, match=r"files named train-, val-. Expected"):
        find_tasks(folder.parent, (), sweep=False)


def write_parquet(task: Path, name: str, file: Path) -> None:
    """Write a list as a Parquet file, as the `datasets` library stores images."""
    lines = [line.split() for line in (task / f"{name}.txt").read_text().splitlines()]
    cells = [{"bytes": (task / path).read_bytes(), "path": path} for path, _ in lines]
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"image": cells, "label": [int(label) for _, label in lines]}), file)

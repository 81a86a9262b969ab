"""Data sets in Parquet as Hugging Face lays them out: class names, splits, groups, missing labels."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.image_folders import WHOLE, write_parquet
from vitkit.data.config import Splits
from vitkit.data.sources import open_data
from vitkit.errors import DecodeError, VitkitError


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


def test_a_parquet_without_the_column_of_groups_is_one_sentence(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", [0, 1, 0, 1], more={"scene": ["x", None, "y", "y"]})
    with pytest.raises(VitkitError, match=r"no column 'patient' .*image, label, scene"):
        open_data(str(tmp_path / "a.parquet"), Splits(group="patient"))
    with pytest.raises(VitkitError, match=r"a\.parquet row 1: scene is empty"):
        open_data(str(tmp_path / "a.parquet"), Splits(group="scene"))


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


def test_parquet_labels_as_words_or_bare_numbers_and_splits_by_folder(tmp_path: Path) -> None:
    write_parquet(tmp_path / "words/train.parquet", ["b", "a", "b"], label="labels")
    assert open_data(str(tmp_path / "words"), WHOLE).class_names == ("a", "b")
    write_parquet(tmp_path / "numbers.parquet", [10, 9, 10])
    data = open_data(str(tmp_path / "numbers.parquet"), WHOLE)
    assert (data.name, data.class_names) == ("numbers", ("9", "10"))
    for split in ("train", "validation", "test"):
        write_parquet(tmp_path / "splits" / split / "0000.parquet", ["a", "b"])
    assert list(open_data(str(tmp_path / "splits")).splits) == ["train", "val", "test"]


def test_parquet_rows_without_label_or_bytes(tmp_path: Path) -> None:
    names = ["x", "y", "z"]
    write_parquet(tmp_path / "train-0.parquet", [0, 1], names)
    write_parquet(tmp_path / "test-0.parquet", [-1, -1], names)
    data = open_data(str(tmp_path), WHOLE)
    assert list(data.splits) == ["train"]
    assert data.notes == ("2 rows without a label ignored.", "1 class without images: z.")
    pq.write_table(pa.table({"image": [None, b""], "label": ["a", "b"]}), tmp_path / "train-0.parquet")
    (tmp_path / "test-0.parquet").unlink()
    train = open_data(str(tmp_path), WHOLE).splits["train"]
    for index in range(2):
        with pytest.raises(DecodeError, match="empty"):
            train.decode(index)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"train-0": ([0, 1], ["a", "b"]), "oddity": ([0, 1], ["a", "b"])}, "no split in the name of oddity"),
        ({"train-0": (["a", "b"], None), "test-0": (["c"], None)}, "test has labels that train lacks: c"),
        ({"test-0": ([0, 1], ["a", "b"])}, "only test, no images to train on"),
        ({"train-0": (["a", "a"], None)}, "one class, 'a'"),
    ],
)
def test_parquet_that_cannot_be_meant(files: dict[str, Any], message: str, tmp_path: Path) -> None:
    for name, (labels, names) in files.items():
        write_parquet(tmp_path / f"{name}.parquet", labels, names)
    with pytest.raises(VitkitError, match=message):
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

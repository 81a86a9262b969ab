"""Several labels an image: CSV cells, label files, splits that keep rare labels, and each fault."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from PIL import Image

from tests.helpers.image_folders import WHOLE, image_bytes
from tests.helpers.refusals import refused
from vitkit.data.check import check_data
from vitkit.data.config import Preprocessing, Splits
from vitkit.data.layouts.cutting import stratify_label_sets
from vitkit.data.sources import ImageData, keep_in_memory, open_data
from vitkit.data.stream.loader import TrainLoader, evaluation_batches

MARKED = Splits(0, 0, label_separator=",")


def table(folder: Path, lines: str, header: str = "path,labels") -> Path:
    """A CSV of the lines, with an image for every path in it."""
    path = folder / "labels.csv"
    path.write_text(f"{header}\n{lines}", encoding="utf-8")
    for number, line in enumerate(lines.splitlines()):
        (folder / line.split(",")[0].strip().split(";")[0]).write_bytes(image_bytes(number))
    return path


def plant(root: Path, files: Mapping[str, str | None]) -> Path:
    """Images, and text files where there is a text."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            (root / name).write_bytes(image_bytes(len(name)))
        else:
            (root / name).write_text(text, encoding="latin-1")
    return root


def opened(path: Path, splits: Splits = WHOLE, names: tuple[str, ...] | None = None) -> ImageData:
    return open_data(str(path), splits, class_names=names, multi_label=True)


def sets(data: ImageData, split: str = "train") -> dict[str, set[str]]:
    """The labels of every image, by its key without the line of the CSV."""
    samples = data.splits[split]
    assert samples.labels.dtype == np.bool_ and samples.labels.shape == (len(samples), len(data.class_names))
    return {
        samples.key(row).split(": ")[-1]: {data.class_names[i] for i in np.flatnonzero(samples.labels[row])}
        for row in range(len(samples))
    }


def test_cells_hold_several_labels_or_none(tmp_path: Path) -> None:
    data = opened(table(tmp_path, "a.png,cat;dog\nb.png,\nc.png, dog ; bird;\nd.png,cat"))
    assert data.kind == "CSV with several labels an image" and data.multi_label
    assert data.class_names == ("bird", "cat", "dog")
    assert sets(data) == {"a.png": {"cat", "dog"}, "b.png": set(), "c.png": {"dog", "bird"}, "d.png": {"cat"}}
    assert data.notes == (
        "Labels are separated by ';', which the cells hold.",
        "1.25 labels an image; 1 image has none.",
    )
    data = opened(table(tmp_path, "a.png,10|9\nb.png,9\nc.png,\n"))
    assert data.class_names == ("9", "10")  # as numbers
    assert "Labels are separated by '|', which the cells hold." in data.notes


def test_another_separator_is_given_and_splits_are_kept(tmp_path: Path) -> None:
    lines = "a.png,cat;dog,train\nb.png,,train\nc.png,cat,val\nd.png,,test"
    data = opened(table(tmp_path, lines, "path,labels,split"), Splits())
    assert sets(data) == {"a.png": {"cat", "dog"}, "b.png": set()}
    assert sets(data, "val") == {"c.png": {"cat"}} and sets(data, "test") == {"d.png": set()}
    data = opened(table(tmp_path, 'a.png,"blue, light;red"\nb.png,red\nc.png,"red,red"'), MARKED)
    assert data.class_names == ("blue", "light;red", "red")
    assert "1 image with a label twice: it counts once." in data.notes
    assert sets(data)["c.png"] == {"red"}


def test_a_separator_and_several_labels_need_the_task(tmp_path: Path) -> None:
    single = table(tmp_path, "a.png,cat\nb.png,dog", "path,label")
    refused("task multi-label", open_data, str(single), MARKED)
    refused("label_separator", Splits, label_separator="")
    refused("one label an image", open_data, "digits", multi_label=True)
    several = table(tmp_path, "a.png,cat;dog\nb.png,dog")
    refused(r"found path, labels\. .* give task multi-label", open_data, str(several))
    files = {"images/a.png": None, "labels/a.txt": "cat\ndog"}
    refused("text files of labels, give task multi-label", open_data, str(plant(tmp_path / "files", files)))
    (tmp_path / "train.parquet").write_bytes(b"PAR1")
    for path in (tmp_path, tmp_path / "train.parquet"):
        refused("a single label an image is read", opened, path)


def test_names_of_a_trained_model_decide(tmp_path: Path) -> None:
    path = table(tmp_path, "a.png,dog;cat\nb.png,\nc.png,dog")
    data = opened(path, names=("fish", "dog", "cat"))
    assert data.splits["train"].labels.tolist() == [[False, True, True], [False] * 3, [False, True, False]]
    assert "1 class of the model has no images here: fish." in data.notes
    refused("does not know: cat", opened, path, names=("dog", "fish"))
    single = table(tmp_path, "a.png,dog\nb.png,cat")  # no reason to refuse what is only evaluated
    assert sets(opened(single, names=("cat", "dog"))) == {"a.png": {"dog"}, "b.png": {"cat"}}


@pytest.mark.parametrize(
    "files",
    [
        {"images/a.png": None, "images/a.txt": "cat\ndog\n", "images/b.png": None, "images/b.txt": ""},
        {"images/a.png": None, "labels/a.txt": "cat\r\ndog", "images/b.png": None, "labels/b.txt": "\n"},
        {"images/a.png": None, "images/labels/a.txt": "cat\ndog", "images/b.png": None, "images/b.txt": ""},
    ],
)
def test_label_files_beside_and_in_a_folder_of_their_own(
    tmp_path: Path, files: dict[str, str | None]
) -> None:
    data = opened(plant(tmp_path, files))
    assert sets(data) == {"images/a.png": {"cat", "dog"}, "images/b.png": set()}
    assert data.kind == "folder of images with label files"


@pytest.mark.parametrize("place", ["{split}/{kind}", "{kind}/{split}"])
def test_label_files_in_splits(tmp_path: Path, place: str) -> None:
    for split, text in (("train", "cat\ndog"), ("valid", "dog"), ("test", "")):
        images, labels = (place.format(split=split, kind=kind) for kind in ("images", "labels"))
        plant(tmp_path, {f"{images}/a.png": None, f"{labels}/a.txt": text})
    data = opened(tmp_path, Splits())
    label_sets = [list(sets(data, split).values()) for split in ("train", "val", "test")]
    assert label_sets == [[{"cat", "dog"}], [{"dog"}], [set()]]


def test_images_without_a_label_file_are_left_out_and_told(tmp_path: Path) -> None:
    files = {"a.png": None, "a.txt": "cat;big\ndog", "b.png": None, "classes.txt": "cat\ndog"}
    data = opened(plant(tmp_path, files))
    assert sets(data) == {"a.png": {"cat;big", "dog"}}
    assert data.notes[:3] == (
        "1 image without a file of labels ignored (an image without labels needs an empty file).",
        "1 text file without an image ignored: classes.txt.",
        "Some labels hold ';': if that separates labels, give it with --splits.label-separator.",
    )
    split = opened(tmp_path, Splits(0, 0, label_separator=";"))
    assert sets(split) == {"a.png": {"cat", "big", "dog"}}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.png": None}, "none of 1 image has a text file"),
        ({"a.png": None, "a.txt": "0 0.5 0.5 0.25 0.125\n"}, "holds boxes"),
        ({"val/a.png": None, "val/a.txt": "cat\ndog"}, "no images to train on"),
        ({"a.png": None, "a.txt": "cat", "b.png": None, "b.txt": "dog"}, "leave out task multi-label"),
        ({"a.png": None, "a.txt": "\xff\xfe"}, r"a\.txt cannot be read as a text .*again as UTF-8"),
    ],
)
def test_doubtful_label_files_are_refused(tmp_path: Path, files: dict[str, str | None], message: str) -> None:
    refused(message, opened, plant(tmp_path, files))


def test_the_fingerprint_knows_every_label(tmp_path: Path) -> None:
    before = opened(table(tmp_path, "a.png,cat;dog\nb.png,cat\nc.png,dog;cat")).fingerprint()
    assert before == opened(table(tmp_path, "a.png,dog;cat\nb.png,cat\nc.png,cat;dog")).fingerprint()
    assert before != opened(table(tmp_path, "a.png,cat;dog\nb.png,\nc.png,dog;cat")).fingerprint()


def test_check_counts_images_and_labels(tmp_path: Path) -> None:
    path = table(tmp_path, "a.png,cat;dog\nb.png,\nc.png,dog\nd.png,dog;cat\n")
    Image.open(tmp_path / "a.png").save(tmp_path / "c.png")  # equal pixels, other labels
    report = check_data(opened(path))
    assert report.images == {"train": 4} and report.counts == {"train": {"cat": 2, "dog": 3}}
    ((first, second),) = report.contradictions
    assert (first.label, second.label) == ("cat, dog", "dog")
    assert "Labels with fewer than 10 training images: cat (2), dog (3)." in report.warnings


def test_batches_carry_the_labels_of_every_image(tmp_path: Path) -> None:
    data = opened(table(tmp_path, "a.png,cat;dog\nb.png,\nc.png,dog\n"))
    samples = keep_in_memory(data.splits["train"], 1 << 20)
    preprocessing = Preprocessing(image_size=(4, 4))
    (batch,) = evaluation_batches(samples, preprocessing, 8)
    assert batch.labels.tolist() == [[True, True], [False, False], [False, True]]
    assert batch.slice(1, 3).labels.tolist() == [[False, False], [False, True]] and len(batch) == 3
    loader = TrainLoader(samples, preprocessing, None, batch_size=5, seed=0)
    for batch in loader.batches(0, 2):
        np.testing.assert_array_equal(batch.labels.numpy(), samples.labels[batch.ids.numpy()])


@settings(deadline=None, max_examples=200)
@given(
    arrays.arrays(np.bool_, st.tuples(st.integers(1, 40), st.integers(1, 6))),
    st.floats(0, 0.9),
    st.integers(0, 5),
)
def test_a_cut_keeps_every_label_outside(labels: NDArray[np.bool_], fraction: float, seed: int) -> None:
    count = int(fraction * len(labels))
    cut = stratify_label_sets(labels, count, seed, 2)
    assert cut.sum() <= count
    assert (labels[~cut].any(0) == labels.any(0)).all()
    assert (cut == stratify_label_sets(labels, count, seed, 2)).all()
    if (labels.sum(0)[labels.any(0)] > count + 1).all():
        assert cut.sum() == count  # nothing stands in the way


def test_a_cut_keeps_the_shares_and_the_rare_labels() -> None:
    draw = np.random.default_rng(0)
    frequency = np.array([0.5, 0.3, 0.2, 0.1, 0.05, 0.01, 0.006])
    labels = draw.random((1000, 7)) < frequency
    worst, by_chance = 0.0, 0.0
    for seed in range(5):
        cut = stratify_label_sets(labels, 100, seed, 1)
        assert cut.sum() == 100
        got, expected = labels[cut].sum(0), labels.sum(0) / 10
        assert got.min() >= 1  # 6 images of the rarest label, of which 0.6 would be cut
        worst = max(worst, float(np.abs(got - expected).max()))
        random = draw.permutation(1000)[:100]
        by_chance = max(by_chance, float(np.abs(labels[random].sum(0) - expected).max()))
    assert worst <= 1.5 < by_chance
    assert (stratify_label_sets(labels, 100, 0, 1) != stratify_label_sets(labels, 100, 1, 1)).any()
    # A tenth of three images would be none, and one gets into the cut; a label of two keeps both outside.
    labels = np.zeros((100, 3), dtype=bool)
    labels[::2, 0] = labels[:3, 1] = labels[50:52, 2] = True
    for seed in range(5):
        cut = stratify_label_sets(labels, 10, seed, 1)
        assert cut.sum() == 10 and labels[cut].sum(0).tolist()[1:] == [1, 0]


def test_missing_splits_are_cut_by_label(tmp_path: Path) -> None:
    lines = [f"{i}.png,{'common;rare' if i < 6 else 'common' if i % 2 else ''}" for i in range(60)]
    data = opened(table(tmp_path, "\n".join(lines)), Splits())
    assert [len(data.splits[split]) for split in ("train", "val", "test")] == [42, 6, 12]
    for samples in data.splits.values():
        assert samples.labels.sum(0).min() >= 1

"""Folds: every class is dealt round them, groups stay whole, and what cannot be tested is said or
refused; and stratified cuts, which never change: they are the splits of everybody's data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from tests.helpers.image_folders import keys
from tests.helpers.photos import noise_image
from tests.helpers.refusals import refused
from vitkit.data.config import Splits
from vitkit.data.layouts import repeats
from vitkit.data.layouts.cutting import cut_images, deal_folds, joined, stratify
from vitkit.data.layouts.repeats import find_repeats, repeats_of_training
from vitkit.data.listing import Labels
from vitkit.data.sources import ImageData, open_data


def counts_by_fold(labels: Labels, fold_of: NDArray[np.int64], folds: int) -> NDArray[np.int64]:
    """Count the images of each class in each fold, (F, K)."""
    one_hot = labels if labels.ndim == 2 else np.eye(int(labels.max()) + 1, dtype=bool)[labels]
    return np.array([one_hot[fold_of == fold].sum(0) for fold in range(folds)])


@pytest.mark.parametrize("number", range(40))
def test_folds_of_random_data_are_even_and_tear_no_group(number: int) -> None:
    """Classes of 1 to 30 images, with or without groups and several labels an image."""
    draw = np.random.default_rng(number)
    sizes = draw.integers(1, 31, int(draw.integers(2, 9)))
    labels: Labels = draw.permutation(np.repeat(np.arange(len(sizes)), sizes))
    if number % 4 >= 2:
        labels = draw.random((len(labels), len(sizes))) < draw.uniform(0.02, 0.5, len(sizes))
    groups = draw.integers(0, max(2, len(labels) // int(draw.integers(1, 6))), len(labels))
    grouping = groups if number % 2 else None
    group_sizes = np.unique(groups if number % 2 else np.arange(len(labels)), return_counts=True)[1]
    folds = min(int(draw.integers(2, 11)), len(group_sizes))
    fold_of = deal_folds(labels, grouping, folds, number, 3)
    counts = np.bincount(fold_of, minlength=folds)
    assert fold_of.shape == (len(labels),) and len(counts) == folds and counts.min() > 0
    assert np.ptp(counts) <= group_sizes.max()
    if grouping is not None:
        assert all(len(set(fold_of[grouping == group])) == 1 for group in np.unique(grouping))
    else:
        # Several labels an image need not allow one; two were never exceeded in a thousand data sets.
        apart = np.ptp(counts_by_fold(labels, fold_of, folds), axis=0).max()
        assert apart <= (1 if labels.ndim == 1 else 2)


def test_labels_of_several_an_image_are_evened_out_by_exchanges() -> None:
    """Without them labels of these sets differ by two between folds."""
    for number in (40, 41, 45, 47):
        draw = np.random.default_rng(number)
        labels = draw.random((60, 7)) < draw.uniform(0.05, 0.5, 7)
        fold_of = deal_folds(labels, None, 7, number, 3)
        assert np.ptp(counts_by_fold(labels, fold_of, 7), axis=0).max() <= 1
        assert np.ptp(np.bincount(fold_of)) <= 1


def test_the_same_seed_deals_the_same_folds() -> None:
    labels, groups = np.repeat([0, 1, 2], 12), np.arange(36) // 2
    for grouping in (None, groups):
        first, again, other = (deal_folds(labels, grouping, 4, seed, 3) for seed in (0, 0, 1))
        assert first.tolist() == again.tolist() != other.tolist()
    # Philox's numbers are fixed for good, so these folds are too.
    assert deal_folds(np.repeat([0, 1], 5), None, 3, 0, 3).tolist() == [1, 2, 0, 1, 0, 2, 0, 1, 0, 2]


def photos(root: Path, sizes: list[int]) -> Path:
    """Classes of so many pictures, each of another colour."""
    for label, size in enumerate(sizes):
        (root / f"class{label:02d}").mkdir(parents=True)
        for number in range(size):
            Image.new("RGB", (4, 4), (label, number, 0)).save(root / f"class{label:02d}/{number}.png")
    return root


def opened(root: Path, fold: int, folds: int) -> ImageData:
    return open_data(str(root), Splits(fold=fold, folds=folds))


def test_a_class_that_no_fold_trains_on_and_tests_is_named(tmp_path: Path) -> None:
    assert any(
        note.endswith("in one fold, and no run both trains on such a class and tests it: class01, class03.")
        for note in opened(photos(tmp_path, [6, 1, 6, 1]), 0, 3).notes
    )
    assert not any("in one fold" in note for note in opened(photos(tmp_path / "more", [6, 2]), 0, 3).notes)


def test_more_folds_than_images_are_refused(tmp_path: Path) -> None:
    root = photos(tmp_path, [3, 2])
    assert len(opened(root, 4, 5).splits["test"]) == 1
    refused(r"6 folds need as many images.* found 5\. Give fewer folds", opened, root, 0, 6)
    Image.open(root / "class00/0.png").save(root / "class00/copy.png")
    refused(r"6 folds need as many images or groups .* found 5\.", opened, root, 0, 6)


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
    assert np.flatnonzero(stratify(labels, 6, 3, 2)).tolist() == [8, 11, 14, 17, 18, 19]
    digits = "1ff020ce47c21c4674205dc447444a75fe40b3d5fcda576db344a9e3a1c25d02"
    assert open_data("digits").fingerprint() == digits


# Images that are there several times, and groups: found, and never torn apart by a split


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """Two classes of 30 pictures, each there twice: as a copy, or compressed otherwise to the same pixels."""
    for label in "ab":
        for i in range(30):
            seed = i + 100 * (label == "b")
            noise_image(tmp_path / label / f"{i:02d}.png", seed)
            noise_image(tmp_path / label / f"{i:02d}-again.png", seed, compress_level=0 if i % 2 else 6)
    return tmp_path


def test_the_same_pixels_stay_in_one_split(copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_data(str(copies))
    for name, samples in data.splits.items():
        again = [key.replace(".png", "-again.png") for key in keys(data, name) if "again" not in key]
        assert {*again} == {key for key in keys(data, name) if "again" in key}
        assert samples.labels.mean() == pytest.approx(0.5, abs=0.1)
    assert "60 images repeat others and are kept in the same split." in data.notes
    assert [len(samples) for samples in data.splits.values()] == pytest.approx([84, 12, 24], abs=2)
    monkeypatch.setattr(repeats, "COMPARED_BELOW", 100)
    assert "120 images are too many to look for repeated ones." in open_data(str(copies)).notes
    assert repeats_of_training(dict(data.splits), ["test"]) == {}


def test_the_same_image_in_two_classes_is_named(copies: Path) -> None:
    (copies / "a" / "07-again.png").rename(copies / "b" / "wrong.png")
    noise_image(copies / "a" / "third.png", 7, compress_level=1)
    noise_image(copies / "b" / "12-again-too.png", 112)  # of one class
    notes = open_data(str(copies)).notes
    assert notes[0] == (
        "1 image has different labels under several names, so that some are wrong: "
        "a/07.png = a/third.png = b/wrong.png."
    )
    assert len([note for note in notes if "different labels" in note]) == 1
    assert not [note for note in open_data(str(copies), labelled=False).notes if "labels" in note]


def test_of_many_bytes_equal_files_are_found(copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "DECODED_BELOW", 0)
    (copies / "a" / "bad.png").write_bytes(b"none")
    (copies / "a" / "bad-too.png").write_bytes(b"none")
    (copies / "a" / "same-size.png").write_bytes(b"nono")
    train = open_data(str(copies), Splits(0, 0)).splits["train"]
    first_copies = find_repeats([train])
    assert first_copies is not None
    names = [train.key(i) for i in range(len(train))]
    same = {names[i]: names[first] for i, first in enumerate(first_copies.tolist()) if first != i}
    copied = {f"{label}/{i:02d}.png": f"{label}/{i:02d}-again.png" for label in "ab" for i in range(0, 30, 2)}
    assert same == copied | {"a/bad.png": "a/bad-too.png"}


def test_images_of_training_are_found_in_other_splits(tmp_path: Path) -> None:
    for split, seeds in {"train": range(10), "val": range(20, 24), "test": [3, 40, 41, 5, 5, 42]}.items():
        for place, seed in enumerate(seeds):
            for label in "ab":
                noise_image(tmp_path / split / label / f"{place}.png", seed + 1000 * (label == "b"))
    splits = dict(open_data(str(tmp_path)).splits)
    repeats = repeats_of_training(splits, ["val", "test", "train", "none"])
    assert {name: rows.tolist() for name, rows in repeats.items()} == {"val": [], "test": [0, 3, 4, 6, 9, 10]}


def write_patients(path: Path, column: str = "Patient") -> Path:
    """40 patients of 1 to 6 images; most have one class, a few have both."""
    lines, rng = [f"path,label,{column}"], np.random.default_rng(0)
    for patient in range(40):
        for _ in range(int(rng.integers(1, 7))):
            name = f"{len(lines)}.png"
            label = "b" if patient % 4 == 0 or (patient % 10 == 1 and len(lines) % 2) else "a"
            noise_image(path / name, len(lines))
            lines.append(f"{name},{label},p{patient}")
    (path / "list.csv").write_text("\n".join(lines))
    return path / "list.csv"


def patients_by_split(csv: Path, data: ImageData) -> dict[str, set[str]]:
    rows = [line.split(",") for line in csv.read_text().splitlines()[1:]]
    of = {row[0]: row[2] for row in rows}
    return {name: {of[key.split(": ")[-1]] for key in keys(data, name)} for name in data.splits}


def test_the_only_group_with_a_class_is_trained_on(tmp_path: Path) -> None:
    """However well the group would fill a split: a class without training images cannot be learned."""
    for i in range(12):
        noise_image(tmp_path / f"{i}.png", i)
    rows = [f"{i}.png,{'c' if i == 0 else 'ab'[i % 2]},p{i // 3}" for i in range(12)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,patient", *rows]))
    for seed in range(8):
        splits = Splits(val_fraction=0, test_fraction=0.34, group="patient", seed=seed)
        data = open_data(str(tmp_path / "list.csv"), splits)
        rare = data.class_names.index("c")
        assert rare in data.splits["train"].labels and rare not in data.splits["test"].labels


@pytest.mark.parametrize("group", [None, "patient"])
def test_folds_hold_each_image_once_and_a_group_is_never_torn(tmp_path: Path, group: str | None) -> None:
    csv = write_patients(tmp_path)
    tests: list[str] = []
    cuts = [open_data(str(csv), Splits(group=group, fold=fold, folds=5)) for fold in range(5)]
    total = sum(map(len, cuts[0].splits.values()))
    for data in cuts:
        tests += keys(data, "test")
        assert len(data.splits["test"]) == pytest.approx(total / 5, abs=6)
    assert len(tests) == len(set(tests)) == total
    if group is None:
        return
    single = open_data(str(csv), Splits(group="patient"))
    assert "Splits keep groups together: 40 groups by patient." in single.notes
    assert len(single.splits["test"]) == pytest.approx(0.2 * total, abs=0.03 * total)
    for data in (*cuts, single):
        patients = patients_by_split(csv, data)
        assert sum(map(len, patients.values())) == len(set().union(*patients.values())) == 40
        for samples in data.splits.values():
            allowed = 0.1 if data is single else 0.15
            assert samples.labels.mean() == pytest.approx(data.splits["train"].labels.mean(), abs=allowed)
    for i in range(60):  # folders below the classes are groups, too
        noise_image(tmp_path / "folders" / "ab"[i % 2] / f"p{i % 12}" / f"{i}.png", i)
    data = open_data(str(tmp_path / "folders"), Splits(group="1"))
    held = [{key.split("/")[1] for key in keys(data, name)} for name in data.splits]
    assert sum(map(len, held)) == len(set().union(*held)) == 12


def test_sets_of_labels_keep_groups_together() -> None:
    rng = np.random.default_rng(0)
    labels, groups = rng.random((200, 4)) < 0.3, rng.integers(0, 60, 200)
    cut = cut_images(labels, groups, 40, 0, 1)
    assert not set(groups[cut]) & set(groups[~cut])
    assert cut.sum() == pytest.approx(40, abs=8)
    assert labels[cut].mean(0) == pytest.approx(labels.mean(0), abs=0.12)
    # A class of one group stays whole.
    labels, groups = np.repeat([0, 1], 20), np.repeat([0, 1, 2, 3, 4, 9], [4, 4, 4, 4, 4, 20])
    cut = cut_images(labels, groups, 8, 0, 1)
    assert not cut[20:].any() and cut[:20].any()
    # Groupings are joined over several steps.
    assert joined(np.array([0, 0, 1, 2, 3]), np.array([7, 8, 8, 9, 9])).tolist() == [0, 0, 0, 1, 1]


def test_wrong_groups_and_folds_are_refused(tmp_path: Path, copies: Path) -> None:
    for split in ("train", "test"):
        for place in ("a/0.png", "b/1.png"):
            noise_image(tmp_path / "split" / split / place, len(split))
    cases: list[tuple[Path | str, dict[str, Any], str]] = [
        (write_patients(tmp_path / "patients"), {"group": "scene"}, "has no column 'scene' to keep groups"),
        (tmp_path / "patients/list.csv", {"group": "1"}, "has no column '1'"),
        (copies, {"group": "1"}, "has 0 folders below its class folder"),
        (copies, {"group": "patient"}, "is a level of folders below them"),
        ("digits", {"group": "1"}, "built-in digits"),
        (tmp_path / "split", {"fold": 0, "folds": 3}, "has a test split of its own"),
    ]
    for data, splits, message in cases:
        refused(message, open_data, str(data), Splits(**splits))
    for wrong in ((1, None), (None, 5), (5, 5), (0, 1)):
        refused(".", Splits, fold=wrong[0], folds=wrong[1])
    refused("leave nothing", Splits, fold=0, folds=2, val_fraction=0.5)

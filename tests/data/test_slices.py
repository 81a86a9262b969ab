"""Parts of splits: which images they hold, that parts share none, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.image_folders import keys, plant
from vitkit.data.config import Slice, Splits, parse_slice, parse_split
from vitkit.data.layouts.cutting import spread_order
from vitkit.data.sources import open_data
from vitkit.errors import VitkitError


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
        with pytest.raises(VitkitError, match=r"\[:10%\]|above 0"):
            Splits(subset=text)
    for text, count in (("[:5000]", 1000), ("[5:5]", 10), ("[7:3]", 10), ("[:1%]", 3), ("[-9:]", 5)):
        with pytest.raises(VitkitError, match=f"of {count:,}: expected at least one image"):
            parse_slice(text).of(count)


def test_names_of_splits() -> None:
    assert parse_split("test") == ("test", None)
    assert parse_split("train[:10%]") == ("train", Slice("", "10%"))
    assert parse_split(" train [ : 10.0% ] ") == ("train", Slice("", "10%"))
    assert parse_split(" test ") == parse_split("test[:]") == ("test", None)
    with pytest.raises(VitkitError, match="Expected a part of a split"):
        parse_split("train[0.1]")
    for name in ("test[:10%", "test:10%]", "[:10%]", "test[:10%]x"):
        with pytest.raises(VitkitError, match="with both brackets at its end, found"):
            parse_split(name)


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
    with pytest.raises(VitkitError, match="goes from image 0 to 50"):
        data.with_part("test[:50]")

"""Levels of a tree of classes: what is counted at each, and what a threshold promises of new images."""

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.evaluation.answers import predictions
from vitkit.evaluation.levels import (
    choose_threshold,
    choose_thresholds,
    describe,
    fewest_images,
    is_sure,
    learn_levels,
    levels_of,
    likeliest_groups,
    name_groups,
    score_levels,
)
from vitkit.models.config import Levels

BIRDS = ("birds/gull/herring", "birds/petrel", "stones", "birds/gull/common")


def logits_of(*shares: tuple[float, ...]) -> NDArray[np.float32]:
    """Make logits whose softmax has these probabilities."""
    return np.asarray(np.log(shares), np.float32)


def test_a_group_is_as_probable_as_its_classes_together() -> None:
    levels = levels_of(BIRDS)
    assert [level.names for level in levels] == [
        ("birds", "stones"),
        ("birds/gull", "birds/petrel", "stones"),
        ("birds/gull/common", "birds/gull/herring", "birds/petrel", "stones"),
    ]
    # Of the second image a stone is the likeliest class, and a bird the likeliest group.
    logits = logits_of((0.5, 0.1, 0.1, 0.3), (0.25, 0.2, 0.4, 0.15), (0.1, 0.1, 0.7, 0.1))
    groups, shares = likeliest_groups(logits, levels)
    named = [[level.names[i] for i in row] for level, row in zip(levels, groups, strict=True)]
    assert named == [
        ["birds", "birds", "stones"],
        ["birds/gull", "birds/gull", "stones"],
        ["birds/gull/herring", "stones", "stones"],
    ]
    # Whose likeliest class is no bird is not told a stone below birds.
    assert shares == pytest.approx(np.array([[0.9, 0.6, 0.7], [0.8, 0.4, 0.7], [0.5, 0.0, 0.7]]), abs=1e-6)


def test_the_deepest_level_that_is_sure_is_named() -> None:
    logits = logits_of(
        (0.90, 0.02, 0.03, 0.05), (0.5, 0.1, 0.1, 0.3), (0.3, 0.5, 0.1, 0.1), (0.25, 0.2, 0.4, 0.15)
    )
    names = [None if each is None else each[0] for each in name_groups(logits, BIRDS, (0.7, 0.75, 0.85))]
    assert names == ["birds/gull/herring", "birds/gull", "birds", None]
    ((_, share), *_) = (each for each in name_groups(logits, BIRDS, (0.7, 0.75, None)) if each)
    assert share == pytest.approx(0.95, abs=1e-6)  # of gulls, for no species is ever sure
    assert name_groups(logits, BIRDS, (None, None, None)) == [None] * 4


def test_a_class_at_the_top_is_an_answer_of_every_level() -> None:
    (stone,) = name_groups(logits_of((0.01, 0.01, 0.97, 0.01)), BIRDS, (0.5, 0.6, 0.9))
    assert stone is not None and stone[0] == "stones"


SPECIES = tuple(f"family {i // 3}/species {i}" for i in range(12))


def draw(count: int, noise: float, rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Draw images of twelve species in four families, some hard and some easy."""
    labels = rng.integers(12, size=count)
    logits = rng.normal(0, noise, (count, 12)) + (labels[:, None] // 3 == np.arange(12) // 3)
    logits[np.arange(count), labels] += rng.uniform(0, 9, count)
    return logits.astype(np.float32), labels


@pytest.mark.parametrize(("count", "noise"), [(100, 1.5), (400, 1.0), (1000, 1.0)])
def test_at_most_one_in_twenty_models_breaks_its_promise(count: int, noise: float) -> None:
    """200 models learn their thresholds from `count` images each: of 50,000 others, more than 5 % of those
    that are named at a level may be named wrongly for 10 of them."""
    rng = np.random.default_rng(0)
    levels = levels_of(SPECIES)
    logits, labels = draw(50_000, noise, rng)
    groups, shares = likeliest_groups(logits, levels)
    right = groups == np.stack([level.group_of[labels] for level in levels])
    broken, named = np.zeros(2), np.zeros(2)
    for _ in range(200):
        learned = learn_levels(*draw(count, noise, rng), SPECIES, "test")
        sure = is_sure(shares, learned.thresholds)
        named += sure.mean(1) / 200
        wrong = (sure & ~right).sum(1) / np.maximum(sure.sum(1), 1)
        broken += wrong > 0.05
    assert (broken <= 10).all()
    # Not by silence: the families at least are named, more often than the species.
    assert named[0] > 0.6 and named[0] > named[1] > 0.2


def test_the_threshold_is_the_lowest_that_keeps_the_promise() -> None:
    share = np.linspace(1, 0.01, 400)
    right = np.ones(400, bool)
    threshold = choose_threshold(share, right)
    assert threshold is not None and threshold == pytest.approx(0.01)
    assert (share > threshold).all()  # the least sure image too
    right[200:] = False  # the less sure half is wrong
    threshold = choose_threshold(share, right)
    assert threshold is not None and share[210] < threshold < share[199]
    assert choose_threshold(share, ~right) is None
    assert choose_threshold(np.zeros(400), right) is None


def test_too_few_images_give_no_threshold() -> None:
    share = np.linspace(1, 0.5, 59)
    assert fewest_images() == 59 and choose_threshold(share, np.ones(59, bool)) is not None
    assert choose_threshold(share[1:], np.ones(58, bool)) is None
    learned = learn_levels(logits_of(*[(0.7, 0.1, 0.1, 0.1)] * 20), np.zeros(20, np.int64), BIRDS, "val")
    assert learned == Levels((None, None, None), "val", 20)
    assert next(describe(learned)) == "1: never sure: that takes 59 validation images, found 20"


def test_a_deeper_threshold_is_never_below_the_one_above() -> None:
    share = np.linspace(1, 0.2, 300)
    right = np.stack([np.arange(300) < 200, np.ones(300, bool)])
    above, below = choose_thresholds(np.stack([share, share]), right)
    assert above is not None and below == above
    assert choose_thresholds(np.stack([share, share]), ~right[:, ::-1] & False) == (None, None)


def test_scores_count_each_level_and_each_group() -> None:
    logits = logits_of(
        (0.90, 0.02, 0.03, 0.05), (0.5, 0.1, 0.1, 0.3), (0.3, 0.5, 0.1, 0.1), (0.1, 0.1, 0.7, 0.1)
    )
    labels = np.array([0, 3, 0, 2])
    scores = score_levels(
        predictions(logits, labels), BIRDS, Levels((0.6, 0.65, 0.85), "test", 500), cross_fit=False
    )
    counted = [(each.level, each.groups, each.correct, each.named, each.right) for each in scores.levels]
    assert counted == [(1, 2, 4, 4, 4), (2, 3, 3, 3, 3), (3, 4, 2, 1, 1)]
    assert [(each.ended, each.ended_right) for each in scores.levels] == [(1, 1), (2, 2), (1, 1)]
    tree = {each.name: (each.count, each.correct, each.named, each.right) for each in scores.groups}
    assert list(tree) == [
        *("birds", "birds/gull", "birds/gull/common", "birds/gull/herring", "birds/petrel", "stones")
    ]
    assert tree["birds"] == (3, 3, 3, 3) and tree["birds/gull"] == (3, 2, 2, 2)
    assert tree["birds/gull/common"] == (1, 0, 0, 0) and tree["stones"] == (1, 1, 1, 1)
    said = scores.sentence(4)
    assert said.startswith("by level 100.00% at level 1 (100.0% named, 100.0% of these rightly), 75.00% at")


def test_images_that_thresholds_were_chosen_by_are_judged_by_those_of_others() -> None:
    rng = np.random.default_rng(1)
    logits, labels = draw(600, 1.0, rng)
    made = predictions(logits, labels)
    learned = learn_levels(logits, labels, SPECIES, "test")
    plain, crossed = (score_levels(made, SPECIES, learned, cross) for cross in (False, True))
    assert crossed.cross_fitted and [each.accuracy for each in plain.levels] == [
        each.accuracy for each in crossed.levels
    ]
    assert [each.named for each in plain.levels] != [each.named for each in crossed.levels]
    never = score_levels(made, SPECIES, Levels((None, None), "test", 600), cross_fit=True)
    assert [each.named for each in never.levels] == [0, 0]

"""The words, the table and the figure of a comparison of arms."""

from dataclasses import replace

import numpy as np
import pytest

from vitkit.evaluation.paired import PairedDifference, paired_difference
from vitkit.jobs.study.study import ArmResult, Comparison, arm_table, conclusions, difference_plot

DRAW = np.random.default_rng(3)
BASE = (DRAW.random((3, 400)) < 0.8).astype(float)
WORSE = BASE * (DRAW.random((3, 400)) < 0.9)
ALIKE = np.where(DRAW.random((3, 400)) < 0.05, 1 - BASE, BASE)


def arm(label: str, scores: np.ndarray, p: float | None = None) -> ArmResult:
    means = {str(seed): float(row.mean()) for seed, row in enumerate(scores)}
    difference = None if p is None else paired_difference(BASE, scores)
    return ArmResult(label.replace(" ", "-"), label, 0.01, means, (), None, difference, p)


COMPARISON = Comparison(
    "accuracy",
    "test",
    400,
    (0, 1, 2),
    arm("the base", BASE),
    (arm("position none", WORSE, 0.0001), arm("pool mean", ALIKE, 0.8)),
)


def test_a_difference_that_was_found_and_none_and_the_same_answers_are_told_apart() -> None:
    worse, alike, about = conclusions(COMPARISON)
    difference = COMPARISON.arms[0].difference
    assert difference is not None
    low, high = (f"{100 * end:+.1f}" for end in difference.interval)
    assert worse == (
        f"position none: {-100 * difference.mean:.1f} points worse than the base (95 % interval {low} to "
        f"{high}, adjusted p below 0.001)."
    )
    assert alike.startswith("pool mean: no difference found, ")
    assert "would have been found in 8 of 10 studies of this size." in alike
    assert about.startswith("3 seeds on 400 test images, the same in every arm")
    same = replace(COMPARISON, arms=(arm("log_every 3", BASE, 1.0),))
    assert conclusions(same)[0] == "log_every 3: the same as the base on every test image."


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        ((0,), "about these weights only, and says nothing about other trainings"),
        ((0, 1), "Two hardly tell how far seeds differ: --seeds 3 or more give shorter ones."),
    ],
)
def test_what_one_seed_and_two_tell_is_said(seeds: tuple[int, ...], said: str) -> None:
    assert said in conclusions(replace(COMPARISON, seeds=seeds))[-1]
    assert said not in conclusions(COMPARISON)[-1]


def test_seeds_that_diverged_are_told() -> None:
    both = paired_difference(BASE[:2], WORSE[:2])
    two = ArmResult("a", "rate 3", 3.0, {"0": 0.8, "2": 0.7}, (1,), None, both, 0.2)
    none = ArmResult("b", "rate 9", None, {}, (0, 1, 2))
    said = conclusions(replace(COMPARISON, arms=(two, none)))
    assert said[0].endswith("Only 2 seeds finished in both.")
    assert said[1] == "rate 9: not compared, because training diverged with every seed of rate 9."
    rows = arm_table(replace(COMPARISON, arms=(two, none))).rows
    assert rows[1][-1] == "80.0%, diverged, 70.0%"
    assert rows[2][1] == "–" and set(rows[2][2:7]) == {"–"}
    lost = replace(COMPARISON, images=0, base=replace(none, label="the base"), arms=(none,))
    assert conclusions(lost) == [
        "Training diverged in every run: there is nothing to compare. Give lower rates."
    ]


def test_a_rate_at_the_end_of_a_sweep_is_told() -> None:
    ends = [
        replace(arm_result, end_of_sweep="highest") for arm_result in (COMPARISON.base, COMPARISON.arms[0])
    ]
    said = conclusions(replace(COMPARISON, base=ends[0], arms=(ends[1], COMPARISON.arms[1])))
    assert said[2].startswith(
        "The highest learning rate that was tried was the best for the base, position none:"
    )
    assert not any("lowest" in sentence for sentence in said)


def test_the_table_has_each_seed_and_the_figure_each_arm() -> None:
    table = arm_table(COMPARISON)
    assert table.headings[:4] == ("arm", "mean accuracy", "difference", "95 % interval")
    assert str(table.rows[0][-1]).count("%") == 3
    assert [row[0] for row in table.rows] == ["the base", "position none", "pool mean"]
    assert all(len(row) == len(table.headings) for row in table.rows)
    plot = difference_plot(COMPARISON)
    assert plot is not None
    labels = [label.get_text() for label in plot.draw().axes[0].get_yticklabels()]
    assert labels == ["position none", "pool mean"]
    assert difference_plot(replace(COMPARISON, arms=())) is None


@pytest.mark.parametrize(("images", "shown"), [(400, "+0.1 to"), (5_000, "+0.12 to")])
def test_many_images_are_told_to_a_hundredth_of_a_point(images: int, shown: str) -> None:
    difference = PairedDifference(3, images, 0.002, 1e-7, 1e-7, (0.00123, 0.003), 0.01, 0.001)
    comparison = replace(
        COMPARISON, images=images, arms=(replace(COMPARISON.arms[0], difference=difference),)
    )
    assert shown in conclusions(comparison)[0]

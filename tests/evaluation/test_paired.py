"""Paired differences over seeds and images, by hand and against draws."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from tests.helpers.refusals import refused
from vitkit.evaluation.statistics import (
    bonett_price,
    count_flips,
    detectable_flips,
    holm,
    model_difference,
    paired_difference,
)


def test_without_images_that_vary_it_is_the_paired_t_test_of_the_seeds() -> None:
    second = np.array([[0.1], [0.2], [0.2], [0.4]]) + np.zeros((4, 3))
    paired, expected = paired_difference(np.zeros((4, 3)), second), stats.ttest_rel(second[:, 0], np.zeros(4))
    assert paired.p == pytest.approx(expected.pvalue)
    assert paired.interval == pytest.approx(tuple(expected.confidence_interval()))


def test_each_term_has_its_own_degrees_of_freedom() -> None:
    draw = np.random.default_rng(5)
    first, second = (draw.random((3, 50)).round(1) for _ in range(2))
    paired = paired_difference(first, second)
    assert (paired.seeds, paired.images) == (3, 50) and paired.mean == pytest.approx((second - first).mean())
    difference = second - first
    by_seed, by_image = difference.mean(1), difference.mean(0)
    rest = difference - by_seed[:, None] - by_image + difference.mean()
    seeds = stats.sem(by_seed) ** 2
    # The rest is in the term of the seeds already; a third of the term stays at least.
    images = by_image.var() / 50 - (rest**2).sum() / (2 * 49) / 150
    images = max(images, by_image.var() / 50 / 3)
    assert paired.seed_variance == pytest.approx(seeds)
    assert paired.image_variance == pytest.approx(images)
    error = math.sqrt(seeds + images)
    assert (paired.seed_variance or 0) + paired.image_variance == pytest.approx(error**2)
    half = math.hypot(stats.t.ppf(0.975, 2) * seeds**0.5, stats.t.ppf(0.975, 49) * images**0.5)
    mean = difference.mean()
    assert paired.interval == pytest.approx((mean - half, mean + half))
    assert paired.detectable == pytest.approx(half + stats.norm.ppf(0.8) * error)
    points = stats.t.ppf(1 - paired.p / 2, [2, 49])
    assert math.hypot(points[0] * seeds**0.5, points[1] * images**0.5) == pytest.approx(abs(mean))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 6), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_p_is_that_of_the_interval_over_seeds_and_images(seeds: int, images: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    base, other = draw.random((2, seeds, 1)) * draw.random((2, 1, images)) > 0.2
    paired = paired_difference(base.astype(float), other.astype(float))
    low, high = paired.interval
    assert (paired.p < 0.05) == (low > 0 or high < 0)


def test_one_seed_says_nothing_of_others_and_no_difference_is_none() -> None:
    first, second = np.array([[1, 0, 0, 1, 0]], float), np.array([[1, 1, 0, 1, 1]], float)
    paired = paired_difference(first, second)
    assert paired.seed_variance is None
    assert paired.image_variance == pytest.approx(np.var([0, 1, 0, 0, 1]) / 5)
    scores = np.array([[1, 0, 1], [0, 0, 1]], float)
    same = paired_difference(scores, scores)
    assert (same.mean, same.interval, same.p, same.detectable) == (0, (0, 0), 1, 0)
    refused(r"same images, .* \(2, 3\) and \(2, 4\)", paired_difference, np.zeros((2, 3)), np.zeros((2, 4)))
    refused("same seeds", paired_difference, np.zeros((0, 3)), np.zeros((0, 3)))


def test_holms_adjustment_by_hand() -> None:
    """From the smallest on, times 4, 3, 2 and 1; 0.04 is not put below the 0.06 before it."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([0.6, 0.7]) == (1.0, 1.0)
    assert holm([]) == ()


Scores = NDArray[np.float64]


def answers(first_only: int, second_only: int, both: int, neither: int) -> tuple[Scores, Scores]:
    """Make the scores of two models on so many images of each kind."""
    counts = (first_only, second_only, both, neither)
    return np.repeat([1.0, 0, 1, 0], counts), np.repeat([0.0, 1, 1, 0], counts)


def test_flips_are_counted_and_tested_by_mcnemar() -> None:
    flips = count_flips(*answers(3, 11, 20, 4))
    assert (flips.first_only, flips.second_only, flips.both_right, flips.graded) == (3, 11, 20, False)
    assert flips.p == pytest.approx(stats.binomtest(3, 14).pvalue)
    graded = count_flips(np.array([1, 0.5, 0.25]), np.array([1, 0.25, 1]))
    assert (graded.first_only, graded.second_only, graded.both_right, graded.graded) == (1, 1, 1, True)


def test_two_models_are_compared_by_bonett_and_price() -> None:
    difference = model_difference(*answers(0, 5, 300, 55))
    assert difference.mean == pytest.approx(5 / 360) and not difference.differs
    assert difference.interval[0] < 0 < difference.interval[1]
    gains, losses = 6 / 362, 1 / 362  # one more of each kind, and two more images
    error = math.sqrt((gains + losses - (gains - losses) ** 2) / 362)
    half = stats.t.ppf(0.975, 359) * error
    assert difference.interval == pytest.approx((gains - losses - half, gains - losses + half))
    assert difference.p == pytest.approx(2 * stats.t.sf((gains - losses) / error, 359))
    assert model_difference(*answers(0, 6, 300, 54)).differs


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(0, 60), st.sampled_from([0, 20, 400, 9_000]))
def test_the_verdict_on_two_models_never_contradicts_the_interval(first: int, second: int, same: int) -> None:
    difference = model_difference(*answers(first, second, same, 0))
    low, high = difference.interval
    assert difference.differs == (low > 0 or high < 0)


def test_graded_scores_are_compared_by_their_means() -> None:
    draw = np.random.default_rng(2)
    first, second = draw.random(40).round(1), draw.random(40).round(1)
    graded, paired = model_difference(first, second), paired_difference(first[None], second[None])
    assert (graded.p, graded.interval, graded.detectable) == (paired.p, paired.interval, paired.detectable)


@pytest.mark.parametrize("images", [1, 2, 5])
def test_a_few_graded_images_find_nothing_however_alike_they_differ(images: int) -> None:
    difference = model_difference(np.full(images, 1 / 3), np.full(images, 2 / 3))
    assert not difference.differs and difference.p == min(1, 2 / 2**images)
    assert (difference.interval, difference.detectable) == ((-1, 1), 1)
    assert model_difference(np.full(6, 1 / 3), np.full(6, 2 / 3)).differs


def test_the_detectable_difference_is_found_in_8_of_10() -> None:
    draw = np.random.default_rng(1)
    for images, other_way in ((360, 0), (360, 5), (60, 2)):
        least = detectable_flips(images, other_way)
        background = other_way / images
        shares = [background, background + least, 1 - 2 * background - least]
        significant = [
            bonett_price(first, second, images)[1] < 0.05
            for first, second, _ in draw.multinomial(images, shares, 2000).tolist()
        ]
        # Three standard deviations of 2,000 draws.
        assert np.mean(significant) == pytest.approx(0.8, abs=0.03)
    assert detectable_flips(5, 0) == detectable_flips(10, 5) == 1.0  # six images have to fall one way
    assert detectable_flips(6, 0) < 1.0
    assert detectable_flips(50_000, 1_000) == pytest.approx(0.0026, abs=1e-4)

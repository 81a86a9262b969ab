"""Paired differences over seeds and images, by hand and against draws."""

import math

import numpy as np
import pytest
from scipy import stats

from vitkit.errors import VitkitError
from vitkit.evaluation.paired import holm, paired_difference


def test_the_variances_and_the_mean_by_hand() -> None:
    first = np.array([[1, 0, 1, 0], [1, 1, 0, 0]], float)
    second = np.array([[1, 1, 1, 0], [0, 1, 1, 1]], float)
    # Differences: 0 1 0 0 (mean 1/4) and -1 0 1 1 (mean 1/4); by image -1/2 1/2 1/2 1/2.
    found = paired_difference(first, second)
    assert (found.seeds, found.images, found.mean) == (2, 4, 0.25)
    assert found.seed_variance == 0.0
    assert found.image_variance == pytest.approx(0.1875 / 4)
    assert found.degrees_of_freedom == pytest.approx(3)


def test_the_two_terms_are_put_together_with_their_degrees_of_freedom() -> None:
    draw = np.random.default_rng(5)
    first, second = (draw.random((3, 50)).round(1) for _ in range(2))
    found = paired_difference(first, second)
    difference = second - first
    seeds = stats.sem(difference.mean(1)) ** 2
    images = difference.mean(0).var() / 50
    assert found.seed_variance == pytest.approx(seeds)
    assert found.image_variance == pytest.approx(images)
    freedom = (seeds + images) ** 2 / (seeds**2 / 2 + images**2 / 49)
    error = math.sqrt(seeds + images)
    assert found.standard_error == pytest.approx(error)
    assert found.degrees_of_freedom == pytest.approx(freedom)
    assert found.interval == pytest.approx(stats.t.interval(0.95, freedom, difference.mean(), error))
    assert found.p == pytest.approx(2 * stats.t.sf(abs(difference.mean()) / error, freedom))
    assert found.detectable == pytest.approx((stats.t.ppf(0.975, freedom) + stats.norm.ppf(0.8)) * error)


def test_without_images_that_vary_it_is_the_paired_t_test_of_the_seeds() -> None:
    first = np.zeros((4, 3))
    second = np.array([[0.1], [0.2], [0.2], [0.4]]) + first  # the same on every image
    found, expected = paired_difference(first, second), stats.ttest_rel(second[:, 0], first[:, 0])
    assert found.p == pytest.approx(expected.pvalue)
    assert found.interval == pytest.approx(tuple(expected.confidence_interval()))


def test_the_term_of_the_images_is_the_bootstraps() -> None:
    draw = np.random.default_rng(0)
    first, second = (draw.integers(0, 2, (3, 200)).astype(float) for _ in range(2))
    means = (second - first).mean(0)
    drawn = means[draw.integers(0, 200, (20_000, 200))].mean(1)
    # The variance of 20,000 draws is known to 1 % (its standard error is sqrt(2 / 20,000)).
    assert paired_difference(first, second).image_variance == pytest.approx(drawn.var(), rel=0.05)


def test_one_seed_says_nothing_of_other_seeds() -> None:
    first, second = np.array([[1, 0, 0, 1, 0]], float), np.array([[1, 1, 0, 1, 1]], float)
    found = paired_difference(first, second)
    assert found.seed_variance is None
    assert found.degrees_of_freedom == 4
    assert found.standard_error == pytest.approx(math.sqrt(np.var([0, 1, 0, 0, 1]) / 5))


def test_the_same_answers_have_no_difference() -> None:
    scores = np.array([[1, 0, 1], [0, 0, 1]], float)
    found = paired_difference(scores, scores)
    assert (found.mean, found.interval, found.p, found.detectable) == (0, (0, 0), 1, 0)


def test_scores_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(VitkitError, match=r"same images, .* \(2, 3\) and \(2, 4\)"):
        paired_difference(np.zeros((2, 3)), np.zeros((2, 4)))
    with pytest.raises(VitkitError, match="same seeds"):
        paired_difference(np.zeros((0, 3)), np.zeros((0, 3)))


def test_holms_adjustment_by_hand() -> None:
    """From the smallest on, times 4, 3, 2 and 1; 0.04 is not put below the 0.06 before it."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([0.6, 0.7]) == (1.0, 1.0)
    assert holm([]) == ()

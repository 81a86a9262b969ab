"""Which images are none of a model's classes: the threshold, its promise, the statistics of features."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from sklearn.covariance import ledoit_wolf

from tests.helpers.refusals import refused
from vitkit.evaluation.refusal import (
    TIE,
    RefusalRecord,
    choose_share,
    fit_statistics,
    judge_halves,
    show_smallest_share,
    shrunk_covariance,
    smallest_share,
    typicality,
)
from vitkit.models.config import Refusal


@given(own=some.lists(some.floats(-5, 5), min_size=1, max_size=40), score=some.floats(-9, 9))
def test_typicality_counts_the_images_that_are_as_strange(own: list[float], score: float) -> None:
    (fraction,) = typicality(np.array([score]), sorted(own))
    assert fraction == (1 + sum(each >= score - TIE for each in own)) / (1 + len(own))


@pytest.mark.parametrize(("held_out", "share"), [(49, 0.02), (60, 0.05), (200, 0.02)])
def test_no_more_of_its_own_images_are_refused_than_the_share(held_out: int, share: float) -> None:
    """Over 200 draws of images of one kind, of which some are held out and the others are new."""
    generator, rates = np.random.default_rng(0), list[float]()
    for _ in range(200):
        scores = generator.gamma(2.0, size=held_out + 500)
        own, new = np.sort(scores[:held_out]), scores[held_out:]
        rates.append(float((typicality(new, own.tolist()) <= share).mean()))
    error = float(np.std(rates, ddof=1)) / math.sqrt(len(rates))
    assert share / 3 < np.mean(rates) <= share + 2 * error


def test_a_share_that_so_few_images_cannot_keep_is_refused() -> None:
    few, enough = Refusal("test", (1.0,) * 20), Refusal("test", (1.0,) * 49)
    assert smallest_share(49) == 0.02
    assert choose_share(enough, None) == choose_share(enough, 0.02) == 0.02
    assert choose_share(few, None) == 1 / 21
    assert choose_share(few, 0) == 0
    assert choose_share(few, 0.1) == 0.1
    refused(r"With 20 held-out images .* 0.048, found 0.02:", choose_share, few, 0.02)
    for share in (-0.1, 1.0, math.nan):
        refused("from 0 to below 1", choose_share, enough, share)


def test_the_smallest_share_that_is_shown_can_be_given() -> None:
    for images in range(1, 3000):
        shown = float(show_smallest_share(images))
        assert smallest_share(images) - 1e-12 <= shown < 1.11 * smallest_share(images)
        if shown < 1:
            assert choose_share(Refusal("test", (1.0,) * images), shown) == shown


@pytest.mark.parametrize("scores", [(), (2.0, 1.0), (math.nan,), (1.0, math.inf)])
def test_scores_of_a_record_are_finite_and_ascend(scores: tuple[float, ...]) -> None:
    refused("ascending", Refusal, "test", scores)


@pytest.mark.parametrize(("images", "width"), [(200, 12), (12, 30), (2, 3)])
def test_the_covariance_is_that_of_scikit_learn(images: int, width: int) -> None:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(images, width)) @ generator.normal(size=(width, width))
    np.testing.assert_allclose(
        shrunk_covariance(rows), ledoit_wolf(rows, assume_centered=True)[0], atol=1e-12
    )


def test_features_without_any_spread_have_finite_statistics() -> None:
    for rows in (np.ones((6, 4)), np.eye(6)[:, :4]):
        parts = fit_statistics(rows, np.arange(6) % 3, 3)
        assert all(np.isfinite(part).all() for part in parts.values())


def test_whitened_features_have_the_identity_as_covariance_within_classes() -> None:
    generator, labels = np.random.default_rng(0), np.arange(4000) % 2
    rows = generator.normal(size=(4000, 6)) @ generator.normal(size=(6, 6)) + 5 * labels[:, None]
    parts = fit_statistics(rows, labels, 2)
    white = (rows - parts["centre"]) @ parts["whitening"]
    for number in (0, 1):
        np.testing.assert_allclose(white[labels == number].mean(0), parts["class_means"][number], atol=1e-3)
    residuals = white - parts["class_means"][labels]
    np.testing.assert_allclose(residuals.T @ residuals / 4000, np.eye(6), atol=0.02)


def test_each_half_is_judged_by_the_other() -> None:
    scores = np.arange(100.0)
    scores[7] = 1e9  # alone in its half: whoever judges itself is never the strangest but once
    refused = judge_halves(scores, 0.02)
    assert refused[7]
    assert refused.sum() == 2  # it, and the next of its half, above all of the other half


def test_a_record_says_what_is_refused_and_what_may_be() -> None:
    record = RefusalRecord("val", 0.05, {"a": 30, "b": 10}, {"a": 1, "b": 1}, (3, 4))
    expected = (
        "5.0% (95 % interval 0.6% to 16.9%) of 40 validation images as none of the classes; 5.0% may be"
    )
    assert record.sentence() == expected

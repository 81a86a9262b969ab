"""Intervals and tests against exact sums, and against samples drawn from known truths."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.evaluation.answers import predictions
from vitkit.evaluation.classify import (
    ClassScore,
    Guessing,
    classification,
    compare_with_guessing,
    overconfidence,
)
from vitkit.evaluation.statistics import binomial_interval, binomial_test, sign_test
from vitkit.tasks.answering import ClassificationAnswering


def test_the_sign_test_is_the_exact_binomial_sum() -> None:
    for first, second in ((0, 0), (1, 0), (5, 5), (0, 6), (9, 2), (2, 9), (700, 600)):
        exact = stats.binomtest(first, first + second).pvalue if first + second else 1.0
        assert sign_test(first, second) == pytest.approx(exact, rel=1e-9)


@given(st.integers(1, 3_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0, 1))
def test_the_test_rejects_what_the_interval_leaves_out(case: tuple[int, int], chance: float) -> None:
    right, count = case
    low, high = binomial_interval(right, count)
    p = binomial_test(right, count, chance)
    assert 0 <= p <= 1
    assert low <= right / count <= high and binomial_interval(0, 0) == (0.0, 1.0)
    if min(abs(chance - low), abs(chance - high)) > 1e-9:  # rounding decides at the very ends
        assert (p < 0.05) == (not low <= chance <= high)


def guessing(counts: list[int], hits: list[int]) -> Guessing:
    """Compare a model that is right on `hits` of the `counts` images of each class with guessing."""
    rows = enumerate(zip(counts, hits, strict=True))
    return compare_with_guessing([ClassScore(str(i), n, 0, right, 0, 0, 0) for i, (n, right) in rows])


@settings(deadline=None)
@given(st.lists(st.integers(0, 300).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), min_size=1))
def test_the_verdict_on_guessing_never_contradicts_the_interval(classes: list[tuple[int, int]]) -> None:
    counts, hits = ([pair[side] for pair in classes] for side in (0, 1))
    counts[0] += 1  # not all are 0
    low, high = binomial_interval(sum(hits), sum(counts))
    said = guessing(counts, hits)
    assert (said.verdict == "better than guessing") == (low > said.accuracy)
    assert (said.verdict == "worse than guessing") == (high < said.accuracy)


def test_small_sets_of_two_classes_are_told_what_their_interval_says() -> None:
    better, no = "better than guessing", "not distinguishable from guessing"
    for counts, hits, verdict, name, share, p in (
        ([24, 26], [19, 16], better, "1", "52.0%", "0.015"),
        ([13, 13], [9, 12], better, "0", "50.0%", "0.0025"),
        ([70, 83], [36, 50], no, "1", "54.2%", "0.69"),
    ):
        assert guessing(counts, hits).sentence() == (
            f"{verdict}: always answering '{name}' is right on {share} (exact binomial test, p = {p})"
        )


def test_a_few_images_that_are_all_right_do_not_say_that_a_model_is_too_modest() -> None:
    for few, sure in ((20, 0.9), (1, 0.5)):
        assert overconfidence(np.full(few, sure), np.ones(few, bool)).verdict == ""


def test_the_terminal_says_that_a_model_only_guesses() -> None:
    logits = np.tile(np.array([1, 0, 0], np.float32), (40, 1))
    made = predictions(logits, np.arange(40) % 3)
    result = classification(made, ("a", "b", "c"))
    for text in (result.summary(), result.sentence("images")):
        assert "not distinguishable from guessing: always answering 'a' is right on 35.0%" in text
    assert result.to_json()["guessing"]["p_value"] == 1.0
    page = ClassificationAnswering().report({"test": (result, made)}, "test")
    assert "**not distinguishable from guessing**" in page.answer[0].sentences

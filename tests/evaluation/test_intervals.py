"""Intervals and tests against exact sums, and against samples drawn from known truths."""

import math
from fractions import Fraction

import numpy as np
import pytest

from vitkit.evaluation.calibration import overconfidence
from vitkit.evaluation.classify import classification, compare_with_guessing
from vitkit.evaluation.intervals import overconfidence_interval, sign_test
from vitkit.evaluation.predictions import Predictions
from vitkit.models.config.card import Card
from vitkit.tasks import answering_of


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 0), (5, 5), (0, 6), (9, 2), (2, 9), (700, 600)])
def test_the_sign_test_is_the_exact_binomial_sum(first: int, second: int) -> None:
    count = first + second
    tail: int = sum(math.comb(count, k) for k in range(max(first, second), count + 1))
    assert sign_test(first, second) == pytest.approx(min(1.0, float(Fraction(2 * tail, 2**count))), rel=1e-9)


def test_the_sign_test_stands_many_images() -> None:
    assert sign_test(50_000, 0) == 0.0
    assert 0.99 < sign_test(25_000, 25_001) <= 1.0


def verdict(truth: list[int], said: list[int]) -> str:
    counts = [truth.count(label) for label in range(3)]
    hits = [sum(a == b == label for a, b in zip(truth, said, strict=True)) for label in range(3)]
    return compare_with_guessing(("a", "b", "c"), counts, hits).verdict


def test_always_answering_the_most_frequent_class_is_guessing() -> None:
    truth = [0] * 50 + [1] * 30 + [2] * 20
    assert verdict(truth, [0] * 100) == "not distinguishable from guessing"
    assert verdict(truth, truth) == "better than guessing"
    assert verdict(truth, [2] * 100) == "worse than guessing"


def test_random_answers_are_seldom_told_from_guessing() -> None:
    """The level is 5 %, and the test is conservative: of 400 models that guess, few are called better."""
    rng = np.random.default_rng(0)
    better = 0
    for _ in range(400):
        truth, said = rng.integers(0, 3, (2, 60)).tolist()
        better += verdict(truth, said) == "better than guessing"
    assert better <= 0.05 * 400


@pytest.mark.parametrize("count", [20, 100, 1000])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_the_interval_of_calibration_holds_the_truth(count: int, level: float) -> None:
    """Of 1,000 samples of a model that is as sure as it should be, 95 % must hold 0; drawn with this seed,
    93 % allow for the draws and for few images."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(1000):
        confidence = np.clip(rng.normal(level, 0.1, count), 0.34, 1)
        low, high = overconfidence_interval(confidence, rng.random(count) < confidence)
        held += low <= 0 <= high
    assert held >= 930


def test_a_model_that_is_too_sure_is_found_out() -> None:
    right = np.arange(200) % 2 == 0
    assert overconfidence(np.full(200, 0.9), right).verdict == "too sure of itself"
    assert overconfidence(np.full(200, 0.1), right).verdict == "not sure enough"
    assert overconfidence(np.full(200, 0.52), right).verdict == ""


def test_few_images_that_are_all_right_are_no_finding() -> None:
    assert overconfidence(np.full(20, 0.9), np.ones(20, bool)).verdict == ""
    assert overconfidence(np.full(1, 0.5), np.ones(1, bool)).verdict == ""


def test_the_terminal_says_that_a_model_only_guesses() -> None:
    logits = np.tile(np.array([1, 0, 0], np.float32), (40, 1))
    predictions = Predictions(logits, np.arange(40) % 3, np.arange(40), np.zeros(0, np.int64))
    result = classification(predictions, ("a", "b", "c"))
    task = answering_of(Card())
    for text in (task.line(result), "".join(task.summary(result, "images"))):
        assert "not distinguishable from guessing: always answering 'a' is right on 35.0%" in text
    assert result.to_json()["guessing"]["p_value"] == 1.0
    page = task.report({"test": (result, predictions)}, "test")
    assert "**not distinguishable from guessing**" in page.answer[0].sentences

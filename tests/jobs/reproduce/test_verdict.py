"""Three outcomes on invented numbers: it holds, it does not hold, it cannot be told."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from vitkit.jobs.reproduce.items import Claim
from vitkit.jobs.reproduce.reproduce import Finding, judge, say, summarise
from vitkit.jobs.study.study import ScoredArms

IMAGES = 2_000
TESTED = ScoredArms("accuracy", "test", IMAGES, ())


def arm(accuracy: float, seeds: int = 3, draw: int = 0) -> dict[int, NDArray[np.float64]]:
    """Answers of which so many are right; the same images are hard for arms of the same draw."""
    hardness = np.random.default_rng(draw).random(IMAGES)
    noise = np.random.default_rng([draw, 1])
    return {
        seed: (hardness + 0.02 * noise.standard_normal(IMAGES) < accuracy).astype(np.float64)
        for seed in range(seeds)
    }


def judged(kind: str, first: float, second: float, **options: int) -> Finding:
    claim = Claim("The second is ahead", ("b",), ("a",), kind)  # type: ignore[arg-type]
    (finding,) = judge([claim], {"a": arm(first, **options), "b": arm(second, **options)}, {})
    return finding


@pytest.mark.parametrize(
    ("kind", "first", "second", "seeds", "expected"),
    [
        ("more", 0.5, 0.6, 3, "holds"),
        ("more", 0.6, 0.5, 3, "does not hold"),
        ("more", 0.5, 0.501, 3, "cannot be told"),
        ("alike", 0.5, 0.501, 3, "holds"),
        ("alike", 0.5, 0.6, 3, "does not hold"),
        ("alike", 0.6, 0.5, 3, "does not hold"),
        ("alike", 0.5, 0.511, 3, "cannot be told"),
        ("open", 0.5, 0.6, 3, None),
        # One seed proves nothing about other trainings.
        ("more", 0.5, 0.6, 1, "cannot be told"),
        ("alike", 0.5, 0.5, 1, "cannot be told"),
    ],
)
def test_a_claim_has_one_of_3_outcomes(
    kind: str, first: float, second: float, seeds: int, expected: str | None
) -> None:
    finding = judged(kind, first, second, seeds=seeds)
    assert finding.outcome == expected and ("from one seed" in say(finding, TESTED)) == (seeds == 1)


def test_few_images_never_say_that_arms_are_alike() -> None:
    """No difference that was found is no proof of none: the interval must be within a point."""
    arms = {"a": arm(0.5), "b": arm(0.5, draw=1)}
    scores = {name: {seed: row[:40] for seed, row in rows.items()} for name, rows in arms.items()}
    (finding,) = judge([Claim("Alike", ("b",), ("a",), "alike")], scores, {})
    assert finding.outcome == "cannot be told"


def test_the_sentence_says_what_could_have_been_found() -> None:
    unsure, sure = judged("more", 0.5, 0.501), judged("more", 0.5, 0.6)
    assert unsure.difference is not None
    least = f"{100 * unsure.difference.detectable:.1f} points or more would have been found in 8 of 10"
    assert "cannot be told at this size" in say(unsure, TESTED) and least in say(unsure, TESTED)
    assert say(sure, TESTED).startswith("The second is ahead: this holds at this size, +")
    assert "no difference found" in say(judged("open", 0.5, 0.501), TESTED)
    assert summarise([unsure, sure, judged("open", 0.5, 0.6)]) == (
        "Of 2 conclusions of the paper, 1 holds, 1 cannot be told at this size."
    )


def test_differences_of_differences_are_tested() -> None:
    """The second line gains 10 points and the first none."""
    scores = {"a-1": arm(0.5), "a-2": arm(0.5), "b-1": arm(0.5), "b-2": arm(0.6)}
    claim = Claim("b gains more", ("b-2", "a-1"), ("b-1", "a-2"))
    (finding,) = judge([claim], scores, {})
    assert finding.outcome == "holds"
    assert finding.difference is not None and finding.difference.mean == pytest.approx(0.1, abs=0.02)


def test_the_validation_chooses_among_arms_and_never_the_test() -> None:
    scores = {"a": arm(0.5), "b-low": arm(0.4), "b-high": arm(0.9)}
    claim = Claim("b is ahead", ("b-*",), ("a",))
    (finding,) = judge([claim], scores, {"b-low": 0.8, "b-high": 0.7})
    assert finding.more == ("b-low",) and finding.outcome == "does not hold"


def test_arms_that_are_not_there_are_left_out_and_one_that_diverged_proves_nothing() -> None:
    lacking = [Claim("c is ahead", ("c",), ("a",)), Claim("c", ("c-*",), ("a",))]
    assert judge(lacking, {"a": arm(0.5)}, {}) == []
    (finding,) = judge([Claim("b is ahead", ("b",), ("a",))], {"a": arm(0.5), "b": {}}, {})
    assert finding.outcome == "cannot be told" and "diverged" in say(finding, TESTED)


def test_several_claims_share_the_chance_of_a_false_one() -> None:
    """Alone the difference would be found; among ten it is not."""
    rows = arm(0.5)[0]
    better = rows.copy()
    better[np.flatnonzero(rows == 0)[:5]] = 1  # more right answers of 2,000, the same for each seed
    scores = {"a": dict.fromkeys(range(3), rows), "b": dict.fromkeys(range(3), better)}
    claim = Claim("b is ahead", ("b",), ("a",))
    assert judge([claim], scores, {})[0].outcome == "holds"
    assert judge([claim] * 10, scores, {})[0].outcome == "cannot be told"


def test_one_pre_training_proves_nothing_about_the_method() -> None:
    claim = Claim("b is ahead", ("b",), ("a",))
    scores = {"a": arm(0.5), "b": arm(0.6)}
    assert judge([claim], scores, {})[0].outcome == "holds"
    (finding,) = judge([replace(claim, one_pretraining=True)], scores, {})
    assert finding.outcome == "cannot be told"
    assert "this cannot be told from one pre-training of each kind, +10." in say(finding, TESTED)

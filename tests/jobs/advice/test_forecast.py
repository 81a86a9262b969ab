"""The interval in which the accuracy of a run should lie, by formulas whose answers are known."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vitkit.evaluation.fewshot.folds import Folded
from vitkit.jobs.advice.forecast import (
    BASE_IMAGES,
    DECAY,
    FEWEST,
    FINETUNED,
    MOST,
    Evidence,
    Outcome,
    Relation,
    evidence_of,
    extrapolate,
    fit,
    fraction,
    log_odds,
    predict,
)
from vitkit.runs.records import (
    FORECAST,
    INSIDE,
    AdviceRecord,
    Forecast,
    compare_with_advice,
    keep_advice,
)

OUTCOMES = Path(__file__).parents[3] / "benchmarks" / "advice_outcomes.jsonl"
"""The runs that were measured."""

FLAT = Evidence(images=1000, right=700, right_of_half=700, learned_from=800)
"""A probe that more images do not help."""
PLAIN = Relation(offset=0.0, doubling=0.0, spread=0.3, runs=1000)


def test_shares_and_log_odds_are_inverse() -> None:
    assert fraction(log_odds(699.5, 999)) == pytest.approx(0.7, abs=1e-3)
    assert fraction(0.0) == 0.5 and fraction(-800.0) == 0.0 and fraction(800.0) == 1.0
    assert math.isfinite(log_odds(0, 10)) and math.isfinite(log_odds(10, 10))


def test_a_plain_relation_expects_what_the_probe_found() -> None:
    forecast = predict(FLAT, 400, 10**9, PLAIN)
    assert forecast.accuracy == pytest.approx(0.7, abs=2e-3)
    # Normal quantile 1.2816 of spread 0.3 and the probe's counting, 1 / 700 + 1 / 300, in log-odds.
    half = 1.2816 * math.sqrt(0.09 + 1 / 700 + 1 / 300)
    assert log_of(forecast.high) - log_of(forecast.accuracy) == pytest.approx(half, rel=5e-3)
    assert log_of(forecast.accuracy) - log_of(forecast.low) == pytest.approx(half, rel=5e-3)


def log_of(probability: float) -> float:
    return math.log(probability / (1 - probability))


def width(forecast: Forecast) -> float:
    return forecast.high - forecast.low


def test_what_is_less_certain_has_a_wider_interval() -> None:
    base = width(predict(FLAT, 400, 1000, PLAIN))
    assert width(predict(FLAT, 400, 20, PLAIN)) > base
    few = Evidence(images=50, right=35, right_of_half=35, learned_from=40)
    assert width(predict(few, 40, 1000, PLAIN)) > base
    assert width(predict(FLAT, 400, 1000, replace(PLAIN, runs=5))) > base
    assert width(predict(FLAT, 400, 1000, replace(PLAIN, spread=0.6))) > base
    assert width(predict(FLAT, 400, 1000, PLAIN, level=0.5)) < base


def test_more_images_raise_what_is_expected_with_less_and_less_gain() -> None:
    rising = replace(FLAT, right_of_half=600)
    at = [extrapolate(rising, 800 * 2**doublings) for doublings in range(9)]
    gains = np.diff(at)
    assert at[0] == log_odds(700, 1000)
    assert gains[0] == pytest.approx(DECAY * (log_odds(700, 1000) - log_odds(600, 1000)))
    assert (np.diff(gains[:6]) < 0).all() and (gains >= 0).all()
    assert at[6] == at[8], "beyond what was measured nothing is promised for ever"
    falling = replace(FLAT, right_of_half=800)
    assert extrapolate(falling, 10**6) == extrapolate(FLAT, 10**6) == at[0]


@pytest.mark.parametrize("right", [0, 5, 10])
@pytest.mark.parametrize("relation", [FINETUNED, PLAIN])
def test_no_probe_is_too_good_or_too_bad(right: int, relation: Relation) -> None:
    worst = Evidence(images=10, right=right, right_of_half=0, learned_from=8)
    forecast = predict(worst, 8, 1, relation)
    assert 0 <= forecast.low < forecast.accuracy < forecast.high <= 1


def simulated(draw: np.random.Generator, relation: Relation) -> Outcome:
    """A run whose accuracy follows a relation, with the counting of a probe and of a test set."""
    truth = draw.normal(0.5, 1.0)
    images, tested = int(draw.integers(FEWEST, MOST + 1)), int(draw.integers(300, 1000))
    right = int(draw.binomial(images, fraction(truth)))
    final = truth + relation.offset + relation.doubling * math.log2(images / BASE_IMAGES)
    final += draw.normal(0, relation.spread)
    evidence = Evidence(images, right, right, images * 0.8)
    return Outcome(evidence, images, int(draw.binomial(tested, fraction(final))), tested)


def test_the_interval_holds_as_many_runs_as_it_says_and_the_fit_finds_the_relation() -> None:
    relation, draw = Relation(0.4, 0.2, 0.5, 400), np.random.default_rng(0)
    fitted = fit([simulated(draw, relation) for _ in range(relation.runs)])
    assert fitted.offset == pytest.approx(0.4, abs=0.1)
    assert fitted.spread == pytest.approx(0.5, abs=0.08)
    assert fitted.doubling == pytest.approx(0.2, abs=0.05)
    inside = []
    for _ in range(2000):
        run = simulated(draw, relation)
        said = predict(run.evidence, run.images, run.tested, fitted)
        inside.append(said.low <= run.right / run.tested <= said.high)
    assert 0.77 < np.mean(inside) < 0.83


def test_few_runs_make_a_relation_that_still_holds() -> None:
    """Fitted to ten runs, the interval is wider by Student's t, and holds about as many."""
    relation, draw, inside = Relation(0.4, 0.2, 0.5, 10), np.random.default_rng(1), []
    for _ in range(60):
        fitted = fit([simulated(draw, relation) for _ in range(10)])
        for run in [simulated(draw, relation) for _ in range(10)]:
            said = predict(run.evidence, run.images, run.tested, fitted)
            inside.append(said.low <= run.right / run.tested <= said.high)
    assert 0.75 < np.mean(inside) < 0.9


def test_the_spread_is_that_of_data_sets_that_were_not_fitted_to() -> None:
    """Runs on a data set resemble one another: around the line of all of them they scatter too little."""
    draw, relation, runs = np.random.default_rng(3), Relation(0.0, 0.0, 0.1, 1), []
    for name in range(40):
        own = replace(relation, offset=draw.normal(0, 0.8))
        runs += [replace(simulated(draw, own), data=str(name)) for _ in range(4)]
    assert 0.6 < fit(runs).spread < 1.1
    same_data = [replace(run, data="") for run in runs[:4]]
    assert fit(same_data).spread < 0.3


def test_a_relation_does_not_go_on_beyond_the_runs_it_was_fitted_to() -> None:
    relation = Relation(0.0, 0.5, 0.3, 50)
    assert (FEWEST, MOST) == (45, 450), "images of the runs that FINETUNED was fitted to"
    assert relation.line(MOST) == relation.line(10**6) == pytest.approx(0.5 * math.log2(450 / BASE_IMAGES))
    assert relation.line(FEWEST) == relation.line(1) == pytest.approx(0.5 * math.log2(45 / BASE_IMAGES))
    assert relation.line(225) == pytest.approx(relation.line(MOST) - 0.5)


@pytest.mark.parametrize(
    ("images", "parameters", "measured"),
    [(45, 0, True), (450, 500_000, True), (44, 0, False), (451, 0, False), (300, 86_000_000, False)],
)
def test_beyond_what_was_measured_the_interval_is_wider_and_says_so(
    images: int, parameters: int, measured: bool
) -> None:
    forecast = predict(FLAT, images, 1000, PLAIN, parameters=parameters)
    inside = predict(FLAT, min(max(images, FEWEST), MOST), 1000, PLAIN)
    half, usual = (log_of(interval.high) - log_of(interval.accuracy) for interval in (forecast, inside))
    assert forecast.measured == measured and inside.measured
    assert half == pytest.approx(usual * (1 if measured else 2))
    above = forecast.compare(0.999)
    assert ("2 of 10 runs should lie outside" in above) == measured
    assert ("a guess for such a run" in above) != measured


def test_the_evidence_is_that_of_the_best_method() -> None:
    folded = Folded(100, {"ridge": 60, "knn": 70}, {"ridge": 65, "knn": 50})
    assert evidence_of(folded) == Evidence(100, 70, 50, 80.0)


def test_what_came_out_is_compared_in_words() -> None:
    expected = Forecast(0.77, 0.706, 0.834)
    assert expected.compare(0.782) == "expected 71 to 83 %, came out 78 %"
    assert expected.compare(0.9) == (
        "expected 71 to 83 %, came out 90 %: above the interval; 2 of 10 runs should lie outside"
    )
    assert "came out 12 %: below the interval" in expected.compare(0.12)


def test_how_often_the_interval_held_is_what_was_measured() -> None:
    lines = [json.loads(line) for line in OUTCOMES.read_text().splitlines()]
    runs = [
        Outcome(Evidence(**line["evidence"]), line["images"], line["right"], line["tested"], line["data"])
        for line in lines
    ]
    inside = 0
    for run in runs:
        relation = fit([other for other in runs if other.data != run.data])
        expected = predict(run.evidence, run.images, run.tested, relation)
        inside += expected.low <= run.right / run.tested <= expected.high
    assert (inside, len(runs)) == (INSIDE, FORECAST)


@pytest.mark.parametrize("measured", [True, False])
def test_how_often_it_held_is_said_where_such_runs_were_measured(tmp_path: Path, measured: bool) -> None:
    keep_advice(tmp_path, AdviceRecord(Forecast(0.6, 0.52, 0.78, measured), 60.0, ()))
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "test.json").write_text('{"accuracy": 0.6}')
    held = " Of 32 runs with such a forecast, 25 came out inside." if measured else ""
    assert (
        compare_with_advice(tmp_path)
        == f"Accuracy on the test images: expected 52 to 78 %, came out 60 %.{held}"
    )

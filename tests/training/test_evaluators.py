"""What is measured on the way, when, and which number decides what is best."""

import dataclasses
from pathlib import Path

import pytest

from tests.training.small_run import drift, log_of, small_trainer
from vitkit.errors import VitkitError
from vitkit.training.checkpoint import Progress
from vitkit.training.evaluators import Evaluator, Monitor, judge

ACCURACY = Monitor("accuracy", "max", tie_breaker="loss")
NAN = float("nan")


def test_each_evaluator_measures_at_its_own_interval_and_after_the_last_step(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path, others={"drift": Evaluator(drift, every=5)})
    reports = list(trainer.fit())
    lines = log_of(tmp_path)
    assert [line["step"] for line in lines if line["kind"] == "validation"] == [4, 8, 12]
    others = [line for line in lines if line["kind"] == "evaluation"]
    assert [(line["evaluator"], line["step"]) for line in others] == [
        ("drift", 5),
        ("drift", 10),
        ("drift", 12),
    ]
    assert others[0].keys() == {"kind", "evaluator", "step", "epoch", "distance"}
    assert [sorted(report.measured) for report in reports if report.measured] == [
        ["validation"],
        ["drift"],
        ["validation"],
        ["drift"],
        ["drift", "validation"],
    ]
    assert trainer.state.progress.best_value == max(
        line["accuracy"] for line in lines if line["kind"] == "validation"
    )


def test_without_a_monitor_nothing_is_best(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path)
    trainer.monitor = None
    list(trainer.fit())
    assert trainer.state.progress.best_step is None and len(log_of(tmp_path)) == 7


@pytest.mark.parametrize(
    ("monitor", "metrics", "best", "tie", "better"),
    [
        (ACCURACY, {"accuracy": 0.5, "loss": 1.0}, None, None, True),
        (ACCURACY, {"accuracy": 0.6, "loss": 9.0}, 0.5, 1.0, True),
        (ACCURACY, {"accuracy": 0.4, "loss": 0.1}, 0.5, 1.0, False),
        (ACCURACY, {"accuracy": 0.5, "loss": 0.9}, 0.5, 1.0, True),
        (ACCURACY, {"accuracy": 0.5, "loss": 1.0}, 0.5, 1.0, False),
        (ACCURACY, {"accuracy": NAN, "loss": 0.0}, None, None, False),
        (ACCURACY, {"accuracy": 0.5, "loss": NAN}, 0.5, 1.0, False),
        (Monitor("loss", "min"), {"loss": 0.5}, 0.6, None, True),
        (Monitor("loss", "min"), {"loss": 0.6}, 0.6, None, False),
        (Monitor("loss", "min"), {"loss": 0.7}, 0.6, None, False),
        (Monitor("loss", "min", "recall", "max"), {"loss": 0.6, "recall": 0.2}, 0.6, 0.1, True),
    ],
)
def test_what_is_better(
    monitor: Monitor, metrics: dict[str, float], best: float | None, tie: float | None, better: bool
) -> None:
    before = Progress(best_value=best, best_tie=tie, best_step=3 if best is not None else None)
    after = judge(monitor, metrics, 9, before)
    assert (after.best_step == 9) is better
    assert after.evaluations_since_best == (0 if better else 1)
    if not better:
        assert (after.best_value, after.best_tie) == (best, tie)


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match="expects an evaluator named 'drift', found 'validation'"):
        small_trainer(tmp_path, monitor=dataclasses.replace(ACCURACY, evaluator="drift"))
    with pytest.raises(VitkitError, match="to measure accuracy and loss, found distance"):
        judge(ACCURACY, {"distance": 1.0}, 4, Progress())
    with pytest.raises(VitkitError, match="every 1 or more steps, found 0"):
        Evaluator(drift, every=0)

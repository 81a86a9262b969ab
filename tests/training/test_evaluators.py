"""What is measured on the way, when, and which number decides what is best."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.helpers.found_checkpoint import find_checkpoint
from tests.training.small_run import TRAINING, fingerprint, small_trainer
from vitkit.errors import VitkitError
from vitkit.training.checkpoint import Progress
from vitkit.training.evaluators import Evaluator, Monitor, check_evaluators, judge

ACCURACY = Monitor("accuracy", "max", tie_breaker="loss")
NAN = float("nan")


def drift(model: nn.Module, objective: nn.Module) -> dict[str, float]:
    return {"distance": sum(value.double().sum().item() for value in model.state_dict().values())}


def evaluations(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] != "train"]


def test_each_evaluator_measures_at_its_own_interval_and_after_the_last_step(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path, others={"drift": Evaluator(drift, every=5)})
    reports = list(trainer.fit())
    lines = evaluations(tmp_path)
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


def test_a_run_that_patience_ends_is_measured_by_all(tmp_path: Path) -> None:
    """The validation that uses up the patience comes first, though it stands last in the mapping."""
    training = dataclasses.replace(TRAINING, steps=40, patience=2)
    others = {"drift": Evaluator(drift, every=1000)}
    trainer = small_trainer(tmp_path, training, values=(0.5, 0.4, 0.4), others=others)
    assert list(trainer.fit())[-1].step == 12
    assert [(line["kind"], line["step"]) for line in evaluations(tmp_path)][-2:] == [
        ("validation", 12),
        ("evaluation", 12),
    ]


def test_with_other_evaluators_a_stopped_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    """Their lines are made again, as all others that come after the checkpoint."""

    def fitted(run: Path, stop: int) -> dict[str, str]:
        trainer = small_trainer(run, others={"drift": Evaluator(drift, every=3)})
        checkpoint, _ = find_checkpoint(run)
        if checkpoint is not None:
            assert trainer.resume(checkpoint) == []
        for report in trainer.fit():
            if report.step == stop:
                break
        return fingerprint(trainer)

    whole = fitted(tmp_path / "whole", 99)
    for stop in (7, 10):
        fitted(tmp_path / "stopped", stop)
    assert fitted(tmp_path / "stopped", 99) == whole


def test_without_a_monitor_nothing_is_best(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path)
    trainer.monitor = None
    list(trainer.fit())
    assert trainer.state.progress.best_step is None and len(evaluations(tmp_path)) == 3


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


def test_what_cannot_be_measured_is_refused_before_the_first_step() -> None:
    evaluators = {"validation": Evaluator(drift)}
    check_evaluators(evaluators, ACCURACY)
    with pytest.raises(VitkitError, match="expects an evaluator named 'drift', found 'validation'"):
        check_evaluators(evaluators, dataclasses.replace(ACCURACY, evaluator="drift"))
    with pytest.raises(VitkitError, match="every 1 or more steps, found 0"):
        check_evaluators({"validation": Evaluator(drift, every=0)}, None)
    with pytest.raises(VitkitError, match="to measure accuracy and loss, found distance"):
        judge(ACCURACY, {"distance": 1.0}, 4, Progress())

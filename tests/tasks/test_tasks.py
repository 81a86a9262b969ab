"""The seam: a task is a value that everything else asks, and the table is where its name stands."""

import typing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import vitkit
from tests.helpers.refusals import refused
from vitkit.config import to_json
from vitkit.evaluation.classify import Classification
from vitkit.evaluation.predictions import Predictions
from vitkit.models.config import Card
from vitkit.models.config import Task as LearnedTask
from vitkit.runs.config import changed_options
from vitkit.tasks import TASKS, task_of
from vitkit.tasks.answering import ClassificationAnswering, Guess
from vitkit.training.checkpoint import Progress
from vitkit.training.evaluators import judge

RUN = vitkit.recipe("digits", model="ViT-16x1x2/4", steps=6, batch_size=16)


def test_a_missing_task_is_refused_before_a_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitkit.tasks.TASKS", {"classification": TASKS["classification"]})
    run = replace(RUN, task="multi-label")
    refused("one of the tasks classification, found multi-label", vitkit.train, run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_of_weights_that_score_alike_those_of_the_smaller_loss_are_best() -> None:
    for monitor in (task.learning.monitor for task in TASKS.values() if task.answering is not None):
        measured = [{monitor.metric: 0.5, "loss": loss} for loss in (1.0, 2.0, 0.5, 0.7)]
        progress = Progress()
        for step, values in enumerate(measured):
            progress = judge(monitor, values, step, progress)
        assert (progress.best_step, progress.best_tie) == (2, 0.5)


def test_a_run_or_a_card_of_a_version_without_tasks_is_a_classification() -> None:
    recorded = {key: value for key, value in to_json(RUN).items() if key != "task"}
    assert changed_options(recorded, "config.json", RUN) == []
    (change,) = changed_options(recorded, "config.json", replace(RUN, task="multi-label"))
    assert change == "task: 'classification' -> 'multi-label'"
    assert task_of(Card()) is TASKS["classification"]


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_guesses_are_told_in_rows_and_as_json(loss: typing.Literal["softmax", "sigmoid"]) -> None:
    task = ClassificationAnswering()
    card = Card(class_names=("cat", "dog", "owl"), task=LearnedTask(loss=loss))
    outputs = np.array([[2.0, 0.0, 1.0]], np.float32)
    ((first, second),) = task.guesses(outputs, card, 2)
    logits = torch.from_numpy(outputs)
    shares = logits.softmax(1) if loss == "softmax" else logits.sigmoid()
    assert [first.name, second.name] == ["cat", "owl"]
    assert first.probability == pytest.approx(shares[0, 0].item(), abs=1e-6)
    assert task.guesses(outputs, Card(), 1)[0][0].name == "class 0"
    guesses = [Guess("cat", 0.75), Guess("owl", 0.125)]
    assert task.guess_row(guesses, 5) == {"top 5": ["cat 75.0%", "owl 12.5%"]}
    assert task.guess_row(guesses[:1], 1) == {"class": ["cat"], "probability": ["75.0%"]}
    assert task.guess_json(guesses[:1]) == {"predictions": [{"class": "cat", "probability": 0.75}]}


def test_every_number_of_a_classifier_is_compared_and_reported() -> None:
    """A number that is added has a row of `vitkit compare`, and the terminal or the page shows it."""
    labels = np.arange(14) % 7
    logits = np.random.default_rng(0).standard_normal((14, 7)).astype(np.float32)
    predictions = Predictions(logits, labels, np.arange(14), np.empty(0, np.int64))
    answering = ClassificationAnswering()
    result = answering.measure(predictions, tuple("abcdefg"))
    types = typing.get_type_hints(type(result))
    numbers = [name for name, kind in types.items() if kind in (float, float | None)]
    assert len(numbers) >= 6

    def seen(result: Classification) -> tuple[object, ...]:
        return result.sentence("images"), answering.split_table({"test": result})

    for name in numbers:
        other: Classification = replace(result, **{name: 0.123})  # type: ignore[arg-type]
        assert answering.measures(other) != answering.measures(result), name
        assert seen(other) != seen(result), name

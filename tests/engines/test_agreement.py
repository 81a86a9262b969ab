"""Two models agree where their answers do, whatever the task."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from tests.engines.models import FakeRunner, small
from vitkit.engines.graph import compare, example_images
from vitkit.models.config import Card, Task
from vitkit.tasks import answering_of


def test_agreement_counts_answers_and_measures_logits() -> None:
    model = small()
    pixels = example_images(model, 3).numpy()
    with torch.inference_mode():
        expected = model(torch.from_numpy(pixels)).numpy()
    change = np.zeros_like(expected)
    change[2, expected[2].argmin()] = 2 * np.ptp(expected[2])  # the last image is answered otherwise
    whole = iter([change[:1], change[1:]])
    answers = answering_of(model.card).answers
    result = compare(
        model, FakeRunner(model, lambda logits: logits + next(whole)), pixels, "pictures", answers
    )
    assert (result.images, result.answers, result.same) == (3, 3, 2)
    expected_error = math.sqrt(np.square(change).mean()) / expected.std()
    assert result.logit_error == pytest.approx(expected_error, rel=1e-4)
    assert str(result).startswith("2 of 3 answers as in float32 (66.67%")


def test_logits_that_are_all_alike_have_no_spread() -> None:
    model = small()
    assert isinstance(model.head, nn.Linear)
    nn.init.zeros_(model.head.weight)
    pixels = example_images(model, 4).numpy()
    assert compare(model, FakeRunner(model), pixels, "pictures").logit_error == 0
    assert compare(model, FakeRunner(model, lambda logits: logits + 1), pixels, "").logit_error == math.inf


def test_answers_are_those_of_the_task() -> None:
    outputs = np.array([[0.1, 2.0, -1.0], [-3.0, -2.0, -1.0]], np.float32)
    single_label = answering_of(Card(task=Task()))
    multi_label = answering_of(Card(task=Task("multi-label", "sigmoid")))
    assert single_label.answers(outputs).tolist() == [[1], [2]]
    assert multi_label.answers(outputs).tolist() == [[1, 1, 0], [0, 0, 0]]

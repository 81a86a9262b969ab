"""Two models agree where their answers do, whatever the task."""

import math

import numpy as np

from vitkit.engines.agreement import compare_logits
from vitkit.models.config.card import Card, Task
from vitkit.tasks import answering_of


def test_agreement_counts_answers_and_measures_logits() -> None:
    expected = np.array([[3, 1], [1, 3], [2, 0]], np.float32)
    logits = expected + np.array([[0.3, 0], [0, 0.3], [-3, 0]], np.float32)
    answers, before = logits.argmax(1)[:, None], expected.argmax(1)[:, None]
    result = compare_logits(logits, expected, answers, before)
    assert (result.images, result.answers, result.same) == (3, 3, 2)
    assert math.isclose(result.logit_error, math.sqrt((0.09 + 0.09 + 9) / 6) / expected.std(), rel_tol=1e-5)
    assert "2 of 3 answers as in float32 (66.67%" in str(result)


def test_logits_that_are_all_alike_have_no_spread() -> None:
    same = np.zeros((4, 2), np.float32)
    answers = np.zeros((4, 1), np.int64)
    assert compare_logits(same, same, answers, answers).logit_error == 0
    assert compare_logits(same + 1, same, answers, answers).logit_error == math.inf


def test_answers_are_those_of_the_task() -> None:
    outputs = np.array([[0.1, 2.0, -1.0], [-3.0, -2.0, -1.0]], np.float32)
    single_label = answering_of(Card(task=Task()))
    multi_label = answering_of(Card(task=Task("multi-label", "sigmoid")))
    assert single_label.answers(outputs).tolist() == [[1], [2]]
    assert multi_label.answers(outputs).tolist() == [[1, 1, 0], [0, 0, 0]]

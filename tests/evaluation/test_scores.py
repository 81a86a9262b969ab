"""What logits mean, by the loss that a model was trained with."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from vitkit.data.stream.loader import Batch
from vitkit.errors import VitkitError
from vitkit.evaluation.predictions import check_labels, image_scores, likeliest, probabilities
from vitkit.evaluation.run_model import predict
from vitkit.models.config import LossFunction
from vitkit.training.config import ClassificationConfig
from vitkit.training.objectives import Classification

LOSSES: tuple[LossFunction, ...] = ("softmax", "sigmoid")


def test_probabilities_are_those_of_torch() -> None:
    logits = torch.randn(20, 7, generator=torch.Generator().manual_seed(0)) * 5
    wide = logits.double()
    assert probabilities(logits.numpy(), "softmax") == pytest.approx(wide.softmax(1).numpy(), rel=1e-12)
    assert probabilities(logits.numpy(), "sigmoid") == pytest.approx(wide.sigmoid().numpy(), rel=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_large_logits_neither_overflow_nor_warn(loss: LossFunction) -> None:
    logits = np.array([[3e4, -3e4, 0], [-3e4, -3e4, -3e4], [3e38, -3e38, 3e38]], np.float32)
    shares = probabilities(logits, loss)
    assert np.isfinite(shares).all() and shares.min() >= 0 and shares.max() <= 1
    scores = image_scores(logits, np.array([1, 0, 1]), loss)
    assert np.isfinite(scores.loss).all() and scores.loss[0] >= 3e4


@pytest.mark.parametrize("loss", LOSSES)
def test_the_loss_is_that_of_training_without_smoothing(loss: LossFunction) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 6)).eval()
    labels = torch.tensor([0, 5, 3, 1])
    mask = torch.tensor([True, True, False, True])
    batch = Batch(torch.randn(4, 3, 2, 2) * 3, {"labels": labels}, mask, torch.arange(4))
    objective = Classification(ClassificationConfig(loss=loss), 6)
    with torch.no_grad():
        trained, _ = objective(model, batch, 0, 1)
    evaluated = predict(model, [batch], loss=loss).scores.loss
    assert evaluated.mean() == pytest.approx(trained.item(), rel=1e-6)


def test_sigmoid_confidence_is_that_of_the_predicted_class_alone() -> None:
    logits = np.log(np.array([[3.0, 9.0, 4.0]], np.float32))  # sigmoid: 0.75, 0.9, 0.8
    scores = image_scores(logits, np.array([0]), "sigmoid")
    assert scores.predicted.tolist() == [1] and scores.rank.tolist() == [2]
    assert scores.confidence == pytest.approx(0.9)
    assert scores.loss == pytest.approx(-np.log(0.75) - np.log(0.1) - np.log(0.2))


def test_the_likeliest_classes_are_ordered_and_the_lower_of_equals_is_first() -> None:
    logits = np.random.default_rng(0).integers(-3, 3, (50, 12)).astype(np.float32)
    before = logits.copy()
    classes = likeliest(logits, 5)
    np.testing.assert_array_equal(classes, np.argsort(-logits, axis=1, kind="stable")[:, :5])
    np.testing.assert_array_equal(classes[:, 0], logits.argmax(1))
    np.testing.assert_array_equal(logits, before)
    # A model that says the same of all classes is not right among its first five for every image.
    labels = np.array([0, 4, 5])
    scores = image_scores(np.zeros((3, 6), np.float32), labels, "softmax")
    assert scores.rank.tolist() == [0, 4, 5] and scores.predicted.tolist() == [0, 0, 0]


def test_labels_are_classes_of_the_model() -> None:
    for labels, fits in (([0, 2], True), ([0, 3], False), ([-1, 2], False), ([], True)):
        with nullcontext() if fits else pytest.raises(VitkitError, match="the model has classes 0 to 2"):
            check_labels(np.array(labels, np.int64), 3)

"""Classes of unlike size: logit adjustment and class weights."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.helpers.fixed_logits import LABELS, LOGITS, Fixed
from vitkit.data.stream.loader import Batch
from vitkit.errors import VitkitError
from vitkit.tasks.learning import MULTI_LABEL
from vitkit.training.config import ClassificationConfig
from vitkit.training.objectives import Classification

BOTH = (ClassificationConfig(logit_adjustment=1.0), ClassificationConfig(class_weights="balanced"))

COUNTS = np.array([0] * 6 + [1] * 3 + [2])
"""Training labels: 6, 3 and 1 of ten."""


def batch_of(labels: Tensor) -> Batch:
    count = len(labels)
    images = torch.zeros(count, 3, 2, 2, dtype=torch.uint8)
    return Batch(images, {"labels": labels}, torch.ones(count, dtype=torch.bool), torch.arange(count))


def loss(config: ClassificationConfig, train: bool = True) -> Tensor:
    value, _ = Classification(config, 3, COUNTS)(Fixed(LOGITS).train(train), batch_of(LABELS), 0, 1)
    return value  # type: ignore[no-any-return]


def test_adjustment_adds_tau_times_the_log_of_the_shares_in_training_alone() -> None:
    shares = torch.tensor([0.6, 0.3, 0.1])
    for tau in (1.0, 0.5):
        config = ClassificationConfig(logit_adjustment=tau)
        torch.testing.assert_close(loss(config), F.cross_entropy(LOGITS + tau * shares.log(), LABELS))
        torch.testing.assert_close(loss(config, train=False), F.cross_entropy(LOGITS, LABELS))


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_balanced_weights_let_every_class_count_alike(kind: str) -> None:
    config = ClassificationConfig(loss=kind, class_weights="balanced")  # type: ignore[arg-type]
    objective = Classification(config, 3, COUNTS)
    weights = objective.class_weights
    assert weights is not None
    torch.testing.assert_close(weights, torch.tensor([10 / 18, 10 / 9, 10 / 3]))
    assert weights[COUNTS].mean().item() == pytest.approx(1)  # the learning rate means what it meant
    targets = F.one_hot(LABELS, 3).float()
    if kind == "softmax":
        losses = F.cross_entropy(LOGITS, LABELS, reduction="none")
    else:
        losses = F.binary_cross_entropy_with_logits(LOGITS, targets, reduction="none").sum(1)
    torch.testing.assert_close(loss(config), (losses * weights[LABELS]).mean())


def test_a_class_without_training_images_breaks_nothing_and_labels_are_asked_for() -> None:
    for config in BOTH:
        loss, _ = Classification(config, 3, np.array([0, 0, 1]))(Fixed(LOGITS), batch_of(LABELS), 0, 1)
        assert math.isfinite(loss.item())
        with pytest.raises(VitkitError, match="labels of the training images"):
            Classification(config, 3)
        with pytest.raises(VitkitError, match="multi-label"):
            MULTI_LABEL.learned(config)


def test_what_follows_from_the_labels_is_kept_and_nothing_where_nothing_is_asked() -> None:
    assert list(Classification(BOTH[0], 3, COUNTS).state_dict()) == ["log_prior"]
    assert not Classification(ClassificationConfig(), 3, COUNTS).state_dict()  # checkpoints stay as they were

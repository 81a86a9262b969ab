"""Classes of unlike size: logit adjustment and class weights."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


def test_a_class_without_training_images_breaks_nothing() -> None:
    for config in (
        ClassificationConfig(logit_adjustment=1.0),
        ClassificationConfig(class_weights="balanced"),
    ):
        loss, _ = Classification(config, 3, np.array([0, 0, 1]))(Fixed(LOGITS), batch_of(LABELS), 0, 1)
        assert math.isfinite(loss.item())


def test_what_follows_from_the_labels_is_kept_and_nothing_where_nothing_is_asked() -> None:
    adjusted = Classification(ClassificationConfig(logit_adjustment=1.0), 3, COUNTS)
    assert list(adjusted.state_dict()) == ["log_prior"]
    assert not Classification(ClassificationConfig(), 3, COUNTS).state_dict()  # checkpoints stay as they were


def trained(config: ClassificationConfig) -> Tensor:
    """Recalls of both classes after training on 190 and 10 points of two overlapping clouds."""
    generator = torch.Generator().manual_seed(0)

    def clouds(common: int, rare: int) -> tuple[Tensor, Tensor]:
        labels = torch.tensor([0] * common + [1] * rare)
        points = torch.randn(len(labels), 12, generator=generator)
        points[:, 0] += 2.0 * labels
        return points.reshape(-1, 3, 2, 2), labels

    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(12, 2)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

        def forward(self, images: Tensor) -> Tensor:
            return self.head(images.flatten(1))  # type: ignore[no-any-return]

    points, labels = clouds(190, 10)
    model, objective = Linear(), Classification(config, 2, labels.numpy())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    mask = torch.ones(len(labels), dtype=torch.bool)
    for _ in range(150):
        optimizer.zero_grad()
        batch = Batch(points, {"labels": labels}, mask, torch.arange(len(labels)))
        objective(model, batch, 0, 1)[0].backward()
        optimizer.step()
    points, labels = clouds(1000, 1000)
    right = model.eval()(points).argmax(1) == labels
    return torch.stack([right[labels == c].float().mean() for c in (0, 1)])


def test_both_find_a_rare_class_that_is_overlooked_without_them() -> None:
    plain = trained(ClassificationConfig())
    assert plain[0] > 0.95 and plain[1] < 0.6
    for config in (
        ClassificationConfig(logit_adjustment=1.0),
        ClassificationConfig(class_weights="balanced"),
    ):
        better = trained(config)
        assert better[1] > plain[1] + 0.1
        assert better.mean() > plain.mean() + 0.03


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"logit_adjustment": -1.0}, "0 or more"),
        ({"logit_adjustment": 1.0, "loss": "sigmoid"}, "class_weights balanced"),
        ({"logit_adjustment": 1.0, "class_weights": "balanced"}, "choose one"),
    ],
)
def test_impossible_options_are_explained(options: dict[str, object], message: str) -> None:
    with pytest.raises(VitkitError, match=message):
        ClassificationConfig(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"logit_adjustment": 1.0}, {"class_weights": "balanced"}])
def test_several_labels_an_image_have_no_such_options(options: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match="multi-label"):
        MULTI_LABEL.learned(ClassificationConfig(**options))  # type: ignore[arg-type]


def test_labels_are_asked_for() -> None:
    with pytest.raises(VitkitError, match="labels of the training images"):
        Classification(ClassificationConfig(logit_adjustment=1.0), 3)

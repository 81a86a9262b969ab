"""Losses by hand."""

from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.data.loader import Batch
from vitkit.errors import VitkitError
from vitkit.training.objectives import Classification, mixup
from vitkit.training.objectives_config import ClassificationConfig


class Fixed(nn.Module):
    """Answers with given logits."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, images: Tensor) -> Tensor:
        return self.logits


LOGITS = torch.tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 0.0], [1.0, 1.0, 5.0]])
LABELS = torch.tensor([0, 1, 0])


def loss_of(
    config: ClassificationConfig, mask: list[bool], logits: Tensor = LOGITS
) -> tuple[Tensor, Mapping[str, Tensor]]:
    batch = Batch(torch.zeros(3, 3, 2, 2, dtype=torch.uint8), LABELS, torch.tensor(mask), torch.arange(3))
    return Classification(config, 3)(Fixed(logits), batch)


def test_softmax_is_cross_entropy() -> None:
    loss, metrics = loss_of(ClassificationConfig(), [True] * 3)
    torch.testing.assert_close(loss, F.cross_entropy(LOGITS, LABELS))
    assert metrics["accuracy"].item() == pytest.approx(2 / 3)


def test_smoothing_is_pytorchs() -> None:
    loss, _ = loss_of(ClassificationConfig(label_smoothing=0.2), [True] * 3)
    torch.testing.assert_close(loss, F.cross_entropy(LOGITS, LABELS, label_smoothing=0.2))


def test_sigmoid_sums_over_classes() -> None:
    loss, _ = loss_of(ClassificationConfig(loss="sigmoid"), [True] * 3)
    targets = F.one_hot(LABELS, 3).float()
    expected = F.binary_cross_entropy_with_logits(LOGITS, targets, reduction="sum") / 3
    torch.testing.assert_close(loss, expected)


def test_what_is_masked_does_not_count_not_even_if_it_is_infinite() -> None:
    broken = LOGITS.clone()
    broken[1] = torch.tensor([float("inf"), float("nan"), 0.0])
    loss, metrics = loss_of(ClassificationConfig(), [True, False, True], broken)
    torch.testing.assert_close(loss, F.cross_entropy(LOGITS[[0, 2]], LABELS[[0, 2]]))
    assert metrics["accuracy"].item() == 0.5
    loss, _ = loss_of(ClassificationConfig(), [False] * 3)
    assert loss.item() == 0


def test_mixup_mixes_images_and_targets_alike() -> None:
    torch.manual_seed(0)
    images = torch.arange(3.0)[:, None, None, None].expand(3, 3, 2, 2)
    targets = torch.eye(3)
    mixed, soft = mixup(images, targets, torch.tensor([True, True, False]), alpha=1.0)
    share = soft[1, 1].item()
    assert 0.5 <= share < 1
    torch.testing.assert_close(soft[1], torch.tensor([1 - share, share, 0.0]))
    torch.testing.assert_close(mixed[1], torch.full((3, 2, 2), share * 1))
    assert torch.equal(soft[0], targets[0])  # its neighbour is the unreadable one
    torch.testing.assert_close(soft.sum(1), torch.ones(3))


def test_the_own_image_is_always_the_larger_part() -> None:
    images = torch.arange(2.0)[:, None, None, None].expand(2, 1, 2, 2)
    shares, drawn = [], []
    for seed in range(64):
        torch.manual_seed(seed)
        drawn.append(torch.distributions.Beta(0.8, 0.8).sample().item())
        torch.manual_seed(seed)
        mixed, soft = mixup(images, torch.eye(2), torch.tensor([True, True]), alpha=0.8)
        shares.append(soft[1, 1].item())
        torch.testing.assert_close(mixed[1], torch.full((1, 2, 2), shares[-1]))
    assert min(drawn) < 0.2 and max(drawn) > 0.8  # the draws fall on both sides
    assert shares == pytest.approx([max(share, 1 - share) for share in drawn])


def test_mixup_uses_the_models_own_normalisation() -> None:
    from tests.models.test_vit import TINY, model_with_random_head

    model = model_with_random_head(TINY).train()
    images = torch.randint(0, 256, (4, 3, 12, 16), dtype=torch.uint8)
    batch = Batch(images, torch.tensor([0, 1, 2, 3]), torch.ones(4, dtype=torch.bool), torch.arange(4))
    objective = Classification(ClassificationConfig(mixup=0.5), 5)
    torch.manual_seed(3)
    loss, _ = objective(model, batch)
    torch.manual_seed(3)
    mixed, soft = mixup((images.float() - 127.5) / 127.5, F.one_hot(batch.labels, 5).float(), batch.mask, 0.5)
    torch.testing.assert_close(loss, F.cross_entropy(model(mixed), soft))


def test_impossible_options_are_explained() -> None:
    with pytest.raises(VitkitError, match="label_smoothing"):
        ClassificationConfig(label_smoothing=1.0)
    with pytest.raises(VitkitError, match="mixup"):
        ClassificationConfig(mixup=-1)

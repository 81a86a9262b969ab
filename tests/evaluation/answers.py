"""A model that looks its answers up, batches that ask it, and predictions that were made without one."""

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from vitkit.data.stream.loader import Batch
from vitkit.evaluation.predictions import Predictions
from vitkit.models.config import LossFunction


class Table(nn.Module):
    """Looks its logits up by the image's first pixel."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits
        self.frozen = nn.Dropout(0.5).eval()
        self.seen: list[bool] = []

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(self.training)
        return self.logits[images[:, 0, 0, 0].long()]


def batches(
    ids: Sequence[int], labels: object, size: int, unreadable: Collection[int] = frozenset()
) -> list[Batch]:
    """Batches of the images `ids`, whose first pixels are their numbers; `labels` are of all images."""
    every_label, made = torch.as_tensor(labels), []
    for start in range(0, len(ids), size):
        part = torch.tensor(ids[start : start + size])
        images = part.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)
        mask = torch.tensor([number not in unreadable for number in part.tolist()])
        made.append(Batch(images, {"labels": every_label[part]}, mask, part))
    return made


def predictions(logits: object, labels: object, bad: int = 0, loss: LossFunction = "softmax") -> Predictions:
    """Predictions of a label for each image, or of several where `labels` has two axes."""
    rows, targets = np.asarray(logits, np.float32), np.asarray(labels)
    ids = np.arange(len(rows) + bad)
    targets = targets.astype(bool if targets.ndim == 2 else np.int64)
    return Predictions(rows, targets, ids[: len(rows)], ids[len(rows) :], loss)


def names(count: int) -> list[str]:
    return [f"class {number}" for number in range(count)]

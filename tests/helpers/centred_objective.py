"""An objective with parameters and buffers of its own, for tests."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.data.stream.loader import Batch


class Centred(nn.Module):
    """Classification of logits that are centred by a running mean, projected and made noisy.

    It counts its calls, and what it is told of the steps and of their ends.
    """

    centre: Tensor
    calls: Tensor
    updates: Tensor
    schedule: Tensor

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.project = nn.Linear(classes, classes)
        nn.init.eye_(self.project.weight)
        nn.init.zeros_(self.project.bias)
        self.register_buffer("centre", torch.zeros(classes))
        for name in ("calls", "updates", "schedule"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64))

    def forward(
        self, model: nn.Module, batch: Batch, step: int, total_steps: int
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        logits = model(batch.images)
        if self.training:
            self.calls += 1
            self.schedule.fill_(100 * step + total_steps)
            self.centre.lerp_(logits.detach().mean(0), 0.1)
        projected = F.dropout(self.project(logits - self.centre), 0.1, self.training)
        losses = F.cross_entropy(projected, batch.labels, reduction="none")
        return torch.where(batch.mask, losses, 0.0).sum() / batch.mask.sum(), {}

    def after_step(self) -> None:
        self.updates += 1

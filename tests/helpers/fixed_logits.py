"""A model that answers with given logits, for tests of losses."""

import torch
from torch import Tensor, nn


class Fixed(nn.Module):
    """Answers with given logits."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, images: Tensor) -> Tensor:
        return self.logits


LOGITS = torch.tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 0.0], [1.0, 1.0, 5.0]])


LABELS = torch.tensor([0, 1, 0])

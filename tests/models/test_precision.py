"""The precision that a model computes in."""

import pytest
import torch

from vitkit.models.config import Precision
from vitkit.models.image_model import autocast


@pytest.mark.parametrize(
    ("precision", "expected"),
    [("auto", torch.float32), ("float32", torch.float32), ("bfloat16", torch.bfloat16)],
)
def test_matrix_products_are_of_the_precision_asked_for(precision: Precision, expected: torch.dtype) -> None:
    layer = torch.nn.Linear(3, 4)
    with autocast(torch.device("cpu"), precision):
        assert layer(torch.ones(2, 3)).dtype == expected
    assert layer.weight.dtype == torch.float32


@pytest.mark.parametrize("supported", [True, False])
def test_a_gpu_computes_in_bfloat16_if_it_can(supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: supported)
    chosen = []

    def context(device: str, dtype: torch.dtype, enabled: bool) -> None:
        chosen.append((device, dtype, enabled))

    monkeypatch.setattr(torch, "autocast", context)
    autocast(torch.device("cuda", 0), "auto")
    autocast(torch.device("cuda", 0), "float32")
    assert chosen == [("cuda", torch.bfloat16, supported), ("cuda", torch.bfloat16, False)]

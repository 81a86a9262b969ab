"""The precision that a model computes in."""

import torch

from vitkit.models.precision_config import Precision


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """Return the context in which models on a device compute in a precision."""
    if precision == "auto":
        pays = device.type == "cuda" and torch.cuda.is_bf16_supported()
        precision = "bfloat16" if pays else "float32"
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")

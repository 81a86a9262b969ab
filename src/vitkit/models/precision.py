"""The precision that a model computes in."""

import torch

from vitkit.models.compute_config import Precision


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """Return the context in which models on a device compute in a precision.

    "auto" is bfloat16 on a GPU that has it, else float32.
    """
    auto = precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.autocast(device.type, torch.bfloat16, enabled=auto or precision == "bfloat16")

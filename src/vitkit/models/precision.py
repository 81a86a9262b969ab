"""The precision that a model computes in, and which the machine has."""

import torch
from torch.utils._triton import has_triton  # public functions do not say whether torch.compile can work

from vitkit.models.precision_config import Precision


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """Return the context in which models on a device compute in a precision.

    "auto" is bfloat16 on a GPU that has it, else float32: `compute_config.choose_compute` knows more.
    """
    if precision == "auto":
        precision = "bfloat16" if "bfloat16" in device_features(device) else "float32"
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def device_features(device: torch.device) -> frozenset[str]:
    """Return what a device has, by name: instruction sets of a processor; "bfloat16" and "triton" of a
    GPU."""
    if device.type == "cuda":
        found = {"bfloat16": torch.cuda.is_bf16_supported(), "triton": has_triton()}
        return frozenset(name for name, value in found.items() if value)
    if device.type != "cpu":
        return frozenset()
    # Absent before PyTorch 2.12 or so: nothing is known then, and nothing chosen that needs it.
    known: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return frozenset(name for name, value in known.items() if value is True)

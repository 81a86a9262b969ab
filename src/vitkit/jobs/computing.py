"""Choose how a model computes on this machine: the rule of `models/compute_config.py`, told what it has."""

from dataclasses import replace

import torch

from vitkit.kernels.block import compiled_block
from vitkit.kernels.gelu import compiled_gelu
from vitkit.models.compute_config import Compute, Phase, choose_compute
from vitkit.models.image_model import ImageModel
from vitkit.models.precision import device_features
from vitkit.models.precision_config import Precision
from vitkit.models.zoo import ModelConfig


def choose_for(
    config: ModelConfig, device: torch.device, precision: Precision, *, phase: Phase, exact: bool
) -> Compute:
    """Choose how a model of a configuration computes on a device.

    Args:
        config: of the model.
        device: where it computes.
        precision: that was asked for; "auto" leaves it to the rule.
        phase: what it computes for.
        exact: the plain way alone.
    """
    chosen = choose_compute(
        config,
        device=device.type,
        features=device_features(device),
        phase=phase,
        precision=precision,
        exact=exact,
        compiler=not exact and phase != "prediction" and compiled_gelu() is not None,
    )
    # Asked for last, so that it is compiled for the chosen precision alone; bfloat16 takes a newer processor.
    if chosen.block == "compiled" and compiled_block(chosen.precision) is None:
        return replace(chosen, block="modules")
    return chosen


def compute_as(model: ImageModel, chosen: Compute) -> None:
    """Have a model compute as chosen, as far as this machine can.

    Without a compiler PyTorch's operations are used, and without a GPU nothing is handed to torch.compile.
    """
    gelu = compiled_gelu() if chosen.gelu == "compiled" else None
    block = compiled_block(chosen.precision) if chosen.block == "compiled" else None
    here = replace(
        chosen,
        gelu=chosen.gelu if gelu is not None else "pytorch",
        block=chosen.block if block is not None else "modules",
        graph=chosen.graph if torch.cuda.is_available() else "eager",
    )
    model.compute_as(here, gelu, block)


def prepare(
    model: ImageModel, device: torch.device, precision: Precision, exact: bool, phase: Phase
) -> Precision:
    """Have a model compute its predictions in the fastest way chosen for a device.

    Returns:
        The precision that autocast is to be entered with.
    """
    compute_as(model, choose_for(model.config, device, precision, phase=phase, exact=exact))
    return model.chosen.precision

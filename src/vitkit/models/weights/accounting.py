"""Tensors into a model with every key accounted for."""

from collections.abc import Mapping

import torch
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.models.vit import ViT, ViTConfig


def build(config: ViTConfig, tensors: Mapping[str, Tensor], source: str) -> ViT:
    """A model of `config` that takes over `tensors`, without ever holding two sets of weights.

    Raises:
        VitkitError: a parameter is missing, unexpected or of another shape: a table of all of them.
    """
    with torch.device("meta"):
        model = ViT(config)
    expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    found = {key: tuple(value.shape) for key, value in tensors.items()}
    lines = [
        f"  {key}: expected {_shape(expected.get(key))}, found {_shape(found.get(key))}"
        for key in sorted(expected.keys() | found.keys())
        if expected.get(key) != found.get(key)
    ]
    if lines:
        shown = lines[:20] + ([f"  and {len(lines) - 20} more"] if len(lines) > 20 else [])
        raise VitkitError(f"{source} does not hold the weights of this model:\n" + "\n".join(shown))
    model.load_state_dict(tensors, assign=True)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    model.register_pixel_statistics()
    return model


def _shape(shape: tuple[int, ...] | None) -> str:
    return "nothing" if shape is None else str(shape)

"""Learning rates by layer in fine-tuning: weights that are frozen, learn slowly, or wait for the head.

The layers are numbered as in BEiT and MAE (`util/lr_decay.py` there): 0 is all that comes before the first
block, block i is i + 1, and the final norm, the pooling and the head come after the last one.
"""

from torch import nn

from vitkit.errors import VitkitError
from vitkit.models.image_model import ImageModel
from vitkit.training.config import OptimizerConfig

HEAD = ("head.", "pre_logits.")
"""Beginnings of the names of the head's parameters, the tanh layer of pre-training among them."""
AFTER = ("norm.", "pooling.", *HEAD)
"""Beginnings of the names of all parameters after the last layer."""


def rate_scales(model: ImageModel, config: OptimizerConfig) -> dict[nn.Parameter, float]:
    """Compute the factor of each parameter's learning rate; 0 where it is frozen.

    Raises:
        VitkitError: more layers are to be frozen than the model has, or it has no head to train alone.
    """
    layers, named = model.layers(), dict(model.named_parameters())
    depth, head = len(layers), {weights for name, weights in named.items() if name.startswith(HEAD)}
    refuse_layers(depth, config)
    numbers = {weights: depth + 1 if name.startswith(AFTER) else 0 for name, weights in named.items()}
    for number, layer in enumerate(layers, start=1):
        numbers |= dict.fromkeys(layer.parameters(), number)
    if config.freeze == "trunk":
        if not head:
            raise VitkitError("The model has no head that could be trained alone: leave out freeze.")
        return {parameter: float(parameter in head) * config.head_rate for parameter in numbers}
    last_frozen = config.freeze_layers if config.freeze_layers else -1
    return {
        parameter: 0.0
        if number <= last_frozen
        else config.layer_decay ** (depth + 1 - number) * (config.head_rate if parameter in head else 1.0)
        for parameter, number in numbers.items()
    }


def refuse_layers(depth: int, config: OptimizerConfig) -> None:
    """Refuse to freeze more layers than the `depth` of the model.

    Raises:
        VitkitError: it has fewer.
    """
    if config.freeze_layers > depth:
        raise VitkitError(
            f"The model has {depth} layers, so freeze_layers is from 0 to {depth}, found "
            f"{config.freeze_layers}."
        )

"""Fit the first filters of a model to images of another number of channels.

The rule is timm's (`adapt_input_conv` in `timm/models/_manipulate.py`): for one channel the filters of all
channels are summed; for any other number, the three filters are repeated in turn and scaled by 3 / C, so
that a channel counts less where there are more. Beyond timm, the sum takes the pixel statistics of each
channel into account, so that a grey image gives the same result as its copy in three channels gave: up to
rounding where the means are equal, and for a linear patch embedding whatever they are.

A standardised convolution (BiT, hybrids) forgets the scale of its filters. There, the response of each filter
to a grey image stays the same up to a factor of its own.

`channels_config.py` fits the configuration by the same rule; loading a checkpoint is the only reader of this
half, which stands here because the rule is about models and not about files.

Shapes: D filters of C channels, p x q pixels.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from vitkit.models.channels_config import with_channels
from vitkit.models.zoo import ModelConfig


def fit_filters(config: ModelConfig, tensors: Mapping[str, Tensor], channels: int) -> dict[str, Tensor]:
    """Fit the first filters of a model to images of another number of channels.

    Args:
        config: the model's, with the channels of the weights as they are.
        tensors: the model's parameters, by name.
        channels: of the images.

    Raises:
        VitkitError: as `with_channels`.
    """
    name = next(name for name in config.first_filters if name in tensors)
    after, filters = with_channels(config, channels), tensors[name].float()  # (D, C, p, q)
    changed = dict(tensors)
    if channels == 1:
        # w * (x - m) / s, summed over the channels, is w' * (x - m') / s' + b with these w' and b.
        std = torch.tensor(config.image_std).view(-1, 1, 1)
        shift = (after.image_mean[0] - torch.tensor(config.image_mean).view(-1, 1, 1)) / std
        # Only the filters of a patch embedding have a bias and no padding.
        if name == "stem.weight":
            bias = tensors["stem.bias"]
            changed["stem.bias"] = (bias.float() + (filters * shift).sum((1, 2, 3))).to(bias.dtype)
        fitted = (filters * (after.image_std[0] / std)).sum(1, keepdim=True)
    else:
        source = [channel % config.in_channels for channel in range(channels)]
        fitted = filters[:, source] * (config.in_channels / channels)
    return changed | {name: fitted.to(tensors[name].dtype)}

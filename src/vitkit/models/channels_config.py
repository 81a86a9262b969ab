"""Configurations for images of another size or number of channels. This file imports no torch."""

from dataclasses import replace

from vitkit.errors import VitkitError
from vitkit.models.config.image_config import Size, height_and_width
from vitkit.models.zoo import ModelConfig

Statistics = tuple[float, ...] | None
"""A value for each channel, or one for all; None where none is given."""


def with_image_size(config: ModelConfig, size: Size) -> ModelConfig:
    """Set the image size of a model's preprocessing, which owns it, on the model's configuration.

    No other function changes it: a size that is given to `load_model` comes here by way of `Preprocessing`.

    Raises:
        VitkitError: the model cannot read images of this size.
    """
    return replace(config, image_size=height_and_width(size))


def with_statistics(config: ModelConfig, mean: Statistics, std: Statistics) -> ModelConfig:
    """Give a configuration with the mean and standard deviation of pixels in [0, 1], where they are given.

    Raises:
        VitkitError: another number of values than channels, or such as no pixels have.
    """
    channels = config.in_channels
    if mean is not None:
        config = replace(config, image_mean=mean * channels if len(mean) == 1 else mean)
    if std is not None:
        config = replace(config, image_std=std * channels if len(std) == 1 else std)
    return config


def with_channels(config: ModelConfig, channels: int) -> ModelConfig:
    """Give a configuration for images of another number of channels.

    One channel gets the averages of its pixel statistics; several get them repeated in turn.

    Raises:
        VitkitError: there is no rule for these numbers.
    """
    before = config.in_channels
    if channels == before:
        return config
    if channels != 1 and before not in (1, 3):
        raise VitkitError(
            f"The weights are for images of {before} channels, and only weights for 1 or 3 fit images of "
            f"{channels}. Give --channels {before}, or choose another start."
        )
    if channels == 1:
        mean, std = (sum(config.image_mean) / before,), (sum(config.image_std) / before,)
        return replace(config, in_channels=1, image_mean=mean, image_std=std)
    source = [channel % before for channel in range(channels)]
    return replace(
        config,
        in_channels=channels,
        image_mean=tuple(config.image_mean[channel] for channel in source),
        image_std=tuple(config.image_std[channel] for channel in source),
    )


def describe_channels(before: int, channels: int) -> str:
    """Describe how the first filters were made to fit images of another number of channels."""
    change = "summed" if channels == 1 else f"repeated in turn, times {before}/{channels}"
    return f"channels: {channels} instead of {before}, the filters that see the pixels are {change}"

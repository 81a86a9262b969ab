"""Models with new weights: the one place where a model is composed of its parts."""

import torch

from vitkit.models.axial import AxialBlock
from vitkit.models.image_model import ImageModel
from vitkit.models.resnet import ResNet, ResNetStem
from vitkit.models.resnet_config import ResNetConfig
from vitkit.models.vit import ViT, encoder_block
from vitkit.models.zoo import ModelConfig, model_config


def build_model(config: ModelConfig, generator: torch.Generator | None = None) -> ImageModel:
    """The model of a configuration, with new weights, composed of its parts."""
    if isinstance(config, ResNetConfig):
        return ResNet(config, generator)
    stem = blocks = None
    if config.backbone is not None:
        stem = ResNetStem(config.backbone, config.patch_size, config.width, config.in_channels)
    if config.attention == "axial":
        blocks = [
            AxialBlock(config.grid, encoder_block(config), encoder_block(config)) for _ in range(config.depth)
        ]
    return ViT(config, stem, blocks, generator)


def create_model(
    name: str,
    num_classes: int = 1000,
    image_size: int | tuple[int, int] = 224,
    *,
    generator: torch.Generator | None = None,
) -> ImageModel:
    """A model with new weights.

    Args:
        name: of the zoo's grammar, `ViT-B/16`, `R50+ViT-B/16` or `BiT-R50x1` say.
        num_classes: K, the number of logits.
        image_size: pixels, one number or `(height, width)`.
        generator: source of the initial weights; left out, PyTorch's default one.

    For another activation or dropout, change the configuration and build from that:
    `vitkit.build_model(dataclasses.replace(vitkit.model_config("ViT-B/16"), gelu="erf"))`.
    """
    return build_model(model_config(name, num_classes, image_size), generator)


def count_parameters(model: torch.nn.Module) -> int:
    """Trainable numbers of a model."""
    return sum(parameter.numel() for parameter in model.parameters())

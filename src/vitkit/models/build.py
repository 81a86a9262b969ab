"""Models with new weights: the one place where a model is composed of its parts."""

import torch

from vitkit.errors import VitkitError
from vitkit.models.axial import AxialBlock
from vitkit.models.config import ModelConfig, ResNetConfig
from vitkit.models.image_model import ImageModel
from vitkit.models.parts import ConvStem
from vitkit.models.resnet import ResNet, ResNetStem
from vitkit.models.vit import ViT, encoder_block


def build_model(config: ModelConfig, generator: torch.Generator | None = None) -> ImageModel:
    """Build the model of a configuration, with new weights, composed of the parts that it names."""
    match config:
        case ResNetConfig():
            return ResNet(config, generator)
    stem: ResNetStem | ConvStem | None = None
    blocks = None
    if config.backbone is not None:
        stem = ResNetStem(config.backbone, config.patch_size, config.width, config.in_channels)
    elif config.stem_channels:
        sizes = (config.stem_channels, config.patch_size, config.width, config.in_channels)
        stem = ConvStem(*sizes, config.stem_strides)
    if config.attention == "axial":
        pairs = ((encoder_block(config), encoder_block(config)) for _ in range(config.depth))
        blocks = [AxialBlock(config.grid, *pair) for pair in pairs]
    return ViT(config, stem, blocks, generator)


def build_empty(config: ModelConfig) -> ImageModel:
    """Build a model without memory, on the meta device: its parameters have shapes and no numbers.

    Raises:
        VitkitError: a tensor would be larger than any memory.
    """
    try:
        with torch.device("meta"):
            return build_model(config)
    except RuntimeError as error:  # PyTorch counts bytes in 64 bits
        raise VitkitError(
            f"A model of these sizes is larger than any memory ({str(error).splitlines()[0]}): choose "
            "smaller patches, images or layers."
        ) from error

"""The options of the list of models. They need no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelsOptions:
    """The options of the list of models; the texts below the fields are their help."""

    patterns: tuple[str, ...]
    """patterns such as 'ViT-B*', or parts of names; left out, all models are listed."""
    image_size: int = 224
    """height and width of the images in pixels."""
    num_classes: int = 1000
    """number of classes of the head."""

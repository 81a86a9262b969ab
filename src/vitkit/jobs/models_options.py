"""The options of the list of models. They need no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelsOptions:
    """Which models are measured, and with which images and head."""

    patterns: tuple[str, ...]
    """of names, 'ViT-B*' say, or parts of names; left out, all models."""
    image_size: int = 224
    """pixels a side."""
    num_classes: int = 1000
    """of the head."""

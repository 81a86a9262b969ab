"""The options of the list of published checkpoints. They need no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StartsOptions:
    """The options of the list of published checkpoints; the texts below the fields are their help."""

    patterns: tuple[str, ...]
    """short names, or patterns such as 'vit-b16*'; left out, all are listed."""
    model: str | None = None
    """a model of vitkit models, or a pattern: ViT-B/16, 'BiT-*'."""
    data: str | None = None
    """the images that it was trained on: imagenet-21k, imagenet-1k, 'imagenet-21k, imagenet-1k', webli; or,
    where none has exactly that, a part of it."""

"""The options of the list of models. They need no torch."""

from dataclasses import dataclass

from vitkit.jobs.options import SizeOptions


@dataclass(frozen=True)
class ModelsOptions(SizeOptions):
    """The options of the list of models; the texts below the fields are their help."""

    patterns: tuple[str, ...]
    """patterns such as 'ViT-B*', or parts of names; left out, all models are listed."""
    num_classes: int = 1000
    """number of classes of the head."""

"""Compare two models on the same images; the other can be another library's own."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.evaluation.run_model import evaluation_mode
from vitkit.listener import SILENT, Listener
from vitkit.models.image_model import ImageModel
from vitkit.weights.format_names import Library
from vitkit.weights.peers import library_logits

IMAGES = 8
"""Images that the two models are compared on."""


@dataclass(frozen=True)
class Parity:
    """The difference between two models on the same images."""

    logits: float | None
    """Largest absolute difference of the logits; None where they were not compared."""
    features: float | None
    """Largest absolute difference of the features; None where they were not compared."""
    logits_scale: float
    """Largest absolute logit."""
    features_scale: float
    """Largest absolute feature."""
    agreement: float | None
    """Fraction of the images with the same most probable class; None without a head or with one of zeros."""
    images: int
    """Number of images compared."""

    def within(self, tolerance: float) -> bool:
        """Whether no difference is above `tolerance`: absolute for values up to 1, relative above."""
        pairs = ((self.logits, self.logits_scale), (self.features, self.features_scale))
        return all(
            difference is None or (difference <= tolerance * max(1.0, scale) and math.isfinite(difference))
            for difference, scale in pairs
        )

    @property
    def is_finite(self) -> bool:
        """Whether there were numbers to compare."""
        return math.isfinite(self.logits_scale) and math.isfinite(self.features_scale)

    def __str__(self) -> str:
        parts = [
            f"{name} (up to {scale:.2g}) differ by at most {difference:.1e}"
            for name, difference, scale in (
                ("logits", self.logits, self.logits_scale),
                ("features", self.features, self.features_scale),
            )
            if difference is not None
        ]
        if self.agreement is not None:
            parts.append(f"top-1 agreement {self.agreement:.0%}")
        return f"{', '.join(parts)}, on {self.images} images"


def compare(model: ImageModel, other: ImageModel, listener: Listener = SILENT) -> Parity:
    """Run both models on the same fixed images and measure how far their logits and features are apart."""
    images = fixed_images(model)
    outputs = []
    with (
        evaluation_mode(model),
        evaluation_mode(other),
        listener.progress("comparing images", IMAGES) as progress,
    ):
        for done, image in enumerate(_singly(images), 1):
            outputs.append((model.features(image), other.features(image), model(image), other(image)))
            progress(done)
    ours, theirs, our_logits, their_logits = (torch.cat(parts) for parts in zip(*outputs, strict=True))
    has_head = model.config.num_classes > 0
    return _parity((our_logits, their_logits) if has_head else None, (ours, theirs))


def compare_with_library(model: ImageModel, path: Path, library: Library) -> Parity:
    """Compare our logits with those that another library's own model computes from its checkpoint.

    Args:
        model: as vitkit read or wrote the checkpoint.
        path: the checkpoint, in the library's own format.
        library: which one.

    Raises:
        VitkitError: as `library_logits`, or the two give logits of different shapes.
    """
    images = model.normalize(fixed_images(model))
    theirs = library_logits(library, path, images)
    with evaluation_mode(model):
        ours = torch.cat([model(part) for part in _singly(images)])
    if ours.shape != theirs.shape:
        raise VitkitError(f"{library} gives {tuple(theirs.shape)} where vitkit gives {tuple(ours.shape)}.")
    return _parity((ours, theirs), None) if model.config.num_classes else _parity(None, (ours, theirs))


def _parity(logits: tuple[Tensor, Tensor] | None, features: tuple[Tensor, Tensor] | None) -> Parity:
    """Measure pairs of logits and features, ours first; None where they are not compared."""
    agreement = None
    if logits is not None and logits[0].any():
        same = logits[0].flatten(1).argmax(1) == logits[1].flatten(1).argmax(1)
        agreement = float(same.float().mean())
    return Parity(
        logits=None if logits is None else float((logits[0] - logits[1]).abs().max()),
        features=None if features is None else float((features[0] - features[1]).abs().max()),
        logits_scale=0.0 if logits is None else float(logits[0].abs().max()),
        features_scale=0.0 if features is None else float(features[0].abs().max()),
        agreement=agreement,
        images=IMAGES,
    )


def fixed_images(model: ImageModel) -> Tensor:
    """Draw images that are the same every time, of every scale of structure: `(8, C, H, W)` uint8."""
    rng = np.random.default_rng(2010_11929)
    channels, (height, width) = model.config.in_channels, model.config.image_size
    images = np.zeros((IMAGES, channels, height, width))
    for i, cells in enumerate(2 ** (1 + i % 6) for i in range(IMAGES)):
        coarse = torch.from_numpy(rng.uniform(size=(1, channels, cells, cells)))
        images[i] = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")[0].numpy()
    return torch.from_numpy((255 * images).round().astype(np.uint8))


def _singly(images: Tensor) -> list[Tensor]:
    """Cut a batch into single images: memory holds no more beside the activations of the largest models."""
    return [images[i : i + 1] for i in range(len(images))]

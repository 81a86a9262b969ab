"""Score how unlike the training images of a model an image is, from its features and its logits.

Shapes: B images, D features, K classes.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Novelty(nn.Module):
    """Scores images: the higher, the less an image is like those that the model was trained on.

    The score is the sum of two, each divided by its standard deviation over images of the model's own kind,
    because each alone misses what the other sees: the squared Mahalanobis distance of the features to the
    nearest class mean (Lee et al. 2018, arXiv 1807.03888) finds images unlike any that was trained on, and
    the energy, minus the log of the sum of the exponentials of the logits (Liu et al. 2020,
    arXiv 2010.03759), finds those between the classes.

    Args:
        centre: `(D,)`, the mean of the class means.
        whitening: `(D, D)`: rows of features times it have the identity as covariance within classes.
        class_means: `(K, D)`, of centred and whitened features.
        scales: `(2,)`, the standard deviations of distance and energy.
    """

    centre: Tensor
    whitening: Tensor
    class_means: Tensor
    scales: Tensor

    def __init__(self, centre: Tensor, whitening: Tensor, class_means: Tensor, scales: Tensor) -> None:
        super().__init__()
        # In no state_dict: other libraries' formats have no place for them, and training does not move them.
        self.register_buffer("centre", centre, persistent=False)
        self.register_buffer("whitening", whitening, persistent=False)
        self.register_buffer("class_means", class_means, persistent=False)
        self.register_buffer("scales", scales, persistent=False)

    def tensors(self) -> dict[str, Tensor]:
        """Return what it is made of, by the names of its arguments."""
        return dict(self.named_buffers())

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """Score images, `(B,)` float32, by their features `(B, D)` and logits `(B, K)`."""
        distance, energy = self.distances(features).amin(1), -logits.float().logsumexp(1)
        score: Tensor = distance / self.scales[0] + energy / self.scales[1]
        return score

    def distances(self, features: Tensor) -> Tensor:
        """Compute squared Mahalanobis distances `(B, K)` of features `(B, D)` to the class means."""
        # In float32 under autocast too: a distance is the difference of large squares.
        with torch.autocast(features.device.type, enabled=False):
            x = (features.float() - self.centre) @ self.whitening
            across = x @ self.class_means.T
            squares = self.class_means.square().sum(1)
            distances: Tensor = x.square().sum(1, keepdim=True) - 2 * across + squares
            return distances


def explain_misfit(tensors: Mapping[str, Tensor], width: int, num_classes: int) -> str:
    """Say why tensors are not those of a `Novelty` for a model of D = `width` features; "" where they are."""
    expected = {
        "centre": (width,),
        "whitening": (width, width),
        "class_means": (num_classes, width),
        "scales": (2,),
    }
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != expected:
        return f"expected tensors of the shapes {expected}, found {shapes}"
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()) or tensors["scales"].min() <= 0:
        return "expected finite numbers, and scales above 0"
    return ""

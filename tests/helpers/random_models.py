"""Models with random weights, and the comparison of two models."""

import torch

from vitkit.models.build import build_model
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import ModelConfig


def random_model(config: ModelConfig) -> ImageModel:
    """Build a model in which no parameter is a constant, its head and its norms too."""
    model = build_model(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def same_bits(first: ImageModel, second: ImageModel) -> bool:
    """Whether two models have the same parameters, bit by bit."""
    ours, theirs = first.state_dict(), second.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)

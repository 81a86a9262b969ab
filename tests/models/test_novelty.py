"""Scores of how unlike its training images an image is."""

import numpy as np
import torch
from scipy.spatial.distance import mahalanobis
from torch import Tensor

from vitkit.models.build import build_model
from vitkit.models.config import Compute
from vitkit.models.fast import compute_as
from vitkit.models.image_model import autocast
from vitkit.models.novelty import Novelty, explain_misfit
from vitkit.models.zoo import model_config

CLASSES, WIDTH = 3, 5


def made(scales: tuple[float, float] = (2.0, 0.5)) -> tuple[Novelty, Tensor, Tensor, Tensor]:
    """Make a `Novelty` of a covariance and means; return also the inverse of the one, the others and rows."""
    generator = torch.Generator().manual_seed(0)
    root = torch.eye(WIDTH) + 0.3 * torch.randn(WIDTH, WIDTH, generator=generator)
    inverse = root @ root.T
    means = 4 * torch.randn(CLASSES, WIDTH, generator=generator) + 7
    centre = means.mean(0)
    novelty = Novelty(centre, root, (means - centre) @ root, torch.tensor(scales))
    return novelty, inverse, means, 3 * torch.randn(8, WIDTH, generator=generator) + 7


def test_distances_are_squared_mahalanobis_distances() -> None:
    novelty, inverse, means, rows = made()
    expected = [
        [mahalanobis(row, mean, inverse.numpy()) ** 2 for mean in means.numpy()] for row in rows.numpy()
    ]
    np.testing.assert_allclose(novelty.distances(rows).numpy(), expected, rtol=1e-4)


def test_a_score_adds_the_scaled_distance_and_energy() -> None:
    novelty, _, _, rows = made()
    logits = torch.linspace(-3, 3, 8 * CLASSES).reshape(8, CLASSES)
    expected = novelty.distances(rows).amin(1) / 2.0 - logits.exp().sum(1).log() / 0.5
    torch.testing.assert_close(novelty(rows, logits), expected)


def test_scores_are_of_float32_under_autocast() -> None:
    novelty, _, _, rows = made()
    plain = novelty(rows, rows[:, :CLASSES])
    with autocast(torch.device("cpu"), "bfloat16"):
        assert torch.equal(novelty(rows, rows[:, :CLASSES]), plain)


def test_a_model_that_has_it_is_computed_as_fast() -> None:
    model = build_model(model_config("ViT-16x2x2/4", 3, 8))
    rows = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    model.novelty = Novelty(rows.mean(0), torch.eye(16), rows, torch.ones(2))
    compute_as(model, Compute(last_block="class_token", pixels="folded"))
    assert (model.chosen.last_block, model.chosen.pixels) == ("class_token", "folded")


def test_tensors_of_another_model_are_named() -> None:
    tensors = made()[0].tensors()
    assert explain_misfit(tensors, WIDTH, CLASSES) == ""
    assert "(3, 5)" in explain_misfit(tensors, WIDTH, CLASSES + 1)
    for broken in (
        {**tensors, "scales": torch.zeros(2)},
        {**tensors, "centre": torch.full((WIDTH,), torch.nan)},
    ):
        assert "finite" in explain_misfit(broken, WIDTH, CLASSES)
    assert "expected tensors" in explain_misfit({}, WIDTH, CLASSES)

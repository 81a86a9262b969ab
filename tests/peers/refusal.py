"""Compare what a model refuses with two other libraries: MAPIE's threshold, and pytorch-ood's scores.

python -m tests.peers.refusal
"""

from typing import Any

import numpy as np
import torch
from mapie.regression import SplitConformalRegressor
from pytorch_ood.detector import EnergyBased, Mahalanobis
from sklearn.dummy import DummyRegressor

from vitkit.evaluation.refusal import fit_statistics, typicality
from vitkit.models.novelty import Novelty

CLASSES, WIDTH, IMAGES = 5, 24, 20_000


def compare_thresholds() -> None:
    """Compare which of 1,000 images are refused, for several numbers of held-out images and shares."""
    generator, compared = np.random.default_rng(0), 0
    # It predicts 0, so that the error of an image, which MAPIE takes the quantile of, is its score.
    zero = DummyRegressor(strategy="constant", constant=0.0).fit([[0.0]], [0.0])
    for count in (60, 99, 333, 1000):  # MAPIE takes no fewer than 51 for 2 %
        for share in (0.02, 0.05, 0.1):
            own, new = generator.exponential(size=count), generator.exponential(size=1000)
            regressor = SplitConformalRegressor(zero, confidence_level=1 - share, prefit=True)
            regressor.conformalize(np.zeros((count, 1)), own)
            threshold = regressor.predict_interval(np.zeros((1, 1)))[1][0, 1, 0]
            ours = typicality(new, np.sort(own).tolist()) <= share
            assert ((new > threshold) == ours).all(), (count, share)
            compared += len(new)
    print(f"threshold  MAPIE: the same {compared:,} of {compared:,} images refused or accepted")


def compare_scores() -> None:
    """Compare distances and energies of the same features and logits."""
    generator = torch.Generator().manual_seed(0)
    means = 3 * torch.randn(CLASSES, WIDTH, generator=generator)
    mixing = torch.eye(WIDTH) + 0.1 * torch.randn(WIDTH, WIDTH, generator=generator)
    labels = torch.arange(IMAGES) % CLASSES
    features = means[labels] + torch.randn(IMAGES, WIDTH, generator=generator) @ mixing
    logits = torch.randn(IMAGES, CLASSES, generator=generator)
    parts = fit_statistics(features.numpy(), labels.numpy(), CLASSES)
    tensors = {name: torch.from_numpy(part) for name, part in parts.items()}
    ours = Novelty(**tensors, scales=torch.ones(2)).distances(features).amin(1)
    detector: Any = Mahalanobis(torch.nn.Identity())
    # Half the distance, by a sum in place of the covariance.
    theirs = 2 * IMAGES * detector.fit_features(features, labels).predict_features(features)
    # Theirs does not shrink the covariance; ours is shrunk by the little that so many images call for.
    apart = float(((ours - theirs) / theirs).abs().max())
    print(f"distance   pytorch-ood: at most {apart:.1e} of it apart (the covariance is not shrunk there)")
    assert apart < 0.02
    energy = float((EnergyBased.score(logits) + logits.logsumexp(1)).abs().max())
    print(f"energy     pytorch-ood: at most {energy:.1e} apart")
    assert energy < 1e-5


if __name__ == "__main__":
    compare_thresholds()
    compare_scores()

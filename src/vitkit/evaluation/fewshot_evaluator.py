"""Few-shot accuracy while a model is trained: the number by which the paper follows pre-training (4.1)."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vitkit.data.sources import Samples
from vitkit.data.transforms_config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.evaluation.features import FeatureExtractor, Features
from vitkit.evaluation.fewshot_config import SHOTS, Method
from vitkit.evaluation.fewshot_data import open_fewshot_data, shot_features, test_features
from vitkit.evaluation.fewshot_scores import measure
from vitkit.models.image_model import ImageModel
from vitkit.models.precision_config import Precision
from vitkit.weights.card import TrainingData


def fewshot_evaluator(
    data: str,
    preprocessing: Preprocessing,
    *,
    shots: Sequence[int] = SHOTS,
    seeds: int = 3,
    methods: Sequence[Method] = ("ridge",),
    device: torch.device | str = "cpu",
    precision: Precision = "auto",
    batch_size: int = 128,
    workers: int = 0,
    trained_on: Sequence[TrainingData] = (),
) -> Callable[[nn.Module, nn.Module], Mapping[str, float]]:
    """Make a function that measures the few-shot accuracy of a model: an evaluator for the trainer.

    Shots and test images are the same at each call. Nothing is kept on the disk: the weights are others each
    time. The model is left in the mode it is in, and no random number is drawn that training would miss.

    Args:
        data: names images with labels, as for `vitkit.fewshot`; other images than those trained on.
        preprocessing: from an image to the model's input, as in training.
        shots, seeds, methods: as for `vitkit.fewshot`.
        device: where the model is.
        precision: of its arithmetic.
        batch_size: images at a time.
        workers: processes that decode images.
        trained_on: what the model is trained on, should that be the same images after all: none of its
            training images are then tested on.

    Returns:
        A function of the model to names and values, the mean accuracies over the seeds: "ridge_5_shots" and
        the like.

    Raises:
        VitkitError: the data is not there, or leaves nothing to test on.
    """
    shots = sorted(set(shots))
    opened = open_fewshot_data(data, trained_on).decoded_by(preprocessing.decode)
    draws = opened.draws(seeds)

    def evaluate(model: nn.Module, objective: nn.Module) -> Mapping[str, float]:
        if not isinstance(model, ImageModel):
            raise VitkitError(f"Few-shot accuracy needs a model with features, found {type(model).__name__}.")
        extractor = FeatureExtractor(model, preprocessing, torch.device(device), precision)

        def compute(samples: Samples, indices: NDArray[np.int64], _: str) -> Features:
            return extractor.compute(samples, indices, batch_size=batch_size, workers=workers)

        drawn = shot_features(opened, draws, max(shots), compute)
        test, _ = test_features(opened, compute)
        scores = measure(
            draws, shots, methods, drawn.features, test, opened.classes, unreadable=list(drawn.unreadable)
        )
        return {f"{score.method}_{score.shots}_shots": score.mean for score in scores}

    return evaluate

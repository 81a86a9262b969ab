"""Measure few-shot accuracy while a model is trained: by it the paper follows pre-training (4.1).

The command line reads the options without torch, which is imported where accuracy is measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitkit.errors import VitkitError
from vitkit.evaluation.fewshot.config import ALL_SHOTS, METHODS, SHOTS, Learning, Method, listed
from vitkit.world import ALONE, World, prepared_together

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import nn

    from vitkit.data.config import Preprocessing
    from vitkit.data.sources import Samples
    from vitkit.evaluation.features import Features
    from vitkit.models.config.compute_config import Precision
    from vitkit.weights.model_card import TrainingData


@dataclass(frozen=True)
class FewShotTracking:
    """Few-shot accuracy on other images while the model is trained; it is logged and decides nothing."""

    data: str = ""
    """Images with labels, other than the training images; left out, it is not measured."""
    every: int | None = None
    """Steps between two measurements; left out, as often as the validation."""
    shots: tuple[int, ...] = SHOTS
    """Numbers of images of each class to learn from, with commas between."""

    def __post_init__(self) -> None:
        if not self.shots or min(self.shots) < 1:
            raise VitkitError(
                f"The few-shot evaluation expects shots of 1 or more, found {listed(self.shots)}."
            )
        if self.every is not None and self.every < 1:
            raise VitkitError(f"The few-shot evaluation is made every 1 or more steps, found {self.every}.")

    def build(
        self,
        preprocessing: "Preprocessing",
        methods: Sequence[Method] = ("ridge",),
        *,
        device: "torch.device | str" = "cpu",
        precision: "Precision" = "auto",
        batch_size: int = 128,
        workers: int = 0,
        trained_on: "Sequence[TrainingData]" = (),
        world: World = ALONE,
    ) -> "Callable[[nn.Module, nn.Module], Mapping[str, float]]":
        """Make a function that measures the few-shot accuracy of a model: an evaluator for the trainer.

        Shots and test images are the same at each call. Nothing is kept on the disk: the weights change each
        time. The model stays in its mode, and no random number of training is used up.

        Args:
            preprocessing: from an image to the model's input, as in training.
            methods: ways to learn from the features.
            device: where the model is.
            precision: of its arithmetic.
            batch_size: images at a time.
            workers: processes that decode images.
            trained_on: the training data of the model; if it is the same data, none of its training images
                are test images.
            world: the processes, each of which calls the function and computes a part of the features.

        Returns:
            A function of model and objective to the mean accuracies over the seeds by name, "ridge_5_shots".

        Raises:
            VitkitError: the data is not there, or leaves nothing to test on.
        """
        import torch

        from vitkit.evaluation.features import FeatureExtractor
        from vitkit.evaluation.fewshot.data import measure_data, open_fewshot_data
        from vitkit.models.image_model import ImageModel

        shots = tuple(sorted(set(self.shots)))
        seeds = SEEDS if max(shots) != ALL_SHOTS else 1  # all images are the same every time
        learning = Learning(shots, seeds, methods)
        opened = open_fewshot_data(self.data, trained_on, world).decoded_by(preprocessing.decode)

        def evaluate(model: "nn.Module", objective: "nn.Module") -> Mapping[str, float]:
            if not isinstance(model, ImageModel):
                raise VitkitError(
                    f"Few-shot accuracy needs a model with features, found {type(model).__name__}."
                )
            extractor = FeatureExtractor(
                model, preprocessing, torch.device(device), precision, batch_size, workers
            )

            def compute(samples: "Samples", indices: "NDArray[np.int64]", _: str) -> "Features":
                return extractor.compute(samples, indices, world=world)

            # All processes fit the same features, since they could only wait meanwhile, and need no message
            # for the result; one reports an error.
            with prepared_together(world):
                scores = measure_data(opened, learning, compute).scores
            return {_name(score.method, score.shots): score.mean for score in scores}

        return evaluate

    def line(self, measured: Mapping[str, float]) -> str:
        """Write the accuracy of the most shots in short: "25 shots 43.2%", of several methods "25 shots
        43.2% knn 40.1%"."""
        most = max(self.shots)
        first, *others = (method for method in METHODS if _name(method, most) in measured)
        beside = "".join(f" {method} {measured[_name(method, most)]:.1%}" for method in others)
        label = "linear probe" if most == ALL_SHOTS else f"{most} shots"
        return f"{label} {measured[_name(first, most)]:.1%}{beside}"


SEEDS = 3
"""Number of times the shots are drawn, each with another seed."""
AT_THE_END = 10**12
"""More steps than any run has: after the last step every evaluator measures."""


def linear_probe(data: str) -> FewShotTracking:
    """Measure a classifier on the features of all training images of `data`, once, after the last step."""
    return FewShotTracking(data, every=AT_THE_END, shots=(ALL_SHOTS,))


def _name(method: Method, shots: int) -> str:
    """Name an accuracy in the metrics log: "ridge_5_shots", or "logistic_all" of all images."""
    return f"{method}_all" if shots == ALL_SHOTS else f"{method}_{shots}_shots"

"""Learning of classification: one class for each image, with a softmax or sigmoid loss."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vitkit.evaluation.classify import classification
from vitkit.models.config import card
from vitkit.models.zoo import ModelConfig
from vitkit.tasks.learning import LabelledLearning, Validation
from vitkit.tasks.page import Curve
from vitkit.training.config import ClassificationConfig
from vitkit.training.evaluators import Monitor

if TYPE_CHECKING:
    from torch import nn

    from vitkit.data.sources import Samples

# With few validation images the accuracy soon stops changing; among equal accuracies the smaller loss wins.
MONITOR = Monitor("accuracy", "max", tie_breaker="loss", tie_direction="min")

CURVE = Curve(
    "accuracy",
    "Validation accuracy",
    "fraction of images right",
    "the fraction of validation images classified rightly; the circle is the best.",
)


@dataclass(frozen=True)
class ClassificationLearning(LabelledLearning):
    """`vitkit.tasks.learning.Learning` describes the methods."""

    monitor: Monitor = MONITOR
    curve: Curve = CURVE

    def learned(self, config: ClassificationConfig) -> card.Task:
        """Record the loss; both losses fit this task."""
        return card.Task("classification", config.loss)

    def objective(
        self, config: ClassificationConfig, model_config: ModelConfig, train: "Samples"
    ) -> "nn.Module":
        """Build the cross entropy, or the sum of the classes' binary cross entropies."""
        from vitkit.training.objectives import Classification

        return Classification(config, model_config.num_classes, train.labels.astype(np.int64))

    def predictor(self, validation: Validation) -> Callable[..., Any]:
        """Predict by the objective's loss, without smoothing and mixup."""
        from vitkit.evaluation.run_model import predict

        # Images are scored batch by batch: two numbers need no 4.4 GB of logits, as 50,000 images of 21,843
        # classes have.
        return partial(predict, loss=validation.objective.loss, keep_logits=False)

    def numbers(self, predictions: Any, class_names: Sequence[str]) -> Mapping[str, float]:
        """Compute loss and accuracy."""
        result = classification(predictions, class_names)
        return {"loss": result.loss, "accuracy": result.accuracy}

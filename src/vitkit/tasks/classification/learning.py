"""Learning of classification: one class for each image, with a softmax or sigmoid loss."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vitkit.evaluation.classify import classification
from vitkit.models.config import card
from vitkit.models.zoo import ModelConfig
from vitkit.tasks.labelled import LabelledLearning
from vitkit.tasks.learning import Validation
from vitkit.tasks.page import Curve
from vitkit.training.config import ClassificationConfig
from vitkit.training.evaluators import Monitor

if TYPE_CHECKING:
    from torch import nn

    from vitkit.data.sources import Samples

# With few validation images the accuracy soon stops changing; among equal accuracies the smaller loss wins.
MONITOR = Monitor("accuracy", "max", tie_breaker="loss", tie_direction="min")

CURVE = Curve(
    metric="accuracy",
    title="Validation accuracy",
    label="fraction of images right",
    caption="the fraction of validation images classified rightly; the circle is the best.",
)


@dataclass(frozen=True)
class ClassificationLearning(LabelledLearning):
    """`vitkit.tasks.learning.Learning` describes the methods."""

    monitor: Monitor = MONITOR
    curve: Curve = CURVE
    several_labels: bool = False
    figure: str = ""

    def learned(self, config: ClassificationConfig) -> card.Task:
        """Record the loss; both losses fit this task."""
        return card.Task("classification", config.loss)

    def objective(
        self, config: ClassificationConfig, model_config: ModelConfig, train: "Samples"
    ) -> "nn.Module":
        """Build the cross entropy, or the sum of the classes' binary cross entropies."""
        from vitkit.training.objectives import Classification

        return Classification(config, model_config.num_classes, train.labels.astype(np.int64))

    def measure(
        self, model: "nn.Module", validation: Validation[ClassificationConfig]
    ) -> Mapping[str, float]:
        """Measure loss and accuracy; the loss is the objective's without smoothing and mixup."""
        from vitkit.evaluation.run_model import predict

        predictions = predict(
            model,
            validation.batches(validation.world),
            device=validation.device,
            precision=validation.precision,
            world=validation.world,
            loss=validation.objective.loss,
            # Images are scored batch by batch: two numbers need no 4.4 GB of logits, as 50,000 images of
            # 21,843 classes have.
            keep_logits=False,
        )
        result = classification(predictions, validation.class_names)
        return {"loss": result.loss, "accuracy": result.accuracy}

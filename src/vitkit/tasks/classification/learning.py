"""Learning of classification: one class for each image, with a softmax or sigmoid loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vitkit.data.config import DecodeRule, Splits
from vitkit.evaluation.classify import classification, explain_no_classes
from vitkit.models.config import card
from vitkit.models.zoo import ModelConfig
from vitkit.tasks.learning import Validation
from vitkit.tasks.page import Curve
from vitkit.training.config import ClassificationConfig
from vitkit.training.evaluators import Evaluator, Monitor

if TYPE_CHECKING:
    from torch import nn

    from vitkit.data.sources import ImageData, Samples

# With few validation images the accuracy soon stops changing; among equal accuracies the smaller loss wins.
MONITOR = Monitor("accuracy", "max", tie_breaker="loss", tie_direction="min")

CURVE = Curve(
    metric="accuracy",
    title="Validation accuracy",
    label="share of images right",
    caption="the share of validation images classified rightly; the circle is the best.",
)


@dataclass(frozen=True)
class ClassificationLearning:
    """The methods are those of `vitkit.tasks.learning.Learning`, which describes them."""

    monitor: Monitor = MONITOR
    curve: Curve = CURVE

    def open_data(
        self, spec: str, splits: Splits, rule: DecodeRule, class_names: Sequence[str] | None = None
    ) -> "ImageData":
        """List images with the number of their class, `labels` `(N,)` int64."""
        from vitkit.data.sources import open_data  # what predicts opens no data set

        return open_data(spec, splits, rule, class_names)

    def learned(self, config: ClassificationConfig) -> card.Task:
        """Record the loss; both losses fit this task."""
        return card.Task("classification", config.loss)

    def objective(
        self, config: ClassificationConfig, model_config: ModelConfig, train: "Samples"
    ) -> "nn.Module":
        """Build the cross entropy, or the sum of the classes' binary cross entropies."""
        from vitkit.training.objectives import Classification

        return Classification(config, model_config.num_classes, train.labels.astype(np.int64))

    def evaluators(self, validation: Validation[ClassificationConfig]) -> Mapping[str, Evaluator]:
        """Measure loss and accuracy on the validation images."""
        from vitkit.evaluation.run_model import predict

        def measure(model: "nn.Module", objective: "nn.Module") -> Mapping[str, float]:
            # The loss is the objective's without smoothing and mixup. Logits are scored batch by batch and
            # not kept: a validation needs two numbers, and 50,000 images of 21,843 classes are 4.4 GB of
            # logits.
            predictions = predict(
                model,
                validation.batches(validation.world),
                device=validation.device,
                precision=validation.precision,
                world=validation.world,
                loss=validation.objective.loss,
                keep_logits=False,
            )
            result = classification(predictions, validation.class_names)
            return {"loss": result.loss, "accuracy": result.accuracy}

        return {self.monitor.evaluator: Evaluator(measure, line=_line, together=True)}

    def explain_unfit(self, config: ModelConfig, objective: ClassificationConfig) -> str:
        """Say why a model cannot classify: it needs a head and one row of logits for each image."""
        return explain_no_classes(config)


def _line(measured: Mapping[str, float]) -> str:
    return f"val {measured['accuracy']:.1%}"

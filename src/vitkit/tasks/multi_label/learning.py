"""Learning of several labels for each image, or none; each a yes or no of its own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError
from vitkit.evaluation.multilabel import multi_label
from vitkit.models.config import card
from vitkit.models.zoo import ModelConfig
from vitkit.tasks.learning import LabelledLearning, Validation
from vitkit.tasks.page import Curve
from vitkit.training.config import ClassificationConfig
from vitkit.training.evaluators import Monitor

if TYPE_CHECKING:
    from torch import nn

    from vitkit.data.sources import Samples

MONITOR = Monitor("mean_average_precision", "max", tie_breaker="loss", tie_direction="min")

CURVE = Curve(
    metric="mean_average_precision",
    title="Validation mAP",
    label="mean average precision",
    caption="the mean of the labels' average precisions on validation images; the circle is the best.",
)


@dataclass(frozen=True)
class MultiLabelLearning(LabelledLearning):
    """`vitkit.tasks.learning.Learning` describes the methods."""

    monitor: Monitor = MONITOR
    curve: Curve = CURVE
    several_labels: bool = True
    figure: str = "mAP "

    def learned(self, config: ClassificationConfig) -> card.Task:
        """Record the sigmoid loss, whatever the options say: labels do not exclude each other."""
        if config.logit_adjustment or config.class_weights != "none":
            raise VitkitError(
                "logit_adjustment and class_weights are for one class an image, and this task has several: "
                "leave them out of multi-label."
            )
        return card.Task("multi-label", "sigmoid")

    def objective(
        self, config: ClassificationConfig, model_config: ModelConfig, train: "Samples"
    ) -> "nn.Module":
        """Sum the labels' binary cross entropies."""
        from vitkit.training.objectives import MultiLabel

        return MultiLabel(config)

    def predictor(self, validation: Validation) -> Callable[..., Any]:
        """Predict the labels; their loss is the sigmoid's."""
        from vitkit.evaluation.run_model import predict_labels

        return predict_labels

    def numbers(self, predictions: Any, class_names: Sequence[str]) -> Mapping[str, float]:
        """Compute loss, mean average precision and F1."""
        result = multi_label(predictions, class_names, intervals=False)
        # Where no validation image has a label, all models are equal, and the loss decides.
        return {
            "loss": result.loss,
            "mean_average_precision": result.mean_average_precision or 0.0,
            "macro_f1": result.macro_f1 or 0.0,
        }

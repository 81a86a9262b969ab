"""Learn from images with labels: the part that one class and several labels for each image have in common."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitkit.data.config import DecodeRule, Splits
from vitkit.evaluation.classify import explain_no_classes
from vitkit.models.zoo import ModelConfig
from vitkit.tasks.learning import Validation
from vitkit.tasks.page import Curve
from vitkit.training.config import ClassificationConfig
from vitkit.training.evaluators import Evaluator, Monitor

if TYPE_CHECKING:
    from torch import nn

    from vitkit.data.sources import ImageData


@dataclass(frozen=True)
class LabelledLearning(ABC):
    """Images with labels. `vitkit.tasks.learning.Learning` describes the methods."""

    monitor: Monitor
    curve: Curve
    several_labels: bool = False
    """Whether an image has several labels, `(N, K)` bool, and not one class, `(N,)` int64."""
    figure: str = ""
    """The metric's name before its value in the line of a validation; the accuracy has none."""

    def open_data(
        self, spec: str, splits: Splits, rule: DecodeRule, class_names: Sequence[str] | None = None
    ) -> "ImageData":
        """List images with their labels."""
        from vitkit.data.sources import open_data  # prediction opens no data set

        return open_data(spec, splits, rule, class_names, multi_label=self.several_labels)

    def evaluators(self, validation: Validation[ClassificationConfig]) -> Mapping[str, Evaluator]:
        """Measure the monitor's metric and the loss on the validation images."""

        def measure(model: "nn.Module", objective: "nn.Module") -> Mapping[str, float]:
            predictions = self.predictor(validation)(
                model,
                validation.batches(validation.world),
                device=validation.device,
                precision=validation.precision,
                world=validation.world,
            )
            return self.numbers(predictions, validation.class_names)

        return {self.monitor.evaluator: Evaluator(measure, line=self.line, together=True)}

    @abstractmethod
    def predictor(self, validation: Validation[ClassificationConfig]) -> Callable[..., Any]:
        """Give the function of `vitkit.evaluation.run_model` that predicts the validation images."""

    @abstractmethod
    def numbers(self, predictions: Any, class_names: Sequence[str]) -> Mapping[str, float]:
        """Compute the numbers that a validation records, the loss and the monitor's metric among them."""

    def line(self, measured: Mapping[str, float]) -> str:
        """State the monitor's metric."""
        return f"val {self.figure}{measured[self.monitor.metric]:.1%}"

    def explain_unfit(self, config: ModelConfig, objective: ClassificationConfig) -> str:
        """Say why a model cannot learn labels: it needs a head and one row of logits for each image."""
        return explain_no_classes(config)

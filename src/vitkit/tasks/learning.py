"""The half of a task that is trained: its targets, objective and evaluators, and the metric that decides.

The members are values and functions without state. They import torch when they are called, so that a finished
model answers (`vitkit.tasks.answering`) without it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vitkit.data.config import DecodeRule, Splits
from vitkit.errors import VitkitError
from vitkit.evaluation.classify import classification, explain_no_classes, multi_label
from vitkit.models.config import Precision, TaskName
from vitkit.models.config import Task as LearnedTask
from vitkit.models.zoo import ModelConfig
from vitkit.result import Text
from vitkit.tasks.page import Curve, TaskReport
from vitkit.training.evaluators import Evaluator, Monitor
from vitkit.world import ALONE, World

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import nn

    from vitkit.data.sources import ImageData, Samples
    from vitkit.data.stream.loader import Batch


@dataclass(frozen=True)
class Validation:
    """The values from which the evaluators of a run are made."""

    objective: Any
    """The options of the objective."""
    class_names: tuple[str, ...]
    batches: "Callable[..., Iterable[Batch]]"
    """Yields every image once, in the same order at each call. Given `world`, by evaluators that measure
    together, it yields this process's part, for `run_model` of `vitkit.evaluation`."""
    device: "torch.device"
    precision: Precision
    world: World = ALONE
    """The processes that train, for evaluators that measure `together`."""


@dataclass(frozen=True)
class Learning(ABC):
    """The half of a task that is trained. The methods of a task without labels and answers need not be
    written anew: images are listed alone, and nothing is shown of them."""

    monitor: Monitor
    """The number of its evaluators that decides which weights are best, and whether more or less of it is
    better."""
    curve: Curve
    """The curve of the validations in the report."""

    def open_data(
        self, spec: str, splits: Splits, rule: DecodeRule, class_names: Sequence[str] | None = None
    ) -> "ImageData":
        """List images and their targets; here the images alone, of which an objective makes its targets.

        The `targets` of a split are arrays whose first axis is the images; the loader cuts batches from them.

        Args:
            spec: the value of --data.
            splits: how missing splits are cut.
            rule: how image files are decoded.
            class_names: of a trained model, to which targets are mapped by name; None: of the data.

        Raises:
            VitkitError: the data is not there, or has no such targets.
        """
        from vitkit.data.sources import open_data  # prediction opens no data set

        return open_data(spec, splits, rule, labelled=False)

    @abstractmethod
    def learned(self, config: Any) -> LearnedTask:
        """Make the record of the task in a model's card; its loss decides what the logits mean.

        It is called before anything is written: options that do not fit the task are refused here.

        Args:
            config: the options of its objective, which `vitkit.training.config.OBJECTIVES` names.

        Raises:
            VitkitError: these options do not fit the task.
        """

    @abstractmethod
    def objective(self, config: Any, model_config: ModelConfig, train: "Samples") -> "nn.Module":
        """Build the objective: a module as `vitkit.training.objectives` describes it.

        Its new weights are drawn from PyTorch's default generator, which the seed of the run has set.

        Args:
            config: its options.
            model_config: the configuration of the model that it trains.
            train: the training images with their targets.
        """

    @abstractmethod
    def evaluators(self, validation: Validation) -> Mapping[str, Evaluator]:
        """Make the evaluators of a training run, by name; each is called with model and objective.

        The evaluator named "validation" is the monitor's. It measures `loss` too, which the report draws
        beside the training loss.
        """

    @abstractmethod
    def explain_unfit(self, config: ModelConfig, objective: Any) -> str:
        """Say why a model of this configuration cannot do the task with these options of the objective, as a
        clause after its name; "" if it can."""

    def examples(
        self, model: "nn.Module", objective: "nn.Module", images: "torch.Tensor"
    ) -> "NDArray[np.uint8] | None":
        """Show some images and their predictions, in rows of one picture `(H, W, 3)`; None where the task
        shows none.

        Args:
            model, objective: as they were trained, on one device.
            images: `(B, C, H, W)` uint8, on that device.
        """
        return None

    def report(
        self, examples: "NDArray[np.uint8] | None", validations: Sequence[Mapping[str, Any]]
    ) -> TaskReport:
        """Make the part of the report of a task without answers.

        Args:
            examples: the picture; None where there is none.
            validations: the lines of the metrics log of the kind "validation".
        """
        features = "This model was trained to give features: it has no answers that could be right."
        return TaskReport((Text(features, "answer"),))


@dataclass(frozen=True)
class LabelLearning(Learning):
    """Learns from images with labels, of one class or of several labels each."""

    name: TaskName
    measure: Callable[..., Any]
    """Counts the numbers of predictions, of which a validation records the loss and `metrics`."""
    metrics: tuple[str, ...]
    figure: str = ""
    """The metric's name before its value in the line of a validation; the accuracy has none."""
    several_labels: bool = False
    """Whether an image has several labels, `(N, K)` bool, and not one class, `(N,)` int64."""

    def open_data(
        self, spec: str, splits: Splits, rule: DecodeRule, class_names: Sequence[str] | None = None
    ) -> "ImageData":
        """List images with their labels."""
        from vitkit.data.sources import open_data  # prediction opens no data set

        return open_data(spec, splits, rule, class_names, multi_label=self.several_labels)

    def learned(self, config: Any) -> LearnedTask:
        """Record the loss: of one class either, of several labels the sigmoid's, whatever the options say, as
        labels do not exclude each other."""
        if not self.several_labels:
            return LearnedTask(self.name, config.loss)
        if config.logit_adjustment or config.class_weights != "none":
            raise VitkitError(
                "logit_adjustment and class_weights are for one class an image, and this task has several: "
                "leave them out of multi-label."
            )
        return LearnedTask(self.name, "sigmoid")

    def objective(self, config: Any, model_config: ModelConfig, train: "Samples") -> "nn.Module":
        """Build the cross entropy, or the sum of the binary cross entropies of classes or labels."""
        from vitkit.training.objectives import Classification, MultiLabel

        if self.several_labels:
            return MultiLabel(config)
        return Classification(config, model_config.num_classes, train.labels.astype(np.int64))

    def evaluators(self, validation: Validation) -> Mapping[str, Evaluator]:
        """Measure the monitor's metric and the loss on the validation images."""
        from vitkit.evaluation.run_model import predict

        def measure(model: "nn.Module", objective: "nn.Module") -> Mapping[str, float]:
            predictions = predict(
                model,
                validation.batches(validation.world),
                device=validation.device,
                precision=validation.precision,
                world=validation.world,
                loss=validation.objective.loss,  # without smoothing and mixup
                # A class is scored batch by batch: two numbers need no 4.4 GB of logits, as 50,000 images of
                # 21,843 classes have.
                keep_logits=self.several_labels,
            )
            result = self.measure(predictions, validation.class_names)
            # Where no validation image has a label, all models are equal, and the loss decides.
            return {name: getattr(result, name) or 0.0 for name in ("loss", *self.metrics)}

        return {self.monitor.evaluator: Evaluator(measure, line=self.line, together=True)}

    def line(self, measured: Mapping[str, float]) -> str:
        """State the monitor's metric."""
        return f"val {self.figure}{measured[self.monitor.metric]:.1%}"

    def explain_unfit(self, config: ModelConfig, objective: Any) -> str:
        """Say why a model cannot learn labels: it needs a head and one row of logits for each image."""
        return explain_no_classes(config)


# With few validation images a metric soon stops changing; among equals the smaller loss wins.
_best = partial(Monitor, direction="max", tie_breaker="loss", tie_direction="min")

CLASSIFICATION = LabelLearning(
    _best("accuracy"),
    Curve(
        "accuracy",
        "Validation accuracy",
        "fraction of images right",
        "the fraction of validation images classified rightly; the circle is the best.",
    ),
    "classification",
    classification,
    ("accuracy",),
)
MULTI_LABEL = LabelLearning(
    _best("mean_average_precision"),
    Curve(
        "mean_average_precision",
        "Validation mAP",
        "mean average precision",
        "the mean of the labels' average precisions on validation images; the circle is the best.",
    ),
    "multi-label",
    partial(multi_label, intervals=False),
    ("mean_average_precision", "macro_f1"),
    figure="mAP ",
    several_labels=True,
)

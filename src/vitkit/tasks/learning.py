"""The half of a task that is trained: its targets, objective and evaluators, and the metric that decides.

The members are values and functions without state. They import torch when they are called, so that a finished
model answers (`vitkit.tasks.answering`) without it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from vitkit.data.config import DecodeRule, Splits
from vitkit.evaluation.classify import explain_no_classes
from vitkit.models.config import card
from vitkit.models.config.compute_config import Precision
from vitkit.models.zoo import ModelConfig
from vitkit.tasks.page import Curve, TaskReport
from vitkit.training.config import ClassificationConfig, ObjectiveConfig
from vitkit.training.evaluators import Evaluator, Monitor
from vitkit.world import ALONE, World

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import nn

    from vitkit.data.sources import ImageData, Samples
    from vitkit.data.stream.batch import Batch


C_contra = TypeVar("C_contra", bound=ObjectiveConfig, contravariant=True)


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


class Learning(Protocol[C_contra]):
    """The half of a task that is trained; `C_contra` is the configuration of its objective, which
    `vitkit.training.config.OBJECTIVES` names too."""

    @property
    def monitor(self) -> "Monitor":
        """The number of its evaluators that decides which weights are best, and whether more or less of it is
        better."""

    @property
    def curve(self) -> Curve:
        """The curve of the validations in the report."""

    def open_data(
        self, spec: str, splits: Splits, rule: DecodeRule, class_names: Sequence[str] | None = None
    ) -> "ImageData":
        """List images and their targets.

        The `targets` of a split are arrays whose first axis is the images; the loader cuts batches from them.
        Images whose targets are made of themselves need none: `open_data` of `vitkit.data.sources` then opens
        images without labels.

        Args:
            spec: the value of --data.
            splits: how missing splits are cut.
            rule: how image files are decoded.
            class_names: of a trained model, to which targets are mapped by name; None: of the data.

        Raises:
            VitkitError: the data is not there, or has no such targets.
        """

    def learned(self, config: C_contra) -> card.Task:
        """Make the record of the task in a model's card; its loss decides what the logits mean.

        It is called before anything is written: options that do not fit the task are refused here.

        Raises:
            VitkitError: these options do not fit the task.
        """

    def objective(self, config: C_contra, model_config: ModelConfig, train: "Samples") -> "nn.Module":
        """Build the objective: a module as `vitkit.training.objectives` describes it.

        Its new weights are drawn from PyTorch's default generator, which the seed of the run has set.

        Args:
            config: its options.
            model_config: the configuration of the model that it trains.
            train: the training images with their targets.
        """

    def evaluators(self, validation: Validation) -> Mapping[str, "Evaluator"]:
        """Make the evaluators of a training run, by name; each is called with model and objective.

        The evaluator named "validation" is the monitor's. It measures `loss` too, which the report draws
        beside the training loss.
        """

    def explain_unfit(self, config: ModelConfig, objective: C_contra) -> str:
        """Say why a model of this configuration cannot do the task with these options of the objective, as a
        clause after its name; "" if it can."""


@runtime_checkable
class ShowsExamples(Protocol):
    """A task without answers that shows its predictions instead."""

    def examples(
        self, model: "nn.Module", objective: "nn.Module", images: "torch.Tensor"
    ) -> "NDArray[np.uint8]":
        """Show some images and their predictions, in rows of one picture `(H, W, 3)`.

        Args:
            model, objective: as they were trained, on one device.
            images: `(B, C, H, W)` uint8, on that device.
        """

    def report(
        self, examples: "NDArray[np.uint8] | None", validations: Sequence[Mapping[str, Any]]
    ) -> TaskReport:
        """Make the task's part of the report.

        Args:
            examples: the picture; None where there is none.
            validations: the lines of the metrics log of the kind "validation".
        """


@dataclass(frozen=True)
class LabelledLearning(ABC):
    """Learns from images with labels, of one class or of several labels each. `Learning` describes the
    methods."""

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

    def evaluators(self, validation: Validation) -> Mapping[str, Evaluator]:
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
    def predictor(self, validation: Validation) -> Callable[..., Any]:
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

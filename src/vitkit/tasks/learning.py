"""The half of a task that is trained: its targets, what is minimised and measured, and what decides.

The members are values and functions without state. They import torch when they are called, so that a finished
model can be asked for its answers (`vitkit.tasks.answering`) without it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from vitkit.data.decode_config import DecodeRule
from vitkit.data.sources_config import Splits
from vitkit.models import card
from vitkit.models.precision_config import Precision
from vitkit.models.zoo import ModelConfig
from vitkit.tasks.page import Curve
from vitkit.training.objectives_config import ClassificationConfig

if TYPE_CHECKING:
    import torch
    from torch import nn

    from vitkit.data.batch import Batch
    from vitkit.data.listing import Labels
    from vitkit.data.sources import ImageData
    from vitkit.training.evaluators import Evaluator, Monitor


@dataclass(frozen=True)
class Validation:
    """The values from which the evaluators of a run are made."""

    objective: ClassificationConfig
    """The options of the loss."""
    class_names: tuple[str, ...]
    batches: Callable[[], Iterable["Batch"]]
    """Opens the validation images: every one once, in the same order at each call. A batch's `labels` are
    rows of the `labels` of the split, as `open_data` listed them."""
    device: "torch.device"
    precision: Precision


class Learning(Protocol):
    """The half of a task that is trained."""

    @property
    def monitor(self) -> "Monitor":
        """The number of its evaluators that decides which weights are best."""

    @property
    def curve(self) -> Curve:
        """The curve of the validations in the report."""

    def open_data(
        self, spec: str, splits: Splits, rule: DecodeRule, class_names: Sequence[str] | None = None
    ) -> "ImageData":
        """List images and their targets.

        The `labels` of a split are an array whose first axis is the images, `(N,)` int64 for one class each;
        the loader cuts batches from it. Everything else of the data does not look at them.

        Args:
            spec: what a person gave as --data.
            splits: how splits are cut that the data lacks.
            rule: how image files are decoded.
            class_names: those of a trained model, to which targets are mapped by name; None: those found.

        Raises:
            VitkitError: the data is not there, or cannot be what was meant.
        """

    def learned(self, config: ClassificationConfig) -> card.Task:
        """Make what the card of a model says of the task; `card.loss` decides what the logits mean.

        It is called before anything is written, so that options that do not fit the task are refused here.

        Raises:
            VitkitError: these options do not fit the task.
        """

    def objective(self, config: ClassificationConfig, num_outputs: int, labels: "Labels") -> "nn.Module":
        """Build what is minimised: a module that is called with `(model, batch)`.

        `vitkit.training.objectives` says what it may do and what it returns.

        Args:
            config: its options.
            num_outputs: K of the model's logits `(B, K)`.
            labels: of the training images, as `open_data` listed them.
        """

    def evaluators(self, validation: Validation) -> Mapping[str, "Evaluator"]:
        """Make what is measured while a model is trained, by name.

        The one named "validation" is the monitor's. It measures `loss` too, which the report draws beside the
        training loss.
        """

    def progress(self, metrics: Mapping[str, float]) -> str:
        """Tell the last validation in a word or two, for the line of a training run: "val 97.2%"."""

    def explain_unfit(self, config: ModelConfig) -> str:
        """Say why a model of this configuration cannot do the task, in words that follow its name; "" if it
        can."""

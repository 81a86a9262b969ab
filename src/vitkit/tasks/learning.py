"""The half of a task that is trained: its targets, objective and evaluators, and the metric that decides.

The members are values and functions without state. They import torch when they are called, so that a finished
model answers (`vitkit.tasks.answering`) without it.

Labels are learned, of one class or several; or patches that are hidden, for which no labels are needed. The
latter models answer nothing: in place of answers their report shows the hidden patches and their predictions.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from vitkit.data.channels import to_rgb
from vitkit.data.config import DecodeRule, Splits
from vitkit.errors import VitkitError
from vitkit.evaluation.classify import classification, multi_label
from vitkit.models.config import Precision, TaskName
from vitkit.models.config import Task as LearnedTask
from vitkit.models.zoo import ModelConfig
from vitkit.result import Block, Caption, Number, Plot, Section, Table, Text
from vitkit.tasks.page import Curve, TaskReport, count_cell, figures
from vitkit.training.config import VALIDATION, MAEConfig, MaskedImagesConfig, MaskedPatchesConfig
from vitkit.training.evaluators import Evaluator, Monitor
from vitkit.world import ALONE, World, prepared_together

if TYPE_CHECKING:
    import torch
    from torch import nn

    from vitkit.data.sources import ImageData, Samples
    from vitkit.data.stream.loader import Batch
    from vitkit.models.config import ViTConfig
    from vitkit.models.vit import ViT
    from vitkit.training.objectives import MaskedImages


Picture = NDArray[np.uint8]
"""`(H, W, 3)`."""


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
    """The curve of the monitor's metric in the report."""
    name: TaskName

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

    def examples(self, model: "nn.Module", objective: "nn.Module", images: "torch.Tensor") -> Picture | None:
        """Show some images and their predictions, in rows of one picture `(H, W, 3)`; None where the task
        shows none.

        Args:
            model, objective: as they were trained, on one device.
            images: `(B, C, H, W)` uint8, on that device.
        """
        return None

    def report(self, examples: Picture | None, validations: Sequence[Mapping[str, Any]]) -> TaskReport:
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
                validation.batches(world=validation.world),
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
        """Say why a model cannot name classes: it needs a head and one row of logits for each image."""
        if not config.num_classes:
            return (
                "has no head: it gives features, not classes. Take a checkpoint that has a head, or train "
                "one with vitkit finetune"
            )
        if config.pool == "none":
            return (
                "has no pooling (pool none): its outputs for single tokens are no prediction for an image. "
                "Choose pool token, mean or map when the model is made"
            )
        return ""


# With few validation images a metric soon stops changing; among equals the smaller loss wins.
_best = partial(Monitor, direction="max", tie_breaker="loss", tie_direction="min")

_RIGHT = "the fraction of validation images classified rightly; the circle is the best."
_ACCURACY = Curve("Validation accuracy", "fraction of images right", _RIGHT)
CLASSIFICATION = LabelLearning(_best("accuracy"), _ACCURACY, "classification", classification, ("accuracy",))
_MEAN = "the mean of the labels' average precisions on validation images; the circle is the best."
MULTI_LABEL = LabelLearning(
    _best("mean_average_precision"),
    Curve("Validation mAP", "mean average precision", _MEAN),
    "multi-label",
    partial(multi_label, intervals=False),
    ("mean_average_precision", "macro_f1"),
    figure="mAP ",
    several_labels=True,
)


MOST_CHANNELS = 4
"""Channels up to which colours are classes: 8 levels of each make 4,096 classes of four, 32,768 of five."""
STANDS_STILL = 0.98
"""A loss above this fraction of a baseline's counts as no better: 2 % may be the noise of the masks."""
ROWS = ("image", "seen", "predicted")
"""The names of the rows of pictures."""


@dataclass(frozen=True)
class MaskedImagesLearning(Learning):
    """Learns from images with hidden patches."""

    def learned(self, config: MaskedImagesConfig) -> LearnedTask:
        """Record the task and no loss: there are no logits."""
        return LearnedTask(self.name, "none")

    def objective(
        self, config: MaskedImagesConfig, model_config: ModelConfig, train: "Samples"
    ) -> "nn.Module":
        """Build the module that hides patches and predicts them."""
        from vitkit.training.objectives import OBJECTIVE_OF

        return OBJECTIVE_OF[type(config)](config, cast("ViTConfig", model_config))

    def evaluators(self, validation: Validation) -> Mapping[str, Evaluator]:
        """Measure the loss on the validation images, with the same patches hidden each time, and two losses
        that need no model: `loss_nothing` and `loss_constant`."""
        import torch

        from vitkit.evaluation.run_model import evaluation_mode
        from vitkit.models.image_model import autocast

        world, device = validation.world, validation.device

        def measure(model: "nn.Module", objective: "nn.Module") -> Mapping[str, float]:
            learner, vit = cast("MaskedImages", objective), cast("ViT", model)
            baseline, total, images = learner.baseline(vit), 0.0, 0
            with (
                prepared_together(world),
                evaluation_mode(model),
                evaluation_mode(objective),
                torch.random.fork_rng(),
                autocast(device, validation.precision),
            ):
                for batch in validation.batches(world=world):
                    # By the number of its first image: any process draws the same masks for this batch.
                    torch.manual_seed(int(batch.ids[0]))
                    here = batch.to(device)
                    hidden = learner.predict(vit, here.images)
                    losses = learner.losses(hidden).mean(1)[here.mask]  # (readable images,)
                    total, images = total + losses.double().sum().item(), images + len(losses)
                    baseline.add(hidden.targets[here.mask].flatten(0, 1))
            total, images_of_all = world.total(total, images)
            world.add(baseline.counts)
            if not images_of_all:
                raise VitkitError(
                    "Expected validation images to measure the loss on, and none can be read: look at them "
                    "with vitkit data check."
                )
            nothing, constant = baseline.losses()
            return {"loss": total / images_of_all, "loss_nothing": nothing, "loss_constant": constant}

        return {VALIDATION: Evaluator(measure, line=self.line, together=True)}

    def line(self, measured: Mapping[str, float]) -> str:
        """Write a validation: "val loss 1.903 (nothing 6.238, constant 2.011)"."""
        beside = f"nothing {measured['loss_nothing']:.3f}, constant {measured['loss_constant']:.3f}"
        verdict = judge_loss(measured)
        return f"val loss {measured['loss']:.3f} ({beside}{'; ' if verdict else ''}{verdict})"

    def explain_unfit(self, config: ModelConfig, objective: MaskedImagesConfig) -> str:
        """Say why a model cannot learn by hidden patches: it must see them apart, and have some to hide."""
        if config.unmaskable:
            return config.unmaskable
        vit = cast("ViTConfig", config)  # no other family has patches to hide
        rows, columns = vit.grid
        if rows % objective.mask_block or columns % objective.mask_block:
            return (
                f"has {rows} x {columns} patches, which squares of {objective.mask_block} x "
                f"{objective.mask_block} do not fill: give another --mask-block, such as 1"
            )
        is_colour = isinstance(objective, MaskedPatchesConfig) and objective.target != "pixels"
        if is_colour and config.in_channels > MOST_CHANNELS:
            return (
                f"has images of {config.in_channels} channels, whose colours are too many classes: give "
                "--target pixels"
            )
        # MAE computes the seen patches alone.
        reasons = {
            "axial attention": vit.attention == "axial",
            "relative positions": vit.position == "relative",
            "rotary positions": vit.rotary is not None,
            "positions at every layer": vit.position_at != "stem",
        }
        named = [name for name, is_used in reasons.items() if is_used]
        if not isinstance(objective, MAEConfig) or not named:
            return ""
        return (
            f"has {' and '.join(named)}, which need all patches, while MAE computes some of them alone: "
            "choose the task simmim, or a model without"
        )

    def examples(self, model: "nn.Module", objective: "nn.Module", images: "torch.Tensor") -> Picture:
        """Show images in three rows: as they are, what the model sees of them, and what it predicts."""
        import torch

        from vitkit.evaluation.run_model import evaluation_mode

        learner = cast("MaskedImages", objective)
        with evaluation_mode(model), evaluation_mode(objective), torch.random.fork_rng():
            torch.manual_seed(0)
            seen, predicted = learner.picture(cast("ViT", model), images)
        height, width = seen.shape[-2:]
        rows = torch.stack([images[..., :height, :width], seen, predicted]).cpu()  # (3, B, C, H, W)
        line = max(1, height // 32)  # pixels of white between two pictures
        rows = torch.nn.functional.pad(rows, (0, line, 0, line), value=255)
        sheet = rows.permute(0, 3, 1, 4, 2).flatten(0, 1).flatten(1, 2)  # (3 * H, B * W, C)
        return to_rgb(sheet.numpy())

    def report(self, examples: Picture | None, validations: Sequence[Mapping[str, Any]]) -> TaskReport:
        """Compare the loss with losses that need no model, and show predictions."""
        measured = [line for line in validations if {"loss", "loss_nothing", "loss_constant"} <= line.keys()]
        answer = [Text("This model was trained to give features: it names no classes.", "answer")]
        if measured:
            last = measured[-1]
            verdict = judge_loss(last)
            losses = (
                f"Its last validation loss is **{last['loss']:.4f}**. Knowing nothing gives "
                f"{last['loss_nothing']:.4f}, and the best single prediction for all patches "
                f"{last['loss_constant']:.4f}" + (f": the model is {verdict}." if verdict else ".")
            )
            answer.append(Text(losses, "warning" if verdict else "plain"))
        use = "Whether its features are of use, a few labelled images tell: vitkit fewshot, vitkit finetune."
        answer.append(Text(use))
        pictures: tuple[Block, ...] = ("There are no pictures of predictions.",)
        if examples is not None:
            caption = (
                "Grey patches are hidden. Below, only they are predictions; the others are the image's own."
            )
            alt = "Images, what the model sees of them, and what it predicts."
            sheet = Plot(partial(figures().picture_sheet, examples, ROWS), "hidden", alt)
            pictures = (sheet, Caption(caption))
        hidden = "Hidden patches and their predictions"
        sections = [Section(hidden, pictures, name="hidden", menu="Hidden patches")]
        if measured:
            names = {"loss": "loss", "loss_nothing": "knowing nothing", "loss_constant": "best constant"}
            cells = ([Number(f"{line[name]:.4f}", line[name]) for name in names] for line in measured)
            steps = (count_cell(line["step"]) for line in measured)
            rows = tuple((step, *row) for step, row in zip(steps, cells, strict=True))
            table = Table(("step", *names.values()), rows, sortable=True)
            beside = "The loss beside losses that need no model"
            sections.append(Section(beside, (table,), name="baselines", menu="Baselines"))
        return TaskReport(tuple(answer), sections=tuple(sections))


def judge_loss(measured: Mapping[str, float]) -> str:
    """Say that a validation loss is no better than losses that need no model; "" where it is below both.

    A loss may look excellent though the model has learned nothing: where most patches are flat, the same
    prediction everywhere is nearly right.
    """
    loss, nothing, constant = (measured[name] for name in ("loss", "loss_nothing", "loss_constant"))
    if loss < STANDS_STILL * constant:
        return ""
    if loss >= STANDS_STILL * nothing:
        return "no better than knowing nothing"
    return "no better than the best constant prediction"


MONITOR = Monitor("loss", "min")
_HIDDEN = (
    "the loss on the hidden patches of validation images, the same ones each time; the circle is the best."
)
_curve = partial(Curve, "Validation loss", "loss", _HIDDEN, False)

_COLOURS = _curve("cross entropy of colours, or squared difference")
MASKED_PATCHES = MaskedImagesLearning(MONITOR, _COLOURS, "masked-patches")
SIMMIM = MaskedImagesLearning(MONITOR, _curve("absolute difference of normalised pixels"), "simmim")
MAE = MaskedImagesLearning(MONITOR, _curve("squared difference of normalised pixels"), "mae")

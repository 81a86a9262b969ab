"""Learning from images a part of which is hidden: no labels are needed, and the trained model answers
nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from vitkit.data.channels import to_rgb
from vitkit.data.config import DecodeRule, Splits
from vitkit.errors import VitkitError
from vitkit.models.config import card
from vitkit.models.config.card import TaskName
from vitkit.models.config.vit_config import ViTConfig
from vitkit.models.zoo import ModelConfig
from vitkit.tasks.learning import Validation
from vitkit.tasks.page import Curve, TaskReport
from vitkit.training.config import (
    VALIDATION,
    MAEConfig,
    MaskedImagesConfig,
    MaskedPatchesConfig,
)
from vitkit.training.evaluators import Evaluator, Monitor
from vitkit.world import prepared_together

if TYPE_CHECKING:
    import torch
    from torch import nn

    from vitkit.data.sources import ImageData, Samples
    from vitkit.models.vit import ViT
    from vitkit.training.masked_images import MaskedImages

MOST_CHANNELS = 4
"""Channels up to which colours are classes: 8 levels of each make 4,096 classes of four, 32,768 of five."""
STANDS_STILL = 0.98
"""A loss above this fraction of a baseline's is said to stand there: what is less than 2 % below it may be
the noise of the masks."""
MONITOR = Monitor("loss", "min")


@dataclass(frozen=True)
class MaskedImagesLearning:
    """The methods are those of `vitkit.tasks.learning.Learning`, which describes them."""

    name: TaskName
    loss: str
    """The loss in words, for the captions of curves."""
    monitor: Monitor = MONITOR

    @property
    def curve(self) -> Curve:
        """The loss on validation images."""
        return Curve(
            metric="loss",
            title="Validation loss",
            label="loss",
            caption="the loss on the hidden patches of validation images, the same ones each time; the "
            "circle is the best.",
            best="min",
            is_fraction=False,
            loss=self.loss,
        )

    def open_data(
        self, spec: str, splits: Splits, rule: DecodeRule, class_names: Sequence[str] | None = None
    ) -> "ImageData":
        """List images alone; labels that are there are left out."""
        from vitkit.data.sources import open_data

        return open_data(spec, splits, rule, labelled=False)

    def learned(self, config: MaskedImagesConfig) -> card.Task:
        """Record the task; there are no logits, so that no loss says what they mean."""
        return card.Task(self.name, None)

    def objective(
        self, config: MaskedImagesConfig, model_config: ModelConfig, train: "Samples"
    ) -> "nn.Module":
        """Build what hides patches and predicts them."""
        from vitkit.training.masked_images import OBJECTIVE_OF

        assert isinstance(model_config, ViTConfig)  # `explain_unfit` refuses others
        return OBJECTIVE_OF[type(config)](config, model_config)

    def evaluators(self, validation: Validation[Any]) -> Mapping[str, Evaluator]:
        """Measure the loss on the validation images, with the same patches hidden each time, and beside it
        the losses that need no model: `loss_nothing` and `loss_constant`."""
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
                for batch in validation.batches(world):
                    # By the number of its first image, so that the masks are the same whoever computes it.
                    torch.manual_seed(int(batch.ids[0]))
                    here = batch.to(device)
                    hidden = learner.predict(vit, here.images)
                    losses = learner.losses(hidden).mean(1)[here.mask]  # (readable images,)
                    total, images = total + losses.double().sum().item(), images + len(losses)
                    baseline.add(hidden.targets[here.mask].flatten(0, 1))
            total, images_of_all, *sums = world.total(total, images, *baseline.sums().tolist())
            if not images_of_all:
                raise VitkitError(
                    "Expected validation images to measure the loss on, found none that can be read: look at "
                    "them with vitkit data check."
                )
            nothing, constant = baseline.losses(torch.tensor(sums, dtype=torch.float64))
            return {
                "loss": total / images_of_all,
                "loss_nothing": nothing,
                "loss_constant": constant,
            }

        return {VALIDATION: Evaluator(measure, line=_line, together=True)}

    def explain_unfit(self, config: ModelConfig, objective: MaskedImagesConfig) -> str:
        """Say why a model cannot learn it: its patches must be apart, and there must be some to hide."""
        if not isinstance(config, ViTConfig):
            return "has no patches that could be hidden: choose a Vision Transformer, such as ViT-Ti/16"
        if config.backbone is not None or config.stem_channels:
            return (
                "sees its patches through convolutions, so that the neighbours of a hidden patch show its "
                "pixels: choose a model without them, such as ViT-Ti/16"
            )
        rows, columns = config.grid
        if rows * columns < 2:
            return "has a single patch, of which nothing would be left: choose a smaller patch"
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
        return _explain_hiding_positions(config) if isinstance(objective, MAEConfig) else ""

    def examples(
        self, model: "nn.Module", objective: "nn.Module", images: "torch.Tensor"
    ) -> NDArray[np.uint8]:
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

    def report(
        self, examples: NDArray[np.uint8] | None, validations: Sequence[Mapping[str, Any]]
    ) -> TaskReport:
        """Say how far the loss is below what needs no model, and show predictions."""
        from vitkit.tasks.masked_images.report import report  # matplotlib: only a report draws

        return report(examples, validations)


def judge_loss(measured: Mapping[str, float]) -> str:
    """Say where a validation loss stands beside the losses that need no model; "" where it is below both.

    A loss of masked images may look excellent and have learned nothing: where most patches are flat, the same
    prediction everywhere is nearly right.
    """
    loss, nothing, constant = (measured[name] for name in ("loss", "loss_nothing", "loss_constant"))
    if loss < STANDS_STILL * constant:
        return ""
    if loss >= STANDS_STILL * nothing:
        return "no better than knowing nothing"
    return "no better than the best constant prediction"


def _line(measured: Mapping[str, float]) -> str:
    """Write a validation: "val loss 1.903 (nothing 6.238, constant 2.011)"."""
    beside = f"nothing {measured['loss_nothing']:.3f}, constant {measured['loss_constant']:.3f}"
    verdict = judge_loss(measured)
    return f"val loss {measured['loss']:.3f} ({beside}{'; ' if verdict else ''}{verdict})"


def _explain_hiding_positions(config: ViTConfig) -> str:
    """Say why a model cannot compute a part of its patches alone; "" if it can."""
    reasons = {
        "axial attention": config.attention == "axial",
        "relative positions": config.position == "relative",
        "rotary positions": config.rotary is not None,
        "positions at every layer": config.position_at != "stem",
    }
    named = [name for name, has in reasons.items() if has]
    if not named:
        return ""
    return (
        f"has {' and '.join(named)}, which count on all patches, while MAE computes some of them alone: "
        "choose the task simmim, or a model without"
    )


MASKED_PATCHES = MaskedImagesLearning("masked-patches", "cross entropy of colours, or squared difference")
SIMMIM = MaskedImagesLearning("simmim", "absolute difference of normalised pixels")
MAE = MaskedImagesLearning("mae", "squared difference of normalised pixels")

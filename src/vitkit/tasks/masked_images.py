"""Learn from images of which patches are hidden: no labels are needed, and the trained model answers nothing.

In place of answers the report shows the hidden patches and their predictions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from vitkit.data.channels import to_rgb
from vitkit.errors import VitkitError
from vitkit.models.config import Task as LearnedTask
from vitkit.models.config import TaskName
from vitkit.models.zoo import ModelConfig
from vitkit.result import Block, Number, Plot, Section, Table, Text
from vitkit.tasks.learning import Learning, Validation
from vitkit.tasks.page import Curve, TaskReport
from vitkit.training.config import VALIDATION, MAEConfig, MaskedImagesConfig, MaskedPatchesConfig
from vitkit.training.evaluators import Evaluator, Monitor
from vitkit.world import prepared_together

if TYPE_CHECKING:
    import torch
    from torch import nn

    from vitkit.data.sources import Samples
    from vitkit.models.config import ViTConfig
    from vitkit.models.vit import ViT
    from vitkit.training.masked_images import MaskedImages

MOST_CHANNELS = 4
"""Channels up to which colours are classes: 8 levels of each make 4,096 classes of four, 32,768 of five."""
STANDS_STILL = 0.98
"""A loss above this fraction of a baseline's counts as no better: 2 % may be the noise of the masks."""
ROWS = ("image", "seen", "predicted")
"""The names of the rows of pictures."""


@dataclass(frozen=True)
class MaskedImagesLearning(Learning):
    """`vitkit.tasks.learning.Learning` describes the methods."""

    name: TaskName

    def learned(self, config: MaskedImagesConfig) -> LearnedTask:
        """Record the task and no loss: there are no logits."""
        return LearnedTask(self.name, "none")

    def objective(
        self, config: MaskedImagesConfig, model_config: ModelConfig, train: "Samples"
    ) -> "nn.Module":
        """Build the module that hides patches and predicts them."""
        from vitkit.training.masked_images import OBJECTIVE_OF

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
                for batch in validation.batches(world):
                    # By the number of its first image: any process draws the same masks for this batch.
                    torch.manual_seed(int(batch.ids[0]))
                    here = batch.to(device)
                    hidden = learner.predict(vit, here.images)
                    losses = learner.losses(hidden).mean(1)[here.mask]  # (readable images,)
                    total, images = total + losses.double().sum().item(), images + len(losses)
                    baseline.add(hidden.targets[here.mask].flatten(0, 1))
            total, images_of_all = world.total(total, images)
            world.add([baseline.counts])
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
        """Compare the loss with losses that need no model, and show predictions."""
        measured = [line for line in validations if {"loss", "loss_nothing", "loss_constant"} <= line.keys()]
        answer = [Text("This model was trained to give features: it names no classes.", "answer")]
        if measured:
            last = measured[-1]
            verdict = judge_loss(last)
            answer.append(
                Text(
                    f"Its last validation loss is **{last['loss']:.4f}**. Knowing nothing gives "
                    f"{last['loss_nothing']:.4f}, and the best single prediction for all patches "
                    f"{last['loss_constant']:.4f}" + (f": the model is {verdict}." if verdict else "."),
                    "warning" if verdict else "plain",
                )
            )
        use = "Whether its features are of use, a few labelled images tell: vitkit fewshot, vitkit finetune."
        answer.append(Text(use))
        pictures: tuple[Block, ...] = ("There are no pictures of predictions.",)
        if examples is not None:
            from vitkit.analysis.figures import picture_sheet  # matplotlib: only a report draws

            caption = (
                "Grey patches are hidden. Below, only they are predictions; the others are the image's own."
            )
            alt = "Images, what the model sees of them, and what it predicts."
            pictures = Plot(partial(picture_sheet, examples, ROWS), "hidden", alt), Text(caption, "caption")
        hidden = "Hidden patches and their predictions"
        sections = [Section(hidden, pictures, name="hidden", menu="Hidden patches")]
        if measured:
            names = {"loss": "loss", "loss_nothing": "knowing nothing", "loss_constant": "best constant"}
            rows = tuple(
                (
                    Number(f"{line['step']:,}", line["step"]),
                    *(Number(f"{line[name]:.4f}", line[name]) for name in names),
                )
                for line in measured
            )
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
_curve = partial(
    Curve,
    "loss",
    "Validation loss",
    "loss",
    "the loss on the hidden patches of validation images, the same ones each time; the circle is the best.",
    False,
)

MASKED_PATCHES = MaskedImagesLearning(
    MONITOR, _curve("cross entropy of colours, or squared difference"), "masked-patches"
)
SIMMIM = MaskedImagesLearning(MONITOR, _curve("absolute difference of normalised pixels"), "simmim")
MAE = MaskedImagesLearning(MONITOR, _curve("squared difference of normalised pixels"), "mae")

"""The job of fine-tuning: a run that begins from weights, with options that suit the start and the data."""

import math
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from vitkit.data.config import FIRST_RULE, Augmentation, Splits
from vitkit.errors import VitkitError
from vitkit.jobs.finetune_options import FinetuneOptions, FinetuneRunOptions
from vitkit.jobs.finetune_recipes import fit_paper
from vitkit.jobs.options import as_arguments, from_training_options
from vitkit.jobs.recipes import recipe as named_recipe
from vitkit.jobs.series.series import recorded_run, train_series
from vitkit.jobs.train import require_data, train
from vitkit.listener import SILENT, Listener
from vitkit.models.config.image_config import height_and_width
from vitkit.models.zoo import ModelConfig
from vitkit.runs.config import Run, StartConfig, full_name, with_options
from vitkit.runs.machine import require_threads
from vitkit.runs.plan import Request, settle_minutes
from vitkit.runs.series_options import SeriesOptions
from vitkit.runs.trained_model import is_training_data
from vitkit.tasks import task_of
from vitkit.training.config import ClassificationConfig, OptimizerConfig, TrainingConfig

# Training images below which: epochs, batch. Chosen so that two cores finish a small ViT in minutes: few
# images are seen often, many a few times. The paper's 500 steps of 512 are 256,000 images for any of them.
LENGTHS = ((1_000, 50, 32), (10_000, 20, 64), (100_000, 10, 128), (1 << 62, 3, 128))
LEAST_STEPS = 200
"""Fewer are too few for a new head, however often they show each image: of 45 digits, from a start on other
digits, 71 steps learned 16 % and 400 steps 46 %."""
LEAST_VALIDATED = 500
"""Validation images from which the best weights are taken in place of the last: their accuracy is known to
about 2 points then. 100 took those of two fifths of a run for 53 %, where all ten validations lay between 46
and 53 % by chance; 21 chose at random, and 5 once took those of the second step."""
RATE, HEAD_RATE = 5e-4, 3e-3
"""Learning rates of AdamW for the layers of the start; and for a new head, which has nothing to forget. A
head of zeros that learned at the lower rate held short runs back: Adam moves a weight by about its rate a
step. Higher rates for all layers gained on images unlike the start's and lost more on images like them
(docs/decisions.md)."""
VALIDATIONS = 10
"""Validations of a run of default length, each with a checkpoint."""
LAYER_DECAY = 0.75
"""The layer decay of a model of up to 12 layers, as in BEiT and MAE; a deeper one gets that which makes its
first layer as slow. Without it, models of 4 layers lost up to 5 points on a few images like the start's."""


def run_finetune(options: FinetuneOptions) -> Path:
    """Fine-tune a model on images: train it with a new head, evaluate it, and write its report.

    Calling it again with the same arguments and folder continues from the last committed checkpoint.

    Returns:
        The run folder; that of the series, where several runs are asked for.

    Raises:
        VitkitError, InterruptedTraining: as `vitkit.train`.
    """
    out, device, threads, listener = options.out, options.device, options.threads, options.listener
    require_threads(threads)
    request = Request()
    with listener.progress("looking at the start"):
        run = _suited_run(options, request, listener)
    if options.minutes is not None:
        if threads is not None:
            torch.set_num_threads(threads)  # the speed depends on them
        run = replace(run, training=replace(run.training, minutes=options.minutes))
        run = settle_minutes(
            run,
            None if out is None else Path(out),
            request,
            device=device,
            ending=options.ending if options.is_series else "",
            recorded=recorded_run if options.is_series else None,
            again=True,
            listener=listener,
        )
    if options.is_series:
        series = SeriesOptions(**as_arguments(SeriesOptions, options))
        return train_series(
            run, out, series, device=device, threads=threads, request=request, listener=listener
        )
    return train(run, out, device=device, threads=threads, request=request, listener=listener)


finetune = from_training_options(FinetuneOptions)(run_finetune)


def run_finetune_run(options: FinetuneRunOptions) -> Run:
    """Make the run that fine-tunes a start on images, to be changed and handed to `vitkit.train`.

    Raises:
        VitkitError: there is no such start, no such data or no such recipe.
    """
    return _suited_run(options, Request(), SILENT)


finetune_run = from_training_options(FinetuneRunOptions)(run_finetune_run)


def _suited_run(options: FinetuneRunOptions, request: Request, listener: Listener) -> Run:
    """Make the run that fine-tunes a start on images; the request keeps what is looked at for that."""
    begun = options.start if isinstance(options.start, StartConfig) else StartConfig(options.start)
    if not begun.start:
        raise VitkitError(
            "Which weights to begin from? Give a run folder, a file or an address: vitkit finetune START "
            "--data PATH."
        )
    base = named_recipe(options.recipe) if options.recipe else Run()
    base = replace(base, data=options.data or base.data, start=begun)
    suited = suit_run(with_options(base, options.options), request, listener)
    run = with_options(suited.run, options.options)
    if not options.recipe and run.training != suited.run.training:
        # Another length was given: a warm-up that is left out is a part of that one.
        run = fit_length(replace(suited.run, training=run.training), suited.num_images)
        run = with_options(run, options.options)
    size = height_and_width(options.image_size)
    if size is not None:
        run = replace(run, preprocessing=replace(run.preprocessing, image_size=size))
    return run


@dataclass(frozen=True)
class Suited:
    """A run whose options suit its start and its data."""

    run: Run
    num_images: int
    """Those of the training split."""


def suit_run(asked: Run, request: Request | None = None, listener: Listener = SILENT) -> Suited:
    """Choose the options of a run that suit its start and its data.

    Args:
        asked: with start, data, task and splits, and its recipe where there is one; whether the trunk is
            frozen is looked at as well. All else is chosen.
        request: keeps what is looked at here; left out, nothing is kept.
        listener: hears that the start was trained on fewer of the images.

    Raises:
        VitkitError: there is no such start or no such data, or the recipe trains another model.
    """
    require_data(asked)
    request = request or Request()
    start = request.start(asked)
    base = named_recipe(asked.recipe) if asked.recipe else Run(preprocessing=start.preprocessing)
    others = asked.recipe and base.model not in ("", start.model)
    if others and full_name(base, start.config.num_classes or 1) != start.model:
        raise VitkitError(
            f"The recipe {asked.recipe} trains a {base.model}, and {start.name} is a {start.model}. Leave "
            "the recipe out, or take one for fine-tuning: paper, or finetune-cifar10 and the like."
        )
    trained_on, splits = start.card.data, asked.splits
    has_seen = trained_on is not None and is_training_data(start.card, asked.data)
    # A start that learned no labels was trained on all images, whatever is tested: its cut says nothing.
    unlabelled = task_of(start.card).answering is None
    if trained_on is not None and has_seen and not unlabelled:
        part = trained_on.splits.subset
        if replace(splits, subset=None, subset_seed=None) == Splits():
            # The start's own images, cut as they were there: the test images are none of its training images.
            rule = trained_on.splits.rule or FIRST_RULE
            own = splits
            splits = replace(trained_on.splits, rule=rule, subset=own.subset, subset_seed=own.subset_seed)
        if part is not None and splits.subset is None:
            listener.note(
                f"{start.name} was trained on the part {part} of these training images, and this run trains "
                f"on all of them: give --subset {shlex.quote(part)} for the same part."
            )
    run = replace(base, model=start.model, data=asked.data, task=asked.task, start=asked.start, splits=splits)
    listed = request.images(run)
    count = len(listed.splits["train"])
    if has_seen and unlabelled and listed.listed is not None and "test" not in listed.listed.found.splits:
        listener.note(
            f"{start.name} was trained on these images without their labels, also on those that are tested: "
            "on images it has not seen it may do worse."
        )
    if not run.recipe:
        run = fit_data(run, start.config, count, asked.optimizer.freeze)
        if len(listed.splits.get("val", ())) < LEAST_VALIDATED:
            run = replace(run, training=replace(run.training, select="last"))
    elif run.recipe == "paper":
        run = fit_paper(run, count)
    return Suited(run, count)


def fit_data(
    run: Run, config: ModelConfig, num_images: int, freeze: Literal["nothing", "trunk"] = "nothing"
) -> Run:
    """Choose how to fine-tune on so many training images, where no recipe says it.

    AdamW at a low rate, at a higher one for a head of zeros, and lower layers slower than higher ones: no
    rate has to be searched for, which the paper's SGD needs. The head does not go first: at a rate of its own
    that gained nothing. Nor does it begin as the ridge solution: after 200 steps that was a draw
    (docs/decisions.md). The first screen of the run says what departs from the paper.
    """
    epochs, batch_size = next((epochs, batch) for below, epochs, batch in LENGTHS if num_images < below)
    batch_size = max(min(batch_size, num_images), 1)
    epochs = max(epochs, math.ceil(LEAST_STEPS * batch_size / max(num_images, 1)))
    decay = LAYER_DECAY ** min(1.0, 12 / max(config.num_layers, 1))
    alone, zeros = freeze == "trunk", run.start.head == "new"
    run = replace(
        run,
        augmentation=Augmentation(crop_area=(0.25, 1.0)),
        objective=ClassificationConfig(label_smoothing=0.1),
        optimizer=OptimizerConfig(
            learning_rate=HEAD_RATE if alone else RATE,
            weight_decay=0.05,
            layer_decay=round(decay, 4),
            head_rate=HEAD_RATE / RATE if zeros and not alone else 1.0,
        ),
        training=TrainingConfig(epochs=epochs, batch_size=batch_size),
    )
    return fit_length(run, num_images)


def fit_length(run: Run, num_images: int) -> Run:
    """Warm up in a twentieth of a run's steps, and validate ten times.

    An epoch of few images is a few steps: a validation and a checkpoint after each would write a ViT-B/16 of
    1 GB forty times, and choose the best of forty by a handful of validation images.
    """
    steps = run.training.total_steps(num_images)
    return replace(
        run,
        optimizer=replace(run.optimizer, warmup_steps=steps // 20),
        training=replace(run.training, evaluate_every=max(1, math.ceil(steps / VALIDATIONS))),
    )

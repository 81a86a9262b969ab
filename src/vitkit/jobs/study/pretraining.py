"""Measure whether unlabelled images help: fine-tune with and without a pre-training on them, and compare.

STUDY/pretraining   the run without labels
STUDY/without       fine-tuning from the start of the pre-training, or from scratch without a start
STUDY/longer        the same for as long as pre-training and fine-tuning take together
STUDY/with          the same fine-tuning from the pre-trained model

Each fine-tuning has a run for each draw. Run number k has the same seed, labelled images and test images in
all three.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitkit.data.config import Splits
from vitkit.errors import VitkitError
from vitkit.jobs.finetune_defaults import LEAST_STEPS, suit_images, suit_start
from vitkit.jobs.pretrain_options import ThenOptions
from vitkit.jobs.series.report import write_page
from vitkit.jobs.study.options import StudyOptions
from vitkit.jobs.study.study import (
    RECORD,
    Arm,
    Comparison,
    StudyResult,
    arm_table,
    check_arms,
    compare_arms,
    complete_arms,
    conclusions,
    difference_plot,
    new_study,
    read_study,
    run_pages,
)
from vitkit.listener import Listener
from vitkit.result import Block
from vitkit.runs.config import Architecture, Run
from vitkit.runs.folder import numbered_folders
from vitkit.runs.plan import Opened, list_images, plan_run
from vitkit.runs.series_options import SeriesOptions
from vitkit.text import format_duration, pluralize
from vitkit.training.config import OptimizerConfig

KIND, ENDING = "pretraining", "-helped"
SHARED_OPTIONS = ("model", "architecture", "preprocessing", "augmentation", "loading")
"""Options that the fine-tuning without the pre-training takes from it."""
PRETRAINING, WITHOUT, LONGER, WITH = "pretraining", "without", "longer", "with"
"""The folders of the arms."""
SCRATCH = OptimizerConfig(learning_rate=1e-3, weight_decay=0.05)
"""The optimiser of all fine-tunings where the pre-training has no start, as in the recipes for two cores: new
weights hardly learn at the low rates that suit pre-trained weights."""
SCRATCH_STEPS = 1_000
"""The fewest steps of these fine-tunings: on 100 MNIST digits new weights reached 44 % in 200 steps and 67 %
in 1,000, the mean of 20 draws (`benchmarks/labels.py`, two cores, 23 November 2026)."""
EXPLAINED = (
    "All arms train on the same labelled images with the same seeds, draw by draw, and are tested on the "
    "same images. The weights of the last step are tested.",
    "A difference is the mean over draws on the same images. Its variance is the variance between draws "
    "over their number, plus that over images. The pre-training was run once: how far others would be "
    "from it is in no interval.",
    "The longer arm takes as much time as the pre-training and the fine-tuning together, by the speed "
    "that was measured before the study began.",
)
"""The sentences of the page on the arms and their differences."""


@dataclass(frozen=True, repr=False)
class Helped(StudyResult):
    """The result of a study of a pre-training."""

    comparison: Comparison
    """The arms against fine-tuning without the pre-training."""
    against_longer: Comparison
    """Fine-tuning with the pre-training, against the longer one without it."""

    def answers(self) -> list[str]:
        """Say how these weights do: one pre-training tells nothing of another, which makes other weights."""
        first, second = conclusions(self.comparison), conclusions(self.against_longer)
        if not self.comparison.images:
            return first
        draws = pluralize(len(self.comparison.seeds), "draw")
        about = (
            f"One pre-training, fine-tuned in {draws} on {self.comparison.describe()}: the intervals are "
            "about these very weights. Whether such a pre-training helps cannot be told from one: another "
            "seed of it makes other weights."
        )
        return [*first[:-1], second[0], about]

    def summary(self) -> str:
        """Say how these weights do."""
        return " ".join(self.answers())

    def blocks(self) -> Sequence[Block]:
        """Return the table of the arms, and how these weights do."""
        return "", arm_table(self.comparison), *self.answers()

    def model_folder(self) -> str:
        """Return the folder of the fine-tuning from the pre-trained model."""
        return WITH

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        return {**super().to_json(), "answers": self.answers()}


def compare_pretraining(run: Run, options: ThenOptions, out: Path | None, machine: StudyOptions) -> Helped:
    """Pre-train, fine-tune with and without it, and compare on the same test images.

    The same call continues an interrupted study.

    Args:
        run: the pre-training.
        options: the labelled images, and the number of draws.
        out: the folder of the study; None: one below `runs/`.
        machine: trains the arms; its command continues the study.

    Raises:
        VitkitError: there are no test images, or `out` holds something else.
        InterruptedTraining: a signal stopped it; the same call continues.
    """
    command, listener = machine.command, machine.listener
    with listener.progress("listing images"):
        opened = Opened(run, list_images(run))
    folders = numbered_folders(run, opened.images.name, ENDING)
    tuning = fine_tune_without(run, options, opened, listener)
    # Below `runs/`, a folder that is new, or holds the study that the same command began.
    where = out or next(
        folder
        for folder in folders
        if not folder.is_dir() or ((folder / RECORD).exists() and read_study(folder).command == command)
    )
    steps = _recorded_steps(where) or _matched_steps(run, tuning, options.draws, opened, machine)
    longer = replace(tuning, training=replace(tuning.training, steps=steps))
    series = SeriesOptions(runs=options.draws, redraw=options.labels is not None and options.draws > 1)
    arms = (
        Arm(PRETRAINING, "pre-training", run, SeriesOptions()),
        Arm(WITHOUT, "without pre-training", tuning, series),
        Arm(LONGER, "longer without pre-training", longer, series),
    )
    described = {"then": options.then, "labels": options.labels, "draws": options.draws, "steps": steps}
    study = new_study(KIND, command, described, arms)
    if not (where / RECORD).exists():
        check_arms(study.arms, machine)
    with study.claim(where) as folder:
        _, without_series, longer_series = complete_arms(study.arms, folder, machine)
        _, without, late = study.arms
        tuned = from_start(without.run, folder.resolve() / PRETRAINING)
        arm = Arm(WITH, "with this pre-training", tuned, series)
        (with_series,) = complete_arms([arm], folder, machine)
        with listener.progress("comparing the arms"):
            first = compare_arms(folder, (without, arm, late), (without_series, with_series, longer_series))
            second = compare_arms(folder, (late, arm), (longer_series, with_series))
        helped = Helped(folder, first, second)
        shown = (arm_table(first), *EXPLAINED, difference_plot(first))
        parts = [("Arms", shown), ("Against as much time without it", (arm_table(second),))]
        write_page(folder, helped.answers(), parts, run_pages(folder, (*study.arms, arm)), command)
    listener.show([("report", [str(folder / "report.html")])])
    return helped


def _recorded_steps(folder: Path) -> int | None:
    """Read the steps of the longer fine-tuning from the record of a study; None where none has begun."""
    if not (folder / RECORD).exists():
        return None
    steps = read_study(folder).options.get("steps")
    if not isinstance(steps, int) or steps < 1:
        raise VitkitError(
            f"{folder / RECORD}: steps: expected a number of steps, found {steps!r}. Put the original file "
            "back, or begin again with another --out."
        )
    return steps


def fine_tune_without(run: Run, options: ThenOptions, opened: Opened, listener: Listener) -> Run:
    """Make the fine-tuning without the pre-training: from the start of the pre-training, or from scratch."""
    # Few labelled images leave none to validate on: all are trained on, and the last weights are taken.
    subset = None if options.labels is None else f"[:{options.labels}]"
    shared = {name: getattr(run, name) for name in SHARED_OPTIONS}
    base = Run(data=options.then, splits=Splits(val_fraction=0.0, subset=subset), **shared)
    with listener.progress("listing images"):
        images = list_images(base).splits
    if "test" not in images:
        raise VitkitError(
            f"{options.then} leaves no images to test on: give labelled images with a test split, or with "
            "two images or more of each class."
        )
    count = len(images["train"])
    if run.start.start:
        tuned = suit_start(replace(base, start=run.start, model=""), listener).run
        tuned = replace(tuned, splits=base.splits, architecture=Architecture(), loading=base.loading)
        least = LEAST_STEPS
    else:
        tuned = suit_images(base, plan_run(run, None, opened=opened).config, count)
        tuned = replace(tuned, optimizer=SCRATCH)
        least = SCRATCH_STEPS
    steps = options.tune_steps or max(least, tuned.training.total_steps(count))
    training = replace(
        tuned.training,
        steps=steps,
        seed=run.training.seed,
        select="last",
        evaluate_every=None,
        checkpoint_every=max(1, math.ceil(steps / 4)),
    )
    optimizer = replace(tuned.optimizer, warmup_steps=steps // 20)
    # The augmentation of the pre-training: digits that are not mirrored there are not to be mirrored here.
    return replace(tuned, augmentation=base.augmentation, optimizer=optimizer, training=training)


def from_start(run: Run, start: Path) -> Run:
    """Give a fine-tuning another start."""
    options = replace(run.start, start=str(start), start_from="end")
    return replace(run, model="", architecture=Architecture(), start=options)


def _matched_steps(run: Run, tuning: Run, draws: int, opened: Opened, machine: StudyOptions) -> int:
    """Count the steps of fine-tuning that take as long as the pre-training and the fine-tuning together, and
    say how many runs the study has and how long they take."""
    seconds, listener = [], machine.listener
    for part in (run, tuning):
        plan = plan_run(part, None, device=machine.device, opened=opened, listener=listener)
        step = plan.measure(listener).step
        steps = plan.run.training.total_steps(len(plan.images.splits["train"]))
        seconds.append(steps * step)
    longer = steps + math.ceil(seconds[0] / step)  # step and steps are the fine-tuning's
    total = format_duration(seconds[0] + draws * step * (2 * steps + longer))
    lines = [
        f"one pre-training and {3 * draws} fine-tunings: {draws} of {pluralize(steps, 'step')} from it, as "
        f"many without it, and {draws} of {pluralize(longer, 'step')} without it",
        "--steps is the pre-training's length, --tune-steps the fine-tunings'",
        f"about {total} in all, by a few measured steps, besides evaluations and pages",
    ]
    listener.show([("study", lines)])
    return longer

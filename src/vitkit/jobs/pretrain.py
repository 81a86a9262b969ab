"""Pre-train a model on images without labels; with `then`, measure whether that helps: fine-tune with and
without the pre-training, and compare.

STUDY/pretraining   the run without labels, or several with other seeds
STUDY/without       fine-tuning from the start of the pre-training, or from scratch without a start
STUDY/longer        the same for as long as a pre-training and a fine-tuning take together
STUDY/with          the same fine-tuning from the pre-trained model; of several, with-SEED from each of them

After each pre-training there is a fine-tuning of each kind for each draw. The runs of a draw have the same
seed, labelled images and test images. A seed of the study is a pre-training with its draws: its score of an
image is the mean over these, so that the differences between pre-trainings are in the interval. Of a single
pre-training the draws are compared, and the interval is about its weights.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Unpack

import numpy as np
from numpy.typing import NDArray

from vitkit.config import COUNT, Range, to_json
from vitkit.data import check, config
from vitkit.errors import NonFiniteError, VitkitError
from vitkit.evaluation.statistics import Scores
from vitkit.jobs import finetune, recipes, train
from vitkit.jobs.options import Objective, StudyOptions, ThenOptions, TrainingOptions, split_options
from vitkit.jobs.study import study as studies
from vitkit.listener import Listener
from vitkit.result import Section
from vitkit.runs import processes, run_options
from vitkit.runs.config import Architecture, Run, StartConfig, require_data, with_options, with_task
from vitkit.runs.folder import TrainedFolder, numbered_folders
from vitkit.runs.plan import Opened, choose_length, describe_start, list_images, plan_run
from vitkit.tasks import find_task
from vitkit.text import format_duration, pluralize
from vitkit.training.config import OptimizerConfig
from vitkit.world import ALONE

SCALED = ("simmim", "mae")
"""Objectives whose authors scale the learning rate with the batch: MAE `main_pretrain.py`, SimMIM
`main_simmim.py`. The paper says nothing of it for masked patch prediction."""
STARTED_RATE = 0.25
"""The factor of a recipe's learning rate where the weights are not new, and have something to forget. It was
not measured."""


def pretrain(
    data: str | Path,
    objective: Objective = "masked-patches",
    start: str | Path = "",
    recipe: str = "",
    out: str | Path | None = None,
    *,
    then: str = "",
    labels: int | None = None,
    pretrainings: int | None = None,
    draws: int = 5,
    tune_steps: int | None = None,
    plan: bool = False,
    **options: Unpack[TrainingOptions],
) -> TrainedFolder:
    """Pre-train a model on images without labels, and write its report.

    The model gives features: fine-tune it on images with labels, or measure the features with
    `vitkit.fewshot`. Calling it again with the same arguments and folder continues from the last committed
    checkpoint.

    Args:
        data: images, with labels or without: a folder of any depth, a .csv, or .parquet files.
        objective: what is learned: masked-patches (the paper, 4.6), simmim (arXiv 2111.09886), or mae
            (arXiv 2111.06377).
        start: a run folder, a file or folder of weights, or an address to begin from; left out, new
            weights.
        recipe: the name of a recipe; left out, the objective's for two cores, for images of this size.
        out: the run folder; left out, one below `runs/`.
        then, labels, pretrainings, draws, tune_steps, plan: fine-tune with and without it, and compare; see
            `ThenOptions`.
        options: options of training, as for `vitkit.train`: `batch_size=256`, `minutes=60`.

    Returns:
        The run folder; with `then` the folder of the comparison, whose `study` is its result.

    Raises:
        VitkitError, InterruptedTraining: as `vitkit.train`.
    """
    job, given = split_options(options, out=out)
    processes.divide_threads(ALONE, job.threads)
    comparison = ThenOptions(
        then=then, labels=labels, pretrainings=pretrainings, draws=draws, tune_steps=tune_steps, plan=plan
    )
    base = with_task(Run(data=str(data), start=StartConfig(str(start)), recipe=recipe), objective)
    opened = suit_pretraining(with_options(base, given), job.listener)
    run = with_options(opened.run, given)
    if given:  # another batch has another learning rate, and another length another warm-up
        names, optimizer = train.names_of(given), run.optimizer
        if "learning_rate" not in names and run.task in SCALED:
            factor = run.training.batch_size / opened.run.training.batch_size
            optimizer = replace(optimizer, learning_rate=float(f"{factor * optimizer.learning_rate:.3g}"))
        if "warmup_steps" not in names:
            # At most a tenth of the steps, as the original warms up a short run (`recipes.TABLE_4`).
            shortest = run.training.total_steps(len(list_images(run, opened).splits["train"])) // 10
            optimizer = replace(optimizer, warmup_steps=min(optimizer.warmup_steps, shortest))
        run = replace(run, optimizer=optimizer)
    if not then:
        return train.carry_out(job, run, given, opened)
    if job.is_series or job.from_scratch or job.dry_run:
        raise VitkitError(
            "--then chooses the runs by itself: give --draws, without --runs, --sweep, --cross-validate, "
            "--from-scratch or --dry-run."
        )
    if run.training.minutes is not None:
        train.refuse_lengths(given)
        if job.folder is None:
            raise VitkitError("--minutes with --then needs --out: the folder keeps how many steps they were.")
        run = choose_length(
            run, job.folder / PRETRAINING, opened, device=job.device, given=given, listener=job.listener
        )
    command = job.command or "vitkit.pretrain(...)"
    machine = StudyOptions(job.device, job.threads, listener=job.listener, command=command)
    helped = compare_pretraining(run, comparison, job.folder, machine)
    folder = TrainedFolder(helped.folder if isinstance(helped, Helped) else job.folder or "runs")
    folder.study = helped
    return folder


def suit_pretraining(given: Run, listener: Listener) -> Opened:
    """Choose the options of a run without labels that suit its images and its start; return it with these.

    Args:
        given: data, task, start, and recipe if there is one; all other options are chosen here.
        listener: hears the progress.

    Raises:
        VitkitError: there are no such images or no such start, or the recipe learns another task.
    """
    require_data(given)
    name = given.recipe or f"{given.task}-small"
    if find_task(given.task).answering is not None:
        raise VitkitError(
            "Expected an objective that needs no labels (masked-patches, simmim, mae), found "
            f"{given.task}: labels are learned with vitkit train."
        )
    base = recipes.recipe(name)
    if base.task != given.task:
        raise VitkitError(
            f"The recipe {name} learns {base.task}, found the objective {given.task}: give one of the two."
        )
    run = replace(base, data=given.data, start=given.start, loading=given.loading)
    if given.start.start:
        with listener.progress("looking at the start"):
            start = describe_start(given)
        rate = float(f"{STARTED_RATE * run.optimizer.learning_rate:.3g}")
        optimizer = replace(run.optimizer, learning_rate=rate)
        run = replace(run, model=start.model, preprocessing=start.preprocessing, optimizer=optimizer)
        run = replace(run, architecture=Architecture())  # the start's
        return Opened(run, list_images(run, keep=True), start)
    images = list_images(run, keep=True)
    if not given.recipe:
        with listener.progress("looking at the images"):
            side = check.usual_side(check.sample_sizes(images.splits["train"]))
        if side > check.SMALL_SIDE:
            larger = recipes.photos()
            augmentation = replace(run.augmentation, crop_area=larger.augmentation.crop_area)
            run = replace(
                run, model=larger.model, preprocessing=larger.preprocessing, augmentation=augmentation
            )
    return Opened(run, images)


KIND, ENDING = "pretraining", "-helped"
PRETRAINING, WITHOUT, LONGER, WITH = "pretraining", "without", "longer", "with"
"""The folders of the arms."""
SCRATCH = OptimizerConfig(learning_rate=1e-3, weight_decay=0.05)
"""The optimiser of all fine-tunings where the pre-training has no start, as in the recipes for two cores: new
weights hardly learn at the low rates that suit pre-trained weights."""
SCRATCH_STEPS = 1_000
"""The fewest steps of these fine-tunings: on 100 MNIST digits new weights reached 44 % in 200 steps and 67 %
in 1,000, the mean of 20 draws (`benchmarks/labels.py`, two cores, 23 November 2026)."""
AFFORDABLE, SEVERAL = 3_600.0, 3
"""So many pre-trainings are made where none takes longer than so many seconds, else one: two hardly tell how
far pre-trainings differ."""
EXPLAINED = (
    "All arms train on the same labelled images with the same seeds, draw by draw, and are tested on the "
    "same images. The weights of the last step are tested.",
    "A difference is the mean over draws on the same images. Its variance is the variance between "
    "pre-trainings, or between the draws of a single one, over their number, plus that over images. How far "
    "others would be from a single pre-training is in no interval.",
    "The longer arm takes as much time as the pre-training and the fine-tuning together, by the speed "
    "that was measured before the study began.",
)
"""The sentences of the page on the arms and their differences."""


@dataclass(frozen=True)
class Length:
    """The options of a study that were measured when it began."""

    pretrainings: Annotated[int, Range("a number of pre-trainings", 1, run_options.MOST_RUNS)]
    steps: Annotated[int, Range("a number of steps", 1, COUNT)]
    """Steps of the longer fine-tuning."""


@dataclass(frozen=True, repr=False)
class Helped(studies.StudyResult):
    """The result of a study of a pre-training."""

    comparison: studies.Comparison
    """The arms against fine-tuning without the pre-training."""
    against_longer: studies.Comparison
    """Fine-tuning with the pre-training, against the longer one without it."""

    draws: int
    """Fine-tunings of each kind after a pre-training."""
    pretrainings: int
    data: str
    """The name of the labelled images."""

    def heading(self) -> str:
        """Say what is compared, on which images."""
        return f"Fine-tuning with and without pre-training on {self.data}"

    def headline(self) -> list[str]:
        """Say how such a pre-training does: a single one tells nothing of another."""
        first, second = studies.conclusions(self.comparison), studies.conclusions(self.against_longer)
        if not self.comparison.images:
            return first
        draws, where = pluralize(self.draws, "draw"), self.comparison.describe()
        about = (
            f"One pre-training, fine-tuned in {draws} on {where}: the intervals are about these very weights."
            " Whether such a pre-training helps cannot be told from one: another seed of it makes other "
            "weights."
        )
        if self.pretrainings > 1:
            about = (
                f"{self.pretrainings} pre-trainings, each fine-tuned in {draws} on {where}: the intervals "
                "are about other pre-trainings like these, other draws and other images."
            )
        return [*first[:-1], second[0], about]

    def sections(self) -> Sequence[Section]:
        """Return the tables of the arms, and how to read them."""
        arms = studies.arm_table(self.comparison), studies.difference_plot(self.comparison)
        longer = (studies.arm_table(self.against_longer),)
        return (
            Section("Arms", arms),
            Section("Against as much time without it", longer, page_only=True),
            Section("How to read it", EXPLAINED, page_only=True),
        )


def compare_pretraining(
    run: Run, options: ThenOptions, out: Path | None, machine: StudyOptions
) -> Helped | studies.StudyPlan:
    """Pre-train, fine-tune with and without it, and compare on the same test images.

    The same call continues an interrupted study.

    Args:
        run: the pre-training.
        options: the labelled images, and the numbers of pre-trainings and draws.
        out: the folder of the study; None: one below `runs/`.
        machine: trains the arms; its command continues the study.

    Raises:
        VitkitError: there are no test images, or `out` holds something else.
        NonFiniteError: every pre-training diverged.
        InterruptedTraining: a signal stopped it; the same call continues.
    """
    listener = machine.listener
    with listener.progress("listing images"):
        opened = Opened(run, list_images(run))
    # Below `runs/`, a folder that is new, or holds the study that the same command began.
    place = out or next(
        folder
        for folder in numbered_folders(opened.images.name, run.model, ENDING)
        if not folder.is_dir()
        or ((folder / studies.RECORD).exists() and studies.read_study(folder).command == machine.command)
    )
    tuning = fine_tune_without(run, options, opened, listener)
    length = None if options.plan else studies.read_chosen(Length, place, KIND)
    if length is None:
        length, expected = _plan(run, tuning, options, opened, place, machine)
        if options.plan:
            return expected
        listener.note(expected.summary())
    length = replace(length, pretrainings=options.pretrainings or length.pretrainings)
    described = {"then": options.then, "labels": options.labels, "draws": options.draws, **to_json(length)}
    study = studies.new_study(
        KIND, machine.command, described, make_arms(run, tuning, options, length, place)
    )
    with study.claim(place) as folder:
        pretrained, *others = studies.complete_arms(study.arms[:3], folder, machine)
        pairs = zip(study.arms[3:], pretrained.members, strict=True)
        begun = [arm for arm, member in pairs if member.finished]
        if not begun:
            raise NonFiniteError(f"{folder}: every pre-training diverged: give a lower --learning-rate.")
        tuned = studies.complete_arms(begun, folder, machine)
        with listener.progress("comparing the arms"):
            tested = studies.read_scores(folder, [*study.arms[1:3], *begun], [*others, *tuned])
        without, longer, *each = tested.scores
        ways: list[Scores] = [without, {draw: row for scores in each for draw, row in scores.items()}, longer]
        several, seeds = length.pretrainings > 1, [member.seed for member in others[0].members]
        if several:
            seeds = [member.seed for member in pretrained.members]
            ways = _by_pretraining(ways, run.training.seed, options.draws)
        with_it = replace(begun[0], label="with pre-training") if several else begun[0]
        arms, ended = (study.arms[1], with_it, study.arms[2]), (others[0], tuned[0], others[1])
        first = studies.compare_scored(replace(tested, scores=tuple(ways)), arms, ended, seeds)
        tested = replace(tested, scores=(ways[2], ways[1]))
        second = studies.compare_scored(tested, (arms[2], with_it), (ended[2], ended[1]), seeds)
        helped = Helped(
            folder=folder,
            comparison=first,
            against_longer=second,
            draws=options.draws,
            pretrainings=length.pretrainings,
            data=Path(options.then).name,
            best=with_it.folder,
        )
        studies.publish(helped, [arm.folder for arm in study.arms], machine)
    return helped


def _by_pretraining(ways: Sequence[Scores], first: int, draws: int) -> list[Scores]:
    """Take the mean over the draws of each pre-training.

    The draws are those that all ways to fine-tune have finished, but for a way that has none of them because
    its pre-training diverged.

    Args:
        ways: the scores of each by draw.
        first: the seed of the first pre-training, and of its first draw.
        draws: of each pre-training.
    """
    means: list[dict[int, NDArray[np.float64]]] = [{} for _ in ways]
    number = 1 + (max(draw for scores in ways for draw in scores) - first) // draws
    for k in range(number):
        own = range(first + k * draws, first + (k + 1) * draws)
        finished = [{*own} & scores.keys() for scores in ways]
        shared = sorted(set.intersection(*filter(None, finished))) if any(finished) else []
        for mean, scores, done in zip(means, ways, finished, strict=True):
            if done and shared:
                mean[first + k] = np.mean([scores[draw] for draw in shared], axis=0)
    return [*means]


def make_arms(run: Run, tuning: Run, options: ThenOptions, length: Length, folder: Path) -> list[studies.Arm]:
    """Make the arms of a study in a folder: the pre-trainings, the fine-tunings without them, and those from
    each of them."""
    number, draws, first = length.pretrainings, options.draws, run.training.seed
    few = options.labels is not None
    # A single run of each kind draws no labelled images of its own: all have those of the first seed.
    tuning = replace(tuning, splits=replace(tuning.splits, subset_seed=first if few else None))
    longer = replace(tuning, training=replace(tuning.training, steps=length.steps))
    series = run_options.SeriesOptions(runs=number * draws, redraw=few and number * draws > 1)
    arms = [
        studies.Arm(PRETRAINING, "pre-training", run, run_options.SeriesOptions(runs=number)),
        studies.Arm(WITHOUT, "without pre-training", tuning, series),
        studies.Arm(LONGER, "longer without pre-training", longer, series),
    ]
    for k in range(number):
        start, name, label = folder.resolve() / PRETRAINING, WITH, "with this pre-training"
        if number > 1:
            own = first + k
            start, name, label = start / f"seed-{own}", f"{WITH}-{own}", f"with pre-training {own}"
        seed = first + k * draws
        splits = replace(tuning.splits, subset_seed=seed if few else None)
        tuned = replace(tuning, splits=splits, training=replace(tuning.training, seed=seed))
        each = run_options.SeriesOptions(runs=draws, redraw=few and draws > 1)
        arms.append(studies.Arm(name, label, from_start(tuned, start), each))
    return arms


def fine_tune_without(run: Run, options: ThenOptions, opened: Opened, listener: Listener) -> Run:
    """Make the fine-tuning without the pre-training: from the start of the pre-training, or from scratch."""
    # Few labelled images leave none to validate on: all are trained on, and the last weights are taken.
    subset = None if options.labels is None else f"[:{options.labels}]"
    names = ("model", "architecture", "preprocessing", "augmentation", "loading")
    shared = {name: getattr(run, name) for name in names}
    base = Run(data=options.then, splits=config.Splits(val_fraction=0.0, subset=subset), **shared)
    with listener.progress("listing images"):
        images = list_images(base).splits
    if "test" not in images:
        raise VitkitError(
            f"{options.then} leaves no images to test on: give labelled images with a test split, or with "
            "two images or more of each class."
        )
    count = len(images["train"])
    if run.start.start:
        tuned = finetune.suit_start(replace(base, start=run.start, model=""), listener).run
        tuned = replace(tuned, splits=base.splits, architecture=Architecture(), loading=base.loading)
        least = finetune.LEAST_STEPS
    else:
        tuned = finetune.suit_images(base, plan_run(run, None, opened=opened).config, count)
        tuned = replace(tuned, optimizer=SCRATCH)
        least = SCRATCH_STEPS
    steps = options.tune_steps or max(least, tuned.training.total_steps(count))
    training = replace(tuned.training, steps=steps, seed=run.training.seed, select="last")
    # There is nothing to validate on; a kill loses a quarter.
    training = replace(training, evaluate_every=None, checkpoint_every=max(1, math.ceil(steps / 4)))
    optimizer = replace(tuned.optimizer, warmup_steps=steps // 20)
    # The augmentation of the pre-training: digits that are not mirrored there are not to be mirrored here.
    return replace(tuned, augmentation=base.augmentation, optimizer=optimizer, training=training)


def from_start(run: Run, start: Path) -> Run:
    """Give a fine-tuning another start."""
    options = replace(run.start, start=str(start), start_from="end")
    return replace(run, model="", architecture=Architecture(), start=options)


def _plan(
    run: Run, tuning: Run, options: ThenOptions, opened: Opened, folder: Path, machine: StudyOptions
) -> tuple[Length, studies.StudyPlan]:
    """Choose the number of pre-trainings, and the steps that take as long as one and a fine-tuning together;
    plan all runs."""
    paces = studies.measure_paces({PRETRAINING: run, WITHOUT: tuning}, machine, opened)
    seconds = paces[PRETRAINING].step * run.training.total_steps(len(opened.images.splits["train"]))
    images = list_images(tuning, opened).splits
    steps = tuning.training.total_steps(len(images["train"])) + math.ceil(seconds / paces[WITHOUT].step)
    number = options.pretrainings or (SEVERAL if seconds <= AFFORDABLE else 1)
    length = Length(number, steps)
    arms = make_arms(run, tuning, options, length, folder)
    each = {arm.folder: paces[PRETRAINING if arm.folder == PRETRAINING else WITHOUT] for arm in arms}
    remarks = (
        f"{pluralize(number, 'pre-training')} of {format_duration(seconds)}, each with {options.draws} "
        "fine-tunings of each kind: --pretrainings and --draws choose how many.",
        "--steps is the pre-training's length, --tune-steps the fine-tunings'.",
        studies.describe_detectable(number if number > 1 else options.draws, len(images["test"]), "test"),
    )
    return length, studies.plan_arms(arms, machine, opened, *remarks, paces=each, folder=folder)

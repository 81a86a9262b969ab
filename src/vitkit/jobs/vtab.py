"""VTAB-1k: fine-tune a checkpoint on each of 19 tasks of 1,000 images, and take the mean of their accuracies.

OUT/study.json               the options and the tasks, written first: another call must give the same
                             options, and may add tasks
OUT/TASK/                    a series of runs (`runs/series_record.py`), which alone records results
OUT/TASK/rate-0.01/          a run on 800 images, judged on 200, for each rate of a sweep
OUT/TASK/final/              the run on all 1,000 images, tested once
OUT/vtab.json                the numbers
OUT/report.html              the page
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, Unpack

from vitkit import config
from vitkit.data import listing, paths, sources
from vitkit.data.config import Augmentation, Splits
from vitkit.data.layouts import split_lists, vtab_tasks
from vitkit.data.layouts.vtab_tasks import GROUPS, VTAB_TASKS, Group, TaskFolder, VtabTask
from vitkit.durable import hash_file
from vitkit.errors import VitkitError
from vitkit.evaluation.statistics import describe_interval
from vitkit.jobs import finetune, recipes
from vitkit.jobs.options import MachineOptions, StrPath, StudyOptions, require_at_least
from vitkit.jobs.study import study
from vitkit.models.config import Size, height_and_width
from vitkit.result import Cell, Number, Section, Table
from vitkit.runs.config import Run, StartConfig, with_options
from vitkit.runs.folder import require_folder
from vitkit.runs.plan import Opened, list_images
from vitkit.runs.start import absolute_start, find_start
from vitkit.runs.trained_model import read_evaluations, read_record
from vitkit.tasks import find_task
from vitkit.tasks.page import count_cell, fraction_cell
from vitkit.text import join_names, pluralize, without_places

KIND = "vtab"


@dataclass(frozen=True)
class TaskScore:
    """The test accuracy of one task; fractions are from 0 to 1."""

    task: VtabTask
    accuracy: float
    interval: tuple[float, float]
    """95 % interval, over test images alone and not over seeds."""
    images: int
    """Test images that could be read."""
    unreadable: int
    repeated: int
    """Test images that are training images too, pixel for pixel."""
    majority: float
    """Accuracy of always naming the most frequent class of the test images."""
    verdict: str
    """The comparison with that guess on the same images: better, worse, or not distinguishable."""
    learning_rate: float
    """The best of a sweep, which is on the page of the task, or the protocol's."""


@dataclass(frozen=True)
class Mean:
    """The mean accuracy of some tasks, with the same weight for each."""

    name: str
    """The tasks that it is over, and whether it is partial: "natural, mean of 2 of 7 (partial)"."""
    accuracy: float
    interval: tuple[float, float]
    """95 % interval, by the intervals of the tasks."""
    paper: tuple[float, ...]
    """The paper's means over the same tasks, a fraction for each of its models."""
    tasks: int
    of: int
    """The number of tasks in VTAB-1k, or in its group."""


@dataclass(frozen=True, repr=False)
class Vtab(study.StudyResult):
    """The result of VTAB-1k."""

    start: str
    root: str
    protocol: str
    departures: tuple[str, ...]
    """The ways in which it was not computed as in the paper."""
    tasks: tuple[TaskScore, ...]
    """In the order of the paper's Table 9; without tasks that have no folder or were not to be trained."""

    def heading(self) -> str:
        """Name the benchmark and the checkpoint."""
        return f"VTAB-1k of {without_places(self.start)}"

    def headline(self) -> Sequence[str]:
        """Give the mean over the tasks, and their number."""
        mean = mean_of(self.tasks)
        assert mean is not None  # a result has a task at least
        tasks = f"{mean.tasks} of 19 tasks (partial)" if mean.tasks < mean.of else "the 19 tasks"
        return (f"Mean accuracy over {tasks}: {mean.accuracy:.1%} {describe_interval(mean.interval)}.",)

    def sections(self) -> Sequence[Section]:
        """Return the tasks beside the paper's numbers, and what a reader should know."""
        caption = (
            f"{without_places(self.start)} by the protocol {self.protocol}. The columns of ViTs are the "
            "paper's Table 9; its means are taken over the same tasks."
        )
        return (Section("Accuracy on the test images", (score_table(self), caption, *remarks(self))),)

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        means = {group or "all": mean_of(self.tasks, group) for group in (*GROUPS, None)}
        plain = {name: config.to_json(mean) for name, mean in means.items() if mean is not None}
        return {**super().to_json(), "means": plain}


def mean_of(tasks: Sequence[TaskScore], group: Group | None = None) -> Mean | None:
    """Return the mean over the tasks of a group, or over all; None where there are none.

    As in the paper it is the mean of their accuracies, not of all their images. Its interval adds the squared
    distances from accuracy to limit of the tasks, because their test images are drawn independently (Zou and
    Donner 2008, for a sum of estimates).
    """
    scores = [score for score in tasks if group in (None, score.task.group)]
    of = sum(group in (None, task.group) for task in VTAB_TASKS)
    if not scores:
        return None
    count = len(scores)
    mean = math.fsum(score.accuracy for score in scores) / count
    below = math.hypot(*(score.accuracy - score.interval[0] for score in scores)) / count
    above = math.hypot(*(score.interval[1] - score.accuracy for score in scores)) / count
    columns = zip(*(score.task.paper for score in scores), strict=True)
    paper = tuple(math.fsum(column) / count / 100 for column in columns)
    counted = f"mean of {count} of {of} (partial)" if count < of else f"mean of all {count}"
    name = f"{group}, {counted}" if group else counted
    return Mean(name, mean, (max(0.0, mean - below), min(1.0, mean + above)), paper, count, of)


def remarks(vtab: Vtab) -> Iterator[str]:
    """Yield sentences that a reader of the numbers should know: missing tasks, departures, poor results."""
    done = [score.task for score in vtab.tasks]
    lacking = [f"{task.title} ({task.folder})" for task in VTAB_TASKS if task not in done]
    if lacking:
        yield (
            f"The mean is partial: {len(vtab.tasks)} of {len(VTAB_TASKS)} tasks. It is no VTAB score; the "
            "paper's means stand for the same tasks here."
        )
        yield f"Tasks without a folder, or left out by --tasks: {join_names(lacking, limit=len(VTAB_TASKS))}."
    if vtab.departures:
        yield f"Other than in the paper (in brackets): {', '.join(vtab.departures)}."
    if vtab.protocol == "paper":
        yield (
            "Crops and flips are BiT's, where they keep the label: none in the structured tasks, no flips of "
            "SVHN. Neither paper lists the tasks."
        )
    yield "Intervals are over test images, not over seeds; the paper has means of three runs."
    for score in vtab.tasks:
        name = score.task.title
        if score.verdict != "better than guessing":
            yield f"{name}: {score.verdict}; always naming one class is right on {score.majority:.1%}."
        if score.repeated:
            images = pluralize(
                score.repeated, "test image is a training image", "test images are training images"
            )
            yield f"{name}: {images} too, pixel for pixel."
        if score.unreadable:
            yield f"{name}: {pluralize(score.unreadable, 'test image')} could not be read and left out."


def score_table(vtab: Vtab) -> Table:
    """Make the table of the tasks and means, beside the paper's numbers."""
    rows: list[tuple[Cell, ...]] = []
    for group in (*GROUPS, None):
        for score in vtab.tasks:
            if score.task.group == group:
                own = (score.accuracy, *score.interval, *(percent / 100 for percent in score.task.paper))
                last = (count_cell(score.images), Number(f"{score.learning_rate:g}", score.learning_rate))
                rows.append((score.task.title, *map(fraction_cell, own), *last))
        mean = mean_of(vtab.tasks, group)
        if mean is not None:
            own = (mean.accuracy, *mean.interval, *mean.paper)
            rows.append((mean.name, *map(fraction_cell, own), "", ""))
    papers = (model.removeprefix("ViT-") for model in vtab_tasks.PAPER_MODELS)
    return Table(("task", "accuracy", "95 % from", "to", *papers, "images", "rate"), tuple(rows))


NUM_TRAINING = 1_000
"""Training images of every task, which give VTAB-1k its name."""
UNCUT = Splits(val_fraction=0.0, test_fraction=0.0)
"""The lists are the splits: nothing is cut from them."""
RATES: dict[str, Sequence[float]] = {
    "paper": (0.001, 0.003, 0.01, 0.03),  # Table 4 for data sets other than ImageNet
    "finetune": (0.0001, 0.0003, 0.001, 0.003),  # around the rate of AdamW there, 0.0005
}
"""The rates that a sweep tries, by protocol."""
EXPECTED = (
    "Expected a folder for each task, such as cifar/ and dtd/, with images/, train800.txt, val200.txt, "
    "train800val200.txt and test.txt in it"
)


Lists: TypeAlias = tuple[Path, ...]
"""The data of a task: all 1,000 training images and the test images, for the tested run; and where there is a
sweep, 800 of the training images and 200 to validate on."""


def vtab(
    start: StrPath,
    root: StrPath = "",
    *,
    tasks: Sequence[TaskFolder] = (),
    out: StrPath | None = None,
    protocol: Literal["paper", "finetune"] = "paper",
    steps: int | None = None,
    batch_size: int | None = None,
    micro_batch_size: int | None = None,
    image_size: Size | None = None,
    sweep: bool = False,
    rates: Sequence[float] | None = None,
    seed: int = 0,
    workers: int | None = None,
    plan: bool = False,
    command: str = "vitkit.vtab(...)",
    **machine: Unpack[MachineOptions],
) -> Vtab | study.StudyPlan:
    """Fine-tune a checkpoint on the tasks of VTAB-1k, and compare it with the paper's Table 9.

    Stopped anywhere, the same command goes on: finished tasks are not repeated.

    Args:
        start: run folder, file or folder of weights, or an address (hf:org/name, https://...).
        root: folder with a folder for each task, such as cifar/ and dtd/, which holds images/, train800.txt,
            val200.txt, train800val200.txt and test.txt, or Parquet files of these names, or of train and
            test.
        tasks: folders of the tasks, with commas between; left out, all that are there.
        out: folder for the runs and the result; left out, runs/vtab-START. The same command again continues
            there.
        protocol: paper: SGD for 2,500 steps of 512 images at 384 pixels and a rate of 0.01, with BiT's crops
            and flips where they keep the label: neither in the structured tasks, no flips of SVHN.
            finetune: what vitkit finetune chooses for as many images.
        steps: number of updates of the weights; left out, the protocol's.
        batch_size: images per update of the weights; left out, the protocol's.
        micro_batch_size: images that are computed at a time, which takes less memory; left out, the whole
            batch.
        image_size: height and width in pixels, or one number for both: 384, or 224 320; left out, the size
            of the checkpoint, recipe or protocol, else 224. Position embeddings are resized.
        sweep: choose the learning rate of each task: train on 800 images with each of `rates`, take the
            best on the other 200, train on all 1,000 with it, and test that once.
        rates: learning rates that `sweep` tries, with commas between; left out, 0.001,0.003,0.01,0.03, or for
            the protocol finetune 0.0001,0.0003,0.001,0.003.
        seed: seed of the order of the images and all that is drawn.
        workers: processes that decode the images that do not fit into memory; left out, one for each CPU
            core.
        plan: list what is trained and the time it takes here, and train nothing.
        command: continues the study; its record has it.
        machine: what trains, and who hears of it: `device`, `threads`, `quiet` and `listener`.

    Raises:
        VitkitError: there is no task, a list of images is malformed, or `out` holds another result.
        InterruptedTraining: a signal stopped it; the same call continues.

    Unstable: its parameters and what it returns may change in any release.
    """
    options = StudyOptions(command=command, **machine)
    if not start:
        raise VitkitError("Which weights to begin from? Name a run, a checkpoint or a published start.")
    if not root:
        raise VitkitError(
            "Where are the tasks? Give --root FOLDER, a folder with a folder for each task, such as cifar/ "
            "and dtd/."
        )
    if protocol not in RATES:
        raise VitkitError(f"protocol is {' or '.join(RATES)}, found {protocol!r}.")
    require_at_least(1, steps=steps, batch_size=batch_size, micro_batch_size=micro_batch_size)
    own = Path("runs") / f"vtab-{Path(absolute_start(str(start))).name}" if out is None else Path(out)
    require_folder(own)
    tried = study.read_rates(rates, RATES[protocol])
    tried = tried if sweep else ()
    with options.listener.progress("looking at the tasks"):
        chosen = find_tasks(Path(root), tasks, sweep)
        # Each list is read before any task is trained: a malformed one is refused now, and not after a day.
        listed = (path for lists in chosen.values() for path in lists)
        hashes = {path: sources.open_data(str(path), UNCUT).fingerprint() for path in listed}
    settings: dict[str, Any] = {"steps": steps, "batch_size": batch_size, "seed": seed}
    settings["image_size"] = height_and_width(image_size)
    with options.listener.progress("looking at the start"):
        files = find_start(StartConfig(str(start))).files
        weights = ", ".join(f"{file.name} {hash_file(file)[1]}" for file in files)
        given = settings | {"micro_batch_size": micro_batch_size, "workers": workers}
        arms = []
        for task, lists in chosen.items():
            run = task_run(task, lists[0], str(start), protocol, given)
            series = study.arm_series(1, tried, *map(str, lists[1:]))
            arms.append(study.Arm(task.folder, task.folder, run, series))
    if plan:
        return study.plan_arms(arms, options, Opened(arms[0].run, list_images(arms[0].run)))
    described = {"protocol": protocol, **settings, "rates": list(tried)}
    described["hashes"] = {"weights of the start": weights}
    begun = study.read_begun(own, KIND)
    of_folder = {arm.folder: arm for arm in (*(begun.arms if begun else ()), *arms)}
    all_arms = [of_folder[task.folder] for task in VTAB_TASKS if task.folder in of_folder]
    with study.new_study(KIND, command, described, all_arms).claim(own) as folder:
        scores = []
        for number, (task, arm) in enumerate(zip(chosen, arms, strict=True), start=1):
            own_hashes = [hashes[path] for path in chosen[task]]
            which = f"task {number} of {len(arms)}, {arm.folder}"
            scores.append(complete_task(task, arm, own_hashes, folder, which, options))
        result = Vtab(
            folder=folder,
            start=absolute_start(str(start)),
            root=paths.absolute_spec(str(root)),
            protocol=protocol,
            departures=tuple(departures(arms[0].run, scores[0].task, tried)),
            tasks=tuple(scores),
        )
        # Without the places of this machine: it may be given away.
        config.write(folder / "vtab.json", without_places(result.to_json()))
        study.publish(result, (arm.folder for arm in arms), options)
    return result


def complete_task(
    task: VtabTask, arm: study.Arm, hashes: Sequence[str], folder: Path, place: str, options: StudyOptions
) -> TaskScore:
    """Train a task until its series of runs has ended, and read the accuracy of its last run.

    Args:
        task: the task.
        arm: its runs.
        hashes: of its `Lists` of images, as they are now.
        folder: of the study.
        place: its place among the tasks, for messages.
        options: of the study.

    Raises:
        VitkitError: its lists of images have changed since its runs were trained.
    """
    own, series = folder / arm.folder, study.complete_arm(arm, folder, place, options)
    tried = [(own / member.folder, hashes[-1]) for member in series.rates if member.finished]
    for run, expected in ((own / "final", hashes[0]), *tried):
        record = read_record(run)
        if record is None or record.fingerprint != expected:
            raise VitkitError(
                f"The lists of {arm.folder} have changed since {run} was begun. Bring the former ones back; "
                f"or remove {own}, and the task is computed anew."
            )
    answering = find_task("classification").answering
    assert series.chosen is not None and answering is not None  # a series that has ended has chosen
    tested, _ = read_evaluations(own / "final", answering)["test"]
    options.listener.note(f"{place}: {tested.accuracy:.1%} on {tested.count:,} test images")
    return TaskScore(
        task=task,
        accuracy=tested.accuracy,
        interval=tested.accuracy_interval,
        images=tested.count,
        unreadable=tested.bad,
        repeated=0 if tested.repeated is None else tested.repeated.count,
        majority=tested.guessing.accuracy,
        verdict=tested.guessing.verdict,
        learning_rate=series.chosen,
    )


def task_run(task: VtabTask, data: Path, start: str, protocol: str, given: Mapping[str, Any]) -> Run:
    """Make the run that trains on all 1,000 images of a task, at the protocol's learning rate.

    Args:
        task: the task.
        data: these images, and the test images.
        start: the weights.
        protocol: paper or finetune.
        given: options of training by their names, None for the protocol's.
    """
    run = _paper_run(start, task)
    if protocol != "paper":  # what `vitkit finetune` chooses for all training images of a task
        run = finetune.suit_start(Run(data=str(data), start=StartConfig(start), splits=UNCUT)).run
    settings = {name: value for name, value in given.items() if value is not None}
    if "steps" in settings:
        # The warm-up stays the same fraction of all steps.
        factor = settings["steps"] / run.training.total_steps(NUM_TRAINING)
        settings["warmup_steps"] = round(run.optimizer.warmup_steps * factor)
    # All training images are trained on, and test images decide nothing; of many runs one checkpoint is kept.
    return with_options(run, settings | {"data": str(data), "select": "last", "keep": 1})


def _paper_run(start: str, task: VtabTask) -> Run:
    """Make the run of the paper (B.1.1), which is the same for all tasks but for crops and flips."""
    # BiT stretches an image and cuts a part out of it, which has the proportions of the image.
    area = None if task.crop is None else (task.crop**2, task.crop**2)
    crops = Augmentation(crop_area=area, crop_aspect=None, flip=task.flips)
    run = recipes.recipe("finetune-vtab")
    return replace(run, start=StartConfig(start), splits=UNCUT, augmentation=crops)


def departures(run: Run, task: VtabTask, tried: Sequence[float] = ()) -> Iterator[str]:
    """Name the differences of a run from the paper's VTAB-1k (B.1.1), each with the paper's value."""
    paper = _paper_run(run.start.start, task)
    same_crops = replace(paper, augmentation=run.augmentation)
    yield from recipes.departures(run, NUM_TRAINING, same_crops)
    if run.augmentation != paper.augmentation:
        yield "the same crops and flips for all tasks (BiT's, where they keep the label)"
    own, papers = run.optimizer.learning_rate, paper.optimizer.learning_rate
    if tried:
        listed = ", ".join(f"{rate:g}" for rate in tried)
        yield f"rate of each task the best of {listed} ({papers:g} for all)"
    elif own != papers:
        yield f"rate {own:g} ({papers:g})"


def find_tasks(root: Path, names: Sequence[TaskFolder], sweep: bool) -> dict[VtabTask, Lists]:
    """Find the data of the tasks to train in a folder, in the order of the paper's Table 9.

    Args:
        root: the folder.
        names: the tasks to train; none: all that have a folder.
        sweep: whether the lists of 800 and 200 images are needed as well.

    Raises:
        VitkitError: no task has a folder, a named one has none, or a list is missing.
    """
    try:
        folders = sorted(entry for entry in root.expanduser().iterdir() if entry.is_dir())
    except OSError as error:
        raise VitkitError(f"{root} cannot be listed: {error.strerror or error}. {EXPECTED}.") from error
    of_task = dict[TaskFolder, Path]()
    for folder in folders:
        task = vtab_tasks.task_of_folder(folder.name)
        if task is not None and task.folder in of_task:
            raise VitkitError(
                f"{of_task[task.folder]} and {folder} are both {task.title}. Remove or rename one of them."
            )
        if task is not None:
            of_task[task.folder] = folder
    if not of_task:
        shown = join_names([folder.name for folder in folders], 5) if folders else "no folder"
        raise VitkitError(f"{root} holds no task of VTAB-1k. {EXPECTED}, found {shown}.")
    missing = [name for name in names if name not in of_task]
    if missing:
        raise VitkitError(
            f"{root} has no folder for {join_names(missing)}, only for {join_names(list(of_task))}."
        )
    chosen = [task for task in VTAB_TASKS if task.folder in (names or of_task)]
    return {task: _find_lists(of_task[task.folder], sweep) for task in chosen}


def _find_lists(folder: Path, sweep: bool) -> Lists:
    """Find the lists of images in the folder of a task.

    Raises:
        VitkitError: a list that is needed is missing.
    """
    lists = split_lists.find_lists(folder)
    needed = ["train800val200", "test", *(["train800", "val200"] if sweep else [])]
    missing = [f"{name}.txt" for name in needed if name not in lists]
    usual = split_lists.find_usual_splits(folder) if "train800val200" not in lists else set()
    if usual == {"train", "test"} and not sweep:
        return (folder,)
    if "train" in usual:
        present = join_names([f"{name}-" for name in listing.SPLITS if name in usual])
        raise VitkitError(
            f"{folder} has Parquet files named {present}. Expected train- and test- alone and no --sweep, or "
            "test- and files of all training images named train800val200-, of 800 of them train800-, and of "
            "the others val200-. Name them so, or leave the task out with --tasks."
        )
    if missing:
        raise VitkitError(
            f"{folder} has no {' and no '.join(missing)}. Put the lists there (or Parquet files of these "
            f"names), or leave the task out with --tasks."
        )
    return (lists["train800val200"], lists["train800"]) if sweep else (lists["train800val200"],)

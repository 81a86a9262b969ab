"""VTAB-1k: fine-tune a checkpoint on each of 19 tasks of 1,000 images, and take the mean of their accuracies.

OUT/options.json             the options, written first: another call must give the same ones
OUT/TASK/                    a series of runs (`runs/series_record.py`)
OUT/TASK/rate-0.01/          a run on 800 images, judged on 200, for each rate of a sweep
OUT/TASK/final/              the run on all 1,000 images, tested once
OUT/TASK/result.json         its test accuracy: with it the task is finished
OUT/vtab.json, .csv, .html   the result
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitkit.config import difference, read, to_json
from vitkit.data.config import Augmentation, Splits
from vitkit.data.layouts.split_lists import find_lists, find_usual_splits
from vitkit.data.layouts.vtab_tasks import VTAB_TASKS, TaskFolder, VtabTask, task_of_folder, vtab_task
from vitkit.data.listing import SPLITS
from vitkit.data.paths import absolute_spec
from vitkit.data.sources import open_data
from vitkit.durable import hash_file, read_json, refuse_links, remove_leftovers, replace_file, replace_json
from vitkit.errors import VitkitError
from vitkit.jobs.finetune_defaults import suit_start
from vitkit.jobs.finetune_recipes import departures as departures_from_paper
from vitkit.jobs.functions import from_options
from vitkit.jobs.recipes import recipe
from vitkit.jobs.study.study import Arm, complete_arm
from vitkit.jobs.vtab.options import VtabOptions
from vitkit.jobs.vtab.result import TaskScore, Vtab, render_vtab
from vitkit.listener import Listener
from vitkit.models.config.image_config import height_and_width
from vitkit.runs.config import Run, StartConfig, name_options
from vitkit.runs.data_record import read_record
from vitkit.runs.destination import require_folder
from vitkit.runs.folder import Owner, claim
from vitkit.runs.series_options import SeriesOptions
from vitkit.runs.start import absolute_start, find_start
from vitkit.runs.trained_model import read_evaluations
from vitkit.tasks import find_task
from vitkit.text import csv_line, join_names, without_places

FREE_TO_CHANGE = ("out", "tasks", "micro_batch_size", "workers", "device", "threads")
"""Options that another call for the same folder may change: they do not decide the accuracy of a task."""
PAPER_RECIPE = "finetune-vtab"
NUM_TRAINING = 1_000
"""Training images of every task, which give VTAB-1k its name."""
UNCUT = Splits(val_fraction=0.0, test_fraction=0.0)
"""The lists are the splits: nothing is cut from them."""
EXPECTED = (
    "Expected a folder for each task, such as cifar/ and dtd/, with images/, train800.txt, val200.txt, "
    "train800val200.txt and test.txt in it"
)


@dataclass(frozen=True)
class TaskData:
    """The images of a task."""

    folder: TaskFolder
    path: Path
    lists: dict[str, Path]

    @property
    def all_training(self) -> Path:
        """The data of the tested run: all 1,000 training images, and the test images."""
        return self.lists["train800val200"]  # the folder itself where its files are named train- and test-

    @property
    def most_training(self) -> Path:
        """The data of the sweep: 800 of the training images, and the other 200 to validate on."""
        return self.lists["train800"]


@dataclass(frozen=True)
class RootFolder:
    """The tasks of VTAB-1k in a folder."""

    tasks: tuple[TaskData, ...]
    """The tasks to train."""
    absent: tuple[TaskFolder, ...]
    """Tasks that have no folder."""
    left_out: tuple[TaskFolder, ...]
    """Tasks that have a folder and are not to be trained."""


def run_vtab(options: VtabOptions) -> Vtab:
    """Fine-tune a checkpoint on the tasks of VTAB-1k, and take the mean of the test accuracies.

    The same call continues an interrupted study: finished tasks are not repeated, and the task that was
    interrupted continues from its last committed checkpoint.

    Raises:
        VitkitError: there is no task, a list of images is malformed, or `out` holds another result.
        InterruptedTraining: a signal stopped it; the same call continues.
    """
    listener = options.listener
    if options.out is not None:
        require_folder(Path(options.out))
    with listener.progress("looking at the tasks"):
        tasks = find_tasks(Path(options.root), options.tasks, options.sweep)
        # Each list is read before any task is trained: a malformed one is refused now, and not after a day.
        listings = [_list_hashes(task, options.sweep) for task in tasks.tasks]
    with listener.progress("looking at the start"):
        start = find_start(StartConfig(str(options.start)))
        weights = {file.name: hash_file(file)[1] for file in start.files}
    described = describe_options(options, weights)
    given = vtab_folder(options)
    owner = Owner("VTAB-1k result", "options.json", lambda there: _changes(there, described))
    with claim(owner, given) as folder:
        if not (folder / "options.json").exists():
            replace_json(folder / "options.json", described)
        remove_leftovers(folder)
        scores = []
        for number, (task, hashes) in enumerate(zip(tasks.tasks, listings, strict=True), start=1):
            place = f"task {number} of {len(tasks.tasks)}, {task.folder}"
            scores.append(complete_task(options, task, hashes, folder / task.folder, place, listener))
        example = task_run(options, tasks.tasks[0])
        result = Vtab(
            start=absolute_start(str(options.start)),
            root=absolute_spec(str(options.root)),
            protocol=options.protocol,
            departures=tuple(departures(example, options, tasks.tasks[0])),
            tasks=tuple(scores),
            absent=tasks.absent,
            not_asked=tasks.left_out,
        )
        _keep(folder, result)
    return result


vtab = from_options(VtabOptions)(run_vtab)


def vtab_folder(options: VtabOptions) -> Path:
    """Return the folder of the runs and the result."""
    if options.out is not None:
        return Path(options.out)
    name = absolute_start(str(options.start)).rstrip("/").rpartition("/")[2]
    return Path("runs") / f"vtab-{name}"


def _list_hashes(task: TaskData, sweep: bool) -> dict[Path, str]:
    """Hash the lists of images that a task trains on: paths, class numbers and classes."""
    lists = [task.most_training, task.all_training] if sweep else [task.all_training]
    return {path: open_data(str(path), UNCUT).fingerprint() for path in lists}


def describe_options(options: VtabOptions, weights: Mapping[str, str]) -> dict[str, Any]:
    """Make the contents of `options.json`: all options that decide the accuracies.

    Args:
        options: of this call.
        weights: SHA-256 of the files of the start by name.
    """
    size = height_and_width(options.image_size)
    described = to_json(options) | {
        "start": absolute_start(str(options.start)),
        "root": absolute_spec(str(options.root)),
        "out": None if options.out is None else str(options.out),
        "image_size": None if size is None else list(size),
    }
    del described["listener"], described["quiet"]
    ignored = (*FREE_TO_CHANGE, *(() if options.sweep else ("rates",)))
    described = {name: value for name, value in described.items() if name not in ignored}
    if options.sweep:
        described["rates"] = list(options.tried)
    described["weights"] = dict(weights)
    return described


def _changes(folder: Path, described: Mapping[str, Any]) -> list[str]:
    """List the options and weights in which `options.json` in a folder differs from this call."""
    begun = read_json(folder / "options.json")
    if not isinstance(begun, dict):
        raise VitkitError(f"{folder / 'options.json'} is damaged: expected an object of options.")
    return [_name_change(change) for change in difference(begun, dict(described))]


def _name_change(change: str) -> str:
    """Write a difference of options with their names on the command line; START is no option there."""
    name, values = change.split(": ", 1)
    if name == "start":
        return f"START {values}"
    if name.startswith("weights."):
        return f"{name.removeprefix('weights.')} of START {values}"
    return name_options([change])[0]


def complete_task(
    options: VtabOptions,
    task: TaskData,
    hashes: Mapping[Path, str],
    folder: Path,
    place: str,
    listener: Listener,
) -> TaskScore:
    """Train a task until its series of runs has ended, whose last one is tested.

    Args:
        options: of this call.
        task: the task.
        hashes: the hashes of its lists of images, as they are now.
        folder: of its runs and its result.
        place: its place among the tasks, for messages.
        listener: hears the accuracy.
    """
    if folder.is_dir():
        refuse_links(folder)
        remove_leftovers(folder)
    result, final = folder / "result.json", folder / "final"
    score = read(TaskScore, result)
    if score is None:
        score = _train_task(options, task, folder, place, listener)
        replace_json(result, without_places(to_json(score)))
        listener.note(f"{place}: {score.accuracy:.1%} on {score.images:,} test images")
    elif score.folder != task.folder:
        raise VitkitError(
            f"{result}: expected the result of {task.folder}, found that of {score.folder}. Put the original "
            "file back, or remove it: the task is then tested again."
        )
    rates = sorted(folder.glob("rate-*"))
    _refuse_other_lists(task, hashes, folder, rates)
    # The paths of now: the folders may have been moved since the file was written.
    return replace(score, data=absolute_spec(str(task.path)), run=absolute_spec(str(final)))


def _train_task(
    options: VtabOptions, task: TaskData, folder: Path, place: str, listener: Listener
) -> TaskScore:
    """Train the remaining runs of a task, and read the accuracy of the last one."""
    series_options = SeriesOptions()
    if options.sweep:
        series_options = SeriesOptions(
            sweep_rates=tuple(options.tried), sweep_data=absolute_spec(str(task.most_training))
        )
    series = complete_arm(
        Arm(task.folder, task.folder, task_run(options, task), series_options),
        folder.parent,
        place,
        options,
        "vitkit.vtab(...)",
    )
    assert series.chosen is not None  # a series that has ended has chosen
    answering = find_task("classification").answering
    assert answering is not None
    tested, _ = read_evaluations(folder / "final", answering)["test"]
    return TaskScore(
        folder=task.folder,
        data=absolute_spec(str(task.path)),
        run=absolute_spec(str(folder / "final")),
        accuracy=tested.accuracy,
        interval=tested.accuracy_interval,
        images=tested.count,
        unreadable=tested.bad,
        repeated=0 if tested.repeated is None else tested.repeated.count,
        majority=tested.guessing.accuracy,
        verdict=tested.guessing.verdict,
        learning_rate=series.chosen,
        validation={
            str(float(member.learning_rate)): member.score.value
            for member in series.rates
            if member.score is not None and member.score.value is not None
        },
    )


def _refuse_other_lists(
    task: TaskData, hashes: Mapping[Path, str], folder: Path, rates: Sequence[Path]
) -> None:
    """Refuse a finished task whose lists of images have changed since its runs were trained.

    Raises:
        VitkitError: they have, or a run lacks the record of its images.
    """
    lists = {folder / "final": task.all_training} | dict.fromkeys(rates, task.most_training)
    for run, images in lists.items():
        record = read_record(run)
        if record is None or record.fingerprint != hashes.get(images):
            raise VitkitError(
                f"The lists of {task.path} have changed since {run} was begun. Bring the former ones back; "
                f"or remove {folder}, and the task is computed anew."
            )


def _keep(folder: Path, vtab: Vtab) -> None:
    """Write the result as JSON, CSV and a page, none of which says where things lie on this machine."""
    here = replace(vtab, tasks=tuple(replace(task, run=f"{task.folder}/final") for task in vtab.tasks))
    replace_json(folder / "vtab.json", without_places(here.to_json()))
    table = "".join(f"{csv_line(row)}\n" for row in vtab.csv_rows())
    replace_file(folder / "vtab.csv", [table.encode()])
    replace_file(folder / "vtab.html", [render_vtab(vtab).encode()])


def task_run(options: VtabOptions, task: TaskData) -> Run:
    """Make the run that trains on all 1,000 images of a task, at the protocol's learning rate."""
    run = (
        _paper_run(options, vtab_task(task.folder))
        if options.protocol == "paper"
        else _finetune_run(options, task)
    )
    training, optimizer = run.training, run.optimizer
    if options.steps is not None:
        # The warm-up stays the same fraction of all steps.
        factor = options.steps / training.total_steps(NUM_TRAINING)
        optimizer = replace(optimizer, warmup_steps=round(optimizer.warmup_steps * factor))
    training = replace(
        training,
        steps=options.steps or training.steps,
        batch_size=options.batch_size or training.batch_size,
        micro_batch_size=options.micro_batch_size,
        seed=options.seed,
        select="last",  # all training images are trained on, and test images decide nothing
        keep=1,  # enough to go on; there are many runs
    )
    return replace(
        run,
        data=str(task.all_training),
        training=training,
        optimizer=optimizer,
        preprocessing=replace(
            run.preprocessing, image_size=height_and_width(options.image_size) or run.preprocessing.image_size
        ),
        loading=replace(run.loading, workers=options.workers),
    )


def _paper_run(options: VtabOptions, task: VtabTask) -> Run:
    """Make the run of the paper (B.1.1), which is the same for all tasks but for crops and flips."""
    return replace(
        recipe(PAPER_RECIPE),
        recipe=PAPER_RECIPE,
        start=StartConfig(str(options.start)),
        splits=UNCUT,
        # BiT stretches an image and cuts a part out of it, which has the proportions of the image.
        augmentation=Augmentation(
            crop_area=None if task.crop is None else (task.crop**2, task.crop**2),
            crop_aspect=None,
            flip=task.flips,
        ),
    )


def _finetune_run(options: VtabOptions, task: TaskData) -> Run:
    """Make the run that `vitkit finetune` chooses for all training images of a task."""
    return suit_start(
        Run(data=str(task.all_training), start=StartConfig(str(options.start)), splits=UNCUT)
    ).run


def departures(run: Run, options: VtabOptions, task: TaskData) -> Iterator[str]:
    """Name the differences of a run from the paper's VTAB-1k (B.1.1), each with the paper's value."""
    paper = _paper_run(options, vtab_task(task.folder))
    yield from departures_from_paper(run, NUM_TRAINING, replace(paper, augmentation=run.augmentation))
    if run.augmentation != paper.augmentation:
        yield "the same crops and flips for all tasks (BiT's, where they keep the label)"
    own, papers = run.optimizer.learning_rate, paper.optimizer.learning_rate
    if options.sweep:
        tried = ", ".join(f"{rate:g}" for rate in options.tried)
        yield f"rate of each task the best of {tried} ({papers:g} for all)"
    elif own != papers:
        yield f"rate {own:g} ({papers:g})"


def find_tasks(root: Path, names: Sequence[TaskFolder], sweep: bool) -> RootFolder:
    """List the tasks in a folder, in the order of the paper's Table 9.

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
        task = task_of_folder(folder.name)
        if task is not None and task.folder in of_task:
            raise VitkitError(
                f"{of_task[task.folder]} and {folder} are both {task.title}. Remove or rename one of them."
            )
        if task is not None:
            of_task[task.folder] = folder
    if not of_task:
        shown = (
            f"found {join_names([folder.name for folder in folders], 5)}" if folders else "found no folder"
        )
        raise VitkitError(f"{root} holds no task of VTAB-1k. {EXPECTED}, {shown}.")
    missing = [name for name in names if name not in of_task]
    if missing:
        raise VitkitError(
            f"{root} has no folder for {join_names(missing)}, only for {join_names(list(of_task))}."
        )
    order = [task.folder for task in VTAB_TASKS]
    chosen = [name for name in order if name in of_task and (not names or name in names)]
    return RootFolder(
        tuple(_with_lists(name, of_task[name], sweep) for name in chosen),
        tuple(name for name in order if name not in of_task),
        tuple(name for name in order if name in of_task and name not in chosen),
    )


def _with_lists(task: TaskFolder, folder: Path, sweep: bool) -> TaskData:
    """Find the lists of images of a task.

    Raises:
        VitkitError: a list that is needed is missing.
    """
    lists = find_lists(folder)
    needed = ["train800val200", "test", *(["train800", "val200"] if sweep else [])]
    missing = [f"{name}.txt" for name in needed if name not in lists]
    usual = find_usual_splits(folder) if "train800val200" not in lists else set()
    if usual == {"train", "test"} and not sweep:
        return TaskData(task, folder, {"train800val200": folder})
    if "train" in usual:
        raise VitkitError(_explain_usual(folder, usual))
    if missing:
        raise VitkitError(
            f"{folder} has no {' and no '.join(missing)}. Put the lists there (or Parquet files of these "
            f"names), or leave the task out with --tasks."
        )
    return TaskData(task, folder, lists)


def _explain_usual(folder: Path, splits: Set[str]) -> str:
    """Explain which files a task lacks whose Parquet files are named train-, val- and test-."""
    present = join_names([f"{name}-" for name in SPLITS if name in splits])
    if "test" not in splits:
        return f"{folder} has Parquet files named {present}, and none named test-: put the test images there."
    if "val" not in splits:
        return (
            f"{folder} has Parquet files named {present}: a sweep needs 800 of the training images apart "
            "from 200 others, in files named train800- and val200- beside train800val200-. Leave --sweep "
            "out, or leave the task out with --tasks."
        )
    return (
        f"{folder} has Parquet files named {present}: the protocol trains on the first two together. "
        "Name them train800- and val200-, and put all of their images into a file named train800val200- as "
        "well; or leave the task out with --tasks."
    )

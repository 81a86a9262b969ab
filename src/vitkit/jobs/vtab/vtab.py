"""VTAB-1k: fine-tune a checkpoint on each of 19 tasks of 1,000 images, and take the mean of their accuracies.

OUT/options.json             what was asked for, written first: another call must ask for the same
OUT/TASK/                    a series of runs (`runs/series_record.py`)
OUT/TASK/rate-0.01/          a run on 800 images, judged on 200, for each rate of a sweep
OUT/TASK/final/              the run on all 1,000 images, tested once
OUT/TASK/result.json         its test accuracy: with it the task is finished
OUT/vtab.json, .csv, .html   the result
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitkit.config import difference, from_json, to_json
from vitkit.data.config import Augmentation, Splits
from vitkit.data.layouts.vtab_tasks import TaskFolder, VtabTask, vtab_task
from vitkit.data.paths import absolute_spec
from vitkit.data.sources import open_data
from vitkit.durable import hash_file, read_json, refuse_links, remove_leftovers, replace_file, replace_json
from vitkit.errors import VitkitError
from vitkit.jobs.finetune import fit_run
from vitkit.jobs.finetune_recipes import departures as departures_from_paper
from vitkit.jobs.functions import from_options
from vitkit.jobs.recipes import recipe
from vitkit.jobs.study.study import Arm, complete_arm
from vitkit.jobs.vtab.data import TaskData, find_tasks
from vitkit.jobs.vtab.options import VtabOptions
from vitkit.jobs.vtab.result import TaskScore, Vtab, render_vtab
from vitkit.listener import Listener
from vitkit.models.config.image_config import height_and_width
from vitkit.runs.config import Run, StartConfig, name_options
from vitkit.runs.data_record import read_record
from vitkit.runs.destination import require_folder
from vitkit.runs.folder import Whose, claim, is_new_folder, kind_of
from vitkit.runs.series_options import SeriesOptions
from vitkit.runs.start import absolute_start, find_start
from vitkit.runs.trained_model import read_evaluations
from vitkit.tasks import find_task
from vitkit.text import csv_line, without_places

FREE_TO_CHANGE = ("out", "tasks", "micro_batch_size", "workers", "device", "threads")
"""Options that another call for the same folder may change: they do not decide the accuracy of a task."""
CROPS = "crops_and_flips"
"""Says in options.json that the protocol paper crops and flips, as it did not in early versions."""
PAPER_RECIPE = "finetune-vtab"
NUM_TRAINING = 1_000
UNCUT = Splits(val_fraction=0.0, test_fraction=0.0)
"""The lists are the splits: nothing is cut from them."""


def run_vtab(options: VtabOptions) -> Vtab:
    """Fine-tune a checkpoint on the tasks of VTAB-1k, and take the mean of the test accuracies.

    Calling it again with the same arguments goes on where it was: finished tasks are not repeated, one that
    was interrupted continues from its last committed checkpoint.

    Raises:
        VitkitError: no task is there, a list of images is malformed, or `out` holds another result.
        InterruptedTraining: a signal asked to stop; the same call goes on.
    """
    listener = options.listener
    if options.out is not None:
        require_folder(Path(options.out))
    with listener.progress("looking at the tasks"):
        tasks = find_tasks(Path(options.root), options.tasks, options.sweep)
        # Each list is read before any task is trained: a malformed one is refused now, and not after a day.
        listings = [_list_hashes(task.stages(options.sweep)) for task in tasks.tasks]
    with listener.progress("looking at the start"):
        start = find_start(StartConfig(str(options.start)))
        weights = {file.name: hash_file(file)[1] for file in start.files}
    described = describe_options(options, weights)
    names = [task.folder for task in tasks.tasks]
    given = vtab_folder(options)
    with claim(given, lambda: iter(()), lambda there: whose(there, described, names)) as folder:
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
            not_asked=tasks.not_asked,
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


def _list_hashes(lists: Sequence[Path]) -> dict[Path, str]:
    """Hash lists of images: paths, class numbers and classes."""
    return {path: open_data(str(path), UNCUT).fingerprint() for path in lists}


def describe_options(options: VtabOptions, weights: Mapping[str, str]) -> dict[str, Any]:
    """Give the contents of `options.json`: all that decides the accuracies.

    Args:
        options: as they were given.
        weights: SHA-256 of the files of the start by name.
    """
    size = height_and_width(options.image_size)
    described = to_json(options) | {
        "start": absolute_start(str(options.start)),
        "root": absolute_spec(str(options.root)),
        "out": None if options.out is None else str(options.out),
        "image_size": None if size is None else list(size),
    }
    del described["listener"], described["quiet"]  # they decide nothing
    ignored = (*FREE_TO_CHANGE, *(() if options.sweep else ("rates",)))
    described = {name: value for name, value in described.items() if name not in ignored}
    if options.sweep:
        described["rates"] = list(options.tried)
    described["weights"] = dict(weights)
    if options.protocol == "paper":
        described[CROPS] = True
    return described


def whose(folder: Path, described: Mapping[str, Any], tasks: Sequence[TaskFolder]) -> Whose:
    """Say whether a folder holds this result or none yet; else why it is refused.

    Args:
        folder: of the runs and the result.
        described: the options, by `describe_options`.
        tasks: those that are to be brought to their end there.

    Raises:
        VitkitError: `options.json` cannot be read.
    """
    path = folder / "options.json"
    try:
        begun = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        if is_new_folder(folder):
            return "new"
        return VitkitError(f"{folder} is there already and holds no VTAB-1k result. Give another --out.")
    if not isinstance(begun, dict):
        return VitkitError(f"{path} is damaged: expected an object of options. Give another --out.")
    if begun.get("protocol") == "paper" and CROPS not in begun:
        return VitkitError(
            f"{folder} was begun by an earlier vitkit, whose protocol paper neither cropped nor flipped. "
            "Finish it with that version, or give another --out."
        )
    changes = [_name_change(change) for change in difference(begun, dict(described))]
    if changes:
        return VitkitError(
            f"{folder} was begun with other options or weights:\n  "
            + "\n  ".join(changes)
            + "\nGive those again, or another --out."
        )
    for task in (folder / name for name in tasks):
        finished = (task / "result.json").exists()
        if not finished and not is_new_folder(task) and kind_of(task).kind != "series":
            return VitkitError(
                f"{task} was begun by an earlier vitkit, which recorded its runs in another way, and has not "
                "finished. Finish it with that version; or remove that folder, and the task is computed anew."
            )
    return "mine"


def _name_change(change: str) -> str:
    """Write a difference of options with their names on the command line, where START has none."""
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
    """Bring a task to its end, wherever it stands: a series of runs, whose last one is tested.

    Args:
        options: as they were given.
        task: the task.
        hashes: the hashes of its lists of images, as they are now.
        folder: where its runs and its result are.
        place: its place among the tasks, for messages.
        listener: hears how it goes.
    """
    if folder.is_dir():
        refuse_links(folder)
        remove_leftovers(folder)
    result, final = folder / "result.json", folder / "final"
    score = None
    with suppress(FileNotFoundError):
        score = from_json(TaskScore, read_json(result), str(result))
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
    # Where they are now, whatever the file says.
    return replace(score, data=absolute_spec(str(task.path)), run=absolute_spec(str(final)))


def _train_task(
    options: VtabOptions, task: TaskData, folder: Path, place: str, listener: Listener
) -> TaskScore:
    """Train the runs of a task that are still to be trained, and read how well the last one does."""
    series_options = SeriesOptions()
    if options.sweep:
        series_options = SeriesOptions(
            sweep_rates=tuple(options.tried), sweep_data=absolute_spec(str(task.most_training))
        )
    series = complete_arm(
        Arm(task.folder, task.folder, task_run(options, task), series_options),
        folder.parent,
        place,
        device=options.device,
        threads=options.threads,
        command="vitkit.vtab(...)",
        listener=listener,
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
    """Refuse a finished task whose lists of images are not those that its runs were trained on.

    Raises:
        VitkitError: they are others, or a run does not say which they were.
    """
    lists = {folder / "final": task.all_training} | dict.fromkeys(rates, task.most_training)
    for run, images in lists.items():
        record = read_record(run)
        if record is None or record.fingerprint != hashes.get(images):
            raise VitkitError(
                f"The lists of {task.path} are not those that {run} was begun with. Bring them back; or "
                f"remove {folder}, and the task is computed anew."
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
        # Warm-up and the steps of the head alone stay the same parts of the whole.
        share = options.steps / training.total_steps(NUM_TRAINING)
        optimizer = replace(
            optimizer,
            warmup_steps=round(optimizer.warmup_steps * share),
            head_first=round(optimizer.head_first * share),
        )
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
    """Make the run that suits all training images of a task, as `vitkit finetune` does."""
    return fit_run(Run(data=str(task.all_training), start=StartConfig(str(options.start)), splits=UNCUT)).run


def departures(run: Run, options: VtabOptions, task: TaskData) -> Iterator[str]:
    """Name what in a run of a task is not the paper's VTAB-1k (B.1.1), each with what the paper does."""
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

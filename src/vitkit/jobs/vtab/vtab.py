"""VTAB-1k: fine-tune a checkpoint on each of 19 tasks of 1,000 images, and take the mean of their accuracies.

OUT/options.json             what was asked for, written first: another call must ask for the same
OUT/TASK/images.json         hashes of the lists of images, which must stay the same as well
OUT/TASK/rate-0.01/          a run on 800 images, tested on 200, for each rate of a sweep
OUT/TASK/sweep.json          the validation accuracy of the rates that are done
OUT/TASK/final/              the run on all 1,000 images: an ordinary run folder
OUT/TASK/result.json         its test accuracy: with it the task is finished
OUT/vtab.json, .csv, .html   the result
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from vitkit.config import difference, to_json
from vitkit.data.listing import absolute_spec
from vitkit.data.sources import open_data
from vitkit.data.vtab_tasks import TaskFolder
from vitkit.durable import hash_file, read_json, remove_leftovers, replace_file, replace_json
from vitkit.errors import VitkitError
from vitkit.jobs.vtab.data import find_tasks
from vitkit.jobs.vtab.options import Rates, VtabOptions
from vitkit.jobs.vtab.page import render_vtab
from vitkit.jobs.vtab.result import Vtab
from vitkit.jobs.vtab.task import TaskAtWork
from vitkit.jobs.vtab.task_run import UNCUT, departures, task_run
from vitkit.listener import SILENT, Listener
from vitkit.models.image_config import height_and_width
from vitkit.runs.config import StartConfig, name_options
from vitkit.runs.destination import require_folder
from vitkit.runs.folder import is_new_folder, lock_run_folder
from vitkit.runs.start import find_start, start_place
from vitkit.text import csv_line, without_places

FREE_TO_CHANGE = ("out", "tasks", "micro_batch_size", "workers", "device", "threads")
"""Options that another call for the same folder may change: they do not decide the accuracy of a task."""
CROPS = "crops_and_flips"
"""Says in options.json that the protocol paper crops and flips, as it did not in early versions."""


def vtab(
    start: str | Path,
    root: str | Path,
    *,
    tasks: Sequence[TaskFolder] = (),
    out: str | Path | None = None,
    protocol: Literal["paper", "finetune"] = "paper",
    image_size: int | tuple[int, int] | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    micro_batch_size: int | None = None,
    sweep: bool = False,
    rates: Rates | None = None,
    seed: int = 0,
    workers: int | None = None,
    device: str = "auto",
    threads: int | None = None,
    listener: Listener = SILENT,
) -> Vtab:
    """Fine-tune a checkpoint on the tasks of VTAB-1k, and take the mean of the test accuracies.

    Calling it again with the same arguments goes on where it was: finished tasks are not repeated, one that
    was interrupted continues from its last committed checkpoint.

    Args:
        start: a run folder, a file or folder of weights, or an address.
        root: a folder with a folder for each task; tasks without one are named in the result.
        tasks: folders of tasks; none: all that are there.
        out: the folder for runs and result; left out, one below `runs/`.
        protocol: "paper" (2,500 steps of 512 images at 384 pixels, rate 0.01, BiT's crops and flips where
            they keep the label), or "finetune": what `vitkit.finetune` chooses for as many images.
        image_size, steps, batch_size: in place of the protocol's; pixels, one number or `(height, width)`.
        micro_batch_size: images that are computed at a time.
        sweep: whether the rate of each task is chosen among `rates` on 800 and 200 training images.
        rates: learning rates that the sweep tries; None: the protocol's.
        seed, workers, device, threads: as in a run.
        listener: hears how it goes.

    Raises:
        VitkitError: no task is there, a list of images is malformed, or `out` holds another result.
        InterruptedTraining: a signal asked to stop; the same call goes on.
    """
    options = VtabOptions(
        start=str(start),
        root=str(root),
        tasks=tuple(tasks),
        out=None if out is None else str(out),
        protocol=protocol,
        image_size=height_and_width(image_size),
        steps=steps,
        batch_size=batch_size,
        micro_batch_size=micro_batch_size,
        sweep=sweep,
        rates=rates,
        seed=seed,
        workers=workers,
        device=device,
        threads=threads,
    )
    return run_vtab(options, listener)


def run_vtab(options: VtabOptions, listener: Listener = SILENT) -> Vtab:
    """Bring VTAB-1k to its end, wherever it stands; errors are those of `vtab`."""
    if options.out is not None:
        require_folder(Path(options.out))
    with listener.progress("looking at the tasks"):
        found = find_tasks(Path(options.root), options.tasks, options.sweep)
        # Each list is read before any task is trained: a malformed one is refused now, and not after a day.
        listed = [_list_hashes(task.stages(options.sweep)) for task in found.tasks]
    with listener.progress("looking at the start"):
        start = find_start(StartConfig(options.start))
        weights = {file.name: hash_file(file)[1] for file in start.files}
    folder = vtab_folder(options)
    _refuse_other(folder, options, weights)  # before anything is made
    with lock_run_folder(folder):
        begin(folder, options, weights)
        remove_leftovers(folder)
        scores = []
        for number, (task, hashes) in enumerate(zip(found.tasks, listed, strict=True), start=1):
            place = f"task {number} of {len(found.tasks)}, {task.folder}"
            scores.append(TaskAtWork(options, task, hashes, folder / task.folder, place, listener).score())
        example = task_run(options, found.tasks[0], found.tasks[0].all_training, None)
        result = Vtab(
            start=start_place(options.start),
            root=absolute_spec(options.root),
            protocol=options.protocol,
            departures=tuple(departures(example, options, found.tasks[0])),
            tasks=tuple(scores),
            absent=found.absent,
            not_asked=found.not_asked,
        )
        _keep(folder, result)
    return result


def vtab_folder(options: VtabOptions) -> Path:
    """Return the folder of the runs and the result."""
    if options.out is not None:
        return Path(options.out)
    name = start_place(options.start).rstrip("/").rpartition("/")[2]
    return Path("runs") / f"vtab-{name}"


def _list_hashes(lists: Sequence[Path]) -> dict[str, str]:
    """Hash lists of images by name: paths, class numbers and classes."""
    return {path.name: open_data(str(path), UNCUT).fingerprint() for path in lists}


def begin(folder: Path, options: VtabOptions, weights: Mapping[str, str]) -> None:
    """Write what a folder that is held is for; refuse one that another process has begun since.

    Raises:
        VitkitError: as `_refuse_other`.
    """
    asked = _refuse_other(folder, options, weights)
    if asked is not None:
        replace_json(folder / "options.json", asked)


def _refuse_other(folder: Path, options: VtabOptions, weights: Mapping[str, str]) -> dict[str, Any] | None:
    """Refuse a folder that holds something else.

    Args:
        folder: of the runs and the result.
        options: as they were given.
        weights: SHA-256 of the files of the start by name.

    Returns:
        The contents of the folder's `options.json` where it has not begun; None where it has.

    Raises:
        VitkitError: it holds the result of other options or weights, or is no folder of this job.
    """
    asked = to_json(replace(options, start=start_place(options.start), root=absolute_spec(options.root)))
    ignored = (*FREE_TO_CHANGE, *(() if options.sweep else ("rates",)))
    asked = {name: value for name, value in asked.items() if name not in ignored}
    if options.sweep:
        asked["rates"] = list(options.tried)
    asked["weights"] = dict(weights)
    if options.protocol == "paper":
        asked[CROPS] = True
    path = folder / "options.json"
    try:
        begun = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        if not is_new_folder(folder):
            raise VitkitError(
                f"{folder} is there already and holds no VTAB-1k result. Give another --out."
            ) from None
        return asked
    if not isinstance(begun, dict):
        raise VitkitError(f"{path} is damaged: expected an object of options. Give another --out.")
    if begun.get("protocol") == "paper" and CROPS not in begun:
        raise VitkitError(
            f"{folder} was begun by an earlier vitkit, whose protocol paper neither cropped nor flipped. "
            "Finish it with that version, or give another --out."
        )
    changes = [_name_change(change) for change in difference(begun, asked)]
    if changes:
        raise VitkitError(
            f"{folder} was begun with other options or weights:\n  "
            + "\n  ".join(changes)
            + "\nGive those again, or "
            "another --out."
        )
    return None


def _name_change(change: str) -> str:
    """Write a difference of options with their names on the command line, where START has none."""
    name, values = change.split(": ", 1)
    if name == "start":
        return f"START {values}"
    if name.startswith("weights."):
        return f"{name.removeprefix('weights.')} of START {values}"
    return name_options([change])[0]


def _keep(folder: Path, found: Vtab) -> None:
    """Write the result as JSON, CSV and a page, none of which says where things lie on this machine."""
    here = replace(found, tasks=tuple(replace(one, run=f"{one.folder}/final") for one in found.tasks))
    replace_json(folder / "vtab.json", without_places(here.to_json()))
    table = "".join(f"{csv_line(row)}\n" for row in found.csv_rows())
    replace_file(folder / "vtab.csv", [table.encode()])
    replace_file(folder / "vtab.html", [render_vtab(found).encode()])

"""VTAB-1k: fine-tune a checkpoint on each of 19 tasks of 1,000 images, and take the mean of their accuracies.

OUT/options.json             what was asked for, written first: another call must ask for the same
OUT/TASK/images.json         hashes of the lists of images, which must stay the same as well
OUT/TASK/rate-0.01/          a run on 800 images, tested on 200, for each rate of a sweep
OUT/TASK/sweep.json          the validation accuracy of the rates that are done
OUT/TASK/final/              the run on all 1,000 images: an ordinary run folder
OUT/TASK/result.json         its test accuracy: with it the task is finished
OUT/vtab.json, .csv, .html   the result
"""

import csv
import io
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from vitkit.config import difference, from_json, to_json
from vitkit.data.sources import open_data
from vitkit.data.vtab_tasks import TaskFolder
from vitkit.durable import hash_file, read_json, replace_file, replace_json
from vitkit.errors import VitkitError
from vitkit.jobs.listener import SILENT, Listener, Progress
from vitkit.jobs.machine import InterruptedTraining
from vitkit.jobs.run_config import Run
from vitkit.jobs.run_folder import absolute_spec, lock_run_folder, read_evaluations
from vitkit.jobs.start import find_start, start_place
from vitkit.jobs.start_config import StartConfig
from vitkit.jobs.train import train
from vitkit.jobs.vtab_data import TaskData, find_tasks
from vitkit.jobs.vtab_options import Rates, VtabOptions
from vitkit.jobs.vtab_page import render_vtab
from vitkit.jobs.vtab_result import TaskScore, Vtab
from vitkit.jobs.vtab_run import UNCUT, departures, task_run
from vitkit.tasks import find_task

FREE_TO_CHANGE = ("out", "tasks", "micro_batch_size", "workers", "device", "threads")
"""Options that another call for the same folder may change: they do not decide the accuracy of a task."""


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
        protocol: "paper" (2,500 steps of 512 images at 384 pixels, rate 0.01), or "finetune": what
            `vitkit.finetune` chooses for as many images.
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
        image_size=(image_size, image_size) if isinstance(image_size, int) else image_size,
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
    with listener.progress("looking at the tasks"):
        found = find_tasks(Path(options.root), options.tasks, options.sweep)
        # Each list is read before any task is trained: a malformed one is refused now, and not after a day.
        listed = [_list_hashes(task.stages(options.sweep)) for task in found.tasks]
    with listener.progress("looking at the start"):
        start = find_start(Run(start=StartConfig(options.start)))
        weights = {file.name: hash_file(file)[1] for file in start.files}
    folder = vtab_folder(options)
    _begin(folder, options, weights)
    with lock_run_folder(folder):
        scores = []
        for number, (task, hashes) in enumerate(zip(found.tasks, listed, strict=True), start=1):
            place = f"task {number} of {len(found.tasks)}, {task.folder}"
            scores.append(_Task(options, task, hashes, folder / task.folder, place, listener).score())
        example = task_run(options, found.tasks[0], found.tasks[0].all_training, None)
        result = Vtab(
            start=start_place(options.start),
            root=absolute_spec(options.root),
            protocol=options.protocol,
            departures=tuple(departures(example, options)),
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


def _begin(folder: Path, options: VtabOptions, weights: Mapping[str, str]) -> None:
    """Make the folder, or refuse one that holds something else.

    Args:
        folder: of the runs and the result.
        options: as they were given.
        weights: SHA-256 of the files of the start by name.

    Raises:
        VitkitError: it holds the result of other options or weights, or is no folder of this job.
    """
    asked = to_json(replace(options, start=start_place(options.start), root=absolute_spec(options.root)))
    ignored = (*FREE_TO_CHANGE, *(() if options.sweep else ("rates",)))
    asked = {name: value for name, value in asked.items() if name not in ignored}
    if options.sweep:
        asked["rates"] = list(options.tried)
    asked["weights"] = dict(weights)
    path = folder / "options.json"
    try:
        begun = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        if folder.exists() and (
            not folder.is_dir() or any(entry.name[0] != "." for entry in folder.iterdir())
        ):
            raise VitkitError(
                f"{folder} is there already and holds no VTAB-1k result. Give another --out."
            ) from None
        folder.mkdir(parents=True, exist_ok=True)
        replace_json(path, asked)
        return
    if not isinstance(begun, dict):
        raise VitkitError(f"{path} is damaged: expected an object of options. Give another --out.")
    changes = difference(begun, asked)
    if changes:
        raise VitkitError(
            f"{folder} was begun with other options or weights:\n  "
            + "\n  ".join(changes)
            + "\nGive those again, or "
            "another --out."
        )


@dataclass(frozen=True)
class _Tried:
    """The rates of a sweep that are done."""

    accuracy: dict[str, float] = field(default_factory=dict)
    loss: dict[str, float] = field(default_factory=dict)

    def best(self) -> str:
        """Return the rate of the highest accuracy; among equals that of the smallest loss."""
        return max(self.accuracy, key=lambda rate: (self.accuracy[rate], -self.loss[rate]))


@dataclass(frozen=True)
class _Task:
    """One task on its way."""

    options: VtabOptions
    data: TaskData
    hashes: dict[str, str]
    """Of its lists of images."""
    folder: Path
    place: str
    """Which of the tasks it is, for messages."""
    listener: Listener

    def score(self) -> TaskScore:
        """Bring the task to its end, wherever it stands."""
        self._begin()
        path = self.folder / "result.json"
        with suppress(FileNotFoundError):
            return from_json(TaskScore, read_json(path), str(path))
        tried = self._sweep() if self.options.sweep else _Tried()
        rate = float(tried.best()) if self.options.sweep else None
        run = task_run(self.options, self.data, self.data.all_training, rate)
        final = self.folder / "final"
        self._train(run, final, "train800val200" if rate is None else f"train800val200 at rate {rate:g}")
        result = self._evaluation(final, "test")
        score = TaskScore(
            folder=self.data.folder,
            data=absolute_spec(str(self.data.path)),
            run=absolute_spec(str(final)),
            accuracy=result.accuracy,
            interval=result.accuracy_interval,
            images=result.count,
            unreadable=result.bad,
            repeated=0 if result.repeated is None else result.repeated.count,
            majority=result.guessing.accuracy,
            verdict=result.guessing.verdict,
            learning_rate=run.optimizer.learning_rate,
            validation=tried.accuracy,
        )
        replace_json(path, to_json(score))
        self.listener.note(f"{self.place}: {score.accuracy:.1%} on {score.images:,} test images")
        return score

    def _begin(self) -> None:
        """Write down which images the task has. Raises VitkitError: it was begun with other ones."""
        path = self.folder / "images.json"
        try:
            begun = read_json(path)
        except FileNotFoundError:
            self.folder.mkdir(exist_ok=True)
            replace_json(path, self.hashes)
            return
        if begun != self.hashes:
            raise VitkitError(
                f"The lists of {self.data.path} are not those that {self.folder} was begun with. Bring them "
                f"back; or remove {self.folder}, and the task is computed anew."
            )

    def _sweep(self) -> _Tried:
        """Train on 800 images with each rate, and measure on the other 200. The test images are not read."""
        path = self.folder / "sweep.json"
        tried = _Tried()
        with suppress(FileNotFoundError):
            tried = from_json(_Tried, read_json(path), str(path))
        for rate in self.options.tried:
            name = f"{rate:g}"
            member = self.folder / f"rate-{name}"
            if name not in tried.accuracy:
                run = task_run(self.options, self.data, self.data.most_training, rate)
                self._train(run, member, f"train800 at rate {name}")
                result = self._evaluation(member, "val")
                tried.accuracy[name], tried.loss[name] = result.accuracy, result.loss
                replace_json(path, to_json(tried))
                self.listener.note(
                    f"{self.place}: rate {name}: {result.accuracy:.1%} on the validation images"
                )
            # Its accuracy is on the disk. The weights of 76 members would fill it: they are not needed again.
            shutil.rmtree(member / "checkpoints", ignore_errors=True)
            (member / "model.safetensors").unlink(missing_ok=True)
        return tried

    def _train(self, run: Run, folder: Path, what: str) -> None:
        listener = _Member(self.listener, f"{self.data.folder}, {what}")
        self.listener.note(f"{self.place}: {what}")
        try:
            train(run, folder, device=self.options.device, threads=self.options.threads, listener=listener)
        except InterruptedTraining as stopped:
            number = stopped.exit_code - 128
            words = f"Stopped in {self.place}; what is done is kept. To go on, run the same command again."
            raise InterruptedTraining(words, number) from None

    def _evaluation(self, folder: Path, split: str) -> Any:
        """Read the numbers of a run that has finished."""
        return read_evaluations(folder, find_task("classification"))[split][0]


class _Member(Listener):
    """Passes on what a person has to see of one run among many: its progress, named, and its warnings."""

    def __init__(self, listener: Listener, name: str) -> None:
        self._listener, self._name = listener, name

    def warn(self, sentence: str) -> None:
        self._listener.warn(f"{self._name}: {sentence}")

    @contextmanager
    def progress(self, what: str, total: int | None = None, *, unit: str = "") -> Iterator[Progress]:
        with self._listener.progress(f"{self._name}: {what}", total, unit=unit) as progress:
            yield progress


def _keep(folder: Path, found: Vtab) -> None:
    """Write the result as JSON, CSV and a page."""
    replace_json(folder / "vtab.json", found.to_json())
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(found.csv_rows())
    replace_file(folder / "vtab.csv", [table.getvalue().encode()])
    replace_file(folder / "vtab.html", [render_vtab(found).encode()])

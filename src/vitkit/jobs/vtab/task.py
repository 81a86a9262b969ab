"""One task of VTAB-1k: choose a learning rate, train on all 1,000 images, and test once."""

import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vitkit.config import describe_value, from_json, to_json
from vitkit.data.listing import absolute_spec
from vitkit.durable import read_json, refuse_links, remove_leftovers, replace_json
from vitkit.errors import VitkitError
from vitkit.jobs.train import train
from vitkit.jobs.vtab.data import TaskData
from vitkit.jobs.vtab.options import VtabOptions
from vitkit.jobs.vtab.result import TaskScore
from vitkit.jobs.vtab.task_run import task_run
from vitkit.listener import Listener, Progress
from vitkit.runs.config import Run
from vitkit.runs.machine import InterruptedTraining
from vitkit.runs.trained_model import read_evaluations
from vitkit.tasks import find_task
from vitkit.text import without_places
from vitkit.training.finite import NonFiniteError


@dataclass(frozen=True)
class _Tried:
    """The rates of a sweep that are done."""

    accuracy: dict[str, float] = field(default_factory=dict)
    loss: dict[str, float] = field(default_factory=dict)
    diverged: tuple[str, ...] = ()
    """Rates at which the loss was infinite or no number."""

    def __post_init__(self) -> None:
        numbers = (*self.accuracy.values(), *self.loss.values())
        if not all(map(math.isfinite, numbers)) or not all(0 <= one <= 1 for one in self.accuracy.values()):
            raise VitkitError("expected accuracies from 0 to 1 and finite losses, found others.")

    def require_rates(self, rates: Sequence[float], path: Path) -> None:
        """Refuse a record at `path` of other rates than those of the sweep."""
        known = {str(float(rate)) for rate in rates}
        if self.accuracy.keys() != self.loss.keys() or not {*self.accuracy, *self.diverged} <= known:
            raise VitkitError(
                f"{path}: expected accuracies and losses at rates of {', '.join(sorted(known))}, found "
                f"{describe_value([*self.accuracy, *self.loss, *self.diverged])}. Put the original file back."
            )

    def best(self) -> str:
        """Return the rate of the highest accuracy; among equals that of the smallest loss."""
        return max(self.accuracy, key=lambda rate: (self.accuracy[rate], -self.loss[rate]))


@dataclass(frozen=True)
class TaskAtWork:
    """One task: the folder of its runs, and the way to its test accuracy."""

    options: VtabOptions
    data: TaskData
    hashes: dict[str, str]
    """The hashes of its lists of images."""
    folder: Path
    place: str
    """Its place among the tasks, for messages."""
    listener: Listener

    def score(self) -> TaskScore:
        """Bring the task to its end, wherever it stands."""
        self._begin()
        path, final = self.folder / "result.json", self.folder / "final"
        with suppress(FileNotFoundError):
            score = from_json(TaskScore, read_json(path), str(path))
            if score.folder != self.data.folder:
                raise VitkitError(
                    f"{path}: expected the result of {self.data.folder}, found that of {score.folder}. Put "
                    "the original file back, or remove it: the task is then tested again."
                )
            # Where they are now, whatever the file says.
            return replace(score, data=absolute_spec(str(self.data.path)), run=absolute_spec(str(final)))
        tried = self._sweep() if self.options.sweep else _Tried()
        rate = float(tried.best()) if self.options.sweep else None
        run = task_run(self.options, self.data, self.data.all_training, rate)
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
        replace_json(path, without_places(to_json(score)))
        self.listener.note(f"{self.place}: {score.accuracy:.1%} on {score.images:,} test images")
        return score

    def _begin(self) -> None:
        """Write down which images the task has.

        Raises:
            VitkitError: it was begun with other ones, or a link leads out of its folder.
        """
        path = self.folder / "images.json"
        if self.folder.is_dir():
            refuse_links(self.folder)
            remove_leftovers(self.folder)
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
            tried.require_rates(self.options.tried, path)
        for rate in self.options.tried:
            name = str(float(rate))
            member = self.folder / f"rate-{name}"
            if name not in tried.accuracy and name not in tried.diverged:
                tried = self._with_rate(tried, rate, member)
                replace_json(path, to_json(tried))
            # Its accuracy is on the disk. The weights of 76 members would fill it: they are not needed again.
            shutil.rmtree(member / "checkpoints", ignore_errors=True)
            (member / "model.safetensors").unlink(missing_ok=True)
        if not tried.accuracy:
            raise VitkitError(
                f"{self.data.folder}: the loss was not finite at any of the rates "
                f"{', '.join(tried.diverged)}. Give lower --rates, and another --out."
            )
        return tried

    def _with_rate(self, tried: _Tried, rate: float, member: Path) -> _Tried:
        """Train at one more rate, and add what came out."""
        name = str(float(rate))
        run = task_run(self.options, self.data, self.data.most_training, rate)
        try:
            self._train(run, member, f"train800 at rate {name}")
        except NonFiniteError as error:
            self.listener.warn(f"This rate is passed over: {error}")
            return replace(tried, diverged=(*tried.diverged, name))
        result = self._evaluation(member, "val")
        self.listener.note(f"{self.place}: rate {name}: {result.accuracy:.1%} on the validation images")
        accuracy = {**tried.accuracy, name: result.accuracy}
        return replace(tried, accuracy=accuracy, loss={**tried.loss, name: result.loss})

    def _train(self, run: Run, folder: Path, what: str) -> None:
        listener = _Member(self.listener, f"{self.data.folder}, {what}")
        self.listener.note(f"{self.place}: {what}")
        try:
            train(run, folder, device=self.options.device, threads=self.options.threads, listener=listener)
        except InterruptedTraining as stopped:
            where = f"in {self.place}; what is done is kept"
            raise InterruptedTraining(where, "the same command", stopped.signal_number) from None
        except NonFiniteError as error:
            raise NonFiniteError(f"{self.data.folder}, {what}: {error}") from None

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

"""Small series of runs, their images, and a stand-in for their training."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.photos import image_folder
from tests.helpers.small_digits import small_run
from vitkit.config import write
from vitkit.durable import hash_file
from vitkit.jobs import train_run
from vitkit.listener import SILENT
from vitkit.runs.config import Run
from vitkit.runs.run_options import SeriesOptions
from vitkit.runs.series_record import Member, Score, Series, SeriesRecord, plan_series
from vitkit.runs.trained_model import require_same_images
from vitkit.tasks import find_task
from vitkit.training.checkpoint import Ended

SMALL = small_run(4, evaluate_every=2)
SWEEP = SeriesOptions(sweep_rates=(0.02, 0.001))


def counts(folder: Path) -> dict[str, int]:
    images: dict[str, int] = json.loads((folder / "data.json").read_text())["images"]
    return images


def swept(*results: tuple[float, float | None, float | None]) -> Series:
    """A sweep whose rates have these scores: rate, value, loss."""
    rates = [
        Member(f"rate-{rate:g}", rate, 0, score=Score("val", value, None, loss, 100), finished=True)
        for rate, value, loss in results
    ]
    record = SeriesRecord("0.1", "", SMALL, SeriesOptions(sweep=True), False)
    return replace(plan_series(record), rates=tuple(rates), chosen=None)


def photos(root: Path, *splits: str) -> Path:
    """Small pictures of two classes, in split folders where there are such."""
    for seed, split in enumerate(splits or (".",)):
        image_folder(root / split, 30, seed)
    return root


def before_each_run(patch: pytest.MonkeyPatch, call: Callable[[Path], object]) -> None:
    """Call a function with the folder of each run of a series before it is trained; it may raise an error."""

    def train(run: Run, folder: Path, **options: Any) -> Path:
        call(folder)
        return train_run.train_run(run, folder, **options)

    patch.setattr("vitkit.jobs.train.train_run", train)


class Pretended:
    """Stands for training: writes what a run leaves of its images and its model, and scores that are the same
    for every run."""

    def __init__(self) -> None:
        self.trained: list[str] = []
        self.runs: list[Run] = []
        self.stop_at: int | None = None
        """The run that is interrupted as soon as it has begun, from 1."""
        self.scored = {"val": 0.25, "test": 0.5}

    def train(self, run: Run, folder: Path, **_options: Any) -> Path:
        self.trained.append(folder.name)
        self.runs.append(run)
        if len(self.trained) == self.stop_at:
            raise KeyboardInterrupt
        folder.mkdir(exist_ok=True)
        data = find_task(run.task).learning.open_data(run.data, run.splits, run.preprocessing.decode)
        require_same_images(folder, data, data.fingerprint(), "time", SILENT)
        for name in ("model.safetensors", "report.html"):
            (folder / name).write_text("{}")
        size, digest = hash_file(folder / "model.safetensors")
        (folder / "model.json").write_text(json.dumps({"weights": {"bytes": size, "sha256": digest}}))
        write(folder / "ended.json", Ended(4, {}))
        return folder

    def read_score(self, _folder: Path, split: str, _run: Run) -> Score | None:
        value = self.scored.get(split)
        return None if value is None else Score(split, value, None, 1.0, 8)

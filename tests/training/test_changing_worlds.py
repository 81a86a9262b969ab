"""Runs whose number of processes changes, by real processes, against a run that was left alone."""

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

import vitkit
from tests.helpers.photos import image_folder
from tests.helpers.processes import Processes
from vitkit.data.config import Augmentation, Loading, Preprocessing, Splits
from vitkit.data.stream.loader import Batch, TrainLoader
from vitkit.errors import VitkitError
from vitkit.runs.config import Run
from vitkit.signals import StopRequest
from vitkit.training.config import ClassificationConfig, OptimizerConfig, TrainingConfig
from vitkit.world import World

IMAGES, BATCH, STEPS = 20, 6, 12
"""Three epochs of twenty images, and more than half of a fourth."""
CHANGES = ((1, 2), (3, 4), (2, 5), (1, 7), (2, 9), (3, STEPS))
"""The number of processes, and the step after which they are stopped: within an epoch each time."""


def configuration(folder: Path, workers: int) -> Run:
    """Describe a run in which everything is drawn that may be: crops, flips, operations, boxes, mixup.

    It is stopped before its end, because the report of a finished run takes longer than these steps.
    """
    return Run(
        data=str(folder / "images"),
        model="ViT-16x1x2/4",
        preprocessing=Preprocessing((8, 8)),
        augmentation=Augmentation(crop_area=(0.3, 1.0), shift=1, rand_augment=2, random_erasing=0.3),
        splits=Splits(val_fraction=0, test_fraction=0),
        objective=ClassificationConfig(mixup=0.5),
        optimizer=OptimizerConfig(learning_rate=0.003, warmup_steps=2),
        training=TrainingConfig(
            steps=STEPS + 1,
            batch_size=BATCH,
            micro_batch_size=5,  # images that are mixed with each other: the last of a batch is alone
            log_every=1,
            checkpoint_every=10,
            evaluate_every=STEPS + 1,
        ),
        loading=Loading(workers=workers, memory_gib=0, bad_quota=0.5),
    )


def train(world: World, folder: Path, run: Run, stop: int) -> None:
    """Train the run of a folder until every process is asked to stop in a step, and write down each image
    that this process reads, with a hash of its pixels."""
    batches = TrainLoader.batches
    (folder / "records").mkdir(exist_ok=True)

    def recorded(self: TrainLoader, start: int, end: int) -> Iterator[Batch]:
        assert self.places is not None
        for step, batch in enumerate(batches(self, start, end), start):
            places = self.places.tolist()
            for place, image, pixels in zip(places, batch.ids.tolist(), batch.images, strict=True):
                digest = hashlib.sha256(pixels.contiguous().numpy().tobytes()).hexdigest()
                lines.write(json.dumps([step, place, image, digest]) + "\n")
            if step + 1 == stop:
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch

    with (
        (folder / "records" / f"{os.getpid()}.jsonl").open("a") as lines,
        patch.object(TrainLoader, "batches", recorded),
        patch("vitkit.runs.processes.join_processes", lambda say: world),
        pytest.raises((VitkitError, StopRequest), match="SIGTERM"),
    ):
        vitkit.train(run, folder / "run", threads=1)


def read_records(folder: Path) -> dict[tuple[int, int], tuple[int, str]]:
    """Read the image and pixels at each place of each step's batch, on which all who read it must agree."""
    read: dict[tuple[int, int], tuple[int, str]] = {}
    for file in (folder / "records").iterdir():
        for step, place, image, digest in map(json.loads, file.read_text().splitlines()):
            assert read.setdefault((step, place), (image, digest)) == (image, digest)
    return read


def losses(folder: Path) -> list[float]:
    """Read the loss of every step."""
    lines = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] == "train"]


@pytest.mark.parametrize("workers", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_images_order_and_pixels_stay_the_same_while_the_number_of_processes_changes(
    processes: Processes, tmp_path: Path, workers: int
) -> None:
    """Over three epochs and five changes: what is read, and the losses after mixup."""
    alone, changed = tmp_path / "alone", tmp_path / "changed"
    for folder in (alone, changed):
        image_folder(folder / "images", IMAGES)
        path = folder / "images" / "dark" / f"{IMAGES - 1}.png"
        path.write_bytes(path.read_bytes()[:60])  # its header says what it was
    processes.run(1, train, alone, configuration(alone, 0), STEPS)
    for size, stop in CHANGES:
        processes.run(size, train, changed, configuration(changed, workers), stop)
    read = read_records(alone)
    assert read.keys() == {(step, place) for step in range(STEPS) for place in range(BATCH)}
    assert read_records(changed) == read
    assert losses(changed) == pytest.approx(losses(alone), abs=1e-4)

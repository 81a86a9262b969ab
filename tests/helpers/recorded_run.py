"""A training run whose processes write down what they read and what their models are given, for tests.

`python -m torch.distributed.run ... -m tests.helpers.recorded_run FOLDER` trains the run of a folder by real
processes of torchrun; `train` does the same by processes that are there already.
"""

import hashlib
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image
from torch import Tensor

import vitkit
from vitkit.data.config import Augmentation, Loading, Preprocessing, Splits
from vitkit.data.stream.loader import Batch, TrainLoader
from vitkit.errors import VitkitError
from vitkit.models.vit import ViT
from vitkit.runs.config import Run
from vitkit.runs.processes import dismiss
from vitkit.signals import StopRequest
from vitkit.training.config import ClassificationConfig, OptimizerConfig, TrainingConfig
from vitkit.world import World

IMAGES = 20
BATCH = 6
STEPS = 12
"""Steps of 6 images each: three epochs of twenty images, and more than half of a fourth."""
MICRO_BATCH = 5
"""Images that are mixed with each other: of a batch of six, the last one is alone."""


def write_images(folder: Path) -> None:
    """Write twenty images of several sizes in two class folders, one of which cannot be read."""
    draw = np.random.default_rng(0)
    for number in range(IMAGES):
        path = folder / "images" / "ab"[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 256, (12 + number % 5, 14, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    path.write_bytes(path.read_bytes()[:60])  # its header says what it was


def configuration(folder: Path, workers: int, steps: int = STEPS) -> Run:
    """Describe a run in which everything is drawn that may be: crops, flips, operations, boxes, mixup."""
    return Run(
        data=str(folder / "images"),
        model="ViT-16x1x2/4",
        preprocessing=Preprocessing((8, 8)),
        augmentation=Augmentation(crop_area=(0.3, 1.0), shift=1, rand_augment=2, random_erasing=0.3),
        splits=Splits(val_fraction=0, test_fraction=0),
        objective=ClassificationConfig(mixup=0.5),
        optimizer=OptimizerConfig(learning_rate=0.003, warmup_steps=2),
        training=TrainingConfig(
            steps=steps,
            batch_size=BATCH,
            micro_batch_size=MICRO_BATCH,
            log_every=1,
            checkpoint_every=10,
            evaluate_every=steps,
        ),
        loading=Loading(workers=workers, memory_gib=0, bad_quota=0.5),
    )


@contextmanager
def recorded(file: Path, stop: int | None) -> Iterator[None]:
    """Write down each image that is read for training and each that a model is given, with hashes of pixels.

    Args:
        file: holds a line of JSON for each; a process that is killed leaves whole lines.
        stop: the step in which this process is sent SIGTERM; None: it trains to the end.
    """
    batches, forward = TrainLoader.batches, ViT.forward
    at: list[int] = []

    with file.open("a", buffering=1) as lines:

        def note(**line: Any) -> None:
            lines.write(json.dumps({"step": at[-1], **line}) + "\n")

        def watched(self: TrainLoader, start: int, end: int) -> Iterator[Batch]:
            for step, batch in enumerate(batches(self, start, end), start):
                at.append(step)
                places = range(self.batch_size) if self.places is None else self.places.tolist()
                for place, image, pixels in zip(places, batch.ids.tolist(), batch.images, strict=True):
                    note(place=place, image=image, pixels=digest(pixels))
                if step + 1 == stop:
                    os.kill(os.getpid(), signal.SIGTERM)
                yield batch

        def given(self: ViT, images: Tensor, *rest: Any, **more: Any) -> Any:
            if self.training and at:
                for image in images:
                    note(given=digest(image))
            return forward(self, images, *rest, **more)

        with patch.object(TrainLoader, "batches", watched), patch.object(ViT, "forward", given):
            yield


def digest(pixels: Tensor) -> str:
    """Hash an image (SHA-256)."""
    return hashlib.sha256(pixels.detach().contiguous().numpy().tobytes()).hexdigest()


def train(world: World | None, folder: Path, run: Run, stop: int | None = None) -> None:
    """Train the run of a folder until it ends, or until every process was asked to stop in a step.

    Args:
        world: the processes, which are there already; None: torchrun starts them.
        folder: holds the images, the run and what is written down.
        run: its configuration.
        stop: as for `recorded`.
    """
    records = folder / "records"
    records.mkdir(exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(recorded(records / f"{os.getpid()}.jsonl", stop))
        if world is not None:
            stack.enter_context(patch("vitkit.runs.processes.join_processes", lambda say: world))
        try:
            vitkit.train(run, folder / "run", threads=1)
            assert stop is None
        except (VitkitError, StopRequest) as end:
            if stop is None or "SIGTERM" not in str(end):
                raise


def read_records(folder: Path) -> tuple[dict[tuple[int, int], tuple[int, str]], dict[int, Counter[str]]]:
    """Read what all processes have written down.

    Returns:
        The image at each place of each step's batch with the hash of its pixels, which every process that
        read it must agree on; and how often the models were given each image in each step.
    """
    read: dict[tuple[int, int], tuple[int, str]] = {}
    given: dict[int, Counter[str]] = {}
    for file in (folder / "records").iterdir():
        for line in map(json.loads, file.read_text().splitlines()):
            if "given" in line:
                given.setdefault(line["step"], Counter())[line["given"]] += 1
            else:
                image = (line["image"], line["pixels"])
                assert read.setdefault((line["step"], line["place"]), image) == image, line
    return read, given


def losses(folder: Path) -> list[float]:
    """Read the loss of every step."""
    lines = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] == "train"]


if __name__ == "__main__":
    home = Path(sys.argv[1])
    train(None, home, configuration(home, workers=1, steps=int(sys.argv[2])))
    dismiss()

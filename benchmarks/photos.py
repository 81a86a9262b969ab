#!/usr/bin/env python
"""Fine-tune on folders of photos, beside the same start in timm at equal steps and batch.

    python -m benchmarks.photos START --photos PARQUET_FOLDER [--out FOLDER] [--sizes 50 200] [--sides timm]

Draws folders of photos from the training images of the data, stratified, each with all of the test images;
fine-tunes START on each and measures the test photos once. START is a plain ViT, which timm can hold too; it
gets the same weights and as many steps of as many images. The sides:

    default   vitkit finetune START FOLDER --image-size 64, nothing else: a tenth of the photos chooses
              the weights
    swept     the same with the rate that was best on a held-out tenth, then on all photos, last weights
    timm      timm's model, transforms, AdamW and cosine schedule in a plain loop (photos_timm.py), the rate
              swept in the same way
    paper     --recipe paper, but 100 steps of 64 images at that size, not 500 of 512 at 384 pixels

What is done stands in OUT/results.jsonl, one line a training, and is not done again; at the end the table is
printed in Markdown. Without timm its side is left out.
"""

import argparse
import json
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import vitkit
from vitkit.data.config import Splits

SEEDS = {50: 3, 200: 3, 1000: 1, 2000: 1}
"""Photos of a folder, and how many folders are drawn: each with a seed, which is that of its training too."""
SWEPT = 200
"""Photos of the folder on which a rate is swept, for folders of all sizes: of 50 photos a tenth is 5, too few
to choose by, and sweeping on more takes most of the time."""
RATES = (2e-4, 5e-4, 1.25e-3, 3e-3)
SIDES = ("default", "timm", "paper", "swept")


@dataclass(frozen=True)
class Training:
    """One training, and what names its line in the results."""

    side: str
    photos: int
    seed: int
    rate: float | None = None
    """The peak of the learning rate; None for that of the command or recipe."""
    held_out: bool = False
    """Whether a tenth of the photos is held out and measured in place of the test photos."""


@dataclass(frozen=True)
class Outcome:
    """The result of one training."""

    training: Training
    steps: int
    batch_size: int
    accuracy: float
    loss: float
    processor_seconds: float
    """Seconds of this process and those it started: training, reading and measuring."""
    seconds: float


@dataclass(frozen=True)
class Bench:
    """The options that all trainings have in common."""

    start: Path
    photos: Path
    out: Path
    image_size: int

    def results(self) -> dict[Training, Outcome]:
        """Read the trainings that are done."""
        file, outcomes = self.out / "results.jsonl", {}
        for line in file.read_text().splitlines() if file.exists() else []:
            with suppress(json.JSONDecodeError):  # a run that was killed may have left a part of a line
                record = json.loads(line)
                training = Training(**record.pop("training"))
                outcomes[training] = Outcome(training, **record)
        return outcomes

    def done(self, training: Training) -> Outcome:
        """Return the outcome of a training, which is trained where it was not yet."""
        before = self.results().get(training)
        if before is not None:
            return before
        began, used = time.perf_counter(), _processor_seconds()
        steps, batch_size, accuracy, loss = self._train(training)
        used, took = _processor_seconds() - used, time.perf_counter() - began
        outcome = Outcome(training, steps, batch_size, accuracy, loss, used, took)
        with (self.out / "results.jsonl").open("a") as file:
            file.write("\n" + json.dumps(asdict(outcome)))
        print(f"{training}: {accuracy:.1%}, loss {loss:.3f}, {used:.0f} s", file=sys.stderr, flush=True)
        return outcome

    def _train(self, training: Training) -> tuple[int, int, float, float]:
        """Give steps, batch, accuracy and loss."""
        data = self.folder(training.photos, training.seed, training.held_out)
        recipe = "paper" if training.side == "paper" else ""
        whole = self.folder(training.photos, training.seed, False)
        run = vitkit.finetune_run(str(self.start), str(whole), recipe=recipe, image_size=self.image_size)
        # Equal steps: those of the default command, which trains on nine tenths of the photos.
        left = round(training.photos * (1 - run.splits.val_fraction))
        steps, batch_size = run.training.total_steps(left), run.training.batch_size
        if training.side == "timm":
            from benchmarks.photos_timm import finetune_in_timm

            numbers = finetune_in_timm(
                self.timm_start(),
                data,
                rate=training.rate or 0.0,
                steps=steps,
                batch_size=batch_size,
                image_size=self.image_size,
                seed=training.seed,
            )
            return steps, batch_size, *numbers
        run = replace(run, data=str(data), training=replace(run.training, seed=training.seed))
        if training.side == "paper":
            steps, batch_size = 100, 64
            run = replace(run, optimizer=replace(run.optimizer, warmup_steps=10))
            run = replace(run, training=replace(run.training, steps=steps, batch_size=batch_size))
        if training.rate is not None:  # all photos, so nothing is left to choose the weights by
            run = replace(
                run,
                optimizer=replace(run.optimizer, learning_rate=training.rate),
                splits=Splits(val_fraction=0.0, test_fraction=0.0),
                training=replace(run.training, steps=steps, select="last"),
            )
        name = f"{training.side}-{training.photos}-{training.seed}-{training.rate}-{training.held_out}"
        folder = vitkit.train(run, self.out / "runs" / name, threads=torch.get_num_threads())
        result = vitkit.evaluate(folder, split="test").result
        shutil.rmtree(folder / "checkpoints")  # of megabytes, and not needed any more
        return steps, batch_size, result.accuracy, result.loss

    def folder(self, photos: int, seed: int, held_out: bool) -> Path:
        """Return a folder of photos with class folders in `train/` and `test/`, which is made if need be."""
        folder = self.out / f"photos-{photos}-{seed}{'-held-out' if held_out else ''}"
        if (folder / "test").exists():
            return folder
        train, test = draw(self.photos, photos, seed)
        if held_out:
            # The first of every tenth photo of the classes one after another: a tenth, spread over classes.
            by_class = sorted(train)
            test = by_class[seed % 10 :: 10]
            train = [photo for photo in by_class if photo not in test]
        write_photos(self.photos, "train", train, folder / "train")
        unfinished = folder / "test-unfinished"
        write_photos(self.photos, "train" if held_out else "test", test, unfinished)
        unfinished.rename(folder / "test")
        return folder

    def timm_start(self) -> Path:
        """Return the start in timm's format, for the image size, after timm's own model agreed with ours."""
        folder = self.out / f"start-timm-{self.image_size}"
        if not folder.exists():
            made = vitkit.convert(self.start, folder, to="timm", image_size=self.image_size, against="timm")
            print(f"the start in timm's own model: {made.beside_library}", file=sys.stderr, flush=True)
        return folder


Photo = tuple[str, int]
"""Class name, and the row in the Parquet file."""


def draw(source: Path, photos: int, seed: int) -> tuple[list[Photo], list[Photo]]:
    """Draw training photos, as many of each class, and take all of the test photos."""
    rng = np.random.default_rng(seed)
    train, test = _rows(source, "train"), _rows(source, "test")
    each = photos // len(train)
    drawn = [(name, int(row)) for name, rows in train.items() for row in rng.permutation(rows)[:each]]
    return drawn, [(name, row) for name, rows in test.items() for row in rows]


def write_photos(source: Path, split: str, photos: list[Photo], folder: Path) -> None:
    """Write photos into class folders, as the bytes that they are."""
    images = _table(source, split).column("image")
    for name, row in photos:
        file = folder / name.replace(" ", "_") / f"{split}-{row:04}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(images[row].as_py()["bytes"])


def _rows(source: Path, split: str) -> dict[str, list[int]]:
    table = _table(source, split)
    names = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]["label"]["names"]
    labels = table.column("label").to_pylist()
    return {
        name: [row for row, label in enumerate(labels) if label == number]
        for number, name in enumerate(names)
    }


def _table(source: Path, split: str) -> pa.Table:
    (file,) = source.glob(f"**/{split}-*.parquet")
    return pq.read_table(file)


def best_rate(bench: Bench, side: str) -> float:
    """Sweep the rate of a side on a held-out tenth: the most accurate, of equals the lowest loss."""

    def worth(rate: float) -> tuple[float, float]:
        outcome = bench.done(Training(side, SWEPT, 0, rate, held_out=True))
        return outcome.accuracy, -outcome.loss

    return max(RATES, key=worth)


def outcomes_of(bench: Bench, side: str, photos: int) -> Iterator[Outcome]:
    """Yield the outcomes of a side on all folders of a size."""
    rate = best_rate(bench, side) if side in ("timm", "swept") else None
    for seed in range(SEEDS[photos]):
        yield bench.done(Training(side, photos, seed, rate))


def table(rows: list[list[Outcome]]) -> str:
    """Write the outcomes as a Markdown table, one row for each side and size."""
    lines = [
        "| photos | side | rate | steps x batch | test accuracy | of each folder | processor minutes |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for group in sorted(rows, key=lambda outcomes: outcomes[0].training.photos):
        first, accuracies = group[0], [outcome.accuracy for outcome in group]
        minutes = statistics.median(outcome.processor_seconds for outcome in group) / 60
        rate = "its own" if first.training.rate is None else f"{first.training.rate:g}"
        each = ", ".join(f"{100 * accuracy:.1f}" for accuracy in accuracies)
        lines.append(
            f"| {first.training.photos:,} | {first.training.side} | {rate} | "
            f"{first.steps:,} x {first.batch_size} | "
            f"**{100 * statistics.mean(accuracies):.1f} %** | {each} | {minutes:.1f} |"
        )
    return "\n".join(lines)


def _processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("start", type=Path, help="a plain ViT: a run folder or checkpoint")
    parser.add_argument("--photos", type=Path, required=True, help="Parquet of photos, train and test")
    parser.add_argument("--out", type=Path, default=Path("runs/photos"))
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--sizes", type=int, nargs="*", choices=list(SEEDS), default=list(SEEDS))
    parser.add_argument("--sides", nargs="*", choices=SIDES, default=list(SIDES))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(options.start, options.photos, options.out, options.image_size)
    sides = [side for side in options.sides if side != "timm" or find_spec("timm")]
    rows = [list(outcomes_of(bench, side, photos)) for side in sides for photos in options.sizes]
    print(table(rows))


if __name__ == "__main__":
    main()

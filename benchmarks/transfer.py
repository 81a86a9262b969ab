#!/usr/bin/env python
"""Transfer in small: fine-tuning, a frozen backbone, training from scratch and few-shot ridge, side by side.

    python -m benchmarks.transfer --data DATA --out runs/transfer [--seeds 3] [--cases digits] [--print]

DATA holds the folders cifar10, mnist and imagenette-224-small: Parquet files in the layout of Hugging Face.
Starts that are missing are trained first. A result is a line of `cells.jsonl` in the folder `--out`; those
that are there are not measured again, so the same command goes on after it was stopped. Another folder
measures all anew.
"""

import argparse
import io
import json
import math
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from PIL import Image
from scipy.stats import t as student

import vitkit

TEST_IMAGES = 1000
"""Test images of a case at most: the standard error of an accuracy is then at most 1.6 points."""
HELD_OUT = ("cat", "truck")
"""Classes of CIFAR-10 that one of the starts has never seen."""


@dataclass(frozen=True)
class Case:
    """A start and the images that it is moved to."""

    start: str
    target: str
    classes: int
    shots: tuple[int, ...]
    """Training images of each class."""
    larger: tuple[int, ...] = ()
    """Those of them that are also fine-tuned at twice the resolution."""
    as_start: bool = False
    """Whether images are changed at random as those of the start were, and not as by default: digits lose
    their meaning when they are mirrored, or cropped to a quarter."""


CASES = {
    "cifar": Case("cifar8", "cat-truck", len(HELD_OUT), (5, 25, 100), larger=(25,)),
    "imagenette": Case("imagenette", "cifar10", 10, (10, 100)),
    "digits": Case("mnist", "digits", 10, (5, 25), as_start=True),
}


def start_runs(data: Path, made: Path) -> dict[str, vitkit.Run]:
    """Make the runs of the starts: small models and few epochs, so that a core needs minutes for each."""

    def run(recipe: str, source: Path, model: str, epochs: float, batch: int, warmup: int) -> vitkit.Run:
        base = vitkit.recipe(recipe)
        return replace(
            base,
            data=str(source),
            model=model,
            optimizer=replace(base.optimizer, warmup_steps=warmup),
            training=replace(base.training, epochs=epochs, batch_size=batch),
            splits=replace(base.splits, val_fraction=0.02, test_fraction=0.0),
        )

    photos = run("small-images-conv", data / "imagenette-224-small", "ViT-64x6x2/8", 16, 64, 60)
    return {
        "cifar8": run("small-images-conv", made / "cifar8", "ViT-96x4x3/8", 1.5, 128, 60),
        "imagenette": replace(photos, architecture=replace(photos.architecture, stem_channels=(16, 32, 64))),
        "mnist": run("digits", data / "mnist", "ViT-64x4x4/4", 1, 64, 50),
    }


Change = Callable[[vitkit.Run, vitkit.Run, int], vitkit.Run]
"""Make the run of a method from the default run of `vitkit finetune`, that of the start, and the steps."""


def default(run: vitkit.Run, start: vitkit.Run, steps: int) -> vitkit.Run:
    return run


def frozen(run: vitkit.Run, start: vitkit.Run, steps: int) -> vitkit.Run:
    """The head alone, at the rate that `vitkit finetune --freeze backbone --head new` chooses."""
    return replace(run, optimizer=replace(run.optimizer, freeze="backbone", learning_rate=3e-3))


def larger(run: vitkit.Run, start: vitkit.Run, steps: int) -> vitkit.Run:
    """The default at twice the resolution: position embeddings are resized, as in the paper (3.2)."""
    height, width = run.preprocessing.image_size
    return replace(run, preprocessing=replace(run.preprocessing, image_size=(2 * height, 2 * width)))


def scratch(run: vitkit.Run, start: vitkit.Run, steps: int) -> vitkit.Run:
    """New weights in as many steps on the same images, by the recipe that trained the start."""
    optimizer = replace(start.optimizer, warmup_steps=steps // 10)
    new = replace(run, start=start.start, model=start.model, architecture=start.architecture)
    return replace(new, optimizer=optimizer, augmentation=start.augmentation, objective=start.objective)


METHODS: dict[str, Change] = {
    "full": default,
    "frozen": frozen,
    "scratch": scratch,
    "larger": larger,
}
RIDGE = "ridge"
COLUMNS = {
    "full": "full (default)",
    "frozen": "head alone",
    "scratch": "from scratch",
    RIDGE: "few-shot ridge",
    "larger": "full, twice the resolution",
}


@dataclass(frozen=True)
class Cell:
    """A result to be measured."""

    case: str
    shots: int
    method: str
    seed: int
    """Seed of the drawn images and of training."""


def cells(cases: list[str], seeds: int) -> Iterator[Cell]:
    """Name the results of the table, those of the fewest images first, which take the least time."""
    rows = [(CASES[name].classes * shots, name, shots) for name in cases for shots in CASES[name].shots]
    for _images, name, shots in sorted(rows):
        methods = [method for method in COLUMNS if method != "larger" or shots in CASES[name].larger]
        yield from (Cell(name, shots, method, seed) for seed in range(seeds) for method in methods)


def read_split(folder: Path, split: str) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.rglob(f"{split}-*.parquet"))])


def class_names(table: pa.Table) -> list[str]:
    return list(json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]["label"]["names"])


def with_classes(table: pa.Table, classes: list[str]) -> pa.Table:
    """Keep the images of some classes, which are numbered anew."""
    names = class_names(table)
    numbers = pa.array([names.index(name) for name in classes], pa.int64())
    table = table.filter(pc.is_in(table["label"], value_set=numbers))
    labels = pc.index_in(table["label"], value_set=numbers).cast(pa.int64())
    feature = {"names": classes, "_type": "ClassLabel"}
    info = {"info": {"features": {"image": {"_type": "Image"}, "label": feature}}}
    table = table.set_column(table.column_names.index("label"), "label", labels)
    return table.replace_schema_metadata({b"huggingface": json.dumps(info).encode()})


def digit_images() -> tuple[pa.Table, pa.Table]:
    """Return scikit-learn's digits in two halves: every second one is a test image."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    rows = []
    for pixels in np.clip(digits.images * 255 / 16, 0, 255).astype(np.uint8):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        rows.append({"bytes": file.getvalue(), "path": None})
    table = pa.table({"image": rows, "label": pa.array(digits.target.astype(np.int64))})
    even = np.arange(len(table)) % 2 == 0
    return table.filter(pa.array(even)), table.filter(pa.array(~even))


def target_images(target: str, data: Path) -> tuple[pa.Table, pa.Table]:
    """Return the images to draw from, and those to test on: none of them, and never looked at before."""
    if target == "digits":
        return digit_images()
    train, test = (read_split(data / "cifar10", split) for split in ("train", "test"))
    if target == "cat-truck":
        return with_classes(train, list(HELD_OUT)), with_classes(test, list(HELD_OUT))
    return train, test


def drawn(case: Case, shots: int, seed: int, data: Path, made: Path) -> Path:
    """Write the training images of a seed and the test images to a folder, unless they are there."""
    folder = made / f"{case.target}-{shots}-{seed}"
    if not (folder / "test-0.parquet").exists():
        train, test = target_images(case.target, data)
        labels = np.array(train["label"])
        order = np.random.default_rng(seed).permutation(len(labels))
        chosen = np.concatenate([order[labels[order] == label][:shots] for label in np.unique(labels)])
        # The same test images for every seed: a draw is what differs.
        tested = np.sort(np.random.default_rng(0).permutation(len(test))[:TEST_IMAGES])
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(train.take(np.sort(chosen)), folder / "train-0.parquet")
        pq.write_table(test.take(tested), folder / "test-0.parquet")
    return folder


def make_start(name: str, run: vitkit.Run, data: Path, made: Path, out: Path) -> Path:
    """Train a start, or continue it, unless it is there."""
    if name == "cifar8" and not (made / name / "train-0.parquet").exists():
        table = read_split(data / "cifar10", "train")
        images = with_classes(table, [name for name in class_names(table) if name not in HELD_OUT])
        (made / name).mkdir(parents=True, exist_ok=True)
        pq.write_table(images, made / name / "train-0.parquet")
    folder = out / "starts" / name
    return folder if (folder / "report.html").exists() else vitkit.train(run, folder, device="cpu", threads=1)


def measure(cell: Cell, start: Path, begun: vitkit.Run, images: Path, folder: Path) -> dict[str, Any]:
    """Measure a cell; returns the accuracy and what it took."""
    if cell.method == RIDGE:
        by_ridge = vitkit.fewshot(
            start, str(images), shots=[cell.shots], seeds=1, methods=["ridge"], cache=False, device="cpu"
        )
        return {"accuracy": by_ridge.models[0].scores[0].mean, "steps": 0}
    run = vitkit.finetune_run(str(start), str(images))
    # All drawn images are trained on, as the ridge is, and the last weights are tested.
    run = replace(run, splits=replace(run.splits, val_fraction=0.0))
    if CASES[cell.case].as_start:
        run = replace(run, augmentation=begun.augmentation)
    run = replace(run, training=replace(run.training, seed=cell.seed))
    steps = run.training.total_steps(cell.shots * CASES[cell.case].classes)
    run = METHODS[cell.method](run, begun, steps)
    vitkit.train(run, folder, device="cpu", threads=1)
    result = json.loads((folder / "evaluation" / "test.json").read_text())
    return {"accuracy": result["accuracy"], "steps": steps}


def read_records(path: Path) -> dict[Cell, dict[str, Any]]:
    """Read the results that are there; what a kill cut short is measured again."""
    records = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        records[Cell(record["case"], record["shots"], record["method"], record["seed"])] = record
    return records


def summary(accuracies: list[float]) -> str:
    """Write mean, standard deviation and 95 % interval of the mean (Student's t over seeds), in per cent."""
    if not accuracies:
        return ""
    mean = 100 * statistics.fmean(accuracies)
    if len(accuracies) == 1:
        return f"{mean:.1f} (one seed)"
    deviation, count = 100 * statistics.stdev(accuracies), len(accuracies)
    half = float(student.ppf(0.975, count - 1)) * deviation / math.sqrt(count)
    few = "" if count > 2 else ", two seeds"
    return f"{mean:.1f} ± {deviation:.1f} ({max(mean - half, 0):.0f} to {min(mean + half, 100):.0f}{few})"


def table(records: dict[Cell, dict[str, Any]]) -> str:
    """Write the results as a table in Markdown."""
    lines = [
        f"| start -> images | a class | steps | {' | '.join(COLUMNS.values())} |",
        "| --- " * (3 + len(COLUMNS)) + "|",
    ]
    for name, case in CASES.items():
        for shots in case.shots:
            own = {
                cell: record for cell, record in records.items() if (cell.case, cell.shots) == (name, shots)
            }
            if not own:
                continue
            values = [
                summary([r["accuracy"] for cell, r in own.items() if cell.method == m]) for m in COLUMNS
            ]
            steps = max(record["steps"] for record in own.values())
            lines.append(
                f"| {case.start} -> {case.target} | {shots} | {steps or ''} | {' | '.join(values)} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of cifar10, mnist and imagenette")
    parser.add_argument("--out", type=Path, default=Path("runs/transfer"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--print", action="store_true", help="print the table as it stands, measure nothing")
    options = parser.parse_args()
    path, made = options.out / "cells.jsonl", options.out / "data"
    records, starts = read_records(path), start_runs(options.data, made)
    for cell in () if options.print else cells(options.cases, options.seeds):
        if cell in records:
            continue
        case = CASES[cell.case]
        start = make_start(case.start, starts[case.start], options.data, made, options.out)
        images = drawn(case, cell.shots, cell.seed, options.data, made)
        folder = (
            options.out / "runs" / f"{cell.case}-{cell.shots}-{cell.method.replace(' ', '-')}-{cell.seed}"
        )
        began = time.monotonic()
        outcome = measure(cell, start, starts[case.start], images, folder)
        record = {**vars(cell), **outcome, "seconds": round(time.monotonic() - began, 1)}
        with path.open("a", encoding="utf-8") as file:
            # The line break before it ends a line that a kill cut short.
            file.write("\n" + json.dumps(record) + "\n")
        shutil.rmtree(folder, ignore_errors=True)  # checkpoints of many small runs fill a disk
        records[cell] = record
        print(json.dumps(record), flush=True)
    print(table(records))


if __name__ == "__main__":
    main()

"""Measure how often the truth lies inside the 80 % interval that `vitkit advise` gives.

    python benchmarks/advice.py --data DATA --out runs/advice

Subsets of 50 to 500 images of four data sets, and two starts that the script trains itself in a few minutes.
For each: advice, then the run, then its accuracy on 400 to 1,000 test images that neither
the start nor the run has seen. `outcomes.jsonl` gets a line for each; what is there is not done again.
In the end a table is printed, and how often the truth was inside. `advice_outcomes.jsonl` has such lines.

The constants of `vitkit.jobs.advice.forecast` come from this script: `fit` on the outcomes of all data sets.
The coverage that is printed first is never of outcomes that a relation was fitted to: each data set is
predicted by the relation of the other three.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import vitkit
from vitkit.config import from_json, to_json
from vitkit.data.config import Augmentation, Preprocessing, Splits
from vitkit.data.sources import open_data
from vitkit.jobs import train_run as training
from vitkit.jobs.advice.forecast import FINETUNED, Outcome, Relation, evidence_of, fit, predict
from vitkit.runs.config import Architecture, Run
from vitkit.training.config import OptimizerConfig, TrainingConfig

SIZES = (50, 100, 200, 500)
PAIRS = (
    ("cifar10", "from-cifar10"),
    ("cifar10", "from-mnist"),
    ("mnist", "from-cifar10"),
    ("mnist", "from-mnist"),
    ("digits", "from-mnist"),
    ("digits", "from-cifar10"),
    ("imagenette-224-small", "from-cifar10"),
    ("imagenette-224-small", "from-mnist"),
)
"""Data sets, and the starts that are fine-tuned on them."""
TESTED = 1000
FIELDS = ("evidence", "images", "right", "tested", "data")


@dataclass(frozen=True)
class Case:
    """A run whose accuracy is predicted, and then measured."""

    data: str
    size: int
    start: str

    @property
    def name(self) -> str:
        return f"{self.data}-{self.size}-{self.start}"


def cases() -> Iterator[Case]:
    """List the cases, small ones first, so that a run that is broken off has something of everything."""
    for size in SIZES:
        for data, start in PAIRS:
            yield Case(data, size, start)


def small_run(data: str, model: str, size: int, stem: tuple[int, ...] | None, **length: Any) -> Run:
    """Make a run from new weights, with the options of the recipe small-images."""
    base = vitkit.recipe("small-images")
    return replace(
        base,
        recipe="",
        data=data,
        model=model,
        architecture=Architecture(stem_channels=stem),
        preprocessing=Preprocessing(image_size=(size, size)),
        augmentation=Augmentation(crop_area=(0.4, 1.0), flip=stem is not None),
        optimizer=OptimizerConfig(learning_rate=1e-3, weight_decay=0.1, warmup_steps=100),
        training=TrainingConfig(batch_size=64, evaluate_every=400, **length),
    )


CONV = ("ViT-96x4x3/8", 32, (16, 32, 64))
PATCHES = ("ViT-64x4x2/7", 28, None)


def pretrain(root: Path, out: Path) -> None:
    """Train the two starts, on the training images of CIFAR-10 and MNIST."""
    for name, model, length in (("cifar10", CONV, {"epochs": 2.0}), ("mnist", PATCHES, {"steps": 300})):
        run = small_run(str(root / name), *model, **length)
        vitkit.train(run, out / f"from-{name}", threads=1)


def write_subset(case: Case, root: Path, out: Path) -> Path:
    """Write the images of a case as folders train/ and test/: none that a start was trained on."""
    folder = out / "data" / f"{case.data}-{case.size}"
    if (folder / "complete").exists():
        return folder
    spec = case.data if case.data == "digits" else str(root / case.data)
    data = open_data(spec, Splits(val_fraction=0, test_fraction=1 / 3 if case.data == "digits" else 0.2))
    own_test = case.data in ("cifar10", "mnist")  # the starts have seen the training images of these
    pool = data.splits["test" if own_test else "train"]
    order = np.random.default_rng(0).permutation(len(pool))
    test, rest = (order[:TESTED], order[TESTED:]) if own_test else (None, order)
    drawn = np.random.default_rng(case.size).permutation(rest)
    first = np.unique(pool.labels[drawn], return_index=True)[1]  # no class is left out
    chosen = drawn[np.concatenate([first, np.setdiff1d(np.arange(len(drawn)), first)])][: case.size]
    parts = {"train": (pool, chosen)}
    parts["test"] = (
        (pool, test) if test is not None else (data.splits["test"], np.arange(len(data.splits["test"])))
    )
    for split, (samples, indices) in parts.items():
        for index in indices.tolist():
            path = folder / split / data.class_names[int(samples.labels[index])] / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            file = samples.file(index)
            path.write_bytes(file if isinstance(file, bytes) else file.read_bytes())
    (folder / "complete").touch()
    return folder


def truth(case: Case, data: Path, out: Path) -> tuple[int, int]:
    """Run a case; returns the test images that it is right on, and all."""
    folder = out / "runs" / case.name
    if not (folder / "evaluation" / "test.json").exists():
        vitkit.finetune(str(out / case.start), str(data), folder, threads=1)
    evaluation = json.loads((folder / "evaluation" / "test.json").read_text())
    return round(evaluation["accuracy"] * evaluation["count"]), evaluation["count"]


def without_report(folder: Path, **_options: Any) -> Path:
    """Stand in for the report, whose pictures would take longer than these runs."""
    (folder / "report.html").write_text("not written by this benchmark")
    return folder / "report.html"


def outcome(case: Case, data: Path, out: Path) -> dict[str, Any]:
    """Give advice, run the case, and put both together."""
    advice = vitkit.advise(str(data), str(out / case.start))
    option = advice.options[0]
    assert option.folded is not None
    right, tested = truth(case, data, out)
    clock = (out / "runs" / case.name / "speed.jsonl").read_text().split("\n")
    return {
        "name": case.name,
        "data": case.data,
        "start": case.start,
        "images": advice.images,
        "evidence": to_json(evidence_of(option.folded)),
        "right": right,
        "tested": tested,
        "seconds_expected": option.seconds,
        "seconds": max(json.loads(line)["seconds"] for line in clock if line.strip()),
    }


def summarise(lines: Sequence[dict[str, Any]], kind: str, shipped: Relation) -> None:
    """Print a table of runs of a kind, how often the truth was inside, and what fits them all."""
    if len(lines) < 6:
        return
    runs = {line["name"]: from_json(Outcome, {key: line[key] for key in FIELDS}, kind) for line in lines}
    print(f"\n{kind}: {len(runs)} runs\n\n| run | probe | expected by the others | came out | inside |")
    print("| --- | --- | --- | --- | --- |")
    inside, by_shipped = 0, 0
    for line in lines:
        run = runs[line["name"]]
        others = [runs[other["name"]] for other in lines if other["data"] != line["data"]]
        said = predict(run.evidence, run.images, run.tested, fit(others))
        accuracy = run.right / run.tested
        hit = said.low <= accuracy <= said.high
        by_all = predict(run.evidence, run.images, run.tested, shipped)
        inside, by_shipped = inside + hit, by_shipped + (by_all.low <= accuracy <= by_all.high)
        answer = "yes" if hit else "no"
        probe = run.evidence.right / run.evidence.images
        print(f"| {line['name']} | {probe:.1%} | {said.percentages} | {accuracy:.1%} | {answer} |")
    print(f"\ninside, each data set by the relation of the others: {inside} of {len(runs)}")
    print(f"inside, by that in vitkit.jobs.advice.forecast: {by_shipped} of {len(runs)}")
    print(f"the relation that fits all: {fit(list(runs.values()))}")


def main() -> None:
    parser = argparse.ArgumentParser(description="How often the truth lies inside the advice's interval.")
    parser.add_argument("--data", type=Path, required=True, help="folder of cifar10, mnist and imagenette")
    parser.add_argument("--out", type=Path, required=True, help="folder for starts, runs and outcomes")
    parser.add_argument("--minutes", type=float, default=45.0, help="after which no further case is begun")
    given = parser.parse_args()
    torch.set_num_threads(1)
    mock.patch.object(training, "write_report", without_report).start()
    began = time.monotonic()
    pretrain(given.data, given.out)
    path = given.out / "outcomes.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for case in cases():
        if case.name in {line["name"] for line in lines}:
            continue
        if time.monotonic() - began > 60 * given.minutes:
            break
        lines.append(outcome(case, write_subset(case, given.data, given.out), given.out))
        with path.open("a") as file:
            file.write(json.dumps(lines[-1]) + "\n")
        print(f"{time.monotonic() - began:6.0f} s  {case.name}", flush=True)
    summarise(lines, "fine-tuned", FINETUNED)
    ratios = [line["seconds"] / line["seconds_expected"] for line in lines]
    if ratios:
        print(f"\nseconds of a run over those expected: median {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()

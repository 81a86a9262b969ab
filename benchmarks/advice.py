"""How often the truth lies inside the 80 % interval that `vitkit advise` gives, and how fast it says so.

    python benchmarks/advice.py --data /work/shared/data --out /tmp/advice

Subsets of 50 to 2,000 images of four data sets, two starts that the script trains itself in a few minutes,
and new weights. For each: advice, then the run, then its accuracy on 400 to 1,000 test images that neither
the start nor the run has seen. `outcomes.jsonl` gets a line for each; what is there is not done again.
In the end a table is printed, and how often the truth was inside.

The constants of `vitkit.jobs.forecast` come from this script: `fit` on the outcomes of all data sets. What is
printed as coverage is never of the outcomes that a rule was fitted to: each data set is predicted by the rule
of the other three.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vitkit
from vitkit.data.sources import open_data
from vitkit.data.sources_config import Splits
from vitkit.data.transforms_config import Augmentation, Preprocessing
from vitkit.jobs import train as training
from vitkit.jobs.run_config import Architecture, Run
from vitkit.training.optim_config import OptimizerConfig
from vitkit.training.trainer_config import TrainingConfig

SIZES = (50, 100, 200, 500, 1000, 2000)
SCRATCH_SIZES = (100, 500, 2000)
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
NEVER = (1, 1, 1)


@dataclass(frozen=True)
class Case:
    """A run whose accuracy is predicted, and then measured."""

    data: str
    size: int
    start: str
    """ "" for new weights."""

    @property
    def name(self) -> str:
        return f"{self.data}-{self.size}-{self.start or 'scratch'}"


def cases() -> Iterator[Case]:
    """List the cases, small ones first, so that a run that is broken off has something of everything."""
    for size in SIZES:
        for data, start in PAIRS:
            if data != "digits" or size <= 1000:
                yield Case(data, size, start)
        if size in SCRATCH_SIZES:
            for data in dict.fromkeys(data for data, _ in PAIRS):
                if data != "digits" or size <= 1000:
                    yield Case(data, size, "")


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
        if case.start:
            vitkit.finetune(str(out / case.start), str(data), folder, threads=1)
        else:
            steps = max(150, math.ceil(15 * case.size / 64))
            vitkit.train(small_run(str(data), *PATCHES, steps=steps), folder, threads=1)
    found = json.loads((folder / "evaluation" / "test.json").read_text())
    return round(found["accuracy"] * found["count"]), found["count"]


def without_report(folder: Path, **_options: Any) -> Path:
    """Stand in for the report, whose pictures would take longer than these runs."""
    (folder / "report.html").write_text("not written by this benchmark")
    return folder / "report.html"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of cifar10, mnist and imagenette")
    parser.add_argument("--out", type=Path, required=True, help="folder for starts, runs and outcomes")
    given = parser.parse_args()
    torch.set_num_threads(1)
    training.write_report = without_report
    pretrain(given.data, given.out)
    for case in cases():
        data = write_subset(case, given.data, given.out)
        started = time.monotonic()
        print(case, truth(case, data, given.out), time.monotonic() - started, flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python
"""Measure what pre-training without labels is worth where few images have labels.

    python -m benchmarks.labels DATA OUT [--model ViT-64x4x4/7] [--image-size 28] [--labels 10,100]
        [--draws 20] [--seeds 2] [--steps 1000] [--fewshot] [--arms ...] [--parts 1] [--part 0]

DATA is pre-trained on without its labels, by each objective and with each seed; OUT keeps every run, and the
same command goes on there. Then each start, and new weights, are fine-tuned on some labelled images, drawn
anew in every draw and the same for all of them, and tested on the test images of DATA. The tables show the
mean accuracy over the draws, and the difference from new weights draw by draw, with its 95 % interval
(`vitkit.evaluation.statistics`).

With --fewshot the features are measured at each validation of a pre-training, on training and test images of
DATA; the labels are used for nothing else.

With --parts 2 two such commands share the work: each takes every second run.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import torch

import vitkit.jobs.train_run
from vitkit.data.config import Preprocessing
from vitkit.evaluation.fewshot.config import FewShotTracking
from vitkit.jobs.options import StudyOptions, ThenOptions
from vitkit.jobs.pretrain import fine_tune_without, from_start
from vitkit.jobs.recipes import recipe
from vitkit.jobs.study.study import Arm, arm_table, compare_scored, complete_arm, read_scores
from vitkit.listener import SILENT
from vitkit.runs.config import Run
from vitkit.runs.plan import look_at
from vitkit.runs.run_options import SeriesOptions
from vitkit.training.config import MaskedPatchesConfig

COMMAND = "python -m benchmarks.labels"
"""In the records of the arms."""
Target = Literal["mean-colour", "4x4-colours", "pixels"]
ARMS: dict[str, tuple[str, Target | None]] = {
    "mean-colour": ("masked-patches", "mean-colour"),
    "4x4-colours": ("masked-patches", "4x4-colours"),
    "pixels": ("masked-patches", "pixels"),
    "simmim": ("simmim", None),
    "mae": ("mae", None),
}


def pretraining(name: str, options: argparse.Namespace, seed: int) -> Run:
    """Make the run that pre-trains by an objective."""
    task, target = ARMS[name]
    run = recipe(f"{task}-small")
    objective = (
        replace(run.objective, target=target)
        if target is not None and isinstance(run.objective, MaskedPatchesConfig)
        else None
    )
    tracking = FewShotTracking(data=options.data, shots=(5, 25))
    return replace(
        run,
        data=options.data,
        fewshot=tracking if options.fewshot else FewShotTracking(),
        model=options.model,
        objective=objective or run.objective,
        preprocessing=Preprocessing(image_size=(options.image_size, options.image_size)),
        augmentation=replace(run.augmentation, flip=options.flip, crop_area=(0.7, 1.0)),
        training=replace(run.training, steps=options.steps, batch_size=options.batch_size, seed=seed),
    )


def write_no_report(folder: Path, **_: Any) -> Path:
    """Write a page without pictures: those of hundreds of runs take longer than the runs."""
    path: Path = folder / "report.html"
    path.write_text("vitkit report writes this page")
    return path


def print_curves(folder: Path) -> None:
    """Print the validations of a pre-training: its loss, both losses without a model, few-shot accuracy."""
    lines = map(json.loads, (folder / "final" / "metrics.jsonl").read_text().splitlines())
    rows: dict[int, dict[str, float]] = {}
    for line in lines:
        if line["kind"] != "train":
            rows.setdefault(line["step"], {}).update(
                (key, value) for key, value in line.items() if isinstance(value, float) and key != "epoch"
            )
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    print(f"\n{folder.name}\n\n| step | {' | '.join(names)} |\n|" + " --- |" * (1 + len(names)))
    for step, row in rows.items():
        cells = [f"{row[name]:.4f}" if name in row else "" for name in names]
        print(f"| {step:,} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Pre-train, fine-tune and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="ViT-64x4x4/7")
    parser.add_argument("--image-size", type=int, default=28)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--flip", action="store_true")
    parser.add_argument("--fewshot", action="store_true")
    parser.add_argument("--labels", default="10,100")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--tune-steps", type=int, default=1000)
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--part", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(max(1, torch.get_num_threads() // options.parts))
    machine = StudyOptions(threads=torch.get_num_threads(), listener=SILENT, command=COMMAND)
    mock.patch.object(vitkit.jobs.train_run, "write_report", write_no_report).start()
    options.data, number = str(Path(options.data).resolve()), 0
    starts = [(name, seed) for seed in range(options.seeds) for name in options.arms.split(",")]
    for name, seed in starts:
        number += 1
        if number % options.parts == options.part:
            arm = Arm(f"pretrain-{name}-{seed}", name, pretraining(name, options, seed), SeriesOptions())
            began = time.monotonic()
            complete_arm(arm, options.out, name, machine)
            print(f"{name} seed {seed}: {time.monotonic() - began:.0f} s", flush=True)
            print_curves(options.out / arm.folder)
    for labels in map(int, options.labels.split(",")):
        then = ThenOptions(
            then=options.data, labels=labels, draws=options.draws, tune_steps=options.tune_steps
        )
        base = pretraining("mean-colour", options, 0)
        without = fine_tune_without(base, then, look_at(base), SILENT)
        arms = [("new weights", "new", without)]
        for name, seed in starts:
            folder = options.out / f"pretrain-{name}-{seed}"
            while not (folder / "model.safetensors").exists():
                time.sleep(5)  # another part is at work on it
            arms.append((f"{name}, seed {seed}", f"{name}-{seed}", from_start(without, folder.resolve())))
        series, whole, completed = SeriesOptions(runs=options.draws, redraw=options.draws > 1), [], []
        for label, folder, run in arms:
            number += 1
            arm = Arm(f"{labels}-{folder}", label, run, series)
            if number % options.parts == options.part:
                complete_arm(arm, options.out, label, machine)
            whole.append(arm)
        if options.part == 0:
            for arm in whole:
                while not (options.out / arm.folder / "model.safetensors").exists():
                    time.sleep(5)
                completed.append(complete_arm(arm, options.out, arm.label, machine))
            seeds = [member.seed for member in completed[0].members]
            tested = read_scores(options.out, whole, completed)
            table = arm_table(compare_scored(tested, whole, completed, seeds))
            print(f"\n{labels} labels, {options.draws} draws\n")
            shown = [0, 1, *range(len(table.headings) - 6, len(table.headings))]
            for row in (table.headings, ["---"] * len(table.headings), *table.rows):
                print("| " + " | ".join(str(row[column]) for column in shown) + " |", flush=True)


if __name__ == "__main__":
    main()

"""`python -m tests.faults.studies KIND SHARED OUT`: begin or continue a small study, print its result."""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import vitkit
from tests.helpers.small_digits import small_run
from tests.vtab_layout import small_task
from vitkit.jobs import train_run
from vitkit.jobs.study import study
from vitkit.runs.budget import Pace
from vitkit.runs.run_options import SeriesOptions

STUDIES = ("series", "ablation", "scale", "pretraining", "reproduction", "vtab", "comparison")


def without_pictures(folder: Path, *_arguments: Any, **_options: Any) -> Path:
    """Write an empty report: its pictures take longer than all the rest."""
    (folder / "report.html").write_text("<!doctype html>")
    return folder / "report.html"


def make_shared(folder: Path) -> Path:
    """Make the two models and two tasks that some of the studies read."""
    run = small_run(10)
    for seed, name in enumerate(("first", "second")):
        seeded = replace(run, training=replace(run.training, seed=seed))
        vitkit.train(seeded, folder / name, threads=1, quiet=True)
        small_task(folder / "tasks" / ("clevr_count", "pets")[seed], classes=3, seed=seed)
    return folder


def measure_paces(runs: Mapping[str, vitkit.Run], *_: Any) -> dict[str, Pace]:
    """Stand for the speed of the machine, from which steps would follow."""
    return dict.fromkeys(runs, Pace(0.01, 0.1))


def complete_study(name: str, shared: Path, out: Path) -> Any:
    """Begin or continue a study of a kind."""
    small: dict[str, Any] = {"image_size": 8, "steps": 10, "batch_size": 16, "threads": 1, "quiet": True}
    run, rates = small_run(10), [0.01, 0.1]
    match name:
        case "series":
            return vitkit.train_series(run, out, SeriesOptions(sweep_rates=(0.01, 0.1), runs=3))
        case "ablation":
            return vitkit.ablate(run, {"pool": ["mean"]}, seeds=2, rates=rates, out=out, threads=1)
        case "scale":
            return vitkit.scale("digits", recipe=run, points=5, out=out, threads=1)
        case "pretraining":
            then: dict[str, Any] = {"then": "digits", "labels": 20, "draws": 2, "tune_steps": 10}
            return vitkit.pretrain("digits", model="ViT-16x1x2/4", pretrainings=2, out=out, **then, **small)
        case "reproduction":
            return vitkit.reproduce("table8", recipe=run, steps=10, seeds=1, out=out, threads=1)
        case "vtab":
            tasks = shared / "first", shared / "tasks"
            return vitkit.vtab(*tasks, sweep=True, rates=rates, out=out, workers=0, **small)
    models = [str(shared / model) for model in ("first", "second")]
    return vitkit.compare(*models, out=str(out), speed_seconds=0.0, threads=1)


if __name__ == "__main__":
    mock.patch.object(train_run, "write_report", without_pictures).start()
    mock.patch.object(study, "measure_paces", measure_paces).start()
    result = complete_study(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
    print(json.dumps(result.to_json() if hasattr(result, "to_json") else str(result)))

"""The parts of vitkit that are attacked, made quick and small."""

import contextlib
import dataclasses
import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

os.environ["OMP_NUM_THREADS"] = "1"  # a process that has started threads cannot be forked safely

import torch

import vitkit
from tests.helpers.small_digits import small_run
from vitkit.cli import main as cli
from vitkit.errors import VitkitError
from vitkit.jobs import train_run as training
from vitkit.jobs.study import study
from vitkit.runs.budget import Pace
from vitkit.runs.run_options import SeriesOptions

torch.set_num_threads(1)

Refusal = VitkitError
"""What a clean refusal is: one message, no traceback."""


def warm_up() -> None:
    """Import what the commands import when they run, so that their forks need not: seconds each time.

    Which modules those are is found by running the main ones in a fork; nothing but imports happens here.
    """
    with tempfile.TemporaryDirectory() as folder:
        modules, run = Path(folder) / "modules", str(Path(folder) / "run")
        size = ("--model", "ViT-16x1x2/2", "--image-size", "8", "--steps", "1", "--threads", "1")
        process = os.fork()
        if not process:
            try:
                for descriptor in (1, 2):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
                train = ["train", "--data", "digits", "--out", run, *size]
                for arguments in (train, ["evaluate", run], ["predict", run, folder]):
                    with contextlib.suppress(SystemExit):
                        cli.run(arguments)
                modules.write_text("\n".join(sys.modules))
            finally:
                os._exit(0)
        os.waitpid(process, 0)
        for name in modules.read_text().split():
            if name not in sys.modules and name.partition(".")[0] not in ("__main__", "tests"):
                with contextlib.suppress(Exception):  # made by hand, under a name that cannot be imported
                    importlib.import_module(name)


def without_pictures() -> None:
    """Let training write an empty report in this process: its pictures take longer than all the rest."""

    def empty(folder: Path, *_arguments: Any, **_options: Any) -> Path:
        page = Path(folder) / "report.html"
        page.write_text("<!doctype html>")
        return page

    mock.patch.object(training, "write_report", empty).start()


STUDIES = ("series", "ablation", "scale", "pretraining", "reproduction", "vtab", "comparison")


def complete_study(name: str, shared: Path, out: Path) -> NoReturn:
    """Begin or continue a small study, print its result as JSON, and end this process.

    Its steps would follow from the speed of the machine, which is given here.
    """
    without_pictures()
    mock.patch.object(study, "measure_paces", lambda runs, *_: dict.fromkeys(runs, Pace(0.01, 0.1))).start()
    small: dict[str, Any] = {"image_size": 8, "steps": 10, "batch_size": 16, "threads": 1, "quiet": True}
    run = small_run(10)
    result: Any
    match name:
        case "series":
            result = vitkit.train_series(run, out, SeriesOptions(sweep_rates=(0.01, 0.1), runs=3))
        case "ablation":
            result = vitkit.ablate(run, {"pool": ["mean"]}, seeds=2, rates=[0.01, 0.1], out=out, threads=1)
        case "scale":
            result = vitkit.scale("digits", recipe=run, points=5, out=out, threads=1)
        case "pretraining":
            then: dict[str, Any] = {"then": "digits", "labels": 20, "draws": 2, "tune_steps": 10}
            result = vitkit.pretrain("digits", model="ViT-16x1x2/4", pretrainings=2, out=out, **then, **small)
        case "reproduction":
            result = vitkit.reproduce("table8", recipe=run, steps=10, seeds=1, out=out, threads=1)
        case "vtab":
            result = vitkit.vtab(
                shared / "first", shared / "tasks", sweep=True, rates=[0.01, 0.1], out=out, workers=0, **small
            )
        case _:
            result = vitkit.compare(
                str(shared / "first"), str(shared / "second"), out=str(out), speed_seconds=0.0, threads=1
            )
    print(json.dumps(result.to_json() if hasattr(result, "to_json") else str(result)))
    raise SystemExit(0)


def small_vit(**changes: Any) -> Any:
    """A ViT of two blocks in which every number is drawn."""
    small = vitkit.ViTConfig((8, 8), (4, 4), width=64, depth=2, num_heads=1, mlp_dim=24, num_classes=3)
    return _drawn(vitkit.build_model(dataclasses.replace(small, **changes)))


def small_resnet() -> Any:
    """A BiT ResNet of two stages in which every number is drawn."""
    small = vitkit.ResNetConfig((32, 32), layers=(1, 1), width_factor=0.5, num_classes=3)
    return _drawn(vitkit.build_model(small))


def _drawn(model: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.1, 0.1, generator=generator)
    return model.eval()

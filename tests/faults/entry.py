"""The only file of the attack that imports vitkit: what is attacked, under one name each."""

import contextlib
import ctypes
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

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

import vitkit
from tests.helpers.small_digits import small_run
from vitkit.cli import help as help_pages
from vitkit.cli import main as cli
from vitkit.config import to_json
from vitkit.data.config import Splits
from vitkit.data.decode import image as decoding
from vitkit.data.sources import open_data
from vitkit.engines.folder import EngineModel
from vitkit.errors import DecodeError, VitkitError
from vitkit.evaluation.predictions import Predictions
from vitkit.jobs import parts
from vitkit.jobs import train_run as training
from vitkit.jobs.study import study
from vitkit.kernels import block, gelu, resample
from vitkit.kernels import compile as compiling
from vitkit.kernels.compile import Built, Source
from vitkit.runs.budget import Pace
from vitkit.runs.run_options import SeriesOptions
from vitkit.weights.loading import identify

torch.set_num_threads(1)

Refusal = VitkitError
"""What a clean refusal is: one message, no traceback."""

VERBS = tuple(help_pages.VERBS)


def warm_up() -> None:
    """Import what the commands import when they run, so that their forks need not: seconds each time.

    Which modules those are is found by running the main ones in a fork; nothing but imports happens here.
    """
    with tempfile.TemporaryDirectory() as folder:
        modules, run = Path(folder) / "modules", str(Path(folder) / "run")
        process = os.fork()
        if not process:
            try:
                for descriptor in (1, 2):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
                size = ("--model", "ViT-16x1x2/2", "--image-size", "8", "--steps", "1", "--threads", "1")
                for arguments in (
                    ["train", "--data", "digits", "--out", run, *size],
                    ["evaluate", run],
                    ["predict", run, folder],
                    ["data", "check", folder],
                    ["cost", run],
                ):
                    with contextlib.suppress(SystemExit):
                        run_command(arguments)
                modules.write_text("\n".join(sys.modules))
            finally:
                os._exit(0)
        os.waitpid(process, 0)
        for name in modules.read_text().split():
            if name not in sys.modules and name.partition(".")[0] not in ("__main__", "tests"):
                with contextlib.suppress(Exception):  # made by hand, under a name that cannot be imported
                    importlib.import_module(name)


def without_pictures() -> None:
    """Let training write an empty report in this process: its pictures take longer than all the rest.

    Where the name has moved, the pictures are drawn and only time is lost.
    """

    def empty(folder: Path, *_arguments: Any, **_options: Any) -> Path:
        page = Path(folder) / "report.html"
        page.write_text("<!doctype html>")
        return page

    if hasattr(training, "write_report"):
        training.write_report = empty


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


def run_command(arguments: list[str]) -> int:
    """Run one command of the command line in this process; returns its exit code."""
    return cli.run(arguments)


def pixels(path: Path) -> NDArray[np.uint8]:
    """Decode an image file. Raises Refusal."""
    return decoding.decode(path)


def header_size(path: Path) -> tuple[int, int]:
    """(height, width) by the header of an image file. Raises Refusal."""
    return decoding.header(path).size


def read_labels(path: Path, several: bool) -> tuple[tuple[str, ...], NDArray[Any], list[Path]]:
    """Class names, labels and files of a data set, each image of which is decoded. Raises Refusal.

    Images that cannot be decoded are left to `pixels`; no more than 50 of a split are looked at.
    """
    data = open_data(str(path), Splits(0, 0), multi_label=several)
    samples = data.splits["train"]
    files = []
    for index in range(min(50, len(samples))):
        samples.key(index)
        with contextlib.suppress(DecodeError):
            samples.decode(index)
        file = samples.file(index)
        files += [file] if isinstance(file, Path) else []
    data.fingerprint()
    return data.class_names, np.asarray(samples.labels), files


def read_archive(path: Path) -> tuple[dict[str, int | None], tuple[str, ...]]:
    """Read the grey level of each image of an archive by its name, None if it is unreadable, and the notes.

    Raises Refusal.
    """
    data = open_data(str(path))  # which looks for repeats
    images: dict[str, int | None] = {}
    for samples in data.splits.values():
        for index in range(len(samples)):
            images[samples.key(index)] = None
            with contextlib.suppress(DecodeError):
                images[samples.key(index)] = int(samples.decode(index)[0, 0, 0])
    return images, data.notes


def listed_runs(folder: Path) -> list[Any]:
    """List what was trained below a folder."""
    return vitkit.list_runs(folder)


def small_parts(rows: int) -> None:
    """Let the parts of a table have so many rows in this process."""
    parts.PART_ROWS = rows


def sealed_part(path: Path) -> dict[str, Any]:
    """Write what the record of a table keeps of a finished part."""
    content = path.read_bytes()
    return to_json(parts.PartFile(len(content), xxhash.xxh3_128_hexdigest(content)))


def load(path: Path) -> torch.nn.Module:
    """Load a checkpoint of any layout. Raises Refusal."""
    return vitkit.load_model(path)


def describe(path: Path) -> Any:
    """Say what a checkpoint is without its weights, as `vitkit card` does. Raises Refusal."""
    return identify(str(path))


def read_predictions(path: Path) -> Any:
    """Read the predictions beside evaluation/SPLIT.json as `vitkit report` does. Raises Refusal."""
    return Predictions.load(path)


def save(model: Any, path: Path, layout: Any) -> Path:
    """Write a checkpoint in a library's layout."""
    return vitkit.save_model(model, path, layout)


def export(checkpoint: Path, out: Path, engine: Any) -> None:
    """Write a checkpoint as the graph of an engine."""
    vitkit.export(checkpoint, out, format="onnx" if engine == "onnxruntime" else engine)


def logits_of_export(folder: Path) -> list[list[float]]:
    """Compute the logits of one made-up image from the folder of an export. Raises Refusal."""
    model = vitkit.Predictor(folder).model
    images = np.arange(3 * 8 * 8, dtype=np.uint8).reshape(1, 3, 8, 8)
    assert isinstance(model, EngineModel)
    logits: list[list[float]] = model(images).tolist()
    return logits


def small_vit(**changes: Any) -> Any:
    """A ViT of two blocks in which every number is drawn."""
    small = vitkit.ViTConfig((8, 8), (4, 4), width=64, depth=2, num_heads=1, mlp_dim=24, num_classes=3)
    return _drawn(vitkit.build_model(dataclasses.replace(small, **changes)))


def small_resnet() -> Any:
    """A BiT ResNet of two stages in which every number is drawn."""
    return _drawn(
        vitkit.build_model(vitkit.ResNetConfig((32, 32), layers=(1, 1), width_factor=0.5, num_classes=3))
    )


def _drawn(model: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.1, 0.1, generator=generator)
    return model.eval()


def kernel_sources() -> dict[str, Source]:
    """Name the C kernels that this processor can run."""
    sources = {"gelu": gelu.SOURCE, "resample": resample.SOURCE}
    sources |= {f"block-{str(number).removeprefix('torch.')}": each for number, each in block.SOURCES.items()}
    processor = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].split()
    return {name: source for name, source in sources.items() if source.features.issubset(processor)}


def take_libraries(folder: Path) -> None:
    """Let this process's kernels be the libraries in a folder, each under its source's name."""
    paths = {source: folder / f"{name}.so" for name, source in kernel_sources().items()}

    def load_from_folder(source: Source, *, compile_it: bool) -> Built:
        return Built(ctypes.CDLL(str(paths[source])))

    for module in (block, gelu, resample):
        module.load = load_from_folder  # type: ignore[attr-defined]


def gelu_kernel() -> Any:
    """Return the compiled GELU."""
    return gelu.compiled_gelu()


def block_kernel(precision: str) -> tuple[Any, float]:
    """Return a compiled block, and the largest difference to the formulas over the largest number."""
    return block.compiled_block(precision), block.TOLERANCES[getattr(torch, precision)]


def seal(path: Path, contents: bytes) -> bytes:
    """Return the bytes that end a library of the cache."""
    return compiling._hash(path.name.encode(), contents)


plain_block = block._plain_block
"""What a block computes, by PyTorch's functions."""
RESIZES = {name: kind for name, kind in resample.PILLOW_FILTERS.items() if name != "nearest"}
resize_kernel, sample_kernel = resample.resample, resample.sample

#!/usr/bin/env python
"""Inference by vitkit's engines beside the same engines on timm's graph, and timm.

    python -m benchmarks.engines [--models Ti S B] [--batches 1 8 32] [--seconds 60] [--json FILE]

Run from the repository's root with timm and the extras `openvino` and `onnxruntime` installed.
All contestants of a case take turns within a round. The engines are given timm's graph as their users do it:
converted, with normalised float32 images, for OpenVINO in batches of one fixed size; int8 by NNCF, with the
options for transformers, and for ONNX Runtime by its dynamic quantisation. Weights are drawn, and int8 is
calibrated on noise, so that nothing but speed is measured here; `vitkit export --precision int8` measures how
good a model of yours is then.

It prints milliseconds and the speed over timm in float32, and of ours the speed over the same engine in the
same numbers on timm's graph.
"""

import argparse
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, cast

import numpy as np
import torch
from benchmarks.records import Record, write_records
from benchmarks.slow_peers import quantized_by_default
from torch import nn

from vitkit.engines import libraries
from vitkit.engines.folder import OnnxRunner, OpenVINORunner
from vitkit.engines.graph import convert, quantize, write_onnx
from vitkit.engines.int8 import quantize_onnx
from vitkit.engines.libraries import EnginePrecision
from vitkit.jobs.bench import describe_machine
from vitkit.jobs.convert import import_library
from vitkit.models.build import build_model
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import model_config
from vitkit.runs.timing import Clock, Step, Turn, spread, take_turns

NAMES = {"Ti": "ViT-Ti/16", "S": "ViT-S/16", "B": "ViT-B/16"}
SIZE = 224
CALIBRATION = 16
"""Images of noise: their number changes no speed."""


def timm_model(name: str) -> nn.Module:
    """Make timm's own model of the sizes of one of ours."""
    config: Any = model_config(NAMES[name], 1000, SIZE)
    import_library("timm")
    model: nn.Module = import_module("timm.models.vision_transformer").VisionTransformer(
        img_size=SIZE,
        patch_size=16,
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.num_heads,
        mlp_ratio=config.mlp_dim / config.width,
    )
    return model.eval()


def torch_step(model: nn.Module, images: torch.Tensor, short: bool) -> Step:
    def step() -> None:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=short):
            model(images)

    return step


def openvino_step(graph: Any, images: Any, precision: EnginePrecision) -> Step:
    """Compile a graph and return a step that computes the same images again; compiled for that size alone."""
    runner = OpenVINORunner(graph, precision, torch.get_num_threads())
    runner(images)
    runner(images)
    return lambda: runner(images)


def onnx_steps(
    theirs: nn.Module, ours: ImageModel, images: Any, pixels: Any, precision: EnginePrecision, folder: Path
) -> Iterator[tuple[str, Step]]:
    """Give the steps of ONNX Runtime, on timm's graph and on ours."""
    files = {who: folder / who for who in ("timm", "vitkit")}
    for place in files.values():
        place.mkdir()
    graph = files["timm"] / "graph.onnx"
    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")
        batch = torch.export.Dim("batch")
        example = (torch.from_numpy(images[:2].repeat(2, 0)),)
        torch.onnx.export(theirs, example, graph, input_names=["images"], dynamic_shapes=({0: batch},))
    write_onnx(ours, files["vitkit"])
    if precision == "int8":
        quantized = graph.with_name("int8.onnx")
        import_module("onnxruntime.quantization").quantize_dynamic(graph, quantized)
        quantized.replace(graph)
        quantize_onnx(files["vitkit"] / graph.name)
    for who, given in (("timm", images), ("vitkit", pixels)):
        runner = OnnxRunner(files[who], torch.get_num_threads())
        yield f"{who} onnxruntime {precision}", partial(runner, given)


def contestants(
    name: str, batch: int, precisions: list[EnginePrecision], folder: Path
) -> Iterator[tuple[str, Step]]:
    """Give the steps of a case by name: "timm float32", "timm openvino int8", "vitkit openvino int8"."""
    openvino = import_module("openvino")
    generator = np.random.default_rng(0)
    shape = (3, SIZE, SIZE)
    pixels = generator.integers(0, 256, (batch, *shape), dtype=np.uint8)
    normalized = (pixels / np.float32(127.5) - 1).astype(np.float32)
    theirs, ours = timm_model(name), build_model(model_config(NAMES[name], 1000, SIZE)).eval()
    floats = torch.from_numpy(normalized)
    yield "timm float32", torch_step(theirs, floats, False)
    if "bfloat16" in precisions:
        yield "timm bfloat16", torch_step(theirs, floats, True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs_converted = openvino.convert_model(theirs, example_input=floats[:1], input=[(-1, *shape)])
    noise = [generator.integers(0, 256, (1, *shape), dtype=np.uint8) for _ in range(CALIBRATION)]
    for precision in precisions:
        their_graph, our_graph = theirs_converted, convert(ours, precision)
        if precision == "int8":
            their_graph = quantized_by_default(
                their_graph, [(image / np.float32(127.5) - 1).astype(np.float32) for image in noise]
            )
            our_graph = quantize(ours, our_graph, noise)
        yield f"timm openvino {precision}", openvino_step(their_graph, normalized, precision)
        yield f"vitkit openvino {precision}", openvino_step(our_graph, pixels, precision)
        if precision != "bfloat16":  # which ONNX Runtime does not compute on a processor
            place = folder / f"{name}-{batch}-{precision}"
            place.mkdir()
            yield from onnx_steps(theirs, ours, normalized, pixels, precision, place)


Ratio = tuple[float, float, float]
"""The lower quartile, the median and the upper quartile of a ratio of speeds over the rounds."""


@dataclass(frozen=True, kw_only=True)
class Race(Record):
    """The speed of one contestant, over two others."""

    kind: Literal["race"] = "race"
    batch: int
    milliseconds: float
    rounds: int
    over_timm_float32: Ratio
    over_timms_graph: Ratio | None


def race(model: str, batch: int, turns: dict[str, Turn], seconds: float) -> Iterator[Race]:
    """Time all contestants in turns and give a record of each."""
    seconds_of = take_turns(turns, Clock(torch.device("cpu"), torch.get_num_threads()), seconds)

    def ratio(of: str, to: str) -> Ratio:
        return spread([b / a for a, b in zip(seconds_of[of], seconds_of[to], strict=True)])

    for name, times in seconds_of.items():
        rival = name.replace("vitkit", "timm")
        yield Race(
            model=model,
            image_size=(SIZE, SIZE),
            name=name,
            precision=cast("EnginePrecision", name.split()[-1]),
            batch=batch,
            milliseconds=1e3 * spread(times)[1],
            rounds=len(times),
            over_timm_float32=ratio(name, "timm float32"),
            over_timms_graph=ratio(name, rival) if rival in seconds_of and rival != name else None,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", nargs="*", choices=list(NAMES), default=list(NAMES))
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 8, 32])
    parser.add_argument("--precisions", nargs="*", choices=["float32", "bfloat16", "int8"], default=[])
    parser.add_argument("--seconds", type=float, default=60, help="for each model and batch")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where the records are written")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    available: list[EnginePrecision] = (
        ["float32", "bfloat16", "int8"] if libraries.has_bfloat16() else ["float32", "int8"]
    )
    machine = describe_machine(torch.device("cpu"), options.threads)
    print(f"{machine['device']}, {machine['threads']} threads, torch {machine['torch']}, openvino "
          f"{import_module('openvino').__version__}")  # fmt: skip
    records: list[Race] = []
    for name in options.models:
        for batch in options.batches:
            with TemporaryDirectory() as folder:
                made = contestants(name, batch, options.precisions or available, Path(folder))
                turns = {key: Turn(step) for key, step in made}
            print(
                f"\n{NAMES[name]} batch {batch}: speed over timm float32, and over the engine on timm's graph"
            )
            for record in race(NAMES[name], batch, turns, options.seconds):
                records.append(record)
                low, middle, high = record.over_timm_float32
                line = f"  {record.name:26} {record.milliseconds:9.1f} ms"
                line += f"  {middle:5.2f} ({low:.2f} to {high:.2f})"
                if record.over_timms_graph:
                    low, middle, high = record.over_timms_graph
                    line += f"   {middle:5.3f} ({low:.2f} to {high:.2f})"
                print(line, flush=True)
            if options.json is not None:
                write_records(options.json, machine, records)


if __name__ == "__main__":
    main()

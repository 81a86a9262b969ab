"""Models that engines compute: made of a checkpoint in memory, or read from the folder of an export."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.engines import onnx_engine, openvino_engine
from vitkit.engines.engine_config import GraphEngine, Numbers
from vitkit.engines.folder import EngineRecord, read_description_of
from vitkit.engines.graph import EngineModel, Runner, example_images
from vitkit.engines.libraries import require_engine
from vitkit.engines.onnx_engine import OnnxRunner
from vitkit.engines.openvino_engine import OpenVINORunner
from vitkit.errors import VitkitError
from vitkit.models.image_model import ImageModel

TOLERANCE: dict[Numbers, float] = {"float32": 2e-3, "bfloat16": 0.1}
"""Largest difference to PyTorch's logits, as a share of the largest logit: far more than rounding makes of
it, and far less than a graph that computes something else."""


def refuse_numbers(engine: GraphEngine, numbers: Numbers) -> None:
    """Refuse numbers that an engine, or this processor, does not compute in; and engines not installed.

    Raises:
        VitkitError: it is so.
    """
    if engine == "onnxruntime" and numbers != "float32":
        raise VitkitError(
            f"ONNX Runtime computes in float32 here, not in {numbers}. Leave the precision out, or take the "
            "engine openvino."
        )
    require_engine(engine, *(("nncf",) if numbers == "int8" else ()))
    if numbers == "bfloat16" and not openvino_engine.has_bfloat16():
        raise VitkitError(
            "This processor has no instructions for bfloat16 that OpenVINO uses, so that it would be no "
            "faster: take float32, or int8."
        )


def serve(model: ImageModel, engine: GraphEngine, numbers: Numbers, threads: int) -> EngineModel:
    """Have an engine compute a model.

    Args:
        model: with weights, in the memory of the processor.
        engine, numbers: as `refuse_numbers` lets them pass; int8 is made by an export alone.
        threads: that it computes with.

    Raises:
        VitkitError: the engine cannot convert the model, or computes something else.
    """
    with tempfile.TemporaryDirectory(prefix="vitkit-") as folder:
        runner = make_runner(
            model, engine, numbers, threads, Path(folder) if engine == "onnxruntime" else None
        )
    require_same(model, runner, engine, numbers)
    return EngineModel(model.config, model.card, runner)


def make_runner(
    model: ImageModel,
    engine: GraphEngine,
    numbers: Numbers,
    threads: int,
    folder: Path | None,
    images: Sequence[NDArray[np.uint8]] = (),
) -> Runner:
    """Make an engine's graph of a model and have it compiled.

    Args:
        model, engine, numbers, threads: as for `serve`, and int8.
        folder: where the files of the graph are written; None: nowhere, which OpenVINO alone can.
        images: `(1, C, H, W)` each, which int8 is calibrated on.

    Raises:
        VitkitError: the engine cannot convert the model.
    """
    with _refusing(engine, "convert this model", "Take engine torch."):
        if engine == "openvino":
            graph = openvino_engine.convert(model, numbers)
            if numbers == "int8":
                graph = openvino_engine.quantize(model, graph, images)
            if folder is not None:
                openvino_engine.write(graph, folder)
            return OpenVINORunner(graph, numbers, threads)
        assert folder is not None
        onnx_engine.write(model, folder)
        return OnnxRunner(folder, threads)


@contextmanager
def _refusing(engine: GraphEngine, task: str, advice: str) -> Iterator[None]:
    """Turn what an engine raises, which is what it likes, into words for whoever asked for it."""
    try:
        yield
    except (VitkitError, OSError, MemoryError):
        raise
    except Exception as error:
        words = " ".join(str(error).split())[:200]
        raise VitkitError(f"{engine} cannot {task} ({type(error).__name__}: {words}). {advice}") from error


def require_same(model: ImageModel, runner: Runner, engine: GraphEngine, numbers: Numbers) -> None:
    """Refuse an engine that computes something else than the model it was made of.

    Raises:
        VitkitError: it does; see `TOLERANCE`.
    """
    images = example_images(model)
    with torch.inference_mode():
        expected = model(images)
    found = torch.from_numpy(runner(images.numpy()))
    largest = float(expected.abs().max())
    # Written so that logits that are not a number do not pass.
    if not (found.shape == expected.shape and (found - expected).abs().max() <= TOLERANCE[numbers] * largest):
        raise VitkitError(
            f"{engine} computes other logits of this model than PyTorch does, so its answers are not the "
            "model's: take engine torch."
        )


def serve_folder(folder: Path, threads: int) -> tuple[EngineModel, EngineRecord]:
    """Have an engine compute the graph in a folder that `vitkit export` wrote.

    Raises:
        VitkitError: the folder is damaged, or the engine is not installed or cannot read it.
    """
    record = read_description_of(folder)
    require_engine(record.engine)
    if record.numbers == "bfloat16":
        refuse_numbers(record.engine, record.numbers)
    advice = "Export the model again with the version that is installed."
    with _refusing(record.engine, f"read the graph in {folder}", advice):
        runner: Runner
        if record.engine == "openvino":
            runner = OpenVINORunner(openvino_engine.read(folder), record.numbers, threads)
        else:
            runner = OnnxRunner(folder, threads)
    return EngineModel(record.config, record.card, runner), record

"""Models that engines compute: made of a checkpoint in memory, or read from the folder of an export."""

import math
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.engines import onnx_engine, openvino_engine
from vitkit.engines.agreement import Nearness
from vitkit.engines.engine_config import GraphEngine, Numbers
from vitkit.engines.folder import EngineRecord, read_description_of, require_graph
from vitkit.engines.graph import EngineModel, Runner, example_images
from vitkit.engines.libraries import require_engine
from vitkit.engines.onnx_engine import OnnxRunner
from vitkit.engines.openvino_engine import OpenVINORunner
from vitkit.errors import VitkitError
from vitkit.evaluation.run_model import evaluation_mode
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import ModelConfig
from vitkit.text import visible

FLOAT32_TOLERANCE = 1e-4
"""Largest difference to PyTorch's logits in float32, as a share of their standard deviation: ten times as
much as rounding was seen to make of it (7.7e-6, a hybrid), and less than any graph that computes something
else."""
FLOAT32_ROUNDING = 4 * 2.0**-23
"""Four units in the last place of the largest logit, for logits that hardly differ from one another."""
BFLOAT16_TOLERANCE = 0.1
"""Largest difference in bfloat16, whose numbers have three digits, as a share of the largest logit."""
COMPARED = 16
"""Images on which an exported graph is held against PyTorch."""
COMPARED_IN_MEMORY = 4
"""The same where a graph is made for one command, which should begin soon."""
MADE_UP = "images that are made up"


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


def refuse_model(engine: GraphEngine, config: ModelConfig) -> None:
    """Refuse a model that an engine has no graph for, before any work.

    Raises:
        VitkitError: it is so.
    """
    if engine == "onnxruntime" and getattr(config, "position", None) == "relative":
        raise VitkitError(
            "ONNX has no operation for the relative positions of this model. Take the engine openvino, or "
            "torch."
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
    refuse_model(engine, model.config)
    with tempfile.TemporaryDirectory(prefix="vitkit-") as folder:
        runner = make_runner(
            model, engine, numbers, threads, Path(folder) if engine == "onnxruntime" else None
        )
    images = example_images(model, COMPARED_IN_MEMORY)
    require_same(model, runner, engine, numbers, images.numpy(), MADE_UP)
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
        # Colours for a terminal stand in some of them.
        words = visible(" ".join(re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", str(error)).split())[:200])
        raise VitkitError(f"{engine} cannot {task} ({type(error).__name__}: {words}). {advice}") from error


def require_same(
    model: ImageModel,
    runner: Runner,
    engine: GraphEngine,
    numbers: Numbers,
    images: NDArray[np.uint8],
    named: str,
) -> Nearness:
    """Refuse an engine that computes something else than the model it was made of.

    Args:
        model: computed by PyTorch in float32.
        runner, engine, numbers: what is held against it, in batches of 1, of 3 and of all other images.
        images: `(N, C, H, W)`.
        named: the images in words: "test images of photos".

    Returns:
        How near the two are.

    Raises:
        VitkitError: it does: logits are further apart than `FLOAT32_TOLERANCE` or `BFLOAT16_TOLERANCE` lets
            pass, or are not finite.
    """
    batches = [part for part in np.split(images, (1, 4)) if len(part)]
    with evaluation_mode(model):
        # One at a time: memory holds no more beside the activations of the largest models.
        singly = (torch.from_numpy(images[i : i + 1]) for i in range(len(images)))
        expected = np.concatenate([model(image).numpy() for image in singly])
    if not np.isfinite(expected).all():
        raise VitkitError(
            "Logits are not finite (NaN or infinite), so nothing can be compared: the weights overflow or "
            "are damaged."
        )
    logits = np.concatenate([runner(batch) for batch in batches])
    largest, spread = float(np.abs(expected).max()), float(expected.std(dtype=np.float64))
    allowed = FLOAT32_TOLERANCE * spread + FLOAT32_ROUNDING * largest
    if numbers != "float32":
        allowed = BFLOAT16_TOLERANCE * largest
    same_shape = logits.shape == expected.shape
    difference = float(np.abs(logits - expected).max()) if same_shape else math.inf
    sizes = tuple(map(len, batches))
    nearness = Nearness(f"{len(images)} {named}", sizes, difference, spread)
    if not difference <= allowed:  # written so that logits that are not a number do not pass
        raise VitkitError(
            f"{engine} computes other logits of this model than PyTorch does, so its answers are not the "
            f"model's: {nearness}, where logits of up to {largest:.2g} may differ by {allowed:.1e}. Take "
            "engine torch."
        )
    return nearness


def serve_folder(folder: Path, threads: int) -> tuple[EngineModel, EngineRecord]:
    """Have an engine compute the graph in a folder that `vitkit export` wrote.

    Raises:
        VitkitError: the folder is damaged, describes another graph than there is, or the engine is not
            installed or cannot read it.
    """
    record = read_description_of(folder)
    require_engine(record.engine)
    if record.numbers == "bfloat16":
        refuse_numbers(record.engine, record.numbers)
    advice = "Export the model again with the version that is installed."
    with _refusing(record.engine, f"read the graph in {folder}", advice):
        runner: OpenVINORunner | OnnxRunner
        if record.engine == "openvino":
            runner = OpenVINORunner(openvino_engine.read(folder), record.numbers, threads)
        else:
            runner = OnnxRunner(folder, threads)
        shape = runner.shape()
    require_graph(record, shape, folder)
    return EngineModel(record.config, record.card, runner), record

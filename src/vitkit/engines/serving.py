"""Have an engine compute a model in memory, and compare its logits with PyTorch's."""

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.engines import onnx_writer, openvino_writer
from vitkit.engines.agreement import Nearness
from vitkit.engines.engine_model import EngineModel, Runner
from vitkit.engines.graph import example_images
from vitkit.engines.libraries import EnginePrecision, GraphEngine, refusing
from vitkit.engines.onnx_engine import OnnxRunner
from vitkit.engines.openvino_engine import OpenVINORunner
from vitkit.errors import VitkitError
from vitkit.evaluation.run_model import evaluation_mode
from vitkit.models.config.compute_config import PLAIN
from vitkit.models.fast import compute_as
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import ModelConfig

FLOAT32_TOLERANCE = 1e-4
"""Largest difference to PyTorch's logits in float32, as a fraction of their standard deviation: ten times the
largest that rounding was seen to make (7.7e-6, a hybrid), and less than any graph that computes something
else."""
FLOAT32_ROUNDING = 4 * 2.0**-23
"""Four units in the last place of the largest logit, for logits that hardly differ from one another."""
BFLOAT16_TOLERANCE = 0.1
"""Largest difference in bfloat16, whose numbers have three digits, as a fraction of the largest logit."""
COMPARED = 16
"""Images on which an exported graph is compared with PyTorch."""
COMPARED_IN_MEMORY = 4
"""Fewer, where a graph is made for one command, which should begin soon."""
MADE_UP = "images that are made up"


def refuse_model(engine: GraphEngine, config: ModelConfig) -> None:
    """Refuse a model that an engine has no graph for, before any work.

    Raises:
        VitkitError: the engine has none.
    """
    if engine == "onnxruntime" and getattr(config, "position", None) == "relative":
        raise VitkitError(
            "ONNX has no operation for the relative positions of this model. Take the engine openvino, or "
            "torch."
        )


def serve(model: ImageModel, engine: GraphEngine, precision: EnginePrecision, threads: int) -> EngineModel:
    """Have an engine compute a model.

    Args:
        model: with weights, in the memory of the processor.
        engine, precision: as `refuse_precision` lets them pass; int8 is made by an export alone.
        threads: number of threads to compute with.

    Raises:
        VitkitError: the engine cannot convert the model, or computes something else.
    """
    refuse_model(engine, model.config)
    with tempfile.TemporaryDirectory(prefix="vitkit-") as folder:
        runner = make_runner(
            model, engine, precision, threads, Path(folder) if engine == "onnxruntime" else None
        )
    images = example_images(model, COMPARED_IN_MEMORY)
    require_same(model, runner, engine, precision, images.numpy(), MADE_UP)
    return EngineModel(model.config, model.card, runner)


def make_runner(
    model: ImageModel,
    engine: GraphEngine,
    precision: EnginePrecision,
    threads: int,
    folder: Path | None,
    images: Sequence[NDArray[np.uint8]] = (),
) -> Runner:
    """Make an engine's graph of a model and have it compiled.

    Args:
        model, engine, precision, threads: as for `serve`, and int8.
        folder: where the files of the graph are written; None: nowhere, which OpenVINO alone can.
        images: `(1, C, H, W)` each, which int8 is calibrated on.

    Raises:
        VitkitError: the engine cannot convert the model.
    """
    with refusing(engine, "convert this model", "Take engine torch."):
        if engine == "openvino":
            graph = openvino_writer.convert(model, precision)
            if precision == "int8":
                graph = openvino_writer.quantize(model, graph, images)
            if folder is not None:
                openvino_writer.write(graph, folder)
            return OpenVINORunner(graph, precision, threads)
        assert folder is not None
        onnx_writer.write(model, folder)
        return OnnxRunner(folder, threads)


def require_same(
    model: ImageModel,
    runner: Runner,
    engine: GraphEngine,
    precision: EnginePrecision,
    images: NDArray[np.uint8],
    named: str,
) -> Nearness:
    """Refuse an engine that computes something else than the model it was made of.

    Args:
        model: computed by PyTorch in float32.
        runner, engine, precision: compared with it, in batches of 1, of 3 and of all other images.
        images: `(N, C, H, W)`.
        named: the images as a phrase: "test images of photos".

    Returns:
        The distance between the logits of the two.

    Raises:
        VitkitError: logits are further apart than `FLOAT32_TOLERANCE` or `BFLOAT16_TOLERANCE` allows, or are
            not finite.
    """
    compute_as(model, PLAIN)  # a fast way may lack what the graph lacks
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
    if precision != "float32":
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

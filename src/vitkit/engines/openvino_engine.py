"""OpenVINO: graphs that it compiles for the processor, in float32, bfloat16 or int8."""

import threading
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.engines.engine_config import Numbers
from vitkit.engines.graph import example_images, graph_of
from vitkit.engines.libraries import import_package
from vitkit.models.image_model import ImageModel

FILES = ("graph.xml", "graph.bin")
"""The files of a graph: operations, and weights."""


def has_bfloat16() -> bool:
    """Whether OpenVINO computes in bfloat16 on this processor."""
    return "BF16" in import_package("openvino").Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def convert(model: ImageModel, numbers: Numbers) -> Any:
    """Make OpenVINO's graph of a model, for any number of images: an `openvino.Model`.

    Args:
        model: with its weights, which stay float32 in the graph.
        numbers: that it will be computed in.
    """
    openvino = import_package("openvino")
    shape = [-1, model.config.in_channels, *model.config.image_size]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks of shapes are traced as constants, on purpose
        return openvino.convert_model(
            graph_of(model, numbers), example_input=example_images(model), input=[(shape, openvino.Type.u8)]
        )


def write(graph: Any, folder: Path) -> None:
    """Write `FILES` of a graph into a folder, weights as they are."""
    import_package("openvino").save_model(graph, folder / FILES[0], compress_to_fp16=False)


def read(folder: Path) -> Any:
    """Read `FILES` of a graph from a folder."""
    return import_package("openvino").Core().read_model(folder / FILES[0])


def quantize(graph: Any, images: Sequence[NDArray[Any]]) -> Any:
    """Have NNCF quantise the matrix products of a graph to int8: weights by output channel.

    Args:
        graph: of `convert`; it is left as it is.
        images: `(1, C, H, W)` each, as the graph takes them; the ranges of the activations are those on them.
    """
    nncf = import_package("nncf")
    parameters = import_package("nncf.parameters")
    with warnings.catch_warnings(), redirect_stdout(StringIO()):  # its progress bars are drawn on stdout
        warnings.simplefilter("ignore")
        return nncf.quantize(
            graph,
            nncf.Dataset(images),
            model_type=parameters.ModelType.TRANSFORMER,
            subset_size=len(images),
        )


class OpenVINORunner:
    """Computes the logits of images with a compiled graph.

    Args:
        graph: of `convert`, `read` or `quantize`.
        numbers: the type that matrix products are computed in; a quantised graph has int8 written into it.
        threads: that it computes with.
    """

    def __init__(self, graph: Any, numbers: Numbers, threads: int) -> None:
        self._openvino = import_package("openvino")
        self._graph = graph
        # What int8 leaves, norms and sums among it, is computed in bfloat16 where the processor has it.
        short = numbers == "bfloat16" or (numbers == "int8" and has_bfloat16())
        self._settings = {
            "INFERENCE_PRECISION_HINT": "bf16" if short else "f32",
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
        }
        self._last = 0  # images of the call before
        self._fixed: tuple[int, Any] | None = None
        self._any_size: Any = None
        self._lock = threading.Lock()  # a request is for one caller at a time

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        with self._lock:
            request = self._request(len(images))
            logits: NDArray[np.float32] = request.infer([images], share_inputs=True)[0]
        return logits

    def _request(self, batch: int) -> Any:
        """Return a request for a batch: a fixed shape is up to 3 % faster, and takes a compilation.

        The first size that comes twice running is compiled for; all others share a graph for any size.
        """
        if self._fixed is None and batch == self._last:
            fixed = self._graph.clone()
            fixed.reshape([batch, *list(self._graph.inputs[0].partial_shape)[1:]])
            self._fixed = (batch, self._compile(fixed))
        self._last = batch
        if self._fixed is not None and batch == self._fixed[0]:
            return self._fixed[1]
        if self._any_size is None:
            self._any_size = self._compile(self._graph)
        return self._any_size

    def _compile(self, graph: Any) -> Any:
        compiled = self._openvino.Core().compile_model(graph, "CPU", self._settings)
        return compiled.create_infer_request()

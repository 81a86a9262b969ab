"""OpenVINO: graphs that it compiles for the processor, in float32, bfloat16 or int8."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.engines.engine_model import GraphShape
from vitkit.engines.libraries import EnginePrecision, has_bfloat16, import_package

FILES = ("graph.xml", "graph.bin")
"""The files of a graph: operations, and weights."""


def read(folder: Path) -> Any:
    """Read `FILES` of a graph from a folder."""
    return import_package("openvino").Core().read_model(folder / FILES[0])


class OpenVINORunner:
    """Computes the logits of images with a compiled graph.

    Args:
        graph: from `convert`, `read` or `quantize`.
        precision: the type that matrix products are computed in; a quantised graph has int8 written into it.
        threads: number of threads to compute with.
    """

    def __init__(self, graph: Any, precision: EnginePrecision, threads: int) -> None:
        self._openvino = import_package("openvino")
        self._graph = graph
        # Norms, sums and others that int8 leaves out are computed in bfloat16 where the processor has it.
        short = precision == "bfloat16" or (precision == "int8" and has_bfloat16())
        self._settings = {
            "INFERENCE_PRECISION_HINT": "bf16" if short else "f32",
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
        }
        self._last = 0  # images of the call before
        self._fixed: tuple[int, Any] | None = None
        self._any_size: Any = None
        self._lock = threading.Lock()  # a request is for one caller at a time

    def shape(self) -> GraphShape:
        """Return the inputs and outputs of the graph."""

        def sizes(port: Any) -> tuple[int | None, ...]:
            return tuple(size.get_length() if size.is_static else None for size in port.partial_shape)

        return GraphShape(
            tuple((port.element_type.to_dtype().name, sizes(port)) for port in self._graph.inputs),
            tuple(map(sizes, self._graph.outputs)),
        )

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        with self._lock:
            request = self._request(len(images))
            logits: NDArray[np.float32] = request.infer([images], share_inputs=True)[0]
        return logits

    def _request(self, batch: int) -> Any:
        """Return a request for a batch: a fixed shape is up to 3 % faster, and takes a compilation.

        The first size that comes twice running gets a graph of its own; all others use a graph for any size.
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

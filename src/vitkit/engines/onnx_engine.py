"""ONNX Runtime: graphs in the ONNX format, computed in float32."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.engines.engine_model import GraphShape
from vitkit.engines.libraries import import_package

FILES = ("graph.onnx", "graph.onnx.data")
"""The files of a graph: operations, and weights."""


class OnnxRunner:
    """Computes the logits of images with ONNX Runtime.

    Args:
        folder: with `FILES`.
        threads: number of threads to compute with.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        onnxruntime = import_package("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(
            str(folder / FILES[0]), options, providers=["CPUExecutionProvider"]
        )

    def shape(self) -> GraphShape:
        """Return the inputs and outputs of the graph."""

        def sizes(value: Any) -> tuple[int | None, ...]:
            return tuple(size if isinstance(size, int) else None for size in value.shape)

        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        # ONNX Runtime writes a type as tensor(uint8).
        types = [value.type.removeprefix("tensor(").removesuffix(")") for value in inputs]
        return GraphShape(
            tuple((name, sizes(value)) for name, value in zip(types, inputs, strict=True)),
            tuple(map(sizes, outputs)),
        )

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = self._session.run(["logits"], {"images": images})[0]
        return logits

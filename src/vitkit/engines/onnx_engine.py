"""ONNX Runtime: graphs in the ONNX format, computed in float32."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = self._session.run(["logits"], {"images": images})[0]
        return logits

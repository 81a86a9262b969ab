"""ONNX Runtime: graphs in the ONNX format, computed in float32."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.engines.graph import example_images, graph_of
from vitkit.engines.libraries import import_package
from vitkit.models.image_model import ImageModel

FILES = ("graph.onnx", "graph.onnx.data")
"""The files of a graph: operations, and weights."""


def write(model: ImageModel, folder: Path) -> None:
    """Write `FILES` of a model's graph into a folder, for any number of images."""
    with warnings.catch_warnings(), _silent(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")  # exporters warn of what they are told on purpose
        torch.onnx.export(
            graph_of(model),
            (example_images(model),),
            folder / FILES[0],
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            external_data=True,  # one file of this format holds at most 2 GiB
            verbose=False,
        )


@contextmanager
def _silent() -> Iterator[None]:
    """Keep the exporter from logging that it does without torchvision, and which constants it folds."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class OnnxRunner:
    """Computes the logits of images with ONNX Runtime.

    Args:
        folder: with `FILES`.
        threads: that it computes with.
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

"""ONNX Runtime: graphs in the ONNX format, computed in float32."""

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitkit.engines.graph import GraphShape, example_images, graph_of
from vitkit.engines.libraries import import_package
from vitkit.models.image_model import ImageModel
from vitkit.models.resnet import ZeroPaddedMaxPool
from vitkit.models.resnet_config import halve

FILES = ("graph.onnx", "graph.onnx.data")
"""The files of a graph: operations, and weights."""


class UnmergedMaxPool(nn.Module):
    """`ZeroPaddedMaxPool` to the same bits, without a padding before the pooling.

    ONNX Runtime before 1.32, and other programs that simplify such graphs, merge the two nodes into a pooling
    that pads with minus infinity (microsoft/onnxruntime#18136, onnxsim/onnxsim#290). Here the zeros are taken
    into the maximum after the pooling, at those positions whose window reaches over the edge.

    Args:
        size: rows and columns of the map that is pooled.
    """

    edge: Tensor

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        nothing = torch.full((1, 1, *size), -math.inf)
        self.register_buffer("edge", ZeroPaddedMaxPool()(nothing), persistent=False)  # (1, 1, H / 2, W / 2)

    def forward(self, x: Tensor) -> Tensor:
        """Pool `(B, C, H, W)` to `(B, C, H / 2, W / 2)`, sizes rounded up."""
        return torch.maximum(F.max_pool2d(x, 3, 2, padding=1), self.edge)


def write(model: ImageModel, folder: Path) -> None:
    """Write `FILES` of a model's graph into a folder, for any number of images."""
    graph = graph_of(model)
    if isinstance(getattr(graph, "root_pool", None), ZeroPaddedMaxPool):
        graph.root_pool = UnmergedMaxPool(halve(model.config.image_size))  # the root has a stride of 2
    with warnings.catch_warnings(), _silent(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")  # exporters warn of what they are told on purpose
        torch.onnx.export(
            graph,
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

    def shape(self) -> GraphShape:
        """Return what the graph takes and gives."""

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

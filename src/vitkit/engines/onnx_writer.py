"""Write graphs in the ONNX format, which PyTorch makes."""

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.engines.graph import example_images, graph_of
from vitkit.engines.onnx_engine import FILES
from vitkit.models.config.resnet_config import halve
from vitkit.models.image_model import ImageModel
from vitkit.models.resnet import ZeroPaddedMaxPool


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
        warnings.simplefilter("ignore")  # exporters warn of arguments that are meant as they are
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

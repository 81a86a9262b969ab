"""Make OpenVINO's graphs of a model: convert it, quantise it, write it."""

import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.engines.graph import example_images, graph_of
from vitkit.engines.libraries import EnginePrecision, import_package
from vitkit.engines.openvino_engine import FILES, OpenVINORunner
from vitkit.models.image_model import ImageModel
from vitkit.models.stem import ConvStem

TRIAL_IMAGES = 32
"""Images on which two ways of quantising a model are compared; the better one then measures its ranges on
all."""


def convert(model: ImageModel, precision: EnginePrecision) -> Any:
    """Make OpenVINO's graph of a model, for any number of images: an `openvino.Model`.

    Args:
        model: with its weights, which stay float32 in the graph.
        precision: the type that it will be computed in.
    """
    openvino = import_package("openvino")
    shape = [-1, model.config.in_channels, *model.config.image_size]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks of shapes are traced as constants, on purpose
        return openvino.convert_model(
            graph_of(model, precision), example_input=example_images(model), input=[(shape, openvino.Type.u8)]
        )


def write(graph: Any, folder: Path) -> None:
    """Write `FILES` of a graph into a folder, with weights in float32 and not in float16."""
    import_package("openvino").save_model(graph, folder / FILES[0], compress_to_fp16=False)


def quantize(model: ImageModel, graph: Any, images: Sequence[NDArray[np.uint8]]) -> Any:
    """Have NNCF quantise the matrix products of a graph to int8: weights by output channel.

    NNCF can first move outliers of activations into the weights ("smoothing"). That helps some models and
    ruins others: with it a small model with a convolutional stem had an error of 44 % of the logits' standard
    deviation, without it 6 %. Both are tried on some images, and the graph nearer to float32 is taken.

    Args:
        model: the model that the graph was made of.
        graph: from `convert`; it is left as it is.
        images: `(1, C, H, W)` each, on which the ranges of the activations are measured.
    """
    some = images[:TRIAL_IMAGES]
    plain = OpenVINORunner(graph, "float32", torch.get_num_threads())
    expected = np.concatenate([plain(image) for image in some])
    candidates = {smooth: quantize_once(model, graph, some, smooth) for smooth in (False, True)}
    errors = {}
    for smooth, candidate in candidates.items():
        runner = OpenVINORunner(candidate, "int8", torch.get_num_threads())
        logits = np.concatenate([runner(image) for image in some])
        errors[smooth] = float(np.square(logits.astype(np.float64) - expected).sum())
    smooth = errors[True] < errors[False]
    return candidates[smooth] if len(some) == len(images) else quantize_once(model, graph, images, smooth)


def quantize_once(model: ImageModel, graph: Any, images: Sequence[NDArray[np.uint8]], smooth: bool) -> Any:
    """Quantise as `quantize` does, with smoothing or without it."""
    nncf = import_package("nncf")
    ranges = import_package("nncf.quantization.range_estimator").RangeEstimatorParametersSet
    # An alpha below 0 turns smoothing off.
    no_smoothing = {"smooth_quant_alphas": nncf.AdvancedSmoothQuantParameters(matmul=-1)}
    convolutional = isinstance(getattr(model, "stem", None), ConvStem)
    with warnings.catch_warnings(), redirect_stdout(StringIO()):  # its progress bars are drawn on stdout
        warnings.simplefilter("ignore")
        return nncf.quantize(
            graph,
            nncf.Dataset(images),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(images),
            # Everything after a convolutional stem depends on it: with it in float, the error of the logits
            # was less than half.
            ignored_scope=nncf.IgnoredScope(types=["Convolution"]) if convolutional else None,
            # Histograms cut off outliers where that loses least; least and largest numbers keep them all,
            # and the error of the logits was three times as large.
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                activations_range_estimator_params=ranges.HISTOGRAM, **({} if smooth else no_smoothing)
            ),
        )

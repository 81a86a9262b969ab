"""Peers that take long to make: engines that compute in int8, and timm compiled.

Their speed is compared and not their accuracy: weights and calibration images are random.
"""

import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from benchmarks.contestants import graph_to_export
from numpy.typing import NDArray

from vitkit.engines.folder import OpenVINORunner
from vitkit.engines.libraries import import_package
from vitkit.jobs.bench import Contestant
from vitkit.models.config import ViTConfig

CALIBRATION_BATCHES = 4
"""Random ones: enough for ranges, which are all that speed needs."""


def compiled(contestant: Contestant, backend: str = "inductor") -> Contestant:
    """Give a contestant whose forward pass is compiled whole; it shares the model with the one given."""

    def call(images: torch.Tensor) -> Any:
        return contestant.logits(images)

    logits: Any = torch.compile(call, backend=backend)
    # A library of its own name: ratios are taken to a library as it comes.
    library = f"{contestant.library} compiled"
    return replace(contestant, name=f"{contestant.name}, compiled", library=library, logits=logits)


def int8_contestants(config: ViTConfig, images: torch.Tensor) -> Iterator[Contestant]:
    """Give the installed engines' int8 of our plain graph: quantised statically (NNCF) and dynamically.

    Args:
        config: of the model.
        images: `(B, C, H, W)`, normalised, of the batch that is timed, on the CPU.
    """
    model = graph_to_export(config)
    for make, packages in ((_openvino, ("openvino", "nncf")), (_onnxruntime, ("onnxruntime", "onnx"))):
        if not all(find_spec(package) for package in packages):
            continue
        try:
            with warnings.catch_warnings():  # exporters warn of what they are told on purpose
                warnings.simplefilter("ignore")
                yield make(model, images)
        except Exception as error:  # a broken installation raises what it likes
            print(f"{packages[0]} int8 is left out: {type(error).__name__}: {error}", file=sys.stderr)


def quantized_by_default(graph: Any, images: Sequence[NDArray[Any]]) -> Any:
    """Quantise OpenVINO's graph of any library as NNCF does it for transformers without further options."""
    nncf = import_package("nncf")
    with warnings.catch_warnings(), redirect_stdout(StringIO()):  # its progress bars are drawn on stdout
        warnings.simplefilter("ignore")
        return nncf.quantize(
            graph, nncf.Dataset(images), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(images)
        )


def _openvino(model: torch.nn.Module, images: torch.Tensor) -> Contestant:
    openvino = import_module("openvino")
    graph = openvino.convert_model(model, example_input=images, input=list(images.shape))
    noise = [torch.randn_like(images).numpy() for _ in range(CALIBRATION_BATCHES)]
    runner = OpenVINORunner(quantized_by_default(graph, noise), "int8", torch.get_num_threads())
    return Contestant("openvino int8 (NNCF)", "openvino", "int8", None, lambda images: runner(images.numpy()))


def _onnxruntime(model: torch.nn.Module, images: torch.Tensor) -> Contestant:
    onnxruntime = import_module("onnxruntime")
    quantization = import_module("onnxruntime.quantization")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="vitkit-") as folder:
        plain, small = Path(folder) / "model.onnx", Path(folder) / "int8.onnx"
        torch.onnx.export(model, (images,), plain, verbose=False)
        exported = import_module("onnx").load(plain)
        del exported.graph.value_info[:]  # shapes of the exporter, which the quantiser takes for wrong
        quantization.quantize_dynamic(exported, small, weight_type=quantization.QuantType.QInt8)
        session = onnxruntime.InferenceSession(str(small), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def logits(images: torch.Tensor) -> Any:
        return session.run(None, {name: images.numpy()})[0]

    return Contestant("onnxruntime int8 (dynamic)", "onnxruntime", "int8", None, logits)

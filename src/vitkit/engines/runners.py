"""A model that an engine computes: its graph takes pixels and gives logits, arrays of numpy both.

OpenVINO compiles graphs for the processor, in float32, bfloat16 or int8; ONNX Runtime computes in float32.
Neither torch nor an engine is imported before a graph is read.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.engines.libraries import EnginePrecision, GraphEngine, has_bfloat16, import_package
from vitkit.errors import VitkitError
from vitkit.models.config.card import Card
from vitkit.models.config.vit_config import Gelu
from vitkit.models.zoo import ModelConfig

FILES: dict[GraphEngine, tuple[str, str]] = {
    "openvino": ("graph.xml", "graph.bin"),
    "onnxruntime": ("graph.onnx", "graph.onnx.data"),
}
"""The files of a graph: operations, and weights."""

Runner = Callable[[NDArray[np.uint8]], NDArray[np.float32]]
"""A function of an engine: images `(B, C, H, W)`, contiguous, to logits `(B, K)`. B may change."""


@dataclass(frozen=True)
class EngineModel:
    """A model whose logits an engine computes: images in, logits out, and nothing between them."""

    config: ModelConfig
    """The configuration of the model that the engine's graph was made of."""
    card: Card
    runner: Runner

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Compute logits `(B, K)` of uint8 images `(B, C, H, W)`.

        Raises:
            VitkitError: images of another size or type.
        """
        expected = (self.config.in_channels, *self.config.image_size)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != expected:
            raise VitkitError(
                f"This model takes uint8 images (B, {', '.join(map(str, expected))}), found "
                f"{images.shape} of {images.dtype}."
            )
        return self.runner(np.ascontiguousarray(images))


class OpenVINORunner:
    """Computes the logits of images with a compiled graph.

    Args:
        graph: an `openvino.Model`, or the folder that holds its files.
        precision: the type that matrix products are computed in; a quantised graph has int8 written into it.
        threads: number of threads to compute with.
    """

    def __init__(self, graph: Any, precision: EnginePrecision, threads: int) -> None:
        self._core = import_package("openvino").Core()
        is_folder = isinstance(graph, Path)
        self._graph = self._core.read_model(graph / FILES["openvino"][0]) if is_folder else graph
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

    def shape(self) -> str:
        """Describe the inputs and outputs of the graph, as `describe_shape` does."""

        def sizes(port: Any) -> list[object]:
            return [size.get_length() if size.is_static else None for size in port.partial_shape]

        inputs = [(port.element_type.to_dtype().name, sizes(port)) for port in self._graph.inputs]
        return describe_shape(inputs, map(sizes, self._graph.outputs))

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
        return self._core.compile_model(graph, "CPU", self._settings).create_infer_request()


class OnnxRunner:
    """Computes the logits of images with ONNX Runtime.

    Args:
        folder: with the files of the graph.
        threads: number of threads to compute with.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        onnxruntime = import_package("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(
            str(folder / FILES["onnxruntime"][0]), options, providers=["CPUExecutionProvider"]
        )

    def shape(self) -> str:
        """Describe the inputs and outputs of the graph, as `describe_shape` does."""
        # ONNX Runtime writes a type as tensor(uint8).
        inputs = [(value.type[len("tensor(") : -1], value.shape) for value in self._session.get_inputs()]
        return describe_shape(inputs, (value.shape for value in self._session.get_outputs()))

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = self._session.run(["logits"], {"images": images})[0]
        return logits


def describe_shape(
    inputs: Iterable[tuple[str, Iterable[object]]], outputs: Iterable[Iterable[object]]
) -> str:
    """Describe the inputs and outputs of a graph: "uint8 Nx3x224x224 to Nx1000".

    Args:
        inputs: the type of each input's numbers, and its sizes; one that is no number may change.
        outputs: the sizes of each output.
    """

    def product(sizes: Iterable[object]) -> str:
        return "x".join(str(size) if isinstance(size, int) else "N" for size in sizes)

    read = " and ".join(f"{name} {product(sizes)}" for name, sizes in inputs)
    return f"{read} to {' and '.join(map(product, outputs))}"


def shape_of(config: ModelConfig) -> str:
    """Describe the inputs and outputs of the graph of a model."""
    images = (None, config.in_channels, *config.image_size)
    return describe_shape([("uint8", images)], [(None, config.num_classes)])


def computed_gelu(config: ModelConfig, precision: EnginePrecision) -> Gelu | None:
    """Return the form of GELU in the graph of a model; None where the model has none.

    The tanh form becomes the exact one where numbers are short: the two differ by 5e-4 at most, less than
    numbers of 8 bits do from each other, and OpenVINO computes the exact form in half the time.
    """
    gelu: Gelu | None = getattr(config, "gelu", None)
    return "erf" if gelu == "tanh" and precision != "float32" else gelu


def describe_gelu(config: ModelConfig, precision: EnginePrecision) -> list[str]:
    """Say that the graph of a model has another form of GELU than the model, if it has."""
    own, computed = computed_gelu(config, "float32"), computed_gelu(config, precision)
    if own == computed:
        return []
    return [
        f"in {precision} its GELU is computed in the exact form ({computed}), the model's is the {own} form: "
        "the two differ by 5e-4 at most"
    ]

"""The folder of an exported engine, a bundle: its graph, `model.json` with the description of the model, and
`engine.json`, which holds the hashes of all its files.

It is enough to predict and to evaluate anywhere where the engine is installed. The graph takes pixels and
gives logits, arrays of numpy both. `vitkit.engines.golden` has what another
machine is checked by. OpenVINO compiles graphs for the processor, in float32, bfloat16 or int8; ONNX Runtime
computes in float32 or int8. No engine is imported before a graph is read.
"""

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit._version import __version__
from vitkit.config import describe_value, from_json, to_json, write
from vitkit.durable import read_json
from vitkit.engines import libraries
from vitkit.errors import VitkitError
from vitkit.evaluation.statistics import binomial_interval
from vitkit.models.config import Card, Gelu, ModelConfig
from vitkit.weights.files.checksum import Checksum, checksum_of, verify
from vitkit.weights.model_card import Described, ModelCard, describe, preprocessing_of, read_description

FILES: dict[libraries.GraphEngine, tuple[str, str]] = {
    "openvino": ("graph.xml", "graph.bin"),
    "onnxruntime": ("graph.onnx", "graph.onnx.data"),
}
"""The files of a graph: operations, and weights."""
MODEL = "model.json"
"""The file that describes the model: architecture and card."""
GOLDEN, GOLDEN_ARRAYS = "golden", "golden.npz"
"""The folder of golden images, and the arrays that the exporting machine made of them."""
_MORE_FILES = {GOLDEN_ARRAYS, "check.py", "README.md"}
"""The files of a bundle beside graph, model and golden images; a graph in the cache has none of them."""


def is_golden(name: str) -> bool:
    """Whether a file name is that of a golden image: 01.jpg."""
    return re.fullmatch(r"[0-9]{2}\.[a-z0-9]{1,8}", name) is not None


Runner = Callable[[NDArray[np.uint8]], NDArray[np.float32]]
"""A function of an engine: images `(B, C, H, W)`, contiguous, to logits `(B, K)`, and with the scores of a
model that has a `Novelty` behind them `(B, K + 1)`. B may change."""


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
        return self.with_novelty(images)[:, : self.config.num_classes]

    def with_novelty(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Compute logits, and the score of a model that has a `Novelty`, `(B, K + 1)`; else `(B, K)`."""
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
        graph: an `openvino.Model`, or the path of its file, which may be an ONNX graph.
        precision: the type that matrix products are computed in; a quantised graph has int8 written into it.
        threads: number of threads to compute with.
        compiled: the folder in which compiled graphs are kept; None: they are compiled anew.
        side_by_side: whether so many callers as threads compute at a time, each with one thread.
    """

    def __init__(
        self,
        graph: Any,
        precision: libraries.EnginePrecision,
        threads: int,
        compiled: Path | None = None,
        side_by_side: bool = False,
    ) -> None:
        self._core = libraries.import_package("openvino").Core()
        self._graph = self._core.read_model(graph) if isinstance(graph, Path) else graph
        # Norms, sums and others that int8 leaves out are computed in bfloat16 where the processor has it.
        short = precision == "bfloat16" or (precision == "int8" and libraries.has_bfloat16())
        self._settings = {
            "INFERENCE_PRECISION_HINT": "bf16" if short else "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,  # else activations beside weights of 8 bits are rounded too
            "INFERENCE_NUM_THREADS": threads,
            **({"NUM_STREAMS": threads} if side_by_side else {"PERFORMANCE_HINT": "LATENCY"}),
            **({} if compiled is None else {"CACHE_DIR": str(compiled)}),
        }
        self._last = 0  # images of the call before
        self._fixed: tuple[int, Any] | None = None
        self._any_size: Any = None
        self._lock = threading.Lock()  # a request is for one caller at a time
        self._idle: SimpleQueue[Any] | None = None
        if side_by_side:
            self._idle, compiled_graph = SimpleQueue(), self._compile(self._graph)
            for _ in range(threads):
                self._idle.put(compiled_graph.create_infer_request())

    def shape(self) -> str:
        """Describe the inputs and outputs of the graph, as `describe_shape` does."""

        def sizes(port: Any) -> list[object]:
            return [size.get_length() if size.is_static else None for size in port.partial_shape]

        inputs = [(port.element_type.to_dtype().name, sizes(port)) for port in self._graph.inputs]
        return describe_shape(inputs, map(sizes, self._graph.outputs))

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        if self._idle is None:
            with self._lock:
                return self._infer(self._request(len(images)), images)
        request = self._idle.get()
        try:
            return self._infer(request, images)
        finally:
            self._idle.put(request)

    def _infer(self, request: Any, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        outputs = request.infer([images], share_inputs=True)
        return joined([outputs[number] for number in range(len(self._graph.outputs))])

    def _request(self, batch: int) -> Any:
        """Return a request for a batch: a fixed shape is up to 3 % faster, and takes a compilation.

        The first size that comes twice running gets a graph of its own; all others use a graph for any size.
        """
        if self._fixed is None and batch == self._last:
            fixed = self._graph.clone()
            fixed.reshape([batch, *list(self._graph.inputs[0].partial_shape)[1:]])
            self._fixed = (batch, self._compile(fixed).create_infer_request())
        self._last = batch
        if self._fixed is not None and batch == self._fixed[0]:
            return self._fixed[1]
        if self._any_size is None:
            self._any_size = self._compile(self._graph).create_infer_request()
        return self._any_size

    def _compile(self, graph: Any) -> Any:
        return self._core.compile_model(graph, "CPU", self._settings)


class OnnxRunner:
    """Computes the logits of images with ONNX Runtime.

    Args:
        folder: with the files of the graph.
        threads: number of threads to compute with.
        side_by_side: whether each caller computes in its own thread, and any number of them at a time.
    """

    def __init__(self, folder: Path, threads: int, side_by_side: bool = False) -> None:
        onnxruntime = libraries.import_package("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1 if side_by_side else threads
        graph = str(folder / FILES["onnxruntime"][0])
        self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def shape(self) -> str:
        """Describe the inputs and outputs of the graph, as `describe_shape` does."""
        # ONNX Runtime writes a type as tensor(uint8).
        inputs = [(value.type[len("tensor(") : -1], value.shape) for value in self._session.get_inputs()]
        return describe_shape(inputs, (value.shape for value in self._session.get_outputs()))

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        return joined(self._session.run(None, {"images": images}))


def joined(outputs: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Set the scores `(B,)` of a graph, if it has any, behind its logits `(B, K)`."""
    logits, *scores = outputs
    return np.column_stack([logits, *scores]) if scores else logits


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


def shape_of(config: ModelConfig, card: Card, inside: bool = False) -> str:
    """Describe the inputs and outputs of the graph of a model, which resizes images itself if `inside`."""
    size = (None, None) if inside else config.image_size
    images, scores = (None, config.in_channels, *size), [] if card.refusal is None else [(None,)]
    return describe_shape([("uint8", images)], [(None, config.num_classes), *scores])


def computed_gelu(config: ModelConfig, precision: libraries.EnginePrecision) -> Gelu | None:
    """Return the form of GELU in the graph of a model; None where the model has none.

    The tanh form becomes the exact one where numbers are short: the two differ by 5e-4 at most, less than
    numbers of 8 bits do from each other, and OpenVINO computes the exact form in half the time.
    """
    gelu: Gelu | None = getattr(config, "gelu", None) if getattr(config, "mlp", "") == "gelu" else None
    return "erf" if gelu == "tanh" and precision != "float32" else gelu


def describe_gelu(config: ModelConfig, precision: libraries.EnginePrecision) -> list[str]:
    """Say that the graph of a model has another form of GELU than the model, if it has."""
    own, computed = computed_gelu(config, "float32"), computed_gelu(config, precision)
    if own == computed:
        return []
    return [
        f"in {precision} its GELU is computed in the exact form ({computed}), the model's is the {own} form: "
        "the two differ by 5e-4 at most"
    ]


FORMAT = "vitkit-engine"
FORMAT_VERSION = 3
"""Another number is a format that this vitkit does not read."""
LOWEST_AGREEMENT = 0.99
"""Fraction of equal answers below which an exported model counts as another model."""


@dataclass(frozen=True)
class Agreement:
    """The comparison of an engine's logits and answers with PyTorch's in float32, on the same images."""

    compared_on: str
    """The images, as a phrase: "16 test images of photos"."""
    images: int
    batches: tuple[int, ...]
    """Images that the engine computed at a time, each number once."""
    difference: float
    """Largest difference of two logits."""
    spread: float
    """Standard deviation of PyTorch's logits, over images and classes."""
    logit_error: float
    """Root of the mean squared difference of the logits, as a fraction of their standard deviation."""
    largest: float
    """Largest absolute logit of PyTorch's."""
    answers: int
    """Answers that were compared: one for an image, or one for each label of an image; 0 for none."""
    same: int
    """Answers that are the same."""
    same_refusals: int | None = None
    """Images that both refuse or both accept; None for a model that refuses nothing."""

    def __post_init__(self) -> None:
        if not self.batches or not 0 <= self.same <= self.answers:
            raise VitkitError("an agreement has batches, and at most as many equal answers as answers.")

    @property
    def fraction_same(self) -> float:
        """The fraction of answers that are the same, from 0 to 1."""
        return self.same / max(self.answers, 1)

    def __str__(self) -> str:
        *most, last = map(str, self.batches)
        sizes = f"{', '.join(most)} and {last}" if most else last
        far = f"{self.difference:.1e}"
        if self.spread:
            far = f"{self.difference / self.spread:.1e} of their standard deviation"
        logits = f"logits at most {far} from PyTorch's, on {self.compared_on} in batches of {sizes}"
        if self.same_refusals is not None:
            logits += f", refused or accepted alike on {self.same_refusals:,} of {self.images:,}"
        if not self.answers:
            return logits
        interval = ""
        if self.answers == self.images:  # several answers on an image change together
            low, high = binomial_interval(self.same, self.answers)
            interval = f", 95 % interval {low:.1%} to {high:.1%}"
        return (
            f"{self.same:,} of {self.answers:,} answers as in float32 ({self.fraction_same:.2%}{interval}), "
            f"logit error {self.logit_error:.2%} of their standard deviation, {logits}"
        )


@dataclass(frozen=True)
class EngineRecord:
    """The contents of `engine.json` that vitkit reads."""

    engine: libraries.GraphEngine
    precision: libraries.EnginePrecision
    agreement: Agreement
    """The comparison with PyTorch that was made when the graph was."""
    files: Mapping[str, Checksum]
    """All files of the folder but `engine.json`, by their paths in it."""
    model: Mapping[str, Any]
    """The contents of `model.json`."""
    inside: bool = False
    """Whether the graph takes images of any size, and resizes them itself."""

    @cached_property
    def described(self) -> tuple[ModelConfig, ModelCard]:
        """Read the architecture and the card of the model.

        Raises:
            VitkitError: they are damaged.
        """
        return read_description(self.model, Path(MODEL))

    @property
    def notes(self) -> tuple[str, ...]:
        """Phrases for the user, each of which follows the folder's path."""
        gelu = describe_gelu(self.described[0], self.precision)
        return (f"{self.precision} by {self.engine}; when exported: {self.agreement}", *gelu)


def write_description(
    folder: Path,
    model: Described,
    engine: libraries.GraphEngine,
    precision: libraries.EnginePrecision,
    agreement: Agreement,
    calibration: str | None,
    inside: bool = False,
) -> None:
    """Write `model.json` and `engine.json`, which describe all other files of a folder.

    Args:
        folder: with the files of the graph, and of a bundle all others.
        model: the model that the graph was made of.
        engine, precision: the engine and the precision that it was made for.
        agreement: of the engine with the model.
        calibration: the images that it was calibrated on, as a phrase.
        inside: whether the graph resizes images itself.
    """
    write(folder / MODEL, describe(model))
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    record = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "vitkit_version": __version__,
        "engine": engine,
        "engine_version": version(engine),
        "precision": precision,
        "calibration": calibration,
        "agreement": to_json(agreement),
        "inside": inside,
        "gelu": computed_gelu(model.config, precision),
        "preprocessing": to_json(preprocessing_of(model)),  # whole, for programs that do without vitkit
        "files": {path.relative_to(folder).as_posix(): to_json(checksum_of(path)) for path in files},
    }
    write(folder / libraries.DESCRIPTION, record | {"sha256": _digest(record)})


def _digest(record: Mapping[str, Any]) -> str:
    """Hash a description without its own hash, whatever the spaces and the order of its keys."""
    rest = {key: value for key, value in record.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read_description_of(folder: Path) -> EngineRecord:
    """Read `engine.json` and `model.json`, after a check of the hashes of all files that a bundle has.

    Raises:
        VitkitError: it was changed, or is of another format; or the files are others, or not in the folder.
    """
    path = folder / libraries.DESCRIPTION
    _require_inside(folder, libraries.DESCRIPTION)
    data = read_json(path)
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise VitkitError(f"{path} is not what vitkit export writes (its 'format' is not '{FORMAT}').")
    if data.get("format_version") != FORMAT_VERSION:
        raise VitkitError(
            f"{path} was written by vitkit {data.get('vitkit_version')} in another format than this vitkit "
            f"({__version__}) reads: export the model again, or pip install -U vitkit."
        )
    if data.get("sha256") != _digest(data):
        raise VitkitError(
            f"{path} is not as vitkit export wrote it: its contents do not have the hash that it holds. Copy "
            "the whole folder again, or export the model again with what should be different."
        )
    fields = EngineRecord.__dataclass_fields__
    stated = {key: data[key] for key in data if key in fields} | {"model": {}}
    record = from_json(EngineRecord, stated, str(path))
    inside = {name for name in _MORE_FILES if (folder / name).exists()}
    inside |= {f"{GOLDEN}/{file.name}" for file in folder.glob(f"{GOLDEN}/*") if is_golden(file.name)}
    expected = (*FILES[record.engine], MODEL, *sorted(inside))
    if record.files.keys() != {*expected}:
        raise VitkitError(
            f"{path}: files: expected {', '.join(expected)}, which are names and no paths, found "
            f"{', '.join(map(describe_value, record.files))}. Copy the whole folder again, or export the "
            "model again."
        )
    for name, checksum in record.files.items():
        _require_inside(folder, name)
        try:
            verify(folder / name, checksum)
        except (VitkitError, OSError) as error:
            raise VitkitError(
                f"{folder / name} is not the file that {libraries.DESCRIPTION} beside it describes: it "
                "is missing, was damaged or replaced. Copy the whole folder again, or export the model again."
            ) from error
    record = replace(record, model=read_json(folder / MODEL))
    read_description(record.model, folder / MODEL)  # for its error, which names the folder
    return record


def _require_inside(folder: Path, name: str) -> None:
    """Refuse a path that is there and is no regular file, or a link out of the folder."""
    path = folder / name
    try:
        regular = not path.exists() or path.is_file()
        inside = path.resolve().parent == folder.resolve() / Path(name).parent
    except (OSError, RuntimeError):  # a link to itself
        regular = inside = False
    if not (regular and inside):
        kind = "a link out of it" if regular else "a folder, a pipe, a device or a link to itself"
        raise VitkitError(
            f"{path}: expected a regular file in this folder, found {kind}: copy the files themselves into "
            "the folder."
        )


def serve_folder(
    folder: Path,
    threads: int,
    compiled: Path | None = None,
    engine: libraries.GraphEngine | None = None,
    side_by_side: bool = False,
) -> tuple[EngineModel, EngineRecord]:
    """Have an engine compute the graph in a folder that `vitkit export` wrote.

    Args:
        folder: what was written.
        threads: number of threads to compute with.
        compiled: the folder in which OpenVINO keeps what it compiles, if there is one.
        engine: left out, that of the export; OpenVINO reads the graph of the other engine too.
        side_by_side: whether so many callers as threads compute at a time, each with one thread. Batches are
            then computed faster, by 15 % on two cores, as no thread waits for another; a lone one slower.

    Raises:
        VitkitError: the folder is damaged, or describes another graph than its own; or the engine is not
            installed, or cannot read the graph.
    """
    record = read_description_of(folder)
    engine = engine or record.engine
    if engine == "onnxruntime" != record.engine:
        raise VitkitError(
            f"{folder} holds a graph of OpenVINO, which ONNX Runtime cannot read: export the model with "
            "--format onnx, which both engines read."
        )
    libraries.require_engine(engine, writes=False)
    if record.precision == "bfloat16":
        libraries.refuse_precision(engine, record.precision)
    advice = "Export the model again with the version that is installed."
    with libraries.refusing(engine, f"read the graph in {folder}", advice):
        runner: OpenVINORunner | OnnxRunner
        if engine == "openvino":
            graph = folder / FILES[record.engine][0]
            # int8 of ONNX is of weights alone, and computed in float32 on every engine.
            precision = record.precision if record.engine == "openvino" else "float32"
            runner = OpenVINORunner(graph, precision, threads, compiled, side_by_side)
        else:
            runner = OnnxRunner(folder, threads, side_by_side)
        shape, expected = runner.shape(), shape_of(*record.described, record.inside)
    if shape != expected:  # the hashes say that the files are whole, and nothing of what they compute
        path = folder / libraries.DESCRIPTION
        raise VitkitError(
            f"{path} describes a model from images to logits of {expected}, and the graph beside it goes "
            f"from {shape}: these two do not belong together. Export the model again."
        )
    return EngineModel(*record.described, runner), record

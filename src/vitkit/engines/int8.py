"""int8 for ONNX Runtime: matrix products of 8 bits, with a scale for each row of activations.

ONNX Runtime's own ways were tried first, on a ViT-S/14 with outliers in its activations (DINOv2's). Ranges
that are measured beforehand, one for a layer, changed the answers to 3 % of the images (MinMax) and 7 %
(NNCF). Ranges of the moment, again one for a layer, changed 1.5 %, and an image's answer depended on the
images beside it. A range for each row, which is a token, changes less, and each image is alone. Outliers
stand in few channels: these are divided, and the rows of the weights multiplied, by a factor of each channel
("SmoothQuant", Xiao et al. 2022, arXiv 2211.10438, equation 4), where that brings the logits nearer to
float32.

Shapes: N rows, K channels in, M channels out.
"""

import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.engines.libraries import import_package

TRIAL_IMAGES = 32
"""Images on which two ways of quantising a model are compared."""
SMOOTHING = (0.0, 0.5)
"""The exponents of smoothing that are tried: none, and the one of its authors."""
MOST = 127
"""The largest level of a symmetric range of 8 bits."""
DATA = "graph.onnx.data"


def quantize_onnx(path: Path, images: Sequence[NDArray[np.uint8]], threads: int) -> None:
    """Replace a graph in ONNX, of float32, by one whose matrix products or convolutions are of int8.

    A head, convolutions beside matrix products and the score of novelty stay in float32.

    Args:
        path: its file.
        images: `(1, C, H, W)` each, on which the ranges of the channels are measured.
        threads: number of threads to compute with.
    """
    onnx = import_package("onnx")
    weights = {tensor.name: tensor for tensor in onnx.load(path).graph.initializer}
    products = [node for node in onnx.load(path).graph.node if _is_product(node, weights)]
    if not products:
        _quantize_convolutions(path, images)
        return
    some = images[:TRIAL_IMAGES]
    with tempfile.TemporaryDirectory(prefix="vitkit-", dir=path.parent) as place:
        measured = Path(place) / "measured.onnx"
        model = onnx.load(path)
        inputs = list(dict.fromkeys(node.input[0] for node in products))
        model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in inputs)
        save_onnx(model, measured)
        largest = dict[str, NDArray[np.float32]]()
        expected = list[NDArray[np.float32]]()
        session = _session(measured, threads)
        for image in images:
            logits, *activations = session.run(["logits", *inputs], {"images": image})
            expected.append(logits)
            for name, values in zip(inputs, activations, strict=True):
                own = np.abs(values).reshape(-1, values.shape[-1]).max(0)
                largest[name] = np.maximum(largest.get(name, own), own)
        errors = list[float]()
        for exponent in SMOOTHING:
            candidate = Path(place) / f"{exponent}.onnx"
            model = onnx.load(path)
            _replace_products(model.graph, largest, exponent)
            save_onnx(model, candidate)
            session = _session(candidate, threads)
            made = np.concatenate([session.run(["logits"], {"images": image})[0] for image in some])
            errors.append(float(np.square(made - np.concatenate(expected[: len(some)])).sum()))
        model = onnx.load(Path(place) / f"{SMOOTHING[int(np.argmin(errors))]}.onnx")
    (path.parent / DATA).unlink(missing_ok=True)
    save_onnx(model, path)


def _session(path: Path, threads: int) -> Any:
    runtime = import_package("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors: it warns of each shape that the measured outputs do not state
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def save_onnx(model: Any, path: Path) -> None:
    """Write a graph and its weights, in a file of their own."""
    data = DATA if path.name == "graph.onnx" else f"{path.name}.data"
    onnx = import_package("onnx")
    # Shapes, which are shorter, stand in the graph, where they are looked for before weights are read.
    onnx.save(model, path, save_as_external_data=True, location=data, size_threshold=128)


def _is_product(node: Any, weights: dict[str, Any]) -> bool:
    """Whether a node is a matrix product with weights, and not a distance of a `Novelty`."""
    # A distance is a difference of large squares: int8 has too few digits for it.
    inside = any(
        each.key == "pkg.torch.onnx.name_scopes" and "'novelty'" in each.value for each in node.metadata_props
    )
    return node.op_type == "MatMul" and node.input[1] in weights and not inside


def _replace_products(graph: Any, largest: dict[str, NDArray[np.float32]], exponent: float) -> None:
    """Write the products of a graph in int8.

    Args:
        graph: in ONNX.
        largest: `(K,)` the largest absolute value of each channel, by the name of a product's input.
        exponent: of smoothing.
    """
    onnx = import_package("onnx")
    weights, nodes = {tensor.name: tensor for tensor in graph.initializer}, list[Any]()
    factors: dict[str, NDArray[np.float32]] = {}

    def constant(name: str, value: Any) -> str:
        graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        nodes.append(onnx.helper.make_node(kind, inputs, [output], **attributes))
        return output

    products = {id(each): each for each in graph.node if _is_product(each, weights)}
    of_input: dict[str, list[NDArray[np.float32]]] = {}
    for each in products.values():
        of_input.setdefault(each.input[0], []).append(onnx.numpy_helper.to_array(weights[each.input[1]]))
    axis, zero = constant("int8_axis", np.array([-1])), constant("int8_zero", np.uint8(MOST + 1))
    most, middle = constant("int8_most", np.float32(MOST)), constant("int8_middle", np.float32(MOST + 1))
    least = constant("int8_least", np.float32(1e-12))  # a row of zeros has no scale
    for each in list(graph.node):
        if id(each) not in products:
            nodes.append(each)
            continue
        x, output = each.input[0], each.output[0]
        scaled = f"{x}_int8"
        if x not in factors:  # queries, keys and values share theirs
            rows = np.max([np.abs(weight).max(1) for weight in of_input[x]], axis=0)
            ratio = np.maximum(largest[x], 1e-5) ** exponent / np.maximum(rows, 1e-5) ** (1 - exponent)
            factors[x] = (ratio if exponent else np.ones_like(ratio)).astype(np.float32)
            smooth = x
            if exponent:
                smooth = node("Mul", [x, constant(f"{x}_smooth", 1 / factors[x])], f"{x}_smoothed")
            row = node("ReduceMax", [node("Abs", [smooth], f"{x}_absolute"), axis], f"{x}_row")
            row = node("Div", [node("Max", [row, least], f"{x}_range"), most], f"{x}_scale")
            levels = node("Round", [node("Div", [smooth, row], f"{x}_levels")], f"{x}_rounded")
            # Unsigned: the instructions for int8 (VNNI) take activations so.
            node("Cast", [node("Add", [levels, middle], f"{x}_unsigned")], scaled, to=onnx.TensorProto.UINT8)
        weight = onnx.numpy_helper.to_array(weights[each.input[1]]) * factors[x][:, None]
        columns = np.maximum(np.abs(weight).max(0), 1e-12) / MOST  # (M,)
        levels = constant(f"{output}_weight", np.rint(weight / columns).astype(np.int8))
        sums = node("MatMulInteger", [scaled, levels, zero], f"{output}_sums")
        sums = node("Cast", [sums], f"{output}_float", to=onnx.TensorProto.FLOAT)
        sums = node("Mul", [sums, f"{x}_scale"], f"{output}_rows")
        node("Mul", [sums, constant(f"{output}_columns", columns.astype(np.float32))], output)
    used = {name for each in nodes for name in each.input}
    left = [tensor for tensor in graph.initializer if tensor.name in used]
    for part, values in ((graph.initializer, left), (graph.node, nodes), (graph.value_info, [])):
        del part[:]
        part.extend(values)


def _quantize_convolutions(path: Path, images: Sequence[NDArray[np.uint8]]) -> None:
    """Write the convolutions of a network without matrix products in int8, by ONNX Runtime's own tool.

    Their ranges are those of the images, for each layer, and for each output channel of the weights.
    """
    tool = import_package("onnxruntime.quantization")

    inputs = ({"images": image} for image in images)
    reader = SimpleNamespace(get_next=lambda: next(inputs, None))
    with tempfile.TemporaryDirectory(prefix="vitkit-", dir=path.parent) as place:
        made = Path(place) / "made.onnx"
        with redirect_stdout(StringIO()):
            tool.quantize_static(
                path,
                made,
                reader,
                op_types_to_quantize=["Conv"],
                per_channel=True,
                quant_format=tool.QuantFormat.QDQ,
                activation_type=tool.QuantType.QUInt8,
                weight_type=tool.QuantType.QInt8,
            )
        model = import_package("onnx").load(made)
    (path.parent / DATA).unlink(missing_ok=True)
    save_onnx(model, path)
